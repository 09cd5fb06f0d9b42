"""Is a custom operator registered as it says?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradvet.core.results import Finding, Verdict

ABSENT = "no fake impl registered"
"""What is missing is needed for compilation and says nothing about gradients."""


def registered(complaints: Mapping[str, str]) -> Iterator[Finding]:
    """One finding for each test that complains, and one for all that do not."""
    sound = [name for name, complaint in complaints.items() if not complaint]
    if sound:
        headline = f"the operator's registration is sound: {', '.join(sound)}"
        yield Finding("opcheck", Verdict.PASS, headline, facts={"exercised": sound})
    for name, complaint in complaints.items():
        if ABSENT in complaint:
            yield Finding("opcheck", Verdict.SKIPPED, f"{name}: no fake implementation is registered")
        elif complaint:
            yield Finding(
                "opcheck",
                Verdict.FAIL,
                f"{name}: {complaint[:300]}",
                facts={"test": name, "complaint": complaint},
                advice="Look at the operator's schema, at mutates_args, and at how its derivative is registered.",
            )
