"""What a run left behind: the rows of the tables, and what handlers, producers and the run wrote.

Handlers write two clocks: `t`, nanoseconds since boot, which nobody sets, and `at`, microseconds on
the wall, which the engines use too. All processes are on one machine, so both are the same for all.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

Row = Mapping[str, Any]
#: In microseconds.
SECOND: Final = 1_000_000
#: The clock is read more than once for one step: by the statement that decides and by the one that
#: journals it, by the engine and by the handler. What lies between may take this long.
READING: Final = SECOND // 20


def wall() -> int:
    """Return the time on the clock of the engines."""
    return time.time_ns() // 1000


class Kill(NamedTuple):
    """When a process was killed, in nanoseconds since boot."""

    at: int
    pid: int


class Span(NamedTuple):
    """A call of the run: when it was made, and when it had answered; None: it failed."""

    asked: int
    done: int | None


class Change(NamedTuple):
    """A limit that the run has set: what for, which part, its value, and when."""

    scope: str
    part: str
    value: int
    span: Span


class Run(NamedTuple):
    """One call of a handler."""

    job: str
    kind: str
    attempt: str
    #: In nanoseconds since boot. A killed handler has ended when its process was killed.
    began: int
    ended: int
    #: On the wall: when it began, and when the journal has the start of its attempt, if it has.
    at: int
    claimed_at: int | None


@dataclass(frozen=True)
class Facts:
    """All of it."""

    #: The rows of each table, by its name.
    tables: Mapping[str, Sequence[Row]]
    #: What handlers wrote, and what producers were told.
    effects: Sequence[Row]
    told: Sequence[Row]
    kills: Sequence[Kill]
    changes: Sequence[Change]
    #: From before the first worker started until one had a session.
    declared: Span
    #: From the last slot that was decided before the pause until the schedule was paused.
    paused: Span

    @cached_property
    def jobs(self) -> dict[str, Row]:
        """All jobs by id."""
        return {row["id"]: row for row in self.tables["record"]}

    def of(self, *job_types: str) -> list[Row]:
        """Return the jobs of some types."""
        return [row for row in self.jobs.values() if row["type"] in job_types]

    @cached_property
    def claims(self) -> dict[str, int]:
        """When each attempt was claimed, by the journal."""
        return {
            f"{row['session']:016x}{row['token']:016x}": row["at"]
            for row in self.tables["event"]
            if row["kind"] == "started"
        }

    @cached_property
    def starts(self) -> dict[int, list[int]]:
        """When the attempts of each job were claimed, in order, by its number."""
        found: dict[int, list[int]] = {}
        for row in self.tables["event"]:
            if row["kind"] == "started":
                found.setdefault(row["job"], []).append(row["at"])
        return {job: sorted(moments) for job, moments in found.items()}

    @cached_property
    def runs(self) -> list[Run]:
        """All calls of handlers, in the order in which they began."""
        died = {kill.pid: kill.at for kill in reversed(self.kills)}
        over = max((row["t"] for row in self.effects), default=0) + 1
        ends = {(row["pid"], row["run"]): row["t"] for row in self.effects if row["event"] == "end"}
        runs = [
            Run(
                row["job"], row["kind"], row["attempt"], row["t"],
                # It may have begun between the look at the clock and the kill.
                max(row["t"] + 1, ends.get((row["pid"], row["run"]), died.get(row["pid"], over))),
                row["at"], self.claims.get(row["attempt"]),
            )
            for row in self.effects
            if row["event"] == "begin"
        ]  # fmt: skip
        return sorted(runs, key=lambda run: run.began)

    @cached_property
    def members(self) -> dict[int, list[Row]]:
        """The members of each batch, by its number."""
        found: dict[int, list[Row]] = {batch["seq"]: [] for batch in self.tables["batch"]}
        for row in self.tables["batch_member"]:
            found.setdefault(row["batch"], []).append(row)
        return found

    def in_words(self) -> str:
        """Say what was seen."""
        kinds = Counter(row["type"] for row in self.jobs.values())
        fired = sum(1 for batch in self.tables["batch"] if batch["fan_in"])
        what = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        return (
            f"{len(self.kills)} processes killed, {len(self.changes)} limits changed, "
            f"{fired} batches finished; jobs: {what}"
        )


def relations(row: Row) -> Mapping[str, Any]:
    """Return what a job belongs to."""
    found: Mapping[str, Any] = json.loads(row["relations"] or "{}")
    return found
