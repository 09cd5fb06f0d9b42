"""Models: parameters are compared in parts that fit into memory, and differences without the kinks that steps cross.

A difference along very many parameters hides what one of them adds, and every vector of a comparison has the size of
all of them. So consecutive parameters, which belong to the same modules, are compared together up to a size; the others
are constants. A step in many parameters takes some values inside the model across a kink.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.events import announce_stage
from gradvet.core.finite_differences import DirectionalDifference
from gradvet.core.frontend import Binding, Frontend
from gradvet.core.ledger import NO_MEMORY
from gradvet.core.problem import Problem
from gradvet.core.results import WORST_FIRST, Finding, Verdict
from gradvet.core.vectors import Space, norm
from gradvet.errors import InvalidProblemError

MIN_PART_SIZE = 1 << 20
"""Smallest limit on the elements that are compared together: their vectors take about 100 MiB."""

MAX_PART_SIZE = 1 << 24
"""Largest such limit for up to `MAX_PARTS` parts: one element among this many still shows at the step of the screen and
a resolution of 0.01."""

MIN_PARTS = 6
"""Number of parts aimed at: the vectors of a comparison, 13 of the size of a part, have the size of less than four
vectors of all inputs. Needed by `test_memory_of_a_model_in_parts_is_four_vectors_beyond_its_wider_version`."""

MAX_PARTS = 16
"""Largest number of parts. Those of a very large model have more elements, so that evaluations stay bounded."""

PART_CALLS = 2_000
"""Forward passes at most of one part, or of a model that is compared as a whole. Right ones take 50 to 400."""

PART_CALLS_SPENT = "the {:,} forward passes planned for the inputs from {} on were spent: what they left open stays so"

VECTORS = 16
"""Number of vectors of the size of the inputs that exist at a time, to estimate the memory of a check."""

KINKS_CROSSED = (
    "up to {:,} of {:,} intermediate values crossed a kink, or a maximum chose another element, in a step: there the "
    "formula that holds at the point was used"
)

Pair = tuple[Context, Context | None]
"""A problem as given and in the wider version."""


def compared_in_parts(
    frontend: Frontend, given: Context, wide: Context | None, compare: Callable[[Pair], list[Finding]]
) -> list[Finding]:
    """The findings of a comparison, for a large problem part by part until one of them fails."""
    groups = parts_of(given.problem.domain)
    if len(groups) < 2:
        return _compared_together(given, wide, compare)
    sizes = given.problem.domain.size, len(groups), len(groups) * PART_CALLS
    given.record.note(
        "the {:,} elements of the inputs were compared in {} parts, the others held constant, with at most {:,} "
        "forward passes".format(*sizes)
    )
    found: list[Finding] = []
    cost = given.problem.cost
    for whole in (given, wide):
        if whole is not None:
            whole.release()
            whole.problem.release_graph()
    for number, leaves in enumerate(groups, start=1):
        name = given.problem.domain.leaves[leaves[0]].name
        announce_stage(f"from {name}, part {number} of {len(groups)}, {cost.forwards:,} of {sizes[2]:,} forward passes")
        last = cost.forwards + PART_CALLS
        # No variable holds the contexts: a part would keep its graphs until those of the next one exist.
        found += compare((_restricted(frontend, given, leaves), wide and _restricted(frontend, wide, leaves)))
        if cost.forwards >= last:
            given.record.note(PART_CALLS_SPENT.format(PART_CALLS, name))
        if any(finding.verdict is Verdict.FAIL for finding in found):
            break
    return list(_worst(found))


def _compared_together(given: Context, wide: Context | None, compare: Callable[[Pair], list[Finding]]) -> list[Finding]:
    """The findings of a comparison of all inputs; of a model, with bounded evaluations, however many inputs it has.

    Needed by `test_model_with_noise_in_its_outputs_takes_bounded_evaluations`.
    """
    if not given.problem.has_parameters:
        return compare((given, wide))
    given, wide = given.limited(PART_CALLS), wide and wide.limited(PART_CALLS)
    found = compare((given, wide))
    if given.problem.cost.forwards >= given.last_call:
        given.record.note(PART_CALLS_SPENT.format(PART_CALLS, given.problem.domain.leaves[0].name))
    return found


def compared_on_smooth_piece(
    frontend: Frontend, context: Context, compare: Callable[[Context], list[Finding]]
) -> list[Finding]:
    """The findings of a comparison with differences, without the kinks that a step would cross where it crosses many.

    That is so in a model, and at inputs with many ties. Needed by `test_network_with_many_kinks_takes_few_evaluations`
    and `test_sort_of_many_ties_passes`.
    """
    has_many_kinks = context.is_double and (context.problem.has_parameters or _has_many_ties(context))
    if not has_many_kinks or (found := frontend.on_smooth_piece(context.problem)) is None:
        return compare(context)
    problem, branches = found
    findings = compare(context.for_problem(problem))
    count, changed = branches()
    if changed and _is_another_function(problem, context):
        return compare(context)
    if changed:
        context.record.note(KINKS_CROSSED.format(changed, count))
    return findings


def _is_another_function(piece: Problem, context: Context) -> bool:
    """Whether the formulas that hold at the point have another slope than the function, which has no kink there.

    So it is for a bisection, whose comparisons carry its slope. At a kink the even part of a difference is as large as
    the gap. Four evaluations. Needed by `test_bisection_in_a_model_is_compared_as_it_is`.
    """
    u, step = context.restricted(context.joint_direction()), thresholds.CONFIRM_NEAR
    own = DirectionalDifference.along(context.problem, u, step)
    gap = norm(DirectionalDifference.along(piece, u, step).odd - own.odd)
    return gap > thresholds.EQUAL_RATIO * norm(own.odd) and norm(own.even) < thresholds.NEAR_RATIO * gap


def _has_many_ties(context: Context) -> bool:
    """Whether many elements equal another one, and only rules of the framework break ties, each in its own way.

    Zeros do not count: those of padding are at kinks of one kind.
    """
    if context.is_large or not context.problem.rules.are_builtin:
        return False
    point = context.problem.point
    some = point[point != 0.0]
    return int(some.shape[0]) - int(context.xp.unique_values(some).shape[0]) > thresholds.MANY_TIES


def release_if_large(context: Context) -> None:
    """Forget the vectors of a large problem, once it is known whether it reads captured tensors, which takes VJPs."""
    if context.is_large:
        _ = context.reads_captured
        context.release()


def parts_of(domain: Space) -> list[list[int]]:
    """Numbers of consecutive leaves, gathered up to the size of a part."""
    limit = max(MIN_PART_SIZE, -(-domain.size // MAX_PARTS), min(MAX_PART_SIZE, -(-domain.size // MIN_PARTS)))
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
    worst: dict[tuple[str, object], Finding] = {}
    for finding in findings:
        key = finding.check, finding.facts.get("mode")
        known = worst.get(key)
        if known is None or WORST_FIRST.index(finding.verdict) < WORST_FIRST.index(known.verdict):
            worst[key] = finding
    yield from worst.values()


def within_memory(binding: Binding, limit: int | None) -> tuple[Binding, dict[str, int]]:
    """The inputs whose vectors fit into the memory given, the smallest first; names and sizes of the others."""
    sizes = {place: math.prod(binding.arguments[place].shape) for place in binding.checked}
    kept: list[int] = []
    for place in sorted(sizes, key=lambda place: sizes[place]):
        if limit is None or VECTORS * 8 * (sum(sizes[k] for k in kept) + sizes[place]) <= limit:
            kept.append(place)
    if not kept:
        smallest = VECTORS * 8 * min(sizes.values())
        raise InvalidProblemError(f"no input fits into {limit} bytes; the smallest one needs about {smallest}")
    left_out = {binding.names[place]: sizes[place] for place in sizes if place not in kept}
    return (binding.restricted(kept) if left_out else binding), left_out


def enter_left_out(context: Context, left_out: Mapping[str, int]) -> None:
    """Enter inputs for which there is no memory into the ledger, as not compared. Needed by
    `test_what_does_not_fit_into_memory_is_in_the_ledger`."""
    for name, size in left_out.items():
        row = name, "reverse", context.precision
        context.record.open(*row, size, context.asked_resolution)
        context.record.left_out(*row, size, NO_MEMORY)
