"""The shape of the package, enforced: imports, frameworks, private names, state, constants, lengths and test files.

A rule is a finder (source text in, breaches out) with two tests: the package has no breach, and planted source text has
the breach that the finder must name. Every import counts, wherever it stands: at the top, inside a function, for type
checkers only, or by name through `import_module`.

`KNOWN_...` are the breaches that the package has today. The tests compare with them exactly: a new breach fails, and so
does an entry whose breach is gone. The package's own `__init__.py` is tested here.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

import pytest

from tests.sources import ROOT, SOURCES, TESTS, Sources, nodes_of, parsed

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
    "__init__.py imports gradvet.suite.case",
    # The type of an attribute of GradientError, for type checkers alone.
    "errors.py imports gradvet.core.results",
]

# Top to bottom of core: a module imports only modules that stand above it, for type checkers too.
CORE_ORDER = (
    *("documents", "spaces", "variation_budget", "ledger", "problem", "results", "blame"),
    *("provenance", "events"),
    *("thresholds", "vectors", "miss_probability", "error_positions", "float_format"),
    *("reference_comparison", "frontend"),
    *("finite_differences", "extrapolation", "projections", "context"),
    *("modes", "decision", "gradient_match", "jacobians", "localise", "diagnosis", "neighbourhood", "certificate"),
    *("entrywise", "fast_mode", "line_test", "kinks", "low_precision", "refinement", "output_probes"),
    *("direction_average", "confirmation", "slope_test", "runner"),
)

KNOWN_FRONTEND_IMPORTS = [
    # The type of what `numerical_jacobian` returns, which is public.
    "api/__init__.py imports gradvet.frontends.torch.numerical_jacobian",
    # The drop-in functions take and return torch's own tensors, and call the torch frontend directly.
    "compat/gradcheck.py imports gradvet.frontends.torch.binding",
    "compat/gradcheck.py imports gradvet.frontends.torch.layouts",
    "compat/gradcheck.py imports gradvet.frontends.torch.preservation",
    "compat/gradcheck.py imports gradvet.frontends.torch.problem",
    "compat/gradcheck.py imports gradvet.frontends.torch.second_order",
    "compat/gradcheck.py imports gradvet.frontends.torch.sparse_semantics",
    "compat/gradcheck.py imports gradvet.frontends.torch.validation",
    "compat/jacobian_helpers.py imports gradvet.frontends.torch.arguments",
    "compat/jacobian_helpers.py imports gradvet.frontends.torch.binding",
    "compat/jacobian_helpers.py imports gradvet.frontends.torch.preservation",
    "compat/jacobian_helpers.py imports gradvet.frontends.torch.problem",
    "compat/sparse.py imports gradvet.frontends.torch.layouts",
]

HOMES_OF_PRIVATE_NAMES = (
    "frontends/torch/private.py",
    "frontends/torch/private_state.py",
    "frontends/torch/blame/private.py",
    "frontends/torch/opdb/",
    "pytest_plugin.py",
)
DOCUMENTED = frozenset({"_exit", "_fields"})
"""Public in spite of their underscore: `os._exit`, and `_fields` of named tuples."""

HOMES_OF_STATE = ("core/events.py", "compat/patching.py")
STATE = frozenset({"core/results.py has the state RENDERERS"})
"""Renderers of reports register themselves here, because they stand above the module."""
KNOWN_STATE = [
    # A cache of pure results: array types and their namespaces.
    "core/vectors.py has the state _NAMESPACES",
]

KNOWN_REPEATED_CONSTANTS: list[str] = []
FRAMEWORKS = frozenset({"cupy", "functorch", "jax", "jaxlib", "numpy", "tensorflow", "torch"})
HOMES_OF_TORCH = ("frontends/torch/", "compat/")
LONGEST_FILE = 400


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


def nodes_for_types_only(nodes: Iterable[ast.AST]) -> set[ast.AST]:
    return {
        inner
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }


def imports(sources: Sources) -> list[Import]:
    modules = frozenset(map(module_name, sources))
    return [found for path, text in sources.items() for found in imports_of(path, text, modules)]


@functools.cache
def imports_of(path: str, text: str, modules: frozenset[str]) -> tuple[Import, ...]:
    """The imports of one source, found once for all rules."""
    for_types_only = nodes_for_types_only(nodes_of(text))
    return tuple(
        Import(path, getattr(node, "lineno", 0), target, node in for_types_only)
        for node in nodes_of(text)
        for target in targets(node, path, modules)
    )


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


def without_lines(breaches: Iterable[str]) -> list[str]:
    """Breaches without the numbers of their lines, each once."""
    return sorted({re.sub(r"^([^ :]+):\d+ ", r"\1 ", breach) for breach in breaches})


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


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name not in DOCUMENTED


def names_defined_in(text: str) -> set[str]:
    """Functions, classes, variables and attributes that a module defines anywhere."""
    found = set()
    for node in nodes_of(text):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found


def private_names_in(node: ast.AST) -> Iterator[str]:
    """Private names of others that one node uses: in an import, as an attribute, or as a string for `getattr`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if any(map(is_private, alias.name.split("."))))
    elif isinstance(node, ast.ImportFrom) and not node.level and not is_own(node.module or ""):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for name in names if any(map(is_private, name.split("."))))
    elif isinstance(node, ast.Attribute) and is_private(node.attr):
        if ast.unparse(node.value) not in ("self", "cls", "super()"):
            yield ast.unparse(node)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("getattr", "hasattr", "setattr", "delattr"):
        name = node.args[1] if len(node.args) > 1 else None
        if isinstance(name, ast.Constant) and is_private(str(name.value)):
            yield f"{ast.unparse(node.args[0])}.{name.value}"


def private_names(sources: Sources) -> list[str]:
    """Uses of private names of other packages outside the modules that may use them."""
    found = []
    for path, text in sources.items():
        if path.startswith(HOMES_OF_PRIVATE_NAMES):
            continue
        own = names_defined_in(text)
        for node in nodes_of(text):
            for name in private_names_in(node):
                if isinstance(node, (ast.Import, ast.ImportFrom)) or name.rpartition(".")[2] not in own:
                    found.append(f"{path}:{getattr(node, 'lineno', 0)} uses {name}")
    return found


CHANGES = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"),
        *("remove", "reverse", "set", "setdefault", "sort", "update"),
    }
)
"""Methods that change a container."""
CONTAINERS = frozenset({"dict", "list", "set"})
STATEFUL = frozenset(
    {
        *("ContextVar", "Counter", "WeakKeyDictionary", "WeakValueDictionary"),
        *("count", "cycle", "defaultdict", "deque", "iter", "local"),
    }
)
"""Calls whose result is state if a module holds it."""


def called(node: ast.Call) -> str:
    """The last name of the function that is called."""
    return ast.unparse(node.func).rpartition(".")[2]


def assignments(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """The names that statements bind, each with its value; tuples are taken apart."""
    for node in statements:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        for target in targets if value is not None else []:
            if isinstance(target, ast.Name):
                yield target.id, value
            elif isinstance(target, ast.Tuple):
                values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
                pairs = zip(target.elts, values, strict=True)
                yield from ((name.id, item) for name, item in pairs if isinstance(name, ast.Name))


def holds_state(value: ast.expr) -> bool:
    """Whether a value is an empty container or an object that changes when it is used."""
    if isinstance(value, ast.List):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    if not isinstance(value, ast.Call):
        return False
    return called(value) in STATEFUL or (called(value) in CONTAINERS and not value.args and not value.keywords)


def names_changed_in(text: str) -> Iterator[str]:
    """Variables that a module rebinds by `global`, or whose items it sets, deletes or changes by a method."""
    for node in nodes_of(text):
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield ast.unparse(node.value).rpartition(".")[2]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            yield ast.unparse(node.func.value).rpartition(".")[2]


def mutable_state(sources: Sources) -> list[str]:
    """Variables of modules that are empty containers or iterators, or that some module changes."""
    changed_in = {path: set(names_changed_in(text)) for path, text in sources.items()}
    # In other modules a name in lower case may be a variable of a function.
    changed_anywhere = {name for names in changed_in.values() for name in names if name.isupper()}
    found = []
    for path, text in sources.items():
        if path in HOMES_OF_STATE:
            continue
        for name, value in assignments(parsed(text).body):
            if holds_state(value) or name in changed_in[path] | changed_anywhere:
                found.append(f"{path} has the state {name}")
    return [breach for breach in found if breach not in STATE]


def is_number(value: ast.expr) -> bool:
    """Whether an expression is made of numbers alone."""
    parts = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.expr_context)
    nodes = list(ast.walk(value))
    return all(isinstance(node, parts) for node in nodes) and all(
        isinstance(node.value, (int, float)) for node in nodes if isinstance(node, ast.Constant)
    )


def repeated_constants(sources: Sources) -> list[str]:
    """Names of numbers that a second module defines too."""
    defined: dict[str, dict[str, bool]] = {}
    for path, text in sources.items():
        for name, value in assignments(parsed(text).body):
            if name.isupper():
                defined.setdefault(name, {})[path] = is_number(value)
    return [
        f"{name} is defined in {', '.join(sorted(places))}"
        for name, places in sorted(defined.items())
        if len(places) > 1 and any(places.values())
    ]


def modules_without_tests(sources: Sources, tests: Sources) -> list[str]:
    """Modules with code that have no test file at the same path and that no docstring of a test file names."""
    named = {
        name
        for path, text in tests.items()
        for name in re.findall(r"`([\w/]+\.py)`", ast.get_docstring(parsed(text)) or "")
    }
    found = []
    for path, text in sources.items():
        place = PurePosixPath(path)
        beside = (place.parent / f"test_{place.name}").as_posix()
        if len(parsed(text).body) > 1 and beside not in tests and path not in named:
            found.append(path)
    return found


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


def test_checks_see_core_alone() -> None:
    assert imports_beyond(SOURCES, "checks", CHECKS_SEE) == []


def test_frontends_see_core_alone() -> None:
    assert imports_beyond(SOURCES, "frontends", FRONTENDS_SEE) == []


def test_reports_see_results_alone() -> None:
    assert imports_beyond(SOURCES, "reports", REPORTS_SEE) == []


def test_options_see_nothing() -> None:
    assert imports_beyond(SOURCES, "options", OPTIONS_SEE) == []


def test_errors_see_nothing() -> None:
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
        ("checks/linearity.py", "gradvet.checks.outputs", CHECKS_SEE),
        ("checks/linearity.py", "gradvet.core.miss_probability", CHECKS_SEE),
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
        "core/spaces.py": "",
        "core/problem.py": "if TYPE_CHECKING:\n    from gradvet.core.context import Context",
        "core/context.py": "from gradvet.core import problem",
        "core/oddments.py": "from gradvet.core.spaces import Space",
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


def test_private_names_are_used_in_their_homes_alone() -> None:
    assert private_names(SOURCES) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch._C", "torch._C"),
        ("from torch._C import Graph", "torch._C.Graph"),
        ("from torch import _foreach_add_", "torch._foreach_add_"),
        ("from _pytest.config import Config", "_pytest.config.Config"),
        ("import torch\ntorch._foreach_add_(a, b)", "torch._foreach_add_"),
        ("import random\nrandom._inst.seed(1)", "random._inst"),
        ("def version(x):\n    return x._version", "x._version"),
        ("getattr(numpy.random, '_rand')", "numpy.random._rand"),
    ],
)
def test_private_name_is_found(text: str, name: str) -> None:
    lines = len(text.splitlines())
    assert private_names({"suite/case.py": text}) == [f"suite/case.py:{lines} uses {name}"]
    assert private_names({"frontends/torch/private.py": text, "frontends/torch/opdb/samples.py": text}) == []


@pytest.mark.parametrize(
    "text",
    [
        "from __future__ import annotations",
        "from gradvet.core import _own",
        "x.__dict__",
        "os._exit(0)",
        "class A:\n    def f(self, other):\n        self._x = 1\n        return other._x + self._inherited",
    ],
)
def test_own_special_and_documented_names_are_not_private(text: str) -> None:
    assert private_names({"suite/case.py": text}) == []


def test_modules_hold_no_state() -> None:
    assert mutable_state(SOURCES) == KNOWN_STATE


@pytest.mark.parametrize(
    "text",
    [
        "cache = {}",
        "cache: list[int] = []",
        "cache = set()",
        "cache = collections.defaultdict(list)",
        "cache = itertools.count()",
        "cache = contextvars.ContextVar('cache')",
        "cache = 0\ndef f():\n    global cache\n    cache = 1",
        "cache = {'a': 1}\ndef f():\n    cache['b'] = 2",
        "cache = {'a': 1}\ndef f():\n    del cache['a']",
        "cache = ['a']\ndef f():\n    cache.append('b')",
        "cache, other = [], ()",
    ],
)
def test_state_is_found(text: str) -> None:
    assert mutable_state({"core/runner.py": text}) == ["core/runner.py has the state cache"]
    assert mutable_state({"core/events.py": text, "compat/patching.py": text}) == []


@pytest.mark.parametrize(
    "text",
    [
        "TABLE = {'a': 1}",
        "NAMES = frozenset({'a'})",
        "ALL = list(range(3))",
        "EMPTY = ()",
        "def f():\n    found = []\n    found.append(1)",
        "@functools.cache\ndef f(x):\n    return x",
    ],
)
def test_constants_and_caches_of_functions_are_no_state(text: str) -> None:
    assert mutable_state({"core/runner.py": text}) == []


def test_state_that_another_module_changes_is_found() -> None:
    sources = {
        "core/a.py": "TABLE = {'a': 1}\nOTHER = {'a': 1}",
        "core/b.py": "from gradvet.core import a\na.TABLE['b'] = 2",
        "core/c.py": "from gradvet.core.a import OTHER\nOTHER.update(b=2)",
    }
    assert mutable_state(sources) == ["core/a.py has the state TABLE", "core/a.py has the state OTHER"]


def test_constants_are_defined_once() -> None:
    assert repeated_constants(SOURCES) == KNOWN_REPEATED_CONSTANTS


def test_constant_that_is_defined_twice_is_found() -> None:
    sources = {
        "core/a.py": "LIMIT = 3\nFIRST, SECOND = 1.0, 2.0\nWORDS = 'a'\nlower = 1\nONE = 1",
        "core/b.py": "LIMIT: int = 2 * 2\nSECOND = 'b'\nWORDS = 'b'\nlower = 1",
        "core/c.py": "FIRST = (-1, 2**3)\ndef f():\n    ONE = 1",
    }
    assert repeated_constants(sources) == [
        "FIRST is defined in core/a.py, core/c.py",
        "LIMIT is defined in core/a.py, core/b.py",
        "SECOND is defined in core/a.py, core/b.py",
    ]


def test_every_module_has_a_test_file() -> None:
    assert modules_without_tests(SOURCES, TESTS) == []


def test_module_without_test_file_is_found() -> None:
    code = '"""What it does."""\nx = 1'
    sources = dict.fromkeys(("options.py", "core/a.py", "core/b.py", "core/c.py", "api/a.py"), code)
    tests = {"core/test_a.py": "", "api/test_all.py": '"""All of it, with `core/b.py`."""\n"""`options.py`"""'}
    assert modules_without_tests({**sources, "core/__init__.py": '"""Core."""'}, tests) == [
        "options.py",
        "core/c.py",
        "api/a.py",
    ]


def test_no_file_is_too_long() -> None:
    assert long_files(SOURCES) == []


def test_file_that_is_too_long_is_found() -> None:
    sources = {"api.py": "x = 1\n" * LONGEST_FILE, "core/probes.py": "x = 1\n" * (LONGEST_FILE + 1)}
    assert long_files(sources) == [f"core/probes.py has {LONGEST_FILE + 1} lines"]


def test_package_ships_its_types() -> None:
    assert (ROOT / "py.typed").is_file()
