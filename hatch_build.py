"""What the package index shows and only a build can know: the address of the repository, and README.md with its links.

Links of the README to files lead into the repository. Where its address is not known, they are plain text.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"\((?!https?://)([^)]+)\)"
IMAGE, LINK = re.compile(rf"!\[[^\]]*\]{RELATIVE}\n+"), re.compile(rf"\[([^\]]+)\]{RELATIVE}")
REMOTE = re.compile(r"(?:https://(?:[^@/]+@)?|(?:ssh://)?git@)([\w-]+(?:\.[\w-]+)+)[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?")


def repository(root: str) -> str:
    """The public address: of the GitHub workflow that builds, of the remote `origin`, or in the source distribution."""
    if {"GITHUB_SERVER_URL", "GITHUB_REPOSITORY"} <= os.environ.keys():
        return f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
    if (known := Path(root, "PKG-INFO")).is_file():
        found = re.search(r"^Project-URL: Repository, (\S+)$", known.read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else ""
    command = ["git", "-C", root, "remote", "get-url", "origin"]
    try:
        remote = REMOTE.fullmatch(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    except OSError:  # there is no git
        return ""
    return f"https://{remote[1]}/{remote[2]}" if remote else ""


def urls(address: str) -> dict[str, str]:
    """The links beside the description."""
    pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    files = {name: f"{address}/blob/main/{file}" for name, file in pages.items()}
    return {"Repository": address, "Issues": f"{address}/issues", **files} if address else {}


def description(readme: str, address: str) -> str:
    """The text without images that are files of the repository, and with links to such files at its address."""
    text = IMAGE.sub("", readme)
    return LINK.sub(rf"[\1]({address}/blob/main/\2)" if address else r"\1", text)


class DescriptionHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text, address = (Path(self.root) / "README.md").read_text(encoding="utf-8"), repository(self.root)
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text, address)}
        metadata["urls"] = urls(address)
