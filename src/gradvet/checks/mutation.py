"""Do the passes leave inputs and cotangents as they were?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial


def mutation(trial: Trial) -> Iterator[Finding]:
    """Values before and after one forward and one backward pass."""
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    changed = trial.afresh.changed
    if changed:
        yield Finding(
            "mutation",
            Verdict.FAIL,
            f"the passes change {', '.join(changed)} in place",
            facts={"changed": changed},
            advice="Write to a copy: torch may share a cotangent with other parts of the graph.",
        )
    else:
        yield Finding("mutation", Verdict.PASS, "inputs and cotangents are left as they were")
