"""A finding in plain text, for exceptions and logs."""

from __future__ import annotations

from gradvet.core.results import Finding, Mismatch

NAMES = {"reverse": "reverse mode", "forward": "forward mode"}


def describe(finding: Finding) -> str:
    """The headline, the worst entry with both values and the error bar, and what to look for."""
    lines = [finding.headline]
    for mismatch in finding.mismatches[:1]:
        lines += _entry(finding.check, mismatch)
    if finding.advice:
        lines.append(f"  {finding.advice}")
    return "\n".join(lines)


def _entry(check: str, mismatch: Mismatch) -> list[str]:
    name = NAMES.get(check, check)
    width = max(len(name), len("finite differences"))
    return [
        f"  worst: {mismatch}",
        f"    {name:<{width}}  {mismatch.derivative + 0.0:#.10g}",
        f"    {'finite differences':<{width}}  {mismatch.numerical + 0.0:#.10g} ± {mismatch.error:.1g}",
        f"    {'allowed difference':<{width}}  {mismatch.allowed:.3g}",
    ]


def matrix(rows: list[list[float]]) -> str:
    """A Jacobian with one line per input element, as the classical check prints it."""
    return "\n".join(
        "  [" + ", ".join(f"{entry + 0.0:.6g}" for entry in column) + "]" for column in zip(*rows, strict=True)
    )
