"""What is recorded, kept, replayed and said: `watch`, `blame` and the culprit in the report of `check`.

Tests `api/blame.py`, `frontends/torch/blame/recording.py` and `frontends/torch/blame/sketches.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradvet
from gradvet import Verdict
from gradvet.core.events import ShowingStages
from gradvet.frontends.torch.blame.sketches import is_sketch_of, sketch_of
from gradvet.frontends.torch.private import PUBLIC_ONLY
from tests.blame import mixer, transformer

HERE = Path(__file__).name
needs_apply_in_python = pytest.mark.skipif(
    inspect.isbuiltin(torch.autograd.Function.apply),
    reason="an `apply` of C++, as in torch 2.15, that is kept in a variable is not replaced",
)
needs_private_names = pytest.mark.skipif(PUBLIC_ONLY, reason="private names of torch are switched off")


class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g * ctx.saved_tensors[0] ** 2


class Wrong(Right):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * ctx.saved_tensors[0] ** 2


class Counted(torch.autograd.Function):
    """Its value depends on how often it was called."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Counted.calls += 1
        ctx.factor = Counted.calls
        return x * Counted.calls

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 5 * g * ctx.factor


class Model(nn.Module):
    def __init__(self, function: Any, stop: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.function, self.stop = nn.Linear(3, 3), nn.Linear(3, 2), function, stop

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y = y.detach() if self.stop else y
        return self.b(self.function.apply(y))  # type: ignore[no-any-return]


def model(function: Any = Right, stop: bool = False) -> Model:
    return Model(function, stop).double()


def point() -> Tensor:
    return torch.randn(2, 3, dtype=torch.float64)


def training_step(net: nn.Module) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    net(point()).square().sum().backward()
    optimiser.step()


def test_block_that_is_printed_names_its_report() -> None:
    with gradvet.watch() as step:
        assert "report()" in str(step)


def test_watch_names_a_function_in_a_training_step() -> None:
    with gradvet.watch(seed=1) as step:
        training_step(model(Wrong))
    culprit = step.report().culprit
    assert culprit is not None
    assert culprit.place is not None
    assert culprit.called is not None
    assert culprit.what == "autograd.Function Wrong"
    assert Path(culprit.place.file).name == HERE
    assert culprit.place.code.startswith("def backward")
    assert "self.function.apply" in culprit.called.code
    assert culprit.path == str(culprit.called)


@needs_private_names
@needs_apply_in_python
def test_watch_sees_apply_kept_in_a_variable_before() -> None:
    apply = Wrong.apply
    with gradvet.watch() as step:
        apply(point().requires_grad_())  # type: ignore[no-untyped-call]
    assert step.report().verdict is Verdict.FAIL


def test_watch_of_right_functions_passes() -> None:
    with gradvet.watch() as step:
        training_step(model())
    report = step.report()
    assert report.verdict is Verdict.PASS
    assert [piece.name for piece in report.pieces] == ["Right"]


def test_watch_of_a_model_finds_a_stop_with_the_parameters_of_the_step() -> None:
    net = model(stop=True)
    with gradvet.watch(net, seed=1) as step:
        training_step(net)
    after = [parameter.detach().clone() for parameter in net.parameters()]
    culprit = step.report().culprit
    assert culprit is not None
    assert culprit.place is not None
    assert culprit.what == "detach"
    assert "y.detach()" in culprit.place.code
    assert all(torch.equal(one, other) for one, other in zip(after, net.parameters(), strict=True))


def test_watch_without_any_function_is_inconclusive() -> None:
    with gradvet.watch() as step:
        point().sin()
    report = step.report()
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "no custom Function" in report.notes[0]


def test_watch_removes_its_patches_after_an_exception() -> None:
    before = torch.autograd.Function.apply
    with pytest.raises(ZeroDivisionError), gradvet.watch(model()):
        raise ZeroDivisionError
    assert torch.autograd.Function.apply == before
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)


def test_call_that_cannot_be_replayed_is_listed_and_not_passed() -> None:
    report = gradvet.blame(model(Counted), point(), seed=1)
    assert report.verdict is Verdict.INCONCLUSIVE
    (piece,) = (piece for piece in report.unreplayed if piece.name == "Counted")
    assert piece.verdict is Verdict.SKIPPED
    assert "other values" in piece.reason
    assert "could not be replayed" in str(report)


def test_of_many_equal_calls_three_are_kept() -> None:
    with gradvet.watch() as step:
        for _ in range(10):
            Right.apply(point().requires_grad_())  # type: ignore[no-untyped-call]
    report = step.report()
    assert [piece.number for piece in report.pieces] == [1, 2, 10]
    assert "10 recorded, 3 kept" in report.notes[0]


def test_calls_beyond_the_memory_are_counted_and_prevent_a_pass() -> None:
    with gradvet.watch(budget=gradvet.Budget(bytes=100)) as step:
        for n in (1, 50):
            Right.apply(torch.ones(n, dtype=torch.float64, requires_grad=True))  # type: ignore[no-untyped-call]
    report = step.report()
    assert len(report.pieces) == 1
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any("not kept" in note for note in report.notes)


def test_pieces_beyond_the_time_are_listed() -> None:
    report = gradvet.blame(model(), point(), budget=1e-9)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert all("time" in piece.reason for piece in report.pieces)


def test_function_of_the_loss_is_checked() -> None:
    report = gradvet.blame(model(), point(), loss=lambda y: Wrong.apply(y).sum(), seed=1)  # type: ignore[no-untyped-call]
    assert [culprit.what for culprit in report.culprits] == ["autograd.Function Wrong"]


@needs_private_names
def test_operator_is_named_by_its_name() -> None:
    with gradvet.watch(seed=1) as step:
        mixer.wrong_squash(point().requires_grad_())
    culprit = step.report().culprit
    assert culprit is not None
    assert culprit.what == "operator gradvet_blame::wrong_squash"


@torch.library.custom_op("gradvet_blame::joined", mutates_args=())
def joined(parts: list[Tensor], scale: float, *, dim: int = 0) -> Tensor:
    return torch.cat(parts, dim) * scale


def _keep(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Tensor) -> None:
    ctx.dim = keyword_only_inputs["dim"]
    ctx.sizes = [part.shape[ctx.dim] for part in inputs[0]]


def _joined_backward(ctx: Any, g: Tensor) -> Any:
    return list(g.split(ctx.sizes, ctx.dim)), None


joined.register_autograd(_joined_backward, setup_context=_keep)


@needs_private_names
@needs_apply_in_python
def test_operator_with_a_list_of_tensors_is_replayed() -> None:
    with gradvet.watch(seed=1) as step:
        joined([point().requires_grad_(), point()], 2.0, dim=1)
    culprit = step.report().culprit
    assert culprit is not None
    assert culprit.what == "operator gradvet_blame::joined"
    assert culprit.cause == "the ratio is 0.5 everywhere"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_function_inside_a_checkpoint_is_named(use_reentrant: bool) -> None:
    class Checkpointed(Model):
        def forward(self, x: Tensor) -> Tensor:
            return self.b(checkpoint(self.function.apply, self.a(x), use_reentrant=use_reentrant))  # type: ignore[no-any-return]

    culprit = gradvet.blame(Checkpointed(Wrong).double(), point(), seed=1).culprit
    assert culprit is not None
    assert culprit.what == "autograd.Function Wrong"


def test_path_is_that_of_a_module_whose_method_is_called() -> None:
    class Encoder(nn.Module):
        def encode(self, x: Tensor) -> Any:
            return Wrong.apply(x)  # type: ignore[no-untyped-call]

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.inner = nn.Linear(3, 2), Encoder()

        def forward(self, x: Tensor) -> Any:
            return self.inner.encode(self.a(x))

    culprit = gradvet.blame(Outer().double(), point(), seed=1).culprit
    assert culprit is not None
    assert culprit.path == "inner"


def test_wrong_half_is_said_in_the_headline() -> None:
    net, inputs = transformer.model("rope_sign")
    culprit = gradvet.blame(net, inputs, seed=1).culprit
    place = Path(__file__).parent / "transformer.py"
    line = transformer.FAULTS[0].place[1]
    assert culprit is not None
    assert culprit.place is not None
    assert Path(culprit.place.file).name == place.name
    expected = f"{culprit.place.file}:{line}, input 0: the sign of the second half is wrong"
    assert str(culprit) == f"blocks.1.attn.rope: autograd.Function RopeOfWrongSign, {expected}"


class LostRows(torch.autograd.Function):
    """A product of matrices whose backward loses the last rows of a gradient."""

    lost = 0

    @staticmethod
    def forward(ctx: Any, p: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(p, v)
        return p @ v

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        p, v = ctx.saved_tensors
        of_v = p.mT @ g
        of_v[..., v.shape[-2] - LostRows.lost :, :] = 0
        return g @ v.mT, of_v


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (1, "[:, 8, :] of the gradient is zero"),
        (3, "[:, 6:, :] of the gradient is zero"),
        (6, "[:, 3:, :] of the gradient is zero"),
    ],
)
def test_wrong_rows_are_named_as_far_as_they_reach(lost: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Product(nn.Module):
        def forward(self, p: Tensor, v: Tensor) -> Any:
            return LostRows.apply(p, v)

    monkeypatch.setattr(LostRows, "lost", lost)
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 7, 9), (2, 9, 5))
    p, v = (torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes)
    culprit = gradvet.blame(Product(), (p, v), seed=1).culprit
    assert culprit is not None
    assert culprit.cause == words


@pytest.mark.parametrize("frozen", [False, True])
def test_function_in_a_module_without_anything_that_requires_grad_is_named(frozen: bool) -> None:
    class Rootless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3).double()).requires_grad_(False) if frozen else 1.0

        def forward(self, x: Tensor) -> Any:
            return Wrong.apply(self.scale * x.tanh())

    culprit = gradvet.blame(Rootless(), point(), seed=1).culprit
    assert culprit is not None
    assert culprit.what == "autograd.Function Wrong"


def test_blame_leaves_gradients_and_random_state_as_they_were() -> None:
    net, x = model(Wrong), point()
    net.a.weight.grad = torch.ones_like(net.a.weight)
    state = torch.get_rng_state()
    gradvet.blame(net, x, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(net.a.weight.grad, torch.ones_like(net.a.weight))
    assert net.b.weight.grad is None


def test_progress_names_the_piece_that_is_checked() -> None:
    stages: list[str] = []
    with ShowingStages(stages.append):
        gradvet.blame(model(), point(), seed=1)
    assert stages[0].endswith("autograd.Function Right"), stages
    assert stages[-1] == "the model: module Model", stages


def test_same_seed_gives_the_same_culprit() -> None:
    net, x = model(Wrong), point()
    first, second = (gradvet.blame(net, x, seed=3).culprits for _ in range(2))
    assert first == second


def test_check_of_a_module_reports_the_culprit_first() -> None:
    report = gradvet.check(model(Wrong), point(), seed=1)
    assert report.findings[0].check == "blame"
    assert "autograd.Function Wrong" in report.findings[0].headline
    assert report.findings[0].mismatches


def test_source_of_a_module_that_fails_is_the_line_of_the_culprit() -> None:
    report = gradvet.check(model(stop=True), point(), seed=1)
    assert report.source is not None
    assert "y.detach()" in report.source.code
    assert report.findings[0].facts["place"].endswith(f"test_watch.py:{report.source.line}")


def test_check_without_blame_does_not_search() -> None:
    report = gradvet.check(model(Wrong), point(), seed=1, blame=False)
    assert "blame" not in [finding.check for finding in report.findings]


def test_check_with_constant_stops_passes_and_names_the_line() -> None:
    net, x = model(stop=True), point()
    net.a.requires_grad_(False)
    assert gradvet.check(net, x, seed=1, blame=False).verdict is Verdict.FAIL
    report = gradvet.check(net, x, seed=1, stops="constant")
    assert any("y.detach()" in note for note in report.notes)
    assert "stops='constant'" in report.replay


def test_constant_stops_do_not_hide_a_wrong_function() -> None:
    report = gradvet.blame(model(Wrong), point(), seed=1, stops="constant")
    assert [culprit.what for culprit in report.culprits] == ["autograd.Function Wrong"]


def test_accepted_stop_is_listed() -> None:
    report = gradvet.blame(model(stop=True), point(), seed=1, stops="constant")
    assert report.verdict is Verdict.PASS
    assert ["y.detach()" in stop.place.code for stop in report.accepted] == [True]


@pytest.mark.parametrize(("settings", "message"), [({"stops": "never"}, "stops is"), ({"order": 3}, "order is")])
def test_unknown_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(gradvet.InvalidProblemError, match=message):
        gradvet.blame(model(), point(), **settings)


def test_blame_of_a_function_is_refused() -> None:
    with pytest.raises(gradvet.InvalidProblemError, match=r"gradvet\.watch"):
        gradvet.blame(torch.sin, point())


@pytest.mark.parametrize("call", [lambda cls: gradvet.blame(cls, point()), gradvet.watch])
def test_class_of_a_module_is_refused(call: Callable[[type], object]) -> None:
    with pytest.raises(gradvet.InvalidProblemError, match=r"^pass an instance of the module, such as Linear\(\.\.\.\)"):
        call(torch.nn.Linear)


class OfStrides(torch.autograd.Function):
    """Wrong for inputs that are not contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.is_contiguous = x.is_contiguous()
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g if ctx.is_contiguous else g


def test_arguments_are_replayed_with_their_strides() -> None:
    with gradvet.watch(seed=1) as step:
        OfStrides.apply(torch.randn(4, 6, dtype=torch.float64, requires_grad=True)[:, ::2])  # type: ignore[no-untyped-call]
    assert step.report().verdict is Verdict.FAIL


class AddsToGrad(torch.autograd.Function):
    """As reentrant checkpoints do, its backward pass runs another one, which adds to `.grad`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module) -> Any:
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x)
        torch.autograd.backward(y, g)
        return x.grad, None


def test_gradients_added_by_replayed_code_do_not_stay() -> None:
    class Outer(Model):
        def forward(self, x: Tensor) -> Any:
            return AddsToGrad.apply(self.a(x), self.b)  # type: ignore[no-untyped-call]

    net = Outer(Right).double()
    gradvet.blame(net, point(), seed=1)
    assert net.b.weight.grad is None


class Stateful:
    """An object that a module fills and that no copy is taken of."""

    def __init__(self) -> None:
        self.count = 0


def test_stop_in_a_module_that_cannot_be_replayed_is_named_with_its_path() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x: Tensor, state: Stateful) -> Tensor:
            state.count += 1
            return self.a(x).tanh() * x.detach() / state.count  # type: ignore[no-any-return]

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(3, 3), Inner()

        def forward(self, x: Tensor) -> Any:
            return self.inner(self.first(x), Stateful())

    culprit = gradvet.blame(Outer().double(), point(), seed=1).culprit
    assert culprit is not None
    assert (culprit.path, culprit.what) == ("inner", "detach")


def test_surrogate_beside_a_skip_connection_is_accepted_with_constant_stops() -> None:
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.round()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    class Outer(Model):
        def forward(self, x: Tensor) -> Any:
            y = self.a(x)
            return self.b(y + self.function.apply(y))

    assert not gradvet.blame(Outer(Rounded).double(), point(), seed=1, stops="constant").culprits
    assert gradvet.blame(Outer(Rounded).double(), point(), seed=1).culprits


class OfContiguousGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g.view(-1).view(g.shape)


class OfStateElsewhere(torch.autograd.Function):
    kept: Tensor

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        OfStateElsewhere.kept = x.detach()
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * OfStateElsewhere.kept


@pytest.mark.parametrize("function", [OfContiguousGradient, OfStateElsewhere])
def test_fault_that_the_run_did_not_meet_is_a_warning(function: Any) -> None:
    report = gradvet.blame(model(function), point(), seed=1)
    assert report.culprits == ()
    assert [warning.what for warning in report.warnings] == [f"autograd.Function {function.__name__}"]
    assert report.verdict is Verdict.INCONCLUSIVE


def test_state_overwritten_by_a_second_call_is_a_fault() -> None:
    class Twice(Model):
        def forward(self, x: Tensor) -> Any:
            return self.b(self.function.apply(self.a(x)) + self.function.apply(x * 2))

    report = gradvet.blame(Twice(OfStateElsewhere).double(), point().requires_grad_(), seed=1)
    assert [culprit.what for culprit in report.culprits] == ["autograd.Function OfStateElsewhere"]


def test_sketch_tells_other_values_and_formats_apart() -> None:
    x = torch.randn(5, 3, dtype=torch.float32)
    sketch = sketch_of(x)
    assert is_sketch_of(sketch, x.clone())
    assert not is_sketch_of(sketch, x.flip(0))
    assert not is_sketch_of(sketch, x.double())
    assert not is_sketch_of(sketch, x + 1e-3)


class Stopped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.inner(x).detach()


@pytest.mark.filterwarnings("ignore")
def test_scripted_module_is_no_operator_of_torch() -> None:
    torch.manual_seed(0)
    report = gradvet.check(torch.jit.script(Stopped()), point(), seed=1)
    assert report.failures
    assert not any("operator of the framework" in finding.advice for finding in report.failures)


class Both(nn.Module):
    """Two models of one training loop, which calls each of them and not the whole."""

    def __init__(self, function: Any, *, stops: bool = False) -> None:
        super().__init__()
        self.generator, self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), Critic(function, stops=stops)

    def training_step(self, x: Tensor) -> Tensor:
        return self.critic(self.generator(x)).sum()  # type: ignore[no-any-return]


class Critic(nn.Module):
    def __init__(self, function: Any, *, stops: bool) -> None:
        super().__init__()
        self.layer, self.function, self.stops = nn.Linear(4, 2), function, stops

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.function.apply(y * y.detach() if self.stops else y)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "stops", "what"),
    [(Right, False, None), (Wrong, False, "autograd.Function Wrong"), (Right, True, "detach")],
    ids=["right", "wrong Function", "stop"],
)
def test_parts_of_a_model_that_is_not_called_as_a_whole_are_checked(function: Any, stops: bool, what: str) -> None:
    torch.manual_seed(0)
    model = Both(function, stops=stops).double()
    with gradvet.watch(model, seed=1) as step:
        model.training_step(torch.randn(5, 3, dtype=torch.float64)).backward()
    report = step.report()
    assert report.verdict is (Verdict.PASS if what is None else Verdict.FAIL), report
    assert [(culprit.path, culprit.what) for culprit in report.culprits] == ([("critic", what)] if what else [])
    if what is None:
        assert {piece.path for piece in report.pieces} == {"generator", "critic"}
    assert any("generator, critic were checked, and the code that calls them was not" in note for note in report.notes)


class AddsTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = g.T @ x
        weight.grad = gradient if weight.grad is None else weight.grad + gradient  # this line
        return g @ weight, gradient


def test_function_that_writes_to_grad_is_named_by_that_line() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return AddsTwice.apply(x, self.weight)  # type: ignore[no-any-return, no-untyped-call]

    culprit = gradvet.blame(Product(), torch.rand(4, 3, dtype=torch.float64), seed=1).culprit
    assert culprit is not None
    assert culprit.place is not None
    assert culprit.place.code.endswith("# this line")
