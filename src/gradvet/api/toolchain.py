"""What torch's other tools make of the function: the registration of a custom operator, and compilation."""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.api.catalogue import COMPILE, REGISTRATION, Selection
from gradvet.checks.compiled import compiled_against
from gradvet.checks.registration import registered
from gradvet.core.results import Finding, Verdict
from gradvet.core.survey import survey
from gradvet.core.trial import Trial
from gradvet.frontends.torch.binding import Request
from gradvet.frontends.torch.compilation import compiled_twin, draws_random_numbers
from gradvet.frontends.torch.registration import registration
from gradvet.frontends.torch.subject import TorchSubject
from gradvet.frontends.torch.support import unsupported


def toolchain(trial: Trial, request: Request, selection: Selection) -> Iterator[Finding]:
    """Both, as far as they are asked for and apply."""
    if REGISTRATION in selection and (complaints := registration(request)) is not None:
        yield from registered(complaints)
    if COMPILE in selection and trial.subject.codomain.size and trial.subject.domain.size:
        yield from _compiled(trial, request)


def _compiled(trial: Trial, request: Request) -> Iterator[Finding]:
    assert isinstance(trial.subject, TorchSubject)
    if draws_random_numbers(request):
        yield Finding(COMPILE, Verdict.SKIPPED, "the function draws random numbers, and compiled code draws others")
        return
    try:
        twin = compiled_twin(trial.subject, request)
    except Exception as error:
        words = (str(error).strip().splitlines() or [""])[0][:200]
        yield Finding(COMPILE, Verdict.INCONCLUSIVE, f"torch.compile fails: {type(error).__name__}: {words}")
        return
    yield from survey(trial, {COMPILE: compiled_against(twin)}, unsupported)
