"""Sources of cases: targets of the command line, and the samples of PyTorch's operator database.

`file.py` and `package.module` select all marked functions, `file.py::name` selects one. `file.py::name` and
`package.module:callable` also select any callable, with random inputs.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import json
import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gradvet.api.validation import ONE_INPUT_EACH
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.binding import ONE_TENSOR
from gradvet.frontends.torch.inputs import converted, random_inputs, require_known
from gradvet.frontends.torch.opdb import database, group_named, groups
from gradvet.frontends.torch.random_state import seeded
from gradvet.suite import Case, cases_in, require_file

CALLABLE = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")

COMMAND_LINE_ADVICE = {
    ONE_INPUT_EACH: "repeat --input for each argument, and give keyword arguments with --kwargs",
    ONE_TENSOR: "On the command line, give at least one --input without :int:",
}
"""Words of the command line in place of those of the Python API."""

MIN_SIMILARITY = 0.7
"""Share of letters that a name has in common with one that is suggested; `nosuch` and `cosh` have 0.6."""

LIBRARY_FOLDERS = [sysconfig.get_path("stdlib"), os.path.join(sysconfig.get_path("stdlib"), "lib-dynload")]
"""Entries of the search path with the modules of Python."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Inputs of a callable target, and the constructor arguments if the target is a class."""

    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str = "float64"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    init: Sequence[Any] | Mapping[str, Any] = ()
    seed: int = 0
    """Seed for the parameters of a module."""
    below: tuple[int | None, ...] = ()
    """For each shape, None, or the bound of random integers."""
    device: str = "cpu"
    reference: str = ""
    """The reference of the callable, as `ops.py::name` or `package.module:callable`."""
    dtypes: tuple[str, ...] = ()
    """Dtypes in which the callable is compared with its reference."""
    domain: tuple[float, float] | None = None
    """The interval in which the inputs are drawn."""

    def options(self) -> dict[str, Any]:
        """The options of the command line that differ from their defaults, without shapes, seed and domain."""
        names = ("dtype", "device", "kwargs", "init", "reference", "dtypes")
        defaults = InputSpec()
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value and value != getattr(defaults, name)}

    def tensors(self) -> tuple[Any, ...]:
        """New random inputs."""
        return random_inputs(self.shapes, self.dtype, self.below, self.device, self.domain)

    def command(self, target: str) -> str:
        """The command line that repeats the check of a target, without its seed."""
        parts = ["gradvet", "check", target]
        for shape, bound in zip(self.shapes, self.below or [None] * len(self.shapes), strict=True):
            parts += ["--input", ("x".join(map(str, shape)) or "scalar") + (f":int:{bound}" if bound else "")]
        return shlex.join([*parts, *as_arguments(self.options())])


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options as they are written on the command line: flags alone, tuples with commas, objects and lists as JSON.

    >>> as_arguments({"thorough": True, "order": 2, "domain": (0.5, 2.0), "kwargs": {"dim": 1}})
    ['--thorough', '--order', '2', '--domain', '0.5,2.0', '--kwargs', '{"dim": 1}']
    """
    arguments = []
    for name, value in options.items():
        arguments.append(f"--{name}")
        if isinstance(value, (Mapping, list)):
            arguments.append(json.dumps(value))
        elif value is not True:
            arguments.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return arguments


@dataclass(frozen=True, slots=True)
class Targets:
    """Several targets, as a source of cases."""

    names: tuple[str, ...]
    inputs: InputSpec = field(default_factory=InputSpec)
    flags: str = ""
    """Command-line options of the run, for the command that repeats one case."""

    def open(self) -> dict[str, Case]:
        """The cases by name. Executes each file once, even if several targets name it."""
        execute = functools.cache(_execute)
        cases = [case for target in self.names for case in cases_of(target, self.inputs, execute)]
        if (self.inputs.shapes or self.inputs.options()) and all(case.inputs != self.inputs.tensors for case in cases):
            raise InvalidProblemError(
                "cases in files have inputs of their own: --input, --dtype, --device, --kwargs, --init, --reference "
                "and --dtypes are for a callable (ops.py::name without @gradvet.case, or package.module:callable)"
            )
        return {case.name: replace(case, replay=f"{case.replay} {self.flags}".rstrip()) for case in cases}

    def describe(self) -> dict[str, Any]:
        # The keys are part of the store's file format.
        return {"targets": {"names": self.names, "making": asdict(self.inputs), "flags": self.flags}}


def cases_of(target: str, inputs: InputSpec, execute: Callable[[Path], ModuleType] | None = None) -> list[Case]:
    """The cases of a target. `execute` turns the absolute path of a file into a module."""
    path, _, name = target.partition("::")
    execute = execute or _execute
    if CALLABLE.fullmatch(target):
        return [_callable_case(target, inputs, execute)]
    if path.endswith(".py"):
        module = _file_module(path, execute)
        is_marked = any(_short(case.name) == name for case in cases_in(module))
        if name and inputs.shapes and not is_marked and hasattr(module, name.partition(".")[0]):
            return [_callable_case(target, inputs, execute)]
        return _marked(module, path, name)
    if all(part.isidentifier() for part in path.split(".")):
        return _marked(_import(path), path, name)
    raise InvalidProblemError(
        f"the target {target!r} was not understood: name a file (ops.py), a module (package.module), a case in one "
        "(ops.py::name) or a callable (package.module:callable)"
    )


def _file_module(path: str, execute: Callable[[Path], ModuleType]) -> ModuleType:
    require_file(path)
    try:
        return execute(Path(path).resolve())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and pytest's Skipped
        raise InvalidProblemError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error


def _execute(file: Path) -> ModuleType:
    """The module in a file. It can import files beside it; its own name in `sys.modules` replaces no other module.

    A file in a package is imported as a part of it, so that relative imports work.
    """
    root = next(folder for folder in file.parents if not (folder / "__init__.py").is_file())
    if root != file.parent:
        _add_to_path(root)
        part_of_package = importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))
        if part_of_package.__file__ and Path(part_of_package.__file__).resolve() == file:
            return part_of_package
    name = f"{file.stem}__cases"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _add_to_path(file.parent)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _marked(module: ModuleType, path: str, name: str) -> list[Case]:
    """The cases of a module, or those with the given name."""
    found = [
        replace(case, name=f"{path}::{case.name}", replay=f"gradvet check {shlex.quote(f'{path}::{case.name}')}")
        for case in cases_in(module)
    ]
    names = [case.name.partition("::")[2] for case in found]
    chosen = [case for case, full in zip(found, names, strict=True) if name in ("", full, _short(full))]
    if chosen:
        return chosen
    if not name:
        example = f"{path}::name --input 3x4" if path.endswith(".py") else f"{path}:callable --input 3x4"
        words = "decorate functions with @gradvet.case(inputs=...), or name a callable in it and its inputs"
        raise InvalidProblemError(f"{path} has no cases: {words} ({example})")
    hint = _suggestion(name, vars(module))
    if found:
        hint = f"; give --input SHAPE to check {name} without a case" if hasattr(module, name) else hint
        raise InvalidProblemError(f"{path} has no case {name!r}; it has: {', '.join(names)}{hint}")
    if hasattr(module, name):
        raise InvalidProblemError(f"{name} in {path} is not a case: give its inputs, such as --input 3x4")
    raise InvalidProblemError(f"{path} has no {name!r}{hint}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, cutoff=MIN_SIMILARITY)
    return f"; did you mean {close[0]!r}?" if close else ""


def _short(name: str) -> str:
    """The name of a case without its number or parameters."""
    return name.partition("[")[0]


def _add_to_path(folder: Path) -> None:
    """Import from a folder, after the standard library: no file there takes the place of a module of Python."""
    if str(folder) not in sys.path:
        standard = [place for place, entry in enumerate(sys.path) if entry in LIBRARY_FOLDERS]
        sys.path.insert(max(standard, default=-1) + 1, str(folder))


def _callable_case(target: str, inputs: InputSpec, execute: Callable[[Path], ModuleType]) -> Case:
    if not inputs.shapes:
        raise InvalidProblemError(f"{target} needs inputs: give one --input SHAPE for each, such as --input 4x5")
    require_known(inputs.dtype, inputs.device)
    found = _named_callable(target, execute)
    if inputs.init and not _is_instantiable(found):
        raise InvalidProblemError(
            f"{target} is not a class to instantiate, so --init has no meaning: leave it out, or use --kwargs"
        )
    options: dict[str, Any] = {"kwargs": dict(inputs.kwargs)}
    if inputs.dtypes:
        options["dtypes"] = inputs.dtypes
    if inputs.reference:
        reference = _named_callable(inputs.reference, execute)
        options["reference"] = _instantiated(reference, inputs, inputs.reference)
    elif inputs.dtypes:
        raise InvalidProblemError(
            "--dtypes names the precisions for --reference: give it too, or one --dtype in its place"
        )
    function = _instantiated(found, inputs, target)
    return Case(target, function, inputs.tensors, options, replay=inputs.command(target), words=COMMAND_LINE_ADVICE)


def _named_callable(target: str, execute: Callable[[Path], ModuleType]) -> Callable[..., Any]:
    path, _, name = target.partition("::")
    if path.endswith(".py") and name:
        value: Any = _file_module(path, execute)
    elif CALLABLE.fullmatch(target):
        path, _, name = target.partition(":")
        value = _import(path)
    else:
        raise InvalidProblemError(
            f"the reference {target!r} was not understood: name it as ops.py::name or package.module:callable"
        )
    for part in name.split("."):
        if not hasattr(value, part):
            raise InvalidProblemError(f"{target} was not found: {path} has no {part!r}{_suggestion(part, dir(value))}")
        value = getattr(value, part)
    if not callable(value):
        raise InvalidProblemError(f"{target} is {type(value).__name__}, which cannot be called")
    found: Callable[..., Any] = value
    return found


def _import(name: str) -> ModuleType:
    _add_to_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        module, _, attribute = name.rpartition(".")
        is_callable = hasattr(sys.modules.get(module), attribute)
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
        hint = f"; run gradvet in its folder, or name its file ({name}.py::...)" if is_missing else ""
        if is_callable:
            hint = f"; a callable has a colon before its name ({module}:{attribute})"
        raise InvalidProblemError(
            f"the module {name} cannot be imported: {type(error).__name__}: {error}{hint}"
        ) from error


def _is_instantiable(value: Any) -> bool:
    """Whether it is a class. An `autograd.Function` is applied, not instantiated."""
    return isinstance(value, type) and not (hasattr(value, "apply") and hasattr(value, "backward"))


def _instantiated(value: Callable[..., Any], inputs: InputSpec, target: str) -> Callable[..., Any]:
    """An instance if `value` is a class."""
    if not _is_instantiable(value):
        return value
    positional, named = ((), inputs.init) if isinstance(inputs.init, Mapping) else (inputs.init, {})
    try:
        with seeded(inputs.seed):
            instance: Callable[..., Any] = converted(value(*positional, **named), inputs.dtype, inputs.device)
    except Exception as error:
        raise InvalidProblemError(
            f"{target} cannot be instantiated: {type(error).__name__}: {error}; give its arguments with --init"
        ) from error
    if not callable(instance):
        raise InvalidProblemError(f"an instance of {target} cannot be called")
    return instance


@dataclass(frozen=True)
class Operators(Mapping[str, Case]):
    """A selection of samples of the operator database, as cases by name, such as `addmm/inplace/float64/3`.

    Looking up a name creates only the samples of its operator.
    """

    glob: str = "*"
    dtypes: tuple[str, ...] = ("float64", "complex128")
    device: str = "cpu"
    samples: int | None = None
    """Largest number of random samples per operator, variant and dtype; None takes all."""
    cases: tuple[str, ...] = ()
    """Names of single samples; if given, nothing else is selected."""
    flags: str = ""
    """Command-line options of the run, for the command that repeats one case."""

    def open(self) -> Mapping[str, Case]:
        database()  # loaded here, so that its time counts for no case
        return self

    def describe(self) -> dict[str, Any]:
        return {"operators": asdict(self)}

    def __iter__(self) -> Iterator[str]:
        return iter(_names(self))

    def __len__(self) -> int:
        return len(_names(self))

    def __getitem__(self, name: str) -> Case:
        prefix, _, number = name.rpartition("/")
        group = group_named(prefix, self.device) if number.isdecimal() else None
        sample = group.samples().get(int(number)) if group else None
        if group is None or sample is None:
            raise InvalidProblemError(f"the operator database has no sample {name!r}: names look like addmm/float64/3")
        function, inputs = sample
        device = f" --device {self.device}" if self.device != "cpu" else ""
        replay = f"gradvet ops --case {name}{device} {self.flags}".rstrip()
        return Case(name, function, inputs=lambda: inputs, options=group.settings(), replay=replay)


@functools.lru_cache(maxsize=1)
def _names(selection: Operators) -> tuple[str, ...]:
    """The names of all samples of a selection, which takes minutes for the whole database."""
    if selection.cases:
        return tuple({name: selection[name] for name in selection.cases})  # an unknown name raises here
    matching = groups(selection.glob, selection.dtypes, selection.device)
    if not matching:
        raise InvalidProblemError(
            f"no operator fits {selection.glob!r} and is differentiable in {', '.join(selection.dtypes)} "
            f"on {selection.device}"
        )
    return tuple(f"{group}/{number}" for group in matching for number in group.numbers(selection.samples))
