"""What the package index and the continuous integration are told agrees with each other."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib")  # Python 3.11

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "test.yml").read_text()


def test_every_dependency_has_a_lower_bound() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    requirements = [one for group in groups for one in group if not one.startswith("gradvet[")]
    assert [one for one in requirements if ">=" not in one] == []


def test_every_python_version_is_tested() -> None:
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    (tested,) = re.findall(r"python: \[(.*)\]", WORKFLOW)
    assert [one.strip('" ') for one in tested.split(",")] == versions
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_oldest_and_newest_torch_are_tested() -> None:
    (oldest,) = [one.partition(">=")[2] for one in PROJECT["dependencies"] if one.startswith("torch>=")]
    assert f'torch: ["{oldest}.0", "pinned", "newest"]' in WORKFLOW


README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGET = re.compile(r"\]\(([^)]+)\)")


def test_links_of_the_readme_lead_to_files_of_the_repository() -> None:
    targets = TARGET.findall(README)
    assert len(targets) > 5
    assert [one for one in targets if not (ROOT / one).exists()] == []


ADDRESS = "https://github.com/somebody/gradvet"


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of hatch_build.py, without hatchling, and outside of a GitHub workflow."""
    interface = types.ModuleType("interface")
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    return runpy.run_path(str(ROOT / "hatch_build.py"))


def test_links_on_the_package_index_lead_into_the_repository(build: dict[str, Any]) -> None:
    targets = [one for one in TARGET.findall(README) if not one.endswith(".png")]
    assert TARGET.findall(build["description"](README, ADDRESS)) == [f"{ADDRESS}/blob/main/{one}" for one in targets]
    assert build["urls"](ADDRESS)["Repository"] == ADDRESS
    for url in build["urls"](ADDRESS).values():
        path = url.removeprefix(ADDRESS).removeprefix("/blob/main/")
        assert path in ("", "/issues") or (ROOT / path).is_file()


def test_links_are_plain_text_where_the_address_is_not_known(build: dict[str, Any]) -> None:
    text = build["description"](README, "")
    assert TARGET.findall(text) == []
    assert "quickstart, how to read a report" in " ".join(text.split())
    assert len(text) > 0.8 * len(README)
    assert build["urls"]("") == {}


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/somebody/gradvet.git", ADDRESS),
        ("https://name:secret@github.com/somebody/gradvet", ADDRESS),
        ("git@github.com:somebody/gradvet.git", ADDRESS),
        ("ssh://git@github.com/somebody/gradvet", ADDRESS),
        ("/a/folder/of/this/machine", ""),
        ("http://localhost:8000/gradvet", ""),
    ],
)
def test_address_is_that_of_the_remote(build: dict[str, Any], tmp_path: Path, remote: str, address: str) -> None:
    for arguments in (["init", "--quiet"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    assert build["repository"](str(tmp_path)) == address


def test_address_is_that_of_the_workflow_or_of_the_source_distribution(
    build: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build["repository"](str(tmp_path)) == ""
    (tmp_path / "PKG-INFO").write_text(f"Name: gradvet\nProject-URL: Repository, {ADDRESS}\n")
    assert build["repository"](str(tmp_path)) == ADDRESS
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.com")
    monkeypatch.setenv("GITHUB_REPOSITORY", "another/gradvet")
    assert build["repository"](str(tmp_path)) == "https://github.com/another/gradvet"


def test_demo_needs_no_tools_of_developers() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo: $(LEAN) " in makefile
    lean = makefile.partition("$(LEAN): ")[2].partition("\n\n")[0]
    assert "-e ." in lean
    assert "[" not in lean.partition("pip install")[2]
