"""What modules may contain: private names, addresses, state, constants, their length; which have tests; enforced.

A rule is a finder (source text in, breaches out) with two tests, as in `test_architecture.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

import pytest
from torch import nn

from tests.conftest import TIME_LIMITS
from tests.sources import ROOT, SOURCES, TESTS, Sources, is_own, module_name, nodes_of, parsed

HOMES_OF_PRIVATE_NAMES = (
    "frontends/torch/private.py",
    "frontends/torch/process_state.py",
    "frontends/torch/random_state.py",
    "frontends/torch/blame/private.py",
    "frontends/torch/opdb.py",
    "pytest_plugin.py",
)
DOCUMENTED = frozenset({"_exit", "_fields"})
"""Public in spite of their underscore: `os._exit`, and `_fields` of named tuples."""

PRIVATE_OF_MODULES = frozenset(name for name in vars(nn.LSTM(1, 1)) if name.startswith("_"))
"""Private attributes of torch's modules: `vars(module)` has them under these strings."""

HOME_OF_ADDRESSES = "frontends/torch/random_state.py"
WRITING = frozenset({"memmove", "memset", "pointer", "POINTER", "cast", "from_buffer", "contents", "value", "raw"})
"""Names of ctypes by which memory is written."""
READABLE = frozenset({"raw", "value"})
"""Those of them that may be read."""

HOMES_OF_STATE = ("core/events.py", "compat/__init__.py")
STATE = frozenset({"core/results.py has the state RENDERERS"})
"""Renderers of reports register themselves here, because they stand above the module."""
KNOWN_STATE = [
    # A cache of pure results: array types and their namespaces.
    "core/vectors.py has the state _NAMESPACES",
]

HARMLESS_SECONDS = frozenset(
    {
        # When something is printed, looked at, or called slower.
        *("gradvet.compat.gradcheck.PROGRESS_DELAY_SECONDS", "gradvet.reports.progress.BAR_DELAY_SECONDS"),
        *("gradvet.reports.progress.LOG_INTERVAL_SECONDS", "gradvet.core.processes.POLL_SECONDS"),
        "gradvet.cli.compare.MIN_SLOWDOWN_SECONDS",
        # Minutes, or added to a limit that a test sets.
        *("gradvet.api.isolation.MAX_CHILD_SECONDS", "gradvet.core.processes.START_TIMEOUT_SECONDS"),
        *("gradvet.suite.store.LOCK_TIMEOUT_SECONDS", "gradvet.core.processes.GRACE_SECONDS"),
    }
)
"""Constants in seconds after which nothing is left out of a test, however slow the machine is."""

KNOWN_REPEATED_CONSTANTS: list[str] = []
LONGEST_FILE = 400
MOST_MODULES = 120


def long_files(sources: Sources) -> list[str]:
    lengths = {path: len(text.splitlines()) for path, text in sources.items()}
    return [f"{path} has {length} lines" for path, length in lengths.items() if length > LONGEST_FILE]


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
    """Private names of others that one node uses: in an import, as an attribute, or as a string."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if any(map(is_private, alias.name.split("."))))
    elif isinstance(node, ast.ImportFrom) and not node.level and not is_own(node.module or ""):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for name in names if any(map(is_private, name.split("."))))
    elif isinstance(node, ast.Attribute) and is_private(node.attr):
        if ast.unparse(node.value) not in ("self", "cls", "super()"):
            yield ast.unparse(node)
    elif isinstance(node, ast.Constant) and node.value in PRIVATE_OF_MODULES:
        yield str(node.value)
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


def addresses(sources: Sources) -> list[str]:
    """Imports of ctypes outside of its home, and writes to memory by it."""
    found = []
    for path, text in sources.items():
        nodes = nodes_of(text)
        has_ctypes = any("ctypes" in names_imported(node) for node in nodes)
        if has_ctypes and path != HOME_OF_ADDRESSES:
            found.append(f"{path} imports ctypes")
        for node in nodes if has_ctypes else ():
            if not isinstance(node, (ast.Attribute, ast.Subscript)) or ast.unparse(node.value) == "self":
                continue
            used = node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)
            is_store = not isinstance(node.ctx, ast.Load)
            if used in WRITING - READABLE or (is_store and (used in READABLE or isinstance(node, ast.Subscript))):
                found.append(f"{path}:{node.lineno} writes by {used}")
    return found


def names_imported(node: ast.AST) -> set[str]:
    """The first names of the modules that a node imports."""
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]}
    return {alias.name.partition(".")[0] for alias in node.names} if isinstance(node, ast.Import) else set()


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


def constants_in_seconds(sources: Sources) -> set[str]:
    return {
        f"{module_name(path)}.{name}"
        for path, text in sources.items()
        for name, _ in assignments(parsed(text).body)
        if name.endswith("SECONDS")
    }


def repeated_constants(sources: Sources) -> list[str]:
    """Names of constants that a second module defines too."""
    defined: dict[str, list[str]] = {}
    for path, text in sources.items():
        for name, _ in assignments(parsed(text).body):
            if name.isupper():
                defined.setdefault(name, []).append(path)
    return [
        f"{name} is defined in {', '.join(sorted(places))}"
        for name, places in sorted(defined.items())
        if len(places) > 1
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


# The rules.


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
        ("vars(module)['_parameters']", "_parameters"),
    ],
)
def test_private_name_is_found(text: str, name: str) -> None:
    lines = len(text.splitlines())
    assert private_names({"suite/case.py": text}) == [f"suite/case.py:{lines} uses {name}"]
    assert private_names({"frontends/torch/private.py": text, "frontends/torch/opdb.py": text}) == []


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


def test_no_memory_is_written_by_its_address() -> None:
    assert addresses(SOURCES) == []


@pytest.mark.parametrize(
    ("path", "text", "breach"),
    [
        ("suite/case.py", "import ctypes\nctypes.string_at(1, 2)", "suite/case.py imports ctypes"),
        (HOME_OF_ADDRESSES, "import ctypes\nctypes.memmove(1, 2, 3)", f"{HOME_OF_ADDRESSES}:2 writes by memmove"),
        (HOME_OF_ADDRESSES, "from ctypes import c_int\nc_int(1).value = 2", f"{HOME_OF_ADDRESSES}:2 writes by value"),
        (HOME_OF_ADDRESSES, "import ctypes\nmemory[0] = b'x'", f"{HOME_OF_ADDRESSES}:2 writes by memory[0]"),
    ],
)
def test_address_is_found(path: str, text: str, breach: str) -> None:
    assert addresses({path: text}) == [breach]


def test_memory_may_be_read_in_its_home() -> None:
    text = "import ctypes\nstate = (ctypes.c_char * 4).from_address(1).raw"
    assert addresses({HOME_OF_ADDRESSES: text}) == []


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
    assert mutable_state({"core/events.py": text, "compat/__init__.py": text}) == []


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
        "core/a.py": "LIMIT = 3\nFIRST, SECOND = 1.0, 2.0\nTEXT = 'a'\nlower = 1\nONE = 1",
        "core/b.py": "LIMIT: int = 2 * 2\nSECOND = 'b'\nTEXT = 'b'\nlower = 1",
        "core/c.py": "FIRST = (-1, 2**3)\ndef f():\n    ONE = 1",
    }
    assert repeated_constants(sources) == [
        "FIRST is defined in core/a.py, core/c.py",
        "LIMIT is defined in core/a.py, core/b.py",
        "SECOND is defined in core/a.py, core/b.py",
        "TEXT is defined in core/a.py, core/b.py",
    ]


def test_limits_on_time_are_lifted_for_tests() -> None:
    assert constants_in_seconds(SOURCES) == {*TIME_LIMITS, *HARMLESS_SECONDS}


def test_constant_in_seconds_is_found() -> None:
    sources = {"core/a.py": "LIMIT_SECONDS = 3.0\nOTHER = 1.0\ndef f():\n    OWN_SECONDS = 1.0"}
    assert constants_in_seconds(sources) == {"gradvet.core.a.LIMIT_SECONDS"}


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


def test_number_of_modules_does_not_grow() -> None:
    assert len(SOURCES) <= MOST_MODULES


def test_no_file_is_too_long() -> None:
    assert long_files(SOURCES) == []


def test_file_that_is_too_long_is_found() -> None:
    sources = {"api.py": "x = 1\n" * LONGEST_FILE, "core/probes.py": "x = 1\n" * (LONGEST_FILE + 1)}
    assert long_files(sources) == [f"core/probes.py has {LONGEST_FILE + 1} lines"]


def test_package_ships_its_types() -> None:
    assert (ROOT / "py.typed").is_file()
