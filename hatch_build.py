"""The description on the package index: README.md, in which links to files of the repository are plain text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"\((?!https?://)[^)]+\)"
IMAGE, LINK = re.compile(rf"!\[[^\]]*\]{RELATIVE}\n+"), re.compile(rf"\[([^\]]+)\]{RELATIVE}")


def description(readme: str) -> str:
    """The text without images that are files of the repository, and with the words of links to such files."""
    return LINK.sub(r"\1", IMAGE.sub("", readme))


class DescriptionHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text)}
