"""Proofs for derivatives that are right in a plain call and wrong under a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.gallery.case import Case, Evidence, Function, Inputs
from tests.gallery.derivatives import directions, flat, gradients, live, outputs, pullback
from tests.gallery.proofs import Proof, reference

# The cotangent.


def cotangent(change: Callable[[Tensor], Tensor]) -> Proof:
    """The same values of the cotangent, in memory as `change` lays them out."""

    def proof(case: Case) -> Evidence:
        function, inputs = case.subject()
        results = outputs(function(*inputs))
        found = pullback(results, inputs, [change(v) for v in directions(results)])
        fresh = case.subject()[1]
        plain = outputs(reference(case)(*fresh))
        true = pullback(plain, fresh, [change(v).resolve_conj().contiguous() for v in directions(plain)])
        return Evidence(flat(found), flat(true))

    return proof


transposed_cotangent = cotangent(lambda v: v.mT.contiguous().mT)
strided_cotangent = cotangent(lambda v: torch.stack([v, v + 7.0], -1)[..., 0])
expanded_cotangent = cotangent(lambda v: v.reshape(-1)[:1].reshape([1] * v.dim()).expand_as(v))
offset_cotangent = cotangent(lambda v: torch.cat([v[:1] + 7.0, v])[1:])
channels_last_cotangent = cotangent(lambda v: v.contiguous(memory_format=torch.channels_last))
conjugate_cotangent = cotangent(lambda v: v.conj().resolve_conj().conj())


def _without_rows(v: Tensor, lost: slice) -> Tensor:
    kept = v.clone()
    kept[lost] = 0.0
    return kept


alternate_rows_of_cotangent = cotangent(lambda v: _without_rows(v, slice(0, None, 2)))
last_row_of_cotangent = cotangent(lambda v: _without_rows(v, slice(0, -1)))
last_column_of_cotangent = cotangent(lambda v: _without_rows(v.mT, slice(0, -1)).mT)
small_cotangent = cotangent(lambda v: 2.0**-20 * v)
large_cotangent = cotangent(lambda v: 2.0**20 * v)


def mutated_cotangent(case: Case) -> Evidence:
    """What the caller's cotangent holds after the backward pass, and what it held before."""
    function, inputs = case.subject()
    results = outputs(function(*inputs))
    cotangents = directions(results)
    before = [v.clone() for v in cotangents]
    pullback(results, inputs, cotangents)
    return Evidence(flat(cotangents), flat(before))


def undefined_cotangent(case: Case) -> Evidence:
    """Only the last output is used, so that the cotangents of the others are undefined."""

    def last(function: Function, inputs: Inputs) -> Tensor:
        results = outputs(function(*inputs))[-1:]
        return flat(pullback(results, inputs, directions(results)))

    function, inputs = case.subject()
    return Evidence(last(function, inputs), last(reference(case), case.subject()[1]))


# The surroundings of the backward pass.


def interleaved(case: Case) -> Evidence:
    """Another forward, at other inputs of the same shapes, before the backward pass."""
    function, inputs = case.subject()
    results = outputs(function(*inputs))
    function(*(0.5 * x.detach() - 0.25 if isinstance(x, Tensor) and x.requires_grad else x for x in inputs))
    found = pullback(results, inputs, directions(results, scale=3.0))
    return Evidence(flat(found), flat(gradients(reference(case), case.subject()[1])))


def other_inputs_first(case: Case) -> Evidence:
    """Another forward, at other inputs, before the forward and backward passes."""
    function, inputs = case.subject()
    function(*(0.5 * x.detach() - 0.25 if isinstance(x, Tensor) and x.requires_grad else x for x in inputs))
    return Evidence(flat(gradients(function, inputs)), flat(gradients(reference(case), case.subject()[1])))


def after_other_passes(case: Case) -> Evidence:
    """A forward and a backward pass at other inputs before those at the given ones."""
    function, inputs = case.subject()
    gradients(function, tuple((0.5 * x.detach() - 0.25).requires_grad_() for x in inputs))
    return Evidence(flat(gradients(function, inputs)), flat(gradients(reference(case), case.subject()[1])))


def same_random_state(case: Case) -> Evidence:
    """Function and reference from the same random state."""
    function, inputs = case.subject()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = flat(gradients(function, inputs))
        torch.manual_seed(1)
        return Evidence(found, flat(gradients(reference(case), case.subject()[1])))


def second_backward(case: Case) -> Evidence:
    function, inputs = case.subject()
    results = outputs(function(*inputs))
    pullback(results, inputs, directions(results, scale=3.0), retain_graph=True)
    found = pullback(results, inputs, directions(results, scale=3.0))
    return Evidence(flat(found), flat(gradients(reference(case), case.subject()[1])))


def later_pass(case: Case) -> Evidence:
    """What the gradient of one backward pass holds after another one, with a smaller cotangent."""
    function, inputs = case.subject()
    found = gradients(function, inputs)
    gradients(function, case.subject()[1], scale=1.0)
    return Evidence(flat(found), flat(gradients(reference(case), case.subject()[1])))


def passes(count: int) -> Proof:
    """So many backward passes over one graph, side by side."""

    def proof(case: Case) -> Evidence:
        def repeated(function: Function, inputs: Inputs) -> Tensor:
            results = outputs(function(*inputs))
            cotangents = directions(results, scale=3.0)
            return torch.cat([flat(pullback(results, inputs, cotangents, retain_graph=True)) for _ in range(count)])

        function, inputs = case.subject()
        return Evidence(repeated(function, inputs), repeated(reference(case), case.subject()[1]))

    return proof


def frozen(*slots: int) -> Proof:
    """The inputs in these slots do not require grad."""

    def proof(case: Case) -> Evidence:
        def some(function: Function, inputs: Inputs) -> Tensor:
            kept = tuple(value.detach() if slot in slots else value for slot, value in enumerate(inputs))
            return flat(gradients(function, kept))

        function, inputs = case.subject()
        return Evidence(some(function, inputs), some(reference(case), case.subject()[1]))

    return proof


def without_grad_mode(case: Case) -> Evidence:
    """The value, with and without grad mode."""
    function, inputs = case.subject()
    with torch.no_grad():
        found = flat(outputs(function(*inputs)))
    return Evidence(found, flat(outputs(function(*inputs))))


def accumulated(case: Case) -> Evidence:
    """The gradient added by `backward()` to what `.grad` held."""

    def added(function: Function, inputs: Inputs) -> Tensor:
        sources = live(inputs)
        for source in sources:
            source.grad = torch.full_like(source, 2.0)
        results = outputs(function(*inputs))
        torch.autograd.backward(results, directions(results))
        return flat(source.grad for source in sources if source.grad is not None) - 2.0

    function, inputs = case.subject()
    return Evidence(added(function, inputs), added(reference(case), case.subject()[1]))


def checkpointed(case: Case) -> Evidence:
    """The forward pass is thrown away and run again for the backward pass."""

    def replayed(*inputs: Any) -> Any:
        return checkpoint(function, *inputs, use_reentrant=True)

    function, inputs = case.subject()
    return Evidence(flat(outputs(replayed(*inputs))), flat(outputs(function(*inputs))))


def input_layout(change: Callable[[Tensor], Tensor]) -> Proof:
    """The same values of the inputs, in memory as `change` lays them out."""

    def proof(case: Case) -> Evidence:
        function, inputs = case.subject()
        laid_out = tuple(change(x.detach()).requires_grad_() if isinstance(x, Tensor) else x for x in inputs)
        return Evidence(flat(gradients(function, laid_out)), flat(gradients(reference(case), inputs)))

    return proof


transposed_inputs = input_layout(lambda x: x.mT.contiguous().mT if x.dim() > 1 else x)
offset_inputs = input_layout(lambda x: torch.cat([x[:1] + 7.0, x])[1:])
channels_last_inputs = input_layout(lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x)


def overlapping_inputs(case: Case) -> Evidence:
    """The gradient at inputs whose entries share memory against that at copies whose entries do not."""
    function, inputs = case.subject()
    copies = tuple(x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in inputs)
    return Evidence(flat(gradients(function, inputs)), flat(gradients(reference(case), copies)))


def batched(case: Case) -> Evidence:
    """Two cotangents at once under vmap."""
    function, inputs = case.subject()
    results = outputs(function(*inputs))
    pairs = zip(directions(results), directions(results, seed=2, scale=2.0), strict=True)

    def one(*cotangents: Tensor) -> list[Tensor]:
        return pullback(results, inputs, cotangents, retain_graph=True)

    found = torch.func.vmap(one)(*(torch.stack(pair) for pair in pairs))
    fresh = case.subject()[1]
    plain = outputs(reference(case)(*fresh))
    draws = directions(plain), directions(plain, seed=2, scale=2.0)
    loop = [pullback(plain, fresh, draw, retain_graph=True) for draw in draws]
    return Evidence(flat(found), flat(torch.stack(pair) for pair in zip(*loop, strict=True)))


def mapped(case: Case) -> Evidence:
    """The function itself under vmap, over a batch of two inputs."""
    function, inputs = case.subject()
    batch = [torch.stack([x.detach(), 0.5 * x.detach() - 0.25]) for x in inputs]
    found = torch.func.vmap(function)(*batch)
    true = torch.stack([reference(case)(*row) for row in zip(*batch, strict=True)])
    return Evidence(flat([found]), flat([true]))
