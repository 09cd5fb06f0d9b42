"""The shape of the package, enforced: layers, imports and frameworks. `test_modules.py` is about what modules contain.

A rule is a finder (source text in, breaches out) with two tests: the package has no breach, and planted source text has
the breach that the finder must name. Every import counts, wherever it stands: at the top, inside a function, for type
checkers only, or by name through `import_module`.

`KNOWN_...` are the breaches that the package has today. The tests compare with them exactly: a new breach fails, and so
does an entry whose breach is gone. The package's own `__init__.py` is tested here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.sources import SOURCES, Sources, imports, is_own, lies_in, module_name, part, without_lines

# Top to bottom. A part is a file or a folder directly below src/gradvet; "gradvet" is the package's own __init__.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli", "pytest_plugin", "__main__"),
    ("suite",),
    ("gradvet",),
    ("api", "compat"),
    ("checks", "frontends", "reports"),
    ("core",),
    ("options", "errors"),
)
KNOWN_UPWARD_IMPORTS = [
    # For type checkers alone; `gradvet.case` is loaded when it is first used.
    "__init__.py imports gradvet.suite",
    # The type of an attribute of GradientError, for type checkers alone.
    "errors.py imports gradvet.core.results",
]

# Top to bottom of core: a module imports only modules that stand above it, for type checkers too.
CORE_ORDER = (
    *("documents", "vectors", "ledger", "problem", "results", "blame", "processes"),
    *("provenance", "events"),
    *("thresholds", "reference_errors"),
    *("reference_comparison", "frontend"),
    *("finite_differences", "extrapolation", "projections", "context"),
    *(
        "modes",
        "probe_plans",
        "decision",
        "gradient_match",
        "line_test",
        "localise",
        "diagnosis",
        "neighbourhood",
        "certificate",
    ),
    *("entrywise", "fast_mode", "confirmation", "kinks", "refinement"),
    *("residuals", "residual_sampling", "direction_average", "slope_test"),
    *("runner", "numerical_jacobian"),
)

KNOWN_FRONTEND_IMPORTS = [
    # The drop-in functions take and return torch's own tensors, and call the torch frontend directly.
    "compat/gradcheck.py imports gradvet.frontends.torch.binding",
    "compat/gradcheck.py imports gradvet.frontends.torch.inputs",
    "compat/gradcheck.py imports gradvet.frontends.torch.layouts",
    "compat/gradcheck.py imports gradvet.frontends.torch.preservation",
    "compat/gradcheck.py imports gradvet.frontends.torch.problem",
    "compat/gradcheck.py imports gradvet.frontends.torch.second_order",
    "compat/helpers.py imports gradvet.frontends.torch.arguments",
    "compat/helpers.py imports gradvet.frontends.torch.binding",
    "compat/helpers.py imports gradvet.frontends.torch.layouts.sparse",
    "compat/helpers.py imports gradvet.frontends.torch.preservation",
    "compat/helpers.py imports gradvet.frontends.torch.problem",
]

FRAMEWORKS = frozenset({"cupy", "functorch", "jax", "jaxlib", "numpy", "tensorflow", "torch"})
HOMES_OF_TORCH = ("frontends/torch/", "compat/")


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


def disordered_core_imports(sources: Sources) -> list[str]:
    """Imports in core of a module that does not stand above, and modules without a place."""
    place = {f"gradvet.core.{name}": number for number, name in enumerate(CORE_ORDER)}
    modules = {module_name(path): path for path in sources if path.startswith("core/") and path != "core/__init__.py"}
    unplaced = [f"{path} has no place" for module, path in modules.items() if module not in place]
    return unplaced + [
        str(found)
        for found in imports(sources)
        if found.target in place and place.get(module_name(found.path), len(place)) <= place[found.target]
    ]


def imports_past_the_frontend(sources: Sources) -> list[str]:
    """Imports by api and compat of modules of a frontend, instead of the package that has its `FRONTEND`."""
    return [
        str(found)
        for found in imports(sources)
        if part(module_name(found.path)) in ("api", "compat")
        and lies_in(found.target, ["frontends"])
        and found.target.count(".") > 2
    ]


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
    assert without_lines(upward_imports(SOURCES)) == KNOWN_UPWARD_IMPORTS


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
        ("options.py", "from gradvet.core.results import Report"),
        ("errors.py", "if TYPE_CHECKING:\n    from gradvet.core.results import Report"),
    ],
)
def test_upward_import_is_found(path: str, text: str) -> None:
    assert len(upward_imports({path: text})) == 1


def test_downward_imports_are_allowed() -> None:
    sources = {
        "__main__.py": "from gradvet.cli import main",
        "cli/check.py": "from gradvet.suite import run",
        "suite/run.py": "from gradvet import check",
        "__init__.py": "from gradvet.api import check",
        "api.py": "from gradvet.checks import CATALOGUE",
        "checks/linearity.py": "from gradvet.core.results import Finding",
        "core/runner.py": "from gradvet.options import Options\nimport numpy",
    }
    assert upward_imports(sources) == []


CHECKS_SEE = FRONTENDS_SEE = ("core", "options", "errors")
REPORTS_SEE = ("core.results", "core.blame")
OPTIONS_SEE = ERRORS_SEE = ()


def test_parts_see_what_they_may_see_alone() -> None:
    may_see = {"checks": CHECKS_SEE, "frontends": FRONTENDS_SEE, "reports": REPORTS_SEE, "options": OPTIONS_SEE}
    assert [breach for name, seen in may_see.items() for breach in imports_beyond(SOURCES, name, seen)] == []
    known = [breach for breach in KNOWN_UPWARD_IMPORTS if breach.startswith("errors.py ")]
    assert without_lines(imports_beyond(SOURCES, "errors", ERRORS_SEE)) == known


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
        ("options.py", "gradvet.core.probe_plans", OPTIONS_SEE),
        ("errors.py", "gradvet.options", ERRORS_SEE),
    ],
)
def test_import_beyond_what_a_part_may_see_is_found(path: str, target: str, allowed: tuple[str, ...]) -> None:
    importer = part(module_name(path))
    assert imports_beyond({path: f"import {target}"}, importer, allowed) == [f"{path}:1 imports {target}"]


@pytest.mark.parametrize(
    ("path", "target", "allowed"),
    [
        ("checks/linearity.py", "gradvet.checks.outputs", CHECKS_SEE),
        ("checks/linearity.py", "gradvet.core.probe_plans", CHECKS_SEE),
        ("frontends/torch/problem.py", "torch", FRONTENDS_SEE),
        ("reports/terminal.py", "gradvet.core.results", REPORTS_SEE),
        ("reports/terminal.py", "gradvet.reports.wording", REPORTS_SEE),
    ],
)
def test_import_of_what_a_part_may_see_is_allowed(path: str, target: str, allowed: tuple[str, ...]) -> None:
    assert imports_beyond({path: f"import {target}"}, part(module_name(path)), allowed) == []


def test_core_names_no_framework() -> None:
    assert framework_imports(SOURCES, ["core"]) == []


@pytest.mark.parametrize("part_", ["checks", "reports", "options", "errors"])
def test_part_that_needs_no_framework_names_none(part_: str) -> None:
    assert framework_imports(SOURCES, [part_]) == []


@pytest.mark.parametrize("part_", ["core", "checks", "reports"])
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
    assert set(cycle(sources)) == {"gradvet.core.spaces", "gradvet.core.problem", "gradvet.core.probes"}


def test_import_for_types_alone_closes_no_cycle() -> None:
    sources = {
        "errors.py": "if TYPE_CHECKING:\n    from gradvet.core.results import Report",
        "core/results.py": "from gradvet.errors import GradientError",
    }
    assert cycle(sources) == []


def test_modules_of_core_import_only_those_above_them() -> None:
    assert disordered_core_imports(SOURCES) == []


def test_order_of_core_names_modules_that_exist() -> None:
    assert [name for name in CORE_ORDER if f"core/{name}.py" not in SOURCES] == []


def test_core_import_against_the_order_is_found() -> None:
    sources = {
        "core/__init__.py": "",
        "core/vectors.py": "",
        "core/problem.py": "if TYPE_CHECKING:\n    from gradvet.core.context import Context",
        "core/context.py": "from gradvet.core import problem",
        "core/oddments.py": "from gradvet.core.vectors import Space",
    }
    assert disordered_core_imports(sources) == [
        "core/oddments.py has no place",
        "core/problem.py:2 imports gradvet.core.context",
    ]


def test_api_and_compat_reach_a_framework_through_its_frontend() -> None:
    assert without_lines(imports_past_the_frontend(SOURCES)) == KNOWN_FRONTEND_IMPORTS


def test_import_past_the_frontend_is_found() -> None:
    sources = {
        "frontends/torch/__init__.py": "",
        "frontends/torch/problem.py": "",
        "api/__init__.py": "from gradvet.frontends.torch import FRONTEND",
        "api/points.py": "from gradvet.frontends.torch import problem",
        "compat/gradcheck.py": "def f():\n    from gradvet.frontends.torch.problem import TorchProblem",
        "suite/case.py": "from gradvet.frontends.torch.problem import TorchProblem",
    }
    assert imports_past_the_frontend(sources) == [
        "api/points.py:1 imports gradvet.frontends.torch.problem",
        "compat/gradcheck.py:2 imports gradvet.frontends.torch.problem",
    ]
