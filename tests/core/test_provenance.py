"""What a report runs on."""

from __future__ import annotations

import importlib.metadata

import pytest

from gradvet.core.provenance import environment


def test_package_that_is_not_installed_is_left_out_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "gradvet":
            raise importlib.metadata.PackageNotFoundError(package)
        return "1.2"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = environment.__wrapped__()
    assert {name: found[name] for name in found if name not in ("python", "platform")} == {
        "torch": "1.2",
        "numpy": "1.2",
    }
