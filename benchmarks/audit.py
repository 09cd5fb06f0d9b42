"""The whole operator database, and the page about it: `python -m benchmarks.audit` writes `docs/audit-torch-2.13.md`.

What fails is written down as wrong only where a file in `confirmations/` shows it with torch alone: by a formula or by
differences that converge. The page lists what fails without such a file as a doubt about gradvet, not about torch, and
the command ends with status 1 then.
"""

from __future__ import annotations

import argparse
import ast
import functools
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.confirmations import CONFIRMED, MEANT, Confirmed, Meant
from benchmarks.scale import duration, processor
from gradvet.core.results import Verdict
from gradvet.suite import CaseResult
from gradvet.suite.sources import Operators
from gradvet.suite.store import Store

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "audit-torch-2.13.md"
STORES = ROOT / "build" / "audit"
LIMITS = ("--timeout", "300", "--memory", "6G", "--seed", "1")


@dataclass(frozen=True)
class Stage:
    """One run."""

    title: str
    dtypes: tuple[str, ...]
    order: int
    samples: int | None

    @property
    def store(self) -> Path:
        return STORES / f"order-{self.order}.db"

    def run(self, jobs: int) -> None:
        """Run what is missing in its store."""
        command = [sys.executable, "-W", "ignore", "-m", "gradvet", "ops", "--order", str(self.order), *LIMITS]
        command += [word for dtype in self.dtypes for word in ("--dtype", dtype)]
        command += ["--samples", str(self.samples)] if self.samples else []
        command += ["--jobs", str(jobs), "--store", str(self.store), "--resume"]
        STORES.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)

    def outcomes(self) -> list[CaseResult]:
        return list(Store.open(self.store).results())


@dataclass(frozen=True)
class Failure:
    """A check of one case that failed."""

    case: str
    check: str
    headline: str

    @property
    def operator(self) -> str:
        return self.case.split("/")[0]

    def is_of(self, kind: Confirmed | Meant) -> bool:
        return any(one.holds(self.operator, self.check) for one in kind.failing)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--samples", type=int, nargs=2, default=(0, 0), metavar="N", help="of order 1 and 2; 0 is all")
    parser.add_argument("--page-only", action="store_true", help="from the stores as they are")
    wanted = parser.parse_args(arguments)
    stages = [
        Stage("float64 and complex128, first order", ("float64", "complex128"), 1, wanted.samples[0] or None),
        Stage("float64, second order", ("float64",), 2, wanted.samples[1] or None),
    ]
    for stage in stages:
        if not wanted.page_only:
            stage.run(wanted.jobs)
    found = {stage: stage.outcomes() for stage in stages}
    failures = [one for outcomes in found.values() for one in failed(outcomes)]
    unconfirmed = [one for one in failures if not any(map(one.is_of, (*CONFIRMED, *MEANT)))]
    PAGE.write_text("\n".join(page(found, failures, unconfirmed, wanted.jobs)) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")
    for one in unconfirmed:
        print(f"unconfirmed: {one.case} {one.check}: {one.headline}")
    return 1 if unconfirmed else 0


def failed(outcomes: Sequence[CaseResult]) -> Iterator[Failure]:
    for outcome in outcomes:
        if outcome.verdict is not Verdict.ERROR:
            for finding in outcome.report.failures:
                yield Failure(outcome.name, finding.check, finding.headline)


def page(
    found: dict[Stage, list[CaseResult]], failures: Sequence[Failure], unconfirmed: Sequence[Failure], jobs: int
) -> Iterator[str]:
    yield HEAD
    yield "| run | cases | of | pass | inconclusive | fail | no verdict | time of the cases |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for stage, outcomes in found.items():
        yield stage_row(stage, outcomes)
    yield f"\n{processor()}, {jobs} processes beside other work. {CHOICE}\n"
    yield "## What is wrong\n"
    for confirmed in CONFIRMED:
        mine = [one for one in failures if one.is_of(confirmed)]
        if mine:
            yield from section(confirmed, mine)
    yield "## What fails and is no mistake\n"
    yield from meant_section(failures)
    yield "## What fails without a confirmation\n"
    yield from unconfirmed_section(unconfirmed)
    yield "## What is inconclusive\n"
    yield from inconclusive_section([one for outcomes in found.values() for one in outcomes])
    yield "## What has no verdict\n"
    yield from trouble_section([one for outcomes in found.values() for one in outcomes])


CHOICE = (
    "Where not all samples were run, some of each operator, variant and dtype were taken at random; "
    "`python -m benchmarks.audit --samples` says how many."
)

HEAD = """# Audit of torch 2.13

What `gradvet` finds in stock torch 2.13.0 on the CPU, over the samples of PyTorch's own operator database. Each mistake
comes with a program that needs torch alone and shows it by a formula or by differences that converge; the tests of
gradvet run these programs. `make audit` repeats the whole.
"""


@functools.cache
def everything() -> tuple[str, ...]:
    """The names of all samples."""
    return tuple(Operators().open())


def stage_row(stage: Stage, outcomes: Sequence[CaseResult]) -> str:
    whole = sum(name.split("/")[-2] in stage.dtypes for name in everything())
    count = Counter("no verdict" if one.verdict is Verdict.ERROR else one.verdict.value for one in outcomes)
    verdicts = [str(count[name]) for name in ("pass", "inconclusive", "fail", "no verdict")]
    spent = duration(sum(one.seconds for one in outcomes))
    return f"| {stage.title} | {len(outcomes)} | {whole} | {' | '.join(verdicts)} | {spent} |"


def section(confirmed: Confirmed, failures: Sequence[Failure]) -> Iterator[str]:
    code = confirmed.code()
    title, _, text = (ast.get_docstring(ast.parse(code)) or "").partition("\n")
    yield f"### {title}\n"
    if text.strip():
        yield f"{text.strip()}\n"
    seen: dict[str, Counter[str]] = {}
    for one in failures:
        seen.setdefault(one.operator, Counter()).update([one.check])
    checks = {operator: ", ".join(f"{name}: {count}" for name, count in of.items()) for operator, of in seen.items()}
    yield f"Seen in {', '.join(f'`{operator}` ({names})' for operator, names in checks.items())}.\n"
    yield f"```python\n{body(code)}\n```\n"
    yield f"```text\n{output(confirmed)}\n```\n"


def body(code: str) -> str:
    """The program without its docstring."""
    first, second = ast.parse(code).body[:2]
    return "\n".join(code.splitlines()[second.lineno - 1 :]).strip() if isinstance(first, ast.Expr) else code.strip()


def output(confirmed: Confirmed) -> str:
    answer = subprocess.run([sys.executable, str(confirmed.path)], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def meant_section(failures: Sequence[Failure]) -> Iterator[str]:
    yield "| operators | cases | why |\n| --- | ---: | --- |"
    for meant in MEANT:
        mine = [one for one in failures if one.is_of(meant)]
        operators, cases = sorted({one.operator for one in mine}), {one.case for one in mine}
        if mine:
            yield f"| {some(operators)} | {len(cases)} | {meant.why} |"
    yield ""


def unconfirmed_section(failures: Sequence[Failure]) -> Iterator[str]:
    if not failures:
        yield "Nothing.\n"
        return
    yield "These are doubts about gradvet, not about torch, until somebody shows otherwise.\n"
    seen: dict[tuple[str, str], list[Failure]] = defaultdict(list)
    for one in failures:
        seen[one.operator, one.check].append(one)
    yield "| operator | check | cases | the first |\n| --- | --- | ---: | --- |"
    for (operator, check), some in seen.items():
        yield f"| `{operator}` | {check} | {len(some)} | `{some[0].case}` |"
    yield ""


def inconclusive_section(outcomes: Sequence[CaseResult]) -> Iterator[str]:
    seen: dict[str, set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.verdict is not Verdict.INCONCLUSIVE:
            continue
        for reason in {one.headline for one in outcome.report.findings if one.verdict is Verdict.INCONCLUSIVE}:
            brief = reason.split(":")[0].split(" at ")[0][:100]
            count[brief] += 1
            seen[brief].add(outcome.name.split("/")[0])
    yield "| reason | cases | operators |\n| --- | ---: | --- |"
    for reason, number in count.most_common():
        yield f"| {reason} | {number} | {some(sorted(seen[reason]))} |"
    yield ""


def trouble_section(outcomes: Sequence[CaseResult]) -> Iterator[str]:
    seen: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.verdict is Verdict.ERROR:
            seen[f"{outcome.status}: {outcome.message[:110]}"].append(outcome.name)
    if not seen:
        yield "Nothing.\n"
        return
    yield "| what happened | cases | operators |\n| --- | ---: | --- |"
    for words, names in sorted(seen.items(), key=lambda item: -len(item[1])):
        operators = sorted({name.split("/")[0] for name in names})
        yield f"| {words.replace('|', '/')} | {len(names)} | {some(operators)} |"
    yield ""


def some(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"`{name}`" for name in names[:most]) + more


if __name__ == "__main__":
    started = time.perf_counter()
    status = main()
    print(f"{duration(time.perf_counter() - started)}")
    sys.exit(status)
