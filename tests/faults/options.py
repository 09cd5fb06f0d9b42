"""The arguments of the fuzzers on the command line."""

from __future__ import annotations

import argparse


def arguments_of_a_fuzzer(description: str | None) -> tuple[float, int, int]:
    """Seconds, least number of trials, and seed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("seconds", type=float, help="time to go on for")
    parser.add_argument("--points", type=int, default=0, help="least number of trials, however long they take")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    return given.seconds, given.points, given.seed
