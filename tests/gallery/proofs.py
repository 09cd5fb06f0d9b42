"""How the fault of a case is shown: a proof gives the derivative that is found and the true one.

Proofs that first set up a condition (a layout, a frozen input, another call) are in `conditions`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.gallery.case import Case, Evidence, Function, Inputs
from tests.gallery.curvature import COMPOSITIONS, curvature
from tests.gallery.derivatives import (
    axes,
    dense,
    directions,
    flat,
    gradients,
    live,
    one_sided,
    outputs,
    pullback,
    pushforward,
    slope,
)

Proof = Callable[[Case], Evidence]


def reference(case: Case) -> Function:
    if case.reference is None:
        raise LookupError(f"{case.name} has no reference to compare with")
    return case.reference


def reverse(case: Case) -> Evidence:
    """An ordinary backward pass, the cotangent not of unit scale. A reference takes strided inputs."""
    function, inputs = case.subject()
    return Evidence(flat(gradients(function, inputs)), flat(gradients(reference(case), dense(case.subject()[1]))))


def by_entry(proof: Proof) -> Proof:
    """Every found number over its true one, where that is not 0: a small entry counts as much as a large one."""

    def ratios(case: Case) -> Evidence:
        evidence = proof(case)
        some = evidence.true != 0
        ratio = evidence.found[some] / evidence.true[some]
        return Evidence(ratio, torch.ones_like(ratio))

    return ratios


def differences(step: float) -> Proof:
    """The derivative along one direction against central differences with a step that suits the function."""

    def proof(case: Case) -> Evidence:
        function, inputs = case.subject()
        tangents = directions(live(inputs))
        results = outputs(function(*inputs))
        numerical = slope(function, case.subject()[1], tangents, step)
        rows = [torch.dot(flat(gradients(function, inputs)), flat(tangents))]
        return Evidence(torch.stack(rows), torch.dot(numerical, flat(directions(results, scale=3.0)))[None])

    return proof


def layout_of_gradient(case: Case) -> Evidence:
    """1 for every gradient that has the layout of its input."""
    function, inputs = case.subject()
    pairs = list(zip(gradients(function, inputs), live(inputs), strict=True))
    same = torch.tensor([float(gradient.layout == source.layout) for gradient, source in pairs])
    return Evidence(same, torch.ones_like(same))


def forward(case: Case) -> Evidence:
    function, inputs = case.subject()
    tangents = directions(live(inputs))
    return Evidence(
        flat(pushforward(function, inputs, tangents)), flat(pushforward(reference(case), case.subject()[1], tangents))
    )


def one_sided_slopes(case: Case) -> Evidence:
    """At a kink: the true value is the nearest within the one-sided slopes, along each axis and along all at once."""
    function, inputs = case.subject()
    sources = live(inputs)
    found, true = [], []
    for tangents in axes(sources):
        low, high = one_sided(reference(case), case.subject()[1], tangents, 1e-6)
        value = flat(_along(function, inputs, tangents))
        found.append(value)
        true.append(torch.clamp(value, torch.minimum(low, high) - 1e-6, torch.maximum(low, high) + 1e-6))
    return Evidence(torch.cat(found), torch.cat(true))


def _along(function: Function, inputs: Inputs, tangents: list[Tensor]) -> list[Tensor]:
    """The Jacobian times the tangents, row by row in reverse mode."""
    results = outputs(function(*inputs))
    rows = []
    for index, result in enumerate(results):
        for entry in range(result.numel()):
            cotangents = [torch.zeros_like(other) for other in results]
            cotangents[index].view(-1)[entry] = 1.0
            rows_gradient = pullback(results, inputs, cotangents, retain_graph=True)
            rows.append(sum((g * t).sum() for g, t in zip(rows_gradient, tangents, strict=True)))
    return [torch.as_tensor(row) for row in rows]


# Second order.


def second_order(composition: str) -> Proof:
    """One of four compositions of forward and reverse mode, against differences of the reference's gradient."""

    def proof(case: Case) -> Evidence:
        function, inputs = case.subject()
        return Evidence(COMPOSITIONS[composition](function, inputs), curvature(reference(case), case.subject()[1]))

    return proof


def derivative_in_cotangent(case: Case) -> Evidence:
    """The gradient is linear in its cotangent v; its derivative there is the Jacobian times a direction."""
    function, inputs = case.subject()
    results = outputs(function(*inputs))
    cotangents = [v.requires_grad_() for v in directions(results)]
    first = pullback(results, inputs, cotangents, create_graph=True)
    found = pullback(first, tuple(cotangents), directions(live(inputs), seed=3))
    fresh = case.subject()[1]
    return Evidence(flat(found), flat(pushforward(reference(case), fresh, directions(live(fresh), seed=3))))


# Low precision.


def precision(case: Case) -> Evidence:
    """The gradient in the case's own dtype against the reference's in float64, at the same point and cotangent."""
    return _against_double(case, directions)


def precision_at_ones(case: Case) -> Evidence:
    """The same with a cotangent of ones, whose sum does not cancel."""
    return _against_double(case, lambda results: [torch.ones_like(y) for y in results])


def _against_double(case: Case, cotangents_of: Callable[[list[Tensor]], list[Tensor]]) -> Evidence:
    function, inputs = case.subject()
    wide = tuple(x.detach().double().requires_grad_() if isinstance(x, Tensor) else x for x in inputs)
    results = outputs(function(*inputs))
    cotangents = cotangents_of(results)
    exact = outputs(reference(case)(*wide))
    true = pullback(exact, wide, [v.to(y.dtype) for v, y in zip(cotangents, exact, strict=True)])
    return Evidence(flat(pullback(results, inputs, cotangents)), flat(true))


def forward_precision(case: Case) -> Evidence:
    """Forward mode in the case's own dtype against the reference's in float64, at the same point and tangent."""
    function, inputs = case.subject()
    tangents = directions(live(inputs))
    wide = tuple(x.detach().double().requires_grad_() if isinstance(x, Tensor) else x for x in inputs)
    true = pushforward(reference(case), wide, [u.double() for u in tangents])
    return Evidence(flat(pushforward(function, inputs, tangents)), flat(true))
