"""The exceptions that gradvet raises on its own account."""

from __future__ import annotations


class InvalidProblemError(ValueError):
    """The request cannot be checked as it stands; the message says what to change."""


class OutputsChangedError(InvalidProblemError, AssertionError):
    """The function's outputs change their number, shape or dtype with the values of its inputs."""
