"""Large models in parts: some parameters at a time are compared, the others are constants; and what fits into memory.

A difference along very many parameters hides what one of them adds, and every vector of a comparison has the size of
all of them. So consecutive parameters, which belong to the same modules, are compared together up to a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradvet.core.context import Context
from gradvet.core.events import announce_stage
from gradvet.core.frontend import Binding, Frontend
from gradvet.core.results import WORST_FIRST, Finding, Verdict
from gradvet.core.spaces import Array, Space
from gradvet.core.vectors import namespace
from gradvet.errors import InvalidProblemError

PART_SIZE = 1 << 22, 1 << 24
"""Elements that are compared together, at least and at most. At the step of the screen, one of the largest number still
shows at a resolution of 0.01; the vectors of the smallest one take less than a GiB."""

PARTS = 6, 16
"""Number of parts, at least and at most. With six, the vectors of a comparison, 16 of the size of a part, have the size
of three vectors of all inputs. Of a very large model each part has more elements, so that evaluations stay bounded."""

PART_CALLS = 2_000
"""Forward passes of one part at most. Right parts of models take 50 to 400."""

SPENT = "the {:,} forward passes planned for the part from {} were spent: what it left open stays so"

VECTORS = 16
"""Number of vectors of the size of the inputs that exist at a time, to estimate the memory of a check."""

MANY_TIES = 16
"""Number of elements that equal another one, other than zeros, up to which kinks at ties are tested one by one."""

SMOOTH = (
    "a step took up to {:,} of {:,} elements inside across a kink, or to another selected element: the formulas of the "
    "point were continued there"
)

Pair = tuple[Context, Context | None]
"""A problem as given and in the float64 reference."""


def compared_in_parts(
    frontend: Frontend, given: Context, reference: Context | None, compare: Callable[[Pair], list[Finding]]
) -> list[Finding]:
    """The findings of a comparison, for a large problem part by part until one of them fails."""
    groups = parts_of(given.problem.domain)
    if len(groups) < 2:
        return compare((given, reference))
    sizes = given.problem.domain.size, len(groups), len(groups) * PART_CALLS
    given.record.note(
        "the {:,} elements of the inputs were compared in {} parts, the others held constant, with at most {:,} "
        "forward passes".format(*sizes)
    )
    found: list[Finding] = []
    cost = given.problem.cost
    for whole in (given, reference):
        if whole is not None:
            whole.release()
            whole.problem.release_graph()
    for number, leaves in enumerate(groups, start=1):
        name = given.problem.domain.leaves[leaves[0]].name
        announce_stage(f"from {name}, part {number} of {len(groups)}, {cost.forwards:,} of {sizes[2]:,} forward passes")
        last = cost.forwards + PART_CALLS
        # No variable holds the contexts: a part would keep its graphs until those of the next one exist.
        found += compare((_restricted(frontend, given, leaves), reference and _restricted(frontend, reference, leaves)))
        if cost.forwards >= last:
            given.record.note(SPENT.format(PART_CALLS, name))
        if any(finding.verdict is Verdict.FAIL for finding in found):
            break
    return list(_worst(found))


def compared_on_smooth_piece(
    frontend: Frontend, context: Context, compare: Callable[[Context], list[Finding]]
) -> list[Finding]:
    """The findings of a comparison with differences, in a model without the kinks that a step would cross.

    Needed by `test_network_with_many_kinks_takes_few_evaluations`. The same for functions without custom rules at
    inputs with many ties, which rules of the framework break in ways of their own: `test_sort_of_many_ties_passes`.
    """
    may_break_ties = context.problem.rules.are_builtin and not context.is_large
    is_tied = may_break_ties and _has_many_ties(context.problem.point)
    found = frontend.on_smooth_piece(context.problem, of_models=not is_tied) if context.is_double else None
    if found is None:
        return compare(context)
    problem, branches = found
    findings = compare(context.for_problem(problem))
    if branches.changed:
        context.record.note(SMOOTH.format(branches.changed, branches.count))
    return findings


def _has_many_ties(point: Array) -> bool:
    """Whether many elements equal another one. Zeros do not count: those of padding are at kinks of one kind."""
    xp = namespace(point)
    some = point[point != 0.0]
    return int(some.shape[0]) - int(xp.unique_values(some).shape[0]) > MANY_TIES


def parts_of(domain: Space) -> list[list[int]]:
    """Numbers of consecutive leaves, gathered up to the size of a part."""
    few, many = (-(-domain.size // number) for number in PARTS)
    limit = max(PART_SIZE[0], many, min(PART_SIZE[1], few))
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
    part = context.for_problem(frontend.restricted(context.problem, leaves, context.options.seed))
    return part.limited(PART_CALLS)


def _worst(findings: Sequence[Finding]) -> Iterator[Finding]:
    """For each check and mode the first finding with its worst verdict."""
    best: dict[tuple[str, object], Finding] = {}
    for finding in findings:
        key = finding.check, finding.facts.get("mode")
        known = best.get(key)
        if known is None or WORST_FIRST.index(finding.verdict) < WORST_FIRST.index(known.verdict):
            best[key] = finding
    yield from best.values()


def within_memory(binding: Binding, limit: int | None) -> tuple[Binding, list[Finding]]:
    """The inputs whose vectors fit into the memory given, the smallest first, and a finding about the others."""
    sizes = {place: binding.arguments[place].numel() for place in binding.checked}
    kept: list[int] = []
    for place in sorted(sizes, key=lambda place: sizes[place]):
        if limit is None or VECTORS * 8 * (sum(sizes[k] for k in kept) + sizes[place]) <= limit:
            kept.append(place)
    if not kept:
        smallest = VECTORS * 8 * min(sizes.values())
        raise InvalidProblemError(f"no input fits into {limit} bytes; the smallest one needs about {smallest}")
    if len(kept) == len(sizes):
        return binding, []
    names = ", ".join(binding.names[place] for place in sizes if place not in kept)
    share = 100.0 * sum(sizes[place] for place in kept) / sum(sizes.values())
    words = f"no memory for {names}: {share:.2g} % of the elements of the inputs were checked"
    return binding.restricted(kept), [Finding("memory", Verdict.SKIPPED, words)]
