"""The exceptions that gradvet raises by itself, and what handlers of other exceptions share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradvet.core.results import Report


def first_line(error: BaseException, limit: int = 200) -> str:
    """The first line of an exception's message; of one longer than `limit`, its first sentences."""
    line = (str(error).strip().splitlines() or [""])[0]
    if len(line) <= limit:
        return line
    sentences = line[:limit].rpartition(". ")[0]
    return f"{sentences}." if sentences else f"{line[: limit - 1]}…"


def raise_interruption(error: Exception) -> None:
    """Raise the KeyboardInterrupt behind an exception, if there is one.

    If one comes while torch opens or closes a level of a transform, torch raises an error about the level, which a
    handler of errors of the user's function must not take for one of these.
    """
    behind = error.__context__
    while behind is not None:
        if isinstance(behind, KeyboardInterrupt):
            raise behind
        behind = behind.__context__


class InvalidProblemError(ValueError):
    """The request cannot be checked as it is; the message says what to change."""


class InvalidArgumentError(InvalidProblemError, TypeError):
    """A function of gradvet was called with an argument that it does not have."""


class OutputsChangedError(InvalidProblemError, AssertionError):
    """The function's outputs change their number, shape or dtype with the values of its inputs."""


class DerivativeError(RuntimeError):
    """The user's derivative raised, where the function itself did not; the cause is the exception itself."""

    @property
    def is_layout_refusal(self) -> bool:
        """Whether the derivative refuses a memory layout by an assertion of its own, instead of failing over it."""
        asks_for_contiguous = "contiguous" in str(self) and "contiguous subspaces" not in str(self)  # torch's `view`
        return isinstance(self.__cause__, AssertionError) or asks_for_contiguous


class HookError(DerivativeError):
    """A hook of the user raised in the backward pass, outside the backward of every Function."""


class OtherValuesError(RuntimeError):
    """The function returns other values for the same numbers under other conditions."""


class UnsupportedError(NotImplementedError):
    """An operator of the framework's own has no derivative for what it was given."""


class GradientError(AssertionError):
    """The gradients are wrong, or could not be compared; `report` says what was found."""

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report

    def __reduce__(self) -> tuple[type[GradientError], tuple[str, Report]]:
        return type(self), (str(self), self.report)
