"""Examples from Hypothesis strategies, for users who have Hypothesis; it is imported only when one is given."""

from __future__ import annotations

from typing import Any


def is_strategy(value: Any) -> bool:
    """Whether this is a Hypothesis strategy, told without importing Hypothesis."""
    return hasattr(value, "do_draw") and hasattr(value, "example")


def examples(strategy: Any, count: int, seed: int) -> list[Any]:
    """At most so many examples, the same for the same seed."""
    import hypothesis

    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def gather(example: Any) -> None:
        found.append(example)

    gather()
    return found[:count]
