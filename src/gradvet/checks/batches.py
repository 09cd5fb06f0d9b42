"""Do derivatives for several directions at once (vmap) equal those for each alone, as far as roundoff allows?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradvet.core.arithmetic import namespace, peak
from gradvet.core.likeness import gap_between
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array
from gradvet.core.trial import Trial

ADVICE = "Look at the vmap rule of the operations in the derivative."


def batched(trial: Trial) -> Iterator[Finding]:
    """Cotangents, values and tangents, each two at once; what cannot be batched is said."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    for part in (_cotangents, _mapped_cotangents, _values, _tangents):
        try:
            yield part(trial)
        except Exception as error:
            words = str(error).strip().splitlines() or [""]
            yield Finding("batched", Verdict.SKIPPED, f"{_title(part)} cannot be batched here: {words[0][:160]}")


def _cotangents(trial: Trial) -> Finding:
    return _gradients(trial, trial.subject.reverse.pull_together)


def _mapped_cotangents(trial: Trial) -> Finding:
    return _gradients(trial, trial.subject.circumstances.mapped)


def _gradients(trial: Trial, together: Callable[[Sequence[Array]], list[Array]]) -> Finding:
    alone = trial.pulled, trial.pulled_evenly
    for (v, expected), found in zip(alone, together([v for v, _ in alone]), strict=True):
        gap = gap_between(trial, v, found, expected)
        if gap is not None:
            return _difference(trial, f"the gradient in a batch differs from the one alone, {gap}")
    return Finding("batched", Verdict.PASS, "cotangents in a batch give what each gives alone")


def _values(trial: Trial) -> Finding:
    return _outputs(trial, "value", *trial.subject.circumstances.values_mapped())


def _tangents(trial: Trial) -> Finding:
    subject = trial.subject
    xp = namespace(subject.point)
    # The first alone to begin with: where there is no forward mode, nothing more is walked for it.
    alone = [trial.pushed(trial.first.displacement)]
    alone.append(trial.pushed(trial.second.displacement))
    together = subject.forward.push_together([trial.first.displacement, trial.second.displacement])
    return _outputs(trial, "tangent", xp.concat(together), xp.concat(alone))


def _outputs(trial: Trial, what: str, found: Array, expected: Array) -> Finding:
    """Two vectors of the codomain, one behind the other."""
    subject = trial.subject
    xp = namespace(found)
    wrong = ~(xp.abs(found - expected) <= peak(expected) * subject.epsilon**0.5) & xp.isfinite(expected)
    if not bool(xp.any(wrong)):
        return Finding("batched", Verdict.PASS, f"{what}s in a batch are what each is alone")
    row = int(xp.argmax(xp.astype(wrong, xp.int64)))
    place = subject.codomain.locate(row % subject.codomain.size)
    numbers = f"{float(found[row]):.6g} is {float(expected[row]):.6g} alone"
    return _difference(trial, f"the {what} in a batch differs at {place}: {numbers}")


def _difference(trial: Trial, headline: str) -> Finding:
    """The framework's own batching is not the user's mistake, but worth knowing."""
    if trial.subject.circumstances.has_own_rules():
        return Finding("batched", Verdict.FAIL, headline, advice=ADVICE)
    words = f"torch's own rules for these operators are not to be trusted under vmap: {headline}"
    trial.record.note(words)
    return Finding("batched", Verdict.SKIPPED, words)


def _title(part: Callable[[Trial], Finding]) -> str:
    return part.__name__.strip("_").replace("_", " ")
