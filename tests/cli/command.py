"""Runs the command in this process."""

from __future__ import annotations

import pytest

from gradvet.cli import main


def exit_code(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    return raised.value.code or 0
