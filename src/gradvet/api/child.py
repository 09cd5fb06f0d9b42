"""The child process of `isolation`: reads a task from stdin, says on stdout what it tries, and returns its findings."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import replace
from typing import Any

from gradvet.api.isolation import DONE, REFUSED, TRYING
from gradvet.api.pipeline import run_pipeline


def main() -> None:
    # What the function prints goes to stderr, so that it does not mix with messages.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(kind: str, content: Any) -> None:
        answers.write(pickle.dumps((kind, content)))
        answers.flush()

    try:
        frontend, request, settings, options = pickle.load(sys.stdin.buffer)
    except Exception as error:
        say(REFUSED, f"{type(error).__name__}: {error}")
        return
    announced = replace(settings, announce=lambda check, what: say(TRYING, (check, what)))
    say(DONE, run_pipeline(frontend, request, announced, options).findings)


if __name__ == "__main__":
    main()
