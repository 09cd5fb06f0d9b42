"""What the package index and the continuous integration are told agrees with each other."""

from __future__ import annotations

import re
import runpy
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


def test_oldest_torch_is_tested() -> None:
    (oldest,) = [one.partition(">=")[2] for one in PROJECT["dependencies"] if one.startswith("torch>=")]
    assert f'torch: ["{oldest}.0", ""]' in WORKFLOW


README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGET = re.compile(r"\]\(([^)]+)\)")


def test_links_of_the_readme_lead_to_files_of_the_repository() -> None:
    targets = TARGET.findall(README)
    assert len(targets) > 5
    assert [one for one in targets if not (ROOT / one).exists()] == []


def test_package_index_gets_the_readme_without_links_into_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = types.ModuleType("interface")
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    text = runpy.run_path(str(ROOT / "hatch_build.py"))["description"](README)
    assert TARGET.findall(text) == []
    assert "quickstart, how to read a report" in " ".join(text.split())
    assert len(text) > 0.8 * len(README)


def test_demo_needs_no_tools_of_developers() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo: $(LEAN) " in makefile
    lean = makefile.partition("$(LEAN): ")[2].partition("\n\n")[0]
    assert "-e ." in lean
    assert "[" not in lean.partition("pip install")[2]
