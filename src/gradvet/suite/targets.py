"""What a user names on the command line, as cases.

`file.py` and `package.module` are all marked functions in there, `file.py::name` is one of them, and
`package.module:callable` any callable, with inputs that are made for it.
"""

from __future__ import annotations

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
from gradvet.frontends.torch.inputs import converted, random_inputs, seeded
from gradvet.suite.case import Case, cases_in

CALLABLE = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


class TargetError(InvalidProblemError):
    """A target that leads to nothing that can be checked; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Making:
    """How to make inputs for a callable, and the callable itself if it is a class."""

    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str = "float64"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    init: Sequence[Any] | Mapping[str, Any] = ()
    seed: int = 0
    """Settles the parameters of a module that is made."""

    @property
    def is_given(self) -> bool:
        """Whether anything of it was asked for."""
        return bool(self.shapes or self.kwargs or self.init) or self.dtype != "float64"

    def command(self, target: str) -> str:
        """The command line that makes the same again, less its seed."""
        parts = ["gradvet", "check", target]
        for shape in self.shapes:
            parts += ["--input", "x".join(map(str, shape)) or "scalar"]
        parts += ["--dtype", self.dtype] if self.dtype != "float64" else []
        parts += ["--kwargs", json.dumps(self.kwargs)] if self.kwargs else []
        parts += ["--init", json.dumps(self.init)] if self.init else []
        return shlex.join(parts)


@dataclass(frozen=True, slots=True)
class Targets:
    """The cases of several targets, as a source."""

    names: tuple[str, ...]
    making: Making = field(default_factory=Making)
    flags: str = ""
    """Options that hold for every case, as they were typed, for the command that repeats one."""

    def open(self) -> dict[str, Case]:
        """What the targets name, each case once."""
        if self.making.is_given and all(target.partition("::")[0].endswith(".py") for target in self.names):
            raise TargetError(
                "cases in files have inputs of their own: --input, --dtype, --kwargs and --init are for a callable "
                "(package.module:callable)"
            )
        cases = [case for target in self.names for case in cases_of(target, self.making)]
        return {case.name: replace(case, replay=f"{case.replay} {self.flags}".rstrip()) for case in cases}

    def describe(self) -> dict[str, Any]:
        return {"targets": asdict(self)}


def cases_of(target: str, making: Making) -> list[Case]:
    """The cases that a target names."""
    path, _, name = target.partition("::")
    if path.endswith(".py"):
        return _marked(_file(path), path, name)
    if all(part.isidentifier() for part in path.split(".")):
        return _marked(_imported(path), path, name)
    if CALLABLE.fullmatch(target):
        return [_from_callable(target, making)]
    raise TargetError(
        f"the target {target!r} was not understood: name a file (ops.py), a module (package.module), a case in one "
        "(ops.py::name) or a callable (package.module:callable)"
    )


def _file(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise TargetError(f"there is no file {path}: check the path, from the folder {Path.cwd().name}")
    return _module_at(Path(path))


def _marked(module: ModuleType, path: str, name: str) -> list[Case]:
    """The marked functions of a module, or those of one name."""
    found = [
        replace(case, name=f"{path}::{case.name}", replay=f"gradvet check {shlex.quote(f'{path}::{case.name}')}")
        for case in cases_in(module)
    ]
    if not found:
        callable_ = "" if path.endswith(".py") else f", or name a callable in it ({path}:callable)"
        raise TargetError(f"{path} has no cases: decorate functions with @gradvet.case(inputs=...){callable_}")
    chosen = [case for case in found if name in ("", _short(case), _short(case).partition("[")[0])]
    if not chosen:
        raise TargetError(f"{path} has no case {name!r}; it has: {', '.join(map(_short, found))}")
    return chosen


def _short(case: Case) -> str:
    return case.name.partition("::")[2]


def _module_at(file: Path) -> ModuleType:
    """The module in a file. Its neighbours can be imported, as in a script; no other module's name is taken."""
    name = f"{file.stem}__cases"
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    _search_in(file.resolve().parent)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise TargetError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _search_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _from_callable(target: str, making: Making) -> Case:
    module_name, _, name = target.partition(":")
    if not making.shapes:
        raise TargetError(f"{target} needs inputs: give one --input SHAPE for each, such as --input 4x5")
    func = _made(_attribute(_imported(module_name), name, target), making, target)
    return Case(
        target,
        func,
        inputs=lambda: random_inputs(making.shapes, making.dtype),
        options={"kwargs": dict(making.kwargs)},
        replay=making.command(target),
    )


def _imported(name: str) -> ModuleType:
    _search_in(Path.cwd())
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
        raise TargetError(f"{target} is {type(value).__name__}, not something that can be called")
    return value


def _made(value: Callable[..., Any], making: Making, target: str) -> Callable[..., Any]:
    """A class becomes an instance; one that is applied, not instantiated (autograd.Function), stays."""
    if not isinstance(value, type) or (hasattr(value, "apply") and hasattr(value, "backward")):
        if making.init:
            raise TargetError(
                f"{target} is no class to be made, so --init has no meaning: leave it out, or use --kwargs"
            )
        return value
    positional, named = ((), making.init) if isinstance(making.init, Mapping) else (making.init, {})
    try:
        with seeded(making.seed):
            made: Callable[..., Any] = converted(value(*positional, **named), making.dtype)
    except Exception as error:
        raise TargetError(
            f"{target} cannot be made: {type(error).__name__}: {error}; give its arguments with --init"
        ) from error
    if not callable(made):
        raise TargetError(f"an instance of {target} cannot be called")
    return made
