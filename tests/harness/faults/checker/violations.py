"""A breach of a rule, with the few lines of each history that show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tests.harness.faults.checker.histories import Event, Fault, Histories, Op, Run

_MOST_LINES: Final = 12


@dataclass(frozen=True, slots=True)
class Violation:
    """One breach."""

    rule: str
    text: str
    witness: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join((f"{self.rule}: {self.text}", *(f"    {line}" for line in self.witness)))


def about(histories: Histories, rule: str, text: str, *jobs: str, at: int = 0) -> Violation:
    """Return a breach that these jobs show; `at` is the commit (`seq`) it is about."""
    lines: list[str] = []
    for job in jobs:
        lines += _of_job(histories, job, at)
    return Violation(rule, text, tuple(lines))


def _of_job(histories: Histories, job: str, at: int) -> list[str]:
    journal = _around(histories.journals.get(job, []), at)
    fences = {event.fence for event in journal if event.fence}
    runs = [run for fence in fences for run in histories.runs_by_fence.get(fence, [])]
    pids = {run.pid for run in runs} | {histories.pid_of(fence) for fence in fences}
    faults = [fault for pid in pids if pid for fault in histories.faults_by_pid.get(pid, [])]
    return [
        *map(show_event, journal),
        *map(show_run, sorted(runs, key=lambda run: run.began)),
        *map(show_fault, sorted(faults, key=lambda fault: fault.t)[-_MOST_LINES:]),
    ]


def _around(journal: list[Event], at: int) -> list[Event]:
    """Keep the events nearest to the commit in question, or the last ones."""
    place = next((i for i, event in enumerate(journal) if event.seq >= at > 0), len(journal))
    start = max(0, min(place - _MOST_LINES // 2, len(journal) - _MOST_LINES))
    return journal[start : start + _MOST_LINES]


def show_event(event: Event) -> str:
    """Write one line of a journal."""
    fence = f" by {event.fence}" if event.fence else ""
    data = f" {event.data}" if event.data else ""
    return (
        f"journal {event.seq}: {event.job} v{event.version} {event.kind} -> {event.state}, "
        f"attempt {event.attempt}{fence} at {event.at}{data}"
    )


def show_run(run: Run) -> str:
    """Write one run of a handler."""
    end = "never ended" if run.ended is None else f"{run.how} {_ms(run.ended)}"
    key = f" key {run.key}" if run.key else ""
    return f"run: {run.job} {run.fence} in {run.pid}{key}: began {_ms(run.began)}, {end}"


def show_fault(fault: Fault) -> str:
    """Write one deed of the nemesis."""
    until = "" if fault.until is None else f" until {_ms(fault.until)}"
    return f"fault: {fault.kind} {fault.target} {list(fault.pids)} {_ms(fault.t)}{until}"


def show_op(op: Op) -> str:
    """Write one call of a producer."""
    told = "no answer" if op.ids is None else f"acknowledged {', '.join(op.ids[:3])}"
    return f"client: {op.name} {_ms(op.t)} asked for {len(op.hashes)}: {told}"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.1f} ms"


def listed(names: Iterable[object], most: int = 5) -> str:
    """Write a few names, and how many more there are."""
    every = [str(name) for name in names]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
