"""The words of torch's gradcheck: existing tests match on them, so each finding has its own first line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gradvet.core.results import Finding
from gradvet.reports.wording import describe, matrix

Facts = Mapping[str, Any]


def message(finding: Finding) -> str:
    """What `GradcheckError` says: the phrase that tests know, then what gradvet found."""
    lines = [PHRASES[finding.check](finding.facts), describe(finding)]
    if "numerical" in finding.facts:
        lines += [
            f"numerical:\n{matrix(finding.facts['numerical'])}",
            f"analytical:\n{matrix(finding.facts['derivative'])}",
        ]
    if "largest" in finding.facts and "output" in finding.facts:
        lines.append(f"The max per-element difference (slow mode) is: {finding.facts['largest']:.6g}")
    return "\n".join(lines)


def _mismatch(mode: str, side: str) -> Callable[[Facts], str]:
    def phrase(facts: Facts) -> str:
        part = {"imag": "imaginary", "real": "real"}.get(facts["part"])
        prefix = f"While considering the {part} part of complex {side} only, " if part else ""
        place = f"output {facts['output']} with respect to input {facts['input']}"
        return f"{prefix}Jacobian {mode}mismatch for {place},"

    return phrase


def _nondeterministic(facts: Facts) -> str:
    return (
        f"Backward is not reentrant: running it twice gave gradients that differ by {facts['spread']:.3g}, and "
        f"nondet_tol allows {facts['tolerance']:g}. Raise nondet_tol if the operation may be nondeterministic."
    )


def _attribute(facts: Facts) -> str:
    attribute, found, expected = facts["attribute"], facts["found"], facts["expected"]
    if attribute == "layout":
        return f"grad is incorrect layout ({found} is not {expected})"
    if attribute in ("sparse_dim", "dense_dim"):
        return f"grad is {facts['kind']} tensor, but has incorrect {attribute} {found}, expected {expected}"
    return f"grad is incorrect {({'dtype': 'type', 'shape': 'size'}).get(attribute, attribute)}"


def _batched(advice: str) -> Callable[[Facts], str]:
    def phrase(facts: Facts) -> str:
        if "raised" in facts:
            return f"While computing batched gradients, got: {facts['raised']}\n\n{advice}"
        return (
            f"For output {facts['output']} and input {facts['input']}:\n\n{advice}\n\n"
            f"Got:\n{facts['found']}\n\nExpected:\n{facts['expected']}"
        )

    return phrase


def _undefined(facts: Facts) -> str:
    if "raised" in facts:
        return "Expected backward function to handle undefined output grads."
    return "Expected all input grads to be undefined or zero when all output grads are undefined or zero."


PHRASES: dict[str, Callable[[Facts], str]] = {
    "reverse": _mismatch("", "outputs"),
    "forward": _mismatch("computed with forward mode ", "inputs"),
    "constancy": lambda facts: "Numerical gradient for function expected to be zero",
    "determinism": _nondeterministic,
    "metadata": _attribute,
    "tangent types": lambda facts: "Forward AD gradient has dtype mismatch.",
    "zero grad_output": lambda facts: "backward not multiplied by grad_output",
    "batched reverse": _batched(
        "gradcheck or gradgradcheck failed while testing batched gradient computation. If the derivative is not meant "
        "to be batched, pass check_batched_grad=False."
    ),
    "batched forward": _batched(
        "gradcheck failed while testing batched gradient computation with forward-mode AD. If the derivative is not "
        "meant to be batched, pass check_batched_forward_grad=False."
    ),
    "undefined grad_output": _undefined,
    "undefined tangents": lambda facts: (
        f"Mismatch in tangent values for output with index: {facts['output']} when input {facts['input']} has an "
        "undefined tangent value."
    ),
}
