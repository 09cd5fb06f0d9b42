"""Files that are written when all is done: whether they can be is found out before anything begins."""

from __future__ import annotations

import os
from pathlib import Path


class UnwritableFileError(OSError):
    """A file that was asked for cannot be written; the message says what to do."""


def prepared(path: str | Path) -> Path:
    """The path, with its folder made if it was not there."""
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        refused = file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)
    except OSError:
        refused = True
    if refused:
        raise UnwritableFileError(f"{path} cannot be written: name a file in a folder where files can be made")
    return file
