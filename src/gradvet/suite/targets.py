"""Targets of the command line as cases.

`file.py` and `package.module` select all marked functions, `file.py::name` selects one, and `package.module:callable`
selects any callable, with random inputs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.inputs import converted, random_inputs
from gradvet.frontends.torch.random_state import seeded
from gradvet.suite.case import Case, cases_in

CALLABLE = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


class TargetError(InvalidProblemError):
    """A target selects nothing that can be checked; the message says what to do."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Inputs of a callable target, and the constructor arguments if the target is a class."""

    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str = "float64"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    init: Sequence[Any] | Mapping[str, Any] = ()
    seed: int = 0
    """Seed for the parameters of a module."""

    @property
    def is_given(self) -> bool:
        """Whether any option differs from its default."""
        return bool(self.shapes or self.kwargs or self.init) or self.dtype != "float64"

    def command(self, target: str) -> str:
        """The command line that repeats the check of a target, without its seed."""
        parts = ["gradvet", "check", target]
        for shape in self.shapes:
            parts += ["--input", "x".join(map(str, shape)) or "scalar"]
        parts += ["--dtype", self.dtype] if self.dtype != "float64" else []
        parts += ["--kwargs", json.dumps(self.kwargs)] if self.kwargs else []
        parts += ["--init", json.dumps(self.init)] if self.init else []
        return shlex.join(parts)


@dataclass(frozen=True, slots=True)
class Targets:
    """Several targets, as a source of cases."""

    names: tuple[str, ...]
    inputs: InputSpec = field(default_factory=InputSpec)
    flags: str = ""
    """Command-line options of the run, for the command that repeats one case."""

    def open(self) -> dict[str, Case]:
        """The cases by name. Executes each file once, even if several targets name it."""
        if self.inputs.is_given and all(target.partition("::")[0].endswith(".py") for target in self.names):
            raise TargetError(
                "cases in files have inputs of their own: --input, --dtype, --kwargs and --init are for a callable "
                "(package.module:callable)"
            )
        execute = functools.cache(_execute)
        cases = [case for target in self.names for case in cases_of(target, self.inputs, execute)]
        return {case.name: replace(case, replay=f"{case.replay} {self.flags}".rstrip()) for case in cases}

    def describe(self) -> dict[str, Any]:
        # The keys are part of the store's file format.
        return {"targets": {"names": self.names, "making": asdict(self.inputs), "flags": self.flags}}


def cases_of(target: str, inputs: InputSpec, execute: Callable[[Path], ModuleType] | None = None) -> list[Case]:
    """The cases of a target. `execute` turns the absolute path of a file into a module."""
    path, _, name = target.partition("::")
    if path.endswith(".py"):
        return _marked(_file_module(path, execute or _execute), path, name)
    if all(part.isidentifier() for part in path.split(".")):
        return _marked(_import(path), path, name)
    if CALLABLE.fullmatch(target):
        return [_callable_case(target, inputs)]
    raise TargetError(
        f"the target {target!r} was not understood: name a file (ops.py), a module (package.module), a case in one "
        "(ops.py::name) or a callable (package.module:callable)"
    )


def _file_module(path: str, execute: Callable[[Path], ModuleType]) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise TargetError(f"there is no file {path}: check the path, from the folder {Path.cwd().name}")
    try:
        return execute(file.resolve())
    except (Exception, SystemExit) as error:
        raise TargetError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error


def _execute(file: Path) -> ModuleType:
    """The module in a file. It can import files beside it; its own name in `sys.modules` replaces no other module."""
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
    if not found:
        hint = "" if path.endswith(".py") else f", or name a callable in it ({path}:callable)"
        raise TargetError(f"{path} has no cases: decorate functions with @gradvet.case(inputs=...){hint}")
    chosen = [case for case in found if name in ("", _short_name(case), _short_name(case).partition("[")[0])]
    if not chosen:
        raise TargetError(f"{path} has no case {name!r}; it has: {', '.join(map(_short_name, found))}")
    return chosen


def _short_name(case: Case) -> str:
    return case.name.partition("::")[2]


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _callable_case(target: str, inputs: InputSpec) -> Case:
    module_name, _, name = target.partition(":")
    if not inputs.shapes:
        raise TargetError(f"{target} needs inputs: give one --input SHAPE for each, such as --input 4x5")
    func = _instantiate(_attribute(_import(module_name), name, target), inputs, target)
    return Case(
        target,
        func,
        inputs=lambda: random_inputs(inputs.shapes, inputs.dtype),
        options={"kwargs": dict(inputs.kwargs)},
        replay=inputs.command(target),
    )


def _import(name: str) -> ModuleType:
    _add_to_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        module, _, attribute = name.rpartition(".")
        hint = f"; a callable has a colon before its name ({module}:{attribute})" if module else ""
        raise TargetError(f"the module {name} cannot be imported: {type(error).__name__}: {error}{hint}") from error


def _attribute(module: ModuleType, name: str, target: str) -> Any:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise TargetError(f"{target} was not found: {module.__name__} has no {name}")
        value = getattr(value, part)
    if not callable(value):
        raise TargetError(f"{target} is {type(value).__name__}, which cannot be called")
    return value


def _instantiate(value: Callable[..., Any], inputs: InputSpec, target: str) -> Callable[..., Any]:
    """An instance if `value` is a class. An `autograd.Function` is applied, not instantiated, and stays a class."""
    if not isinstance(value, type) or (hasattr(value, "apply") and hasattr(value, "backward")):
        if inputs.init:
            raise TargetError(
                f"{target} is not a class to instantiate, so --init has no meaning: leave it out, or use --kwargs"
            )
        return value
    positional, named = ((), inputs.init) if isinstance(inputs.init, Mapping) else (inputs.init, {})
    try:
        with seeded(inputs.seed):
            instance: Callable[..., Any] = converted(value(*positional, **named), inputs.dtype)
    except Exception as error:
        raise TargetError(
            f"{target} cannot be instantiated: {type(error).__name__}: {error}; give its arguments with --init"
        ) from error
    if not callable(instance):
        raise TargetError(f"an instance of {target} cannot be called")
    return instance
