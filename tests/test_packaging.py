"""What the package index and the continuous integration are told agrees with each other."""

from __future__ import annotations

import re
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


def test_links_of_the_readme_work_outside_the_repository() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", (ROOT / PROJECT["readme"]).read_text())
    home = PROJECT["urls"]["Homepage"]
    assert [one for one in targets if not one.startswith("https://")] == []
    inside = [re.sub(r"^.*/(blob|raw)/main/", "", one) for one in targets if one.startswith(home)]
    assert [one for one in inside if not (ROOT / one).exists()] == []


def test_demo_needs_no_tools_of_developers() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo: $(LEAN) " in makefile
    lean = makefile.partition("$(LEAN): ")[2].partition("\n\n")[0]
    assert "-e ." in lean
    assert "[" not in lean.partition("pip install")[2]
