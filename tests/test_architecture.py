"""The shape of the package, enforced: who may import whom, who may name a framework, how long a file may be.

A rule is a finder (source text in, breaches out) with two tests: the package has no breach, and planted source text has
the breach that the finder must name. Every import counts, wherever it stands: at the top, inside a function, for type
checkers only, or by name through `import_module`.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

# Top to bottom. A part is a file or a folder directly below src/gradvet; "gradvet" is the package's own __init__.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli", "pytest_plugin", "__main__"),
    ("commands",),
    ("suite",),
    ("gradvet",),
    ("api", "compat"),
    ("checks", "frontends", "reports"),
    ("core", "options", "errors"),
)
FRAMEWORKS = frozenset({"cupy", "functorch", "jax", "jaxlib", "numpy", "tensorflow", "torch"})
HOMES_OF_TORCH = ("frontends/torch/", "compat/")
LONGEST_FILE = 400

ROOT = Path(__file__).parent.parent / "src" / "gradvet"

Sources = Mapping[str, str]  # path below src/gradvet -> text
SOURCES: Sources = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))
}


@dataclass(frozen=True, slots=True)
class Import:
    path: str
    line: int
    target: str  # the absolute name of a module
    for_types_only: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.target}"


def module_name(path: str) -> str:
    parts = ("gradvet", *PurePosixPath(path).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part(module: str) -> str:
    """`core` for gradvet.core.miss_probability, `gradvet` for gradvet itself."""
    return module.split(".")[1] if "." in module else module


def is_own(module: str) -> bool:
    return module == "gradvet" or module.startswith("gradvet.")


def lies_in(module: str, places: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"gradvet.{place}.") for place in places)


def absolute(name: str, level: int, path: str) -> str:
    """The module meant by `name` after `level` dots in the file at `path`."""
    if level == 0:
        return name
    package = ("gradvet", *PurePosixPath(path).parent.parts)
    return ".".join([*package[: len(package) - level + 1], *([name] if name else [])])


def named_in_call(call: ast.Call, path: str) -> Iterator[str]:
    """The module of `import_module("...")` and `__import__("...")`."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    first = call.args[0] if call.args else None
    if function in {"import_module", "__import__"} and isinstance(first, ast.Constant) and isinstance(first.value, str):
        name = first.value.lstrip(".")
        yield absolute(name, len(first.value) - len(name), path)


def targets(node: ast.AST, path: str, modules: frozenset[str]) -> Iterator[str]:
    """What one node imports. `from a import b` is a.b where that is a module of ours, a otherwise."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = absolute(node.module or "", node.level, path)
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield full if full in modules or not is_own(base) else base
    elif isinstance(node, ast.Call):
        yield from named_in_call(node, path)


def nodes_for_types_only(tree: ast.AST) -> set[ast.AST]:
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }


def imports(sources: Sources) -> list[Import]:
    modules = frozenset(map(module_name, sources))
    found = []
    for path, text in sources.items():
        tree = ast.parse(text, path)
        for_types_only = nodes_for_types_only(tree)
        for node in ast.walk(tree):
            for target in targets(node, path, modules):
                found.append(Import(path, getattr(node, "lineno", 0), target, node in for_types_only))
    return found


# The finders: each gives the breaches of one rule.


def modules_without_layer(sources: Sources) -> list[str]:
    known = {name for layer in LAYERS for name in layer}
    return [path for path in sources if part(module_name(path)) not in known]


def upward_imports(sources: Sources) -> list[str]:
    height = {name: -depth for depth, layer in enumerate(LAYERS) for name in layer}
    return [
        str(found)
        for found in imports(sources)
        if is_own(found.target) and height.get(part(found.target), 1) > height.get(part(module_name(found.path)), 1)
    ]


def imports_beyond(sources: Sources, importer: str, allowed: Iterable[str]) -> list[str]:
    """Imports by the part `importer` of modules of ours outside itself and `allowed`."""
    return [
        str(found)
        for found in imports(sources)
        if part(module_name(found.path)) == importer
        and is_own(found.target)
        and not lies_in(found.target, (importer, *allowed))
    ]


def framework_imports(sources: Sources, importers: Iterable[str]) -> list[str]:
    """Imports by the parts `importers` of a framework, or of another library's door to one (array_api_compat.torch)."""
    return [
        str(found)
        for found in imports(sources)
        if part(module_name(found.path)) in importers
        and not is_own(found.target)
        and FRAMEWORKS.intersection(found.target.split("."))
    ]


def homeless_torch_imports(sources: Sources) -> list[str]:
    return [
        str(found)
        for found in imports(sources)
        if found.target.split(".")[0] == "torch" and not found.path.startswith(HOMES_OF_TORCH)
    ]


def cycle(sources: Sources) -> list[str]:
    """One cycle of the import graph, or nothing. Imports for type checkers alone never run and do not count."""
    graph: dict[str, set[str]] = {module_name(path): set() for path in sources}
    for found in imports(sources):
        if is_own(found.target) and not found.for_types_only:
            graph[module_name(found.path)].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def long_files(sources: Sources) -> list[str]:
    lengths = {path: len(text.splitlines()) for path, text in sources.items()}
    return [f"{path} has {length} lines" for path, length in lengths.items() if length > LONGEST_FILE]


def frameworks_loaded_by(statement: str) -> list[str]:
    """The frameworks that `statement` leaves in the modules of a new interpreter."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return sorted(FRAMEWORKS.intersection(json.loads(answer.stdout.splitlines()[-1])))


# What the finders stand on.


def test_sources_of_the_package_are_found() -> None:
    assert "__init__.py" in SOURCES


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("import torch", "torch"),
        ("import torch.nn as nn", "torch.nn"),
        ("from torch import nn", "torch.nn"),
        ("def f():\n    import torch", "torch"),
        ("try:\n    import torch\nexcept ImportError:\n    pass", "torch"),
        ("if TYPE_CHECKING:\n    import torch", "torch"),
        ("importlib.import_module('torch')", "torch"),
        ("import_module('..api', __package__)", "gradvet.api"),
        ("__import__('torch')", "torch"),
        ("from gradvet.core import results", "gradvet.core.results"),
        ("from gradvet.core.results import Report", "gradvet.core.results"),
        ("from gradvet.core import Report", "gradvet.core"),
        ("from . import results", "gradvet.core.results"),
        ("from .results import Report", "gradvet.core.results"),
        ("from ..api import check", "gradvet.api"),
        ("from .. import api", "gradvet.api"),
    ],
)
def test_every_form_of_import_is_seen(text: str, target: str) -> None:
    sources = {"core/probes.py": text, "core/results.py": "", "core/__init__.py": "", "api.py": ""}
    assert [found.target for found in imports(sources)] == [target]


def test_relative_import_in_a_package_starts_at_that_package() -> None:
    sources = {"core/__init__.py": "from .results import Report", "core/results.py": ""}
    assert [found.target for found in imports(sources)] == ["gradvet.core.results"]


# The rules.


def test_every_module_has_a_layer() -> None:
    assert modules_without_layer(SOURCES) == []


def test_module_without_layer_is_found() -> None:
    assert modules_without_layer({"__init__.py": "", "core/spaces.py": "", "misc.py": ""}) == ["misc.py"]


def test_imports_point_downwards() -> None:
    assert upward_imports(SOURCES) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("suite/run.py", "from gradvet.cli import main"),
        ("api.py", "from gradvet.suite import run"),
        ("checks/linearity.py", "from gradvet.api import check"),
        ("frontends/torch/problem.py", "def f():\n    from gradvet.compat import gradcheck"),
        ("core/runner.py", "from gradvet.checks import CATALOGUE"),
        ("core/runner.py", "from gradvet import check"),
        ("errors.py", "from gradvet.reports.terminal import render"),
    ],
)
def test_upward_import_is_found(path: str, text: str) -> None:
    assert len(upward_imports({path: text})) == 1


def test_downward_imports_are_allowed() -> None:
    sources = {
        "__main__.py": "from gradvet.cli import main",
        "cli.py": "from gradvet.suite import run",
        "suite/run.py": "from gradvet import check",
        "__init__.py": "from gradvet.api import check",
        "api.py": "from gradvet.checks import CATALOGUE",
        "checks/linearity.py": "from gradvet.core.results import Finding",
        "core/runner.py": "from gradvet.options import Options\nimport numpy",
    }
    assert upward_imports(sources) == []


CHECKS_SEE = FRONTENDS_SEE = ("core", "options", "errors")
REPORTS_SEE = OPTIONS_SEE = ERRORS_SEE = ("core.results",)


def test_checks_see_core_alone() -> None:
    assert imports_beyond(SOURCES, "checks", CHECKS_SEE) == []


def test_frontends_see_core_alone() -> None:
    assert imports_beyond(SOURCES, "frontends", FRONTENDS_SEE) == []


def test_reports_see_results_alone() -> None:
    assert imports_beyond(SOURCES, "reports", REPORTS_SEE) == []


def test_options_see_results_alone() -> None:
    assert imports_beyond(SOURCES, "options", OPTIONS_SEE) == []


def test_errors_see_results_alone() -> None:
    assert imports_beyond(SOURCES, "errors", ERRORS_SEE) == []


@pytest.mark.parametrize(
    ("path", "target", "allowed"),
    [
        ("checks/linearity.py", "gradvet.frontends.torch.problem", CHECKS_SEE),
        ("checks/linearity.py", "gradvet.reports.terminal", CHECKS_SEE),
        ("frontends/torch/problem.py", "gradvet.checks", FRONTENDS_SEE),
        ("frontends/torch/problem.py", "gradvet.reports.terminal", FRONTENDS_SEE),
        ("reports/terminal.py", "gradvet.core.spaces", REPORTS_SEE),
        ("reports/terminal.py", "gradvet.core.results_of_others", REPORTS_SEE),
        ("reports/terminal.py", "gradvet.options", REPORTS_SEE),
        ("options.py", "gradvet.core.miss_probability", OPTIONS_SEE),
        ("errors.py", "gradvet.options", ERRORS_SEE),
    ],
)
def test_import_beyond_what_a_part_may_see_is_found(path: str, target: str, allowed: tuple[str, ...]) -> None:
    importer = part(module_name(path))
    assert imports_beyond({path: f"import {target}"}, importer, allowed) == [f"{path}:1 imports {target}"]


@pytest.mark.parametrize(
    ("path", "target", "allowed"),
    [
        ("checks/linearity.py", "gradvet.checks.metadata", CHECKS_SEE),
        ("checks/linearity.py", "gradvet.core.miss_probability", CHECKS_SEE),
        ("frontends/torch/problem.py", "torch", FRONTENDS_SEE),
        ("reports/terminal.py", "gradvet.core.results", REPORTS_SEE),
        ("reports/terminal.py", "gradvet.reports.words", REPORTS_SEE),
    ],
)
def test_import_of_what_a_part_may_see_is_allowed(path: str, target: str, allowed: tuple[str, ...]) -> None:
    assert imports_beyond({path: f"import {target}"}, part(module_name(path)), allowed) == []


def test_core_names_no_framework() -> None:
    assert framework_imports(SOURCES, ["core"]) == []


def test_checks_name_no_framework() -> None:
    assert framework_imports(SOURCES, ["checks"]) == []


@pytest.mark.parametrize("part_", ["core", "checks"])
@pytest.mark.parametrize("target", ["torch", "jax.numpy", "numpy", "tensorflow", "array_api_compat.torch"])
def test_framework_import_is_found(part_: str, target: str) -> None:
    path = f"{part_}/probes.py"
    sources = {path: f"def lazy():\n    import {target}"}
    assert framework_imports(sources, [part_]) == [f"{path}:2 imports {target}"]


@pytest.mark.parametrize("target", ["array_api_compat", "math", "gradvet.frontends.torch"])
def test_other_imports_name_no_framework(target: str) -> None:
    assert framework_imports({"core/probes.py": f"import {target}"}, ["core"]) == []


def test_torch_is_imported_by_its_frontend_and_compat_alone() -> None:
    assert homeless_torch_imports(SOURCES) == []


def test_torch_import_elsewhere_is_found() -> None:
    sources = {
        "frontends/torch/layouts/coo.py": "import torch",
        "compat/checker.py": "import torch",
        "frontends/jax/problem.py": "import torch",
        "suite/cases.py": "def cases():\n    from torch.testing import make_tensor",
        "reports/torchlike.py": "import torchlike",
    }
    assert homeless_torch_imports(sources) == [
        "frontends/jax/problem.py:1 imports torch",
        "suite/cases.py:2 imports torch.testing.make_tensor",
    ]


def test_importing_gradvet_loads_no_framework() -> None:
    assert frameworks_loaded_by("import gradvet") == []


def test_framework_loaded_by_an_import_is_found() -> None:
    assert frameworks_loaded_by("import numpy") == ["numpy"]


def test_imports_have_no_cycle() -> None:
    assert cycle(SOURCES) == []


def test_cycle_is_found_through_a_lazy_import() -> None:
    sources = {
        "core/spaces.py": "from gradvet.core.problem import Problem",
        "core/problem.py": "from .probes import Probes",
        "core/probes.py": "def lazy():\n    from gradvet.core import spaces",
    }
    assert set(cycle(sources)) == {"gradvet.core.spaces", "gradvet.core.problem", "gradvet.core.miss_probability"}


def test_import_for_types_alone_closes_no_cycle() -> None:
    sources = {
        "errors.py": "if TYPE_CHECKING:\n    from gradvet.core.results import Report",
        "core/results.py": "from gradvet.errors import GradientError",
    }
    assert cycle(sources) == []


def test_no_file_is_too_long() -> None:
    assert long_files(SOURCES) == []


def test_file_that_is_too_long_is_found() -> None:
    sources = {"api.py": "x = 1\n" * LONGEST_FILE, "core/probes.py": "x = 1\n" * (LONGEST_FILE + 1)}
    assert long_files(sources) == [f"core/probes.py has {LONGEST_FILE + 1} lines"]


def test_package_ships_its_types() -> None:
    assert (ROOT / "py.typed").is_file()
