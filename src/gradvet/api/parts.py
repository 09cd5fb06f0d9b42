"""Large models in parts: some parameters at a time are compared, the others are constants.

A difference along very many parameters hides what one of them adds, and every vector of a comparison has the size of
all of them. So consecutive parameters, which belong to the same modules, are compared together up to a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gradvet.core.context import Context
from gradvet.core.events import announce_stage
from gradvet.core.frontend import Frontend
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Space

PART_SIZE = 1 << 24
"""Elements that are compared together: at the step of the screen, one of them still shows at a resolution of 0.01."""

MAX_PARTS = 16
"""Number of parts: of a larger model each part has more elements, so that the number of evaluations stays bounded."""

ORDER = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.SKIPPED)

Pair = tuple[Context, Context | None]
"""A problem as given and in the float64 reference."""


def compared_in_parts(
    frontend: Frontend, given: Context, reference: Context | None, compare: Callable[[Pair], Iterable[Finding]]
) -> list[Finding]:
    """The findings of a comparison, for a large problem part by part until one of them fails."""
    groups = parts_of(given.problem.domain)
    if len(groups) < 2:
        return list(compare((given, reference)))
    sizes = given.problem.domain.size, len(groups)
    given.record.note(
        "the {:,} elements of the inputs were compared in {} parts, the others held constant".format(*sizes)
    )
    found: list[Finding] = []
    for whole in (given, reference):
        if whole is not None:
            whole.release()
    for number, leaves in enumerate(groups, start=1):
        name = given.problem.domain.leaves[leaves[0]].name
        announce_stage(f"from {name}, part {number} of {len(groups)}")
        part = _restricted(frontend, given, leaves)
        found += compare((part, None if reference is None else _restricted(frontend, reference, leaves)))
        if any(finding.verdict is Verdict.FAIL for finding in found):
            break
    return list(_worst(found))


def parts_of(domain: Space) -> list[list[int]]:
    """Numbers of consecutive leaves, gathered up to the size of a part."""
    limit = max(PART_SIZE, -(-domain.size // MAX_PARTS))
    groups: list[list[int]] = []
    filled = 0
    for number, leaf in enumerate(domain.leaves):
        size = leaf.coordinates.size
        if not groups or filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(number)
        filled += size
    return groups


def _restricted(frontend: Frontend, context: Context, leaves: Sequence[int]) -> Context:
    return context.for_problem(frontend.restricted(context.problem, leaves, context.options.seed))


def _worst(findings: Sequence[Finding]) -> Iterator[Finding]:
    """For each check and mode the first finding with its worst verdict."""
    best: dict[tuple[str, object], Finding] = {}
    for finding in findings:
        key = finding.check, finding.facts.get("mode")
        known = best.get(key)
        if known is None or ORDER.index(finding.verdict) < ORDER.index(known.verdict):
            best[key] = finding
    yield from best.values()
