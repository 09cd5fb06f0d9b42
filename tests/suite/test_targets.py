"""Targets of the command line, and the messages for invalid ones.

Tests `suite/sources.py` and `frontends/torch/inputs.py`.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import torch

from gradvet.errors import InvalidProblemError
from gradvet.suite.sources import InputSpec, cases_of

FILE = """
import torch, gradvet
from neighbour import factor

@gradvet.case(inputs=lambda: torch.ones(3, dtype=torch.float64))
def first(x):
    return factor * x

@gradvet.case(inputs=lambda: torch.ones(3, dtype=torch.float64))
@gradvet.case(inputs=lambda: torch.ones(2, dtype=torch.float64))
def second(x):
    return x.sin()
"""


@pytest.fixture
def ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "neighbour.py").write_text("factor = 2.0")
    (tmp_path / "ops.py").write_text(FILE)
    return "ops.py"


@pytest.mark.parametrize("target", ["ops.py", "torch:sin"])
def test_file_beside_the_target_replaces_no_module_of_python(
    ops: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker processes get the search path of this one, and import `queue` themselves."""
    Path("queue.py").write_text("raise RuntimeError('this file was run')")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    cases_of(target, InputSpec(((3,),)) if ":" in target else InputSpec())
    folder = str(Path.cwd())
    assert folder in sys.path
    for name, is_beside in (("queue", False), ("random", False), ("neighbour", True)):
        found = PathFinder.find_spec(name, sys.path)
        assert found is not None
        assert str(found.origin).startswith(folder) is is_beside


def names(target: str, inputs: InputSpec | None = None) -> list[str]:
    return [case.name for case in cases_of(target, inputs or InputSpec())]


def test_file_gives_all_its_cases(ops: str) -> None:
    assert names(ops) == ["ops.py::first", "ops.py::second[0]", "ops.py::second[1]"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("first", ["ops.py::first"]),
        ("second", ["ops.py::second[0]", "ops.py::second[1]"]),
        ("second[1]", ["ops.py::second[1]"]),
    ],
)
def test_name_in_a_file_gives_the_cases_of_that_name(ops: str, name: str, found: list[str]) -> None:
    assert names(f"{ops}::{name}") == found


def test_module_gives_all_its_cases(ops: str) -> None:
    Path("cases_of_a_module.py").write_text(FILE)
    assert names("cases_of_a_module::first") == ["cases_of_a_module::first"]
    assert names("cases_of_a_module") == [
        "cases_of_a_module::first",
        "cases_of_a_module::second[0]",
        "cases_of_a_module::second[1]",
    ]


def test_replay_names_the_case(ops: str) -> None:
    assert [case.replay for case in cases_of(f"{ops}::first", InputSpec())] == ["gradvet check ops.py::first"]


def test_callable_gets_inputs_of_the_shapes_and_dtype_asked_for() -> None:
    (case,) = cases_of("torch:softmax", InputSpec(((4, 5), ()), "float32", {"dim": -1}))
    tensors = case.inputs()
    assert [tensor.shape for tensor in tensors] == [(4, 5), ()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    assert case.options == {"kwargs": {"dim": -1}}
    assert (
        case.replay == "gradvet check torch:softmax --input 4x5 --input scalar --dtype float32 --kwargs '{\"dim\": -1}'"
    )


@pytest.mark.parametrize("init", [{"in_features": 5, "out_features": 3}, [5, 3]])
def test_module_class_is_made_in_the_dtype_of_its_inputs(init: object) -> None:
    (case,) = cases_of("torch.nn:Linear", InputSpec(((2, 5),), init=init))  # type: ignore[arg-type]
    assert case.func(*case.inputs()).shape == (2, 3)


def test_same_seed_makes_the_same_module() -> None:
    inputs = InputSpec(((2, 5),), init=[5, 3], seed=11)
    (one,), (other,) = cases_of("torch.nn:Linear", inputs), cases_of("torch.nn:Linear", inputs)
    assert torch.equal(one.func.weight, other.func.weight)  # type: ignore[attr-defined]


def test_nested_names_are_followed() -> None:
    (case,) = cases_of("torch:nn.functional.silu", InputSpec(((3,),)))
    assert case.func is torch.nn.functional.silu


@pytest.mark.parametrize(
    ("target", "inputs", "words"),
    [
        ("none.py", InputSpec(), "there is no file none.py"),
        ("ops.py::third", InputSpec(), r"ops\.py has no case 'third'; it has: first, second\[0\], second\[1\]"),
        ("ops.py::secnd", InputSpec(((3,),)), r"it has: first, second\[0\], second\[1\]; did you mean 'second'\?"),
        ("neighbour.py", InputSpec(), r"neighbour\.py has no cases: decorate functions with @gradvet\.case"),
        (
            "neighbour.py::factor",
            InputSpec(),
            r"factor in neighbour\.py is not a case: give its inputs, such as --input",
        ),
        ("neighbour.py::facto", InputSpec(), r"neighbour\.py has no 'facto'; did you mean 'factor'\?"),
        ("neighbour.py::facto", InputSpec(((3,),)), r"neighbour\.py has no 'facto'; did you mean 'factor'\?"),
        ("broken.py", InputSpec(), r"broken\.py cannot be imported: ZeroDivisionError"),
        (
            "torch",
            InputSpec(),
            r"torch has no cases: decorate functions with @gradvet\.case.*, or name a callable in it",
        ),
        ("no-such", InputSpec(), "the target 'no-such' was not understood"),
        (
            "torch.nn.functional.silu",
            InputSpec(((3,),)),
            r"a colon before its name \(torch.nn.functional:silu\)",
        ),
        ("torch:", InputSpec(((3,),)), "the target 'torch:' was not understood"),
        ("../ops:first", InputSpec(((3,),)), "the target '../ops:first' was not understood"),
        ("leaving.py", InputSpec(), r"leaving\.py cannot be imported: SystemExit: 3"),
        ("torch:sin", InputSpec(), "torch:sin needs inputs: give one --input SHAPE"),
        ("torch:no_such", InputSpec(((3,),)), "torch:no_such was not found: torch has no 'no_such'"),
        ("no_such_module:f", InputSpec(((3,),)), "the module no_such_module cannot be imported"),
        ("no_such.module:f", InputSpec(((3,),)), "No module named 'no_such'$"),
        ("math:pi", InputSpec(((3,),)), "math:pi is float, which cannot be called"),
        ("torch.nn:Linear", InputSpec(((3,),)), "cannot be instantiated: TypeError.*give its arguments with --init"),
        ("torch:sin", InputSpec(((3,),), init=[1]), "is not a class to instantiate, so --init has no meaning"),
    ],
)
def test_invalid_target_says_what_to_do(ops: str, target: str, inputs: InputSpec, words: str) -> None:
    Path("broken.py").write_text("1 / 0")
    Path("leaving.py").write_text("raise SystemExit(3)")
    with pytest.raises(InvalidProblemError, match=words):
        cases_of(target, inputs)


@pytest.mark.parametrize("dtype", ["int64", "float65", "sin"])
def test_dtype_without_derivatives_is_refused(dtype: str) -> None:
    with pytest.raises(InvalidProblemError, match=f"a floating-point or complex dtype was expected, found '{dtype}'"):
        cases_of("torch:sin", InputSpec(((3,),), dtype))


def test_callable_in_a_file_gets_inputs(ops: str) -> None:
    Path("layers.py").write_text(
        "import torch\n\nclass Twice(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x"
    )
    (case,) = cases_of("layers.py::Twice", InputSpec(((3,),)))
    assert case.func(*case.inputs()).shape == (3,)
    assert case.replay == "gradvet check layers.py::Twice --input 3"
    with pytest.raises(InvalidProblemError, match=r"ops\.py has no case 'factor'.*give --input SHAPE to check factor"):
        cases_of("ops.py::factor", InputSpec())


def test_integer_inputs_are_below_their_bound() -> None:
    (case,) = cases_of("torch:take", InputSpec(((3, 4), (20,)), below=(None, 12)))
    values, index = case.inputs()
    assert values.dtype is torch.float64
    assert index.dtype is torch.int64
    assert 0 <= int(index.min()) <= int(index.max()) < 12
    assert case.replay == "gradvet check torch:take --input 3x4 --input 20:int:12"


def test_file_in_a_package_may_import_its_neighbours(tmp_path: Path) -> None:
    package = tmp_path / "kernels_for_test" / "norms"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package.parent / "shared.py").write_text("factor = 3.0")
    (package / "ops.py").write_text(FILE.replace("from neighbour", "from ..shared"))
    (first, *_) = cases_of(str(package / "ops.py"), InputSpec())
    assert first.func(torch.ones(1)) == 3.0
