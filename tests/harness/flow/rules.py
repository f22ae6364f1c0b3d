"""What must be true after a campaign, judged from the tables and from what handlers wrote down."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

#: The limits of the service: handlers at the same time; starts per second, and at once.
ACTIVE: Final = 3
RATE: Final = 40
BURST: Final = 5

Row = Mapping[str, Any]
_SECOND: Final = 1_000_000


class Kill(NamedTuple):
    """When a process was certainly dead, in nanoseconds since boot."""

    at: int
    pid: int


@dataclass(frozen=True)
class Facts:
    """What a campaign left behind."""

    #: The rows of each table, by its name.
    tables: Mapping[str, Sequence[Row]]
    #: What handlers wrote, and what producers were told.
    effects: Sequence[Row]
    told: Sequence[Row]
    kills: Sequence[Kill]

    @cached_property
    def jobs(self) -> dict[str, Row]:
        """All jobs by id."""
        return {row["id"]: row for row in self.tables["record"]}

    def of(self, job_type: str) -> list[Row]:
        """Return the jobs of a type."""
        return [row for row in self.jobs.values() if row["type"] == job_type]

    def in_words(self) -> str:
        """Say what was seen."""
        kinds = Counter(row["type"] for row in self.jobs.values())
        fired = sum(1 for batch in self.tables["batch"] if batch["fan_in"])
        what = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        return f"{len(self.kills)} processes killed, {fired} batches finished; jobs: {what}"


def relations(row: Row) -> Mapping[str, Any]:
    """Return what a job belongs to."""
    found: Mapping[str, Any] = json.loads(row["relations"] or "{}")
    return found


def check(facts: Facts) -> list[str]:
    """Return every breach of every rule."""
    rules = (
        check_acknowledged, check_batches, check_hooks, check_schedule, check_active, check_rate,
        check_chains, check_leftovers,
    )  # fmt: skip
    return [f"{rule.__name__}: {wrong}" for rule in rules for wrong in rule(facts)]


def check_acknowledged(facts: Facts) -> Iterator[str]:
    """Every job that a producer was told of is there."""
    for line in facts.told:
        for job in line.get("ids", ()):
            if job not in facts.jobs:
                yield f"{job} was acknowledged and is lost"


def check_batches(facts: Facts) -> Iterator[str]:
    """Every sealed batch has one fan-in job, created after its last member; no other has one."""
    fan_ins = Counter(batch["fan_in"] for batch in facts.tables["batch"] if batch["fan_in"])
    created = {row["id"] for row in facts.of("collect")}
    if fan_ins.keys() != created or fan_ins.total() != len(created):
        yield f"{len(created)} fan-in jobs for {fan_ins.total()} finished batches"
    for batch in facts.tables["batch"]:
        wrong = _wrong_with(batch, facts)
        if wrong:
            yield f"batch {batch['id']} {wrong}"
    sealed = {batch["id"] for batch in facts.tables["batch"] if batch["sealed_at"]}
    for line in facts.told:
        if line["event"] == "sealed" and line["batch"] not in sealed:
            yield f"batch {line['batch']} was sealed, and is not"


def _wrong_with(batch: Row, facts: Facts) -> str | None:
    if batch["sealed_at"] is None:
        return "was never sealed and has a fan-in job" if batch["fan_in"] else None
    if batch["cancelled_at"] is not None:
        return None
    fan_in = facts.jobs.get(batch["fan_in"] or "")
    if fan_in is None:
        return "has no fan-in job"
    ends = [
        row["finished_at"] for row in facts.tables["batch_member"] if row["batch"] == batch["seq"]
    ]
    if None in ends:
        return "finished before its members"
    if any(end > fan_in["created_at"] for end in ends):
        return "has a member that ended after its fan-in job was created"
    if fan_in["result"] is not None and int(fan_in["result"]) != len(ends):
        return f"has {len(ends)} members, and its fan-in job saw {fan_in['result']}"
    return None


def check_hooks(facts: Facts) -> Iterator[str]:
    """Every ended job has the jobs of its hooks, each once."""
    hooks: dict[str, list[str]] = defaultdict(list)
    for row in facts.jobs.values():
        if row["type"].startswith("hooked-"):
            hooks[relations(row)["parent"]].append(row["type"].partition("-on_")[2])
    for row in facts.of("hooked"):
        outcome = "success" if row["state"] == "completed" else "failure"
        if sorted(hooks[row["id"]]) != sorted(["finished", outcome]):
            yield f"{row['id']} ended {row['state']} and has hooks {hooks[row['id']]}"


def check_schedule(facts: Facts) -> Iterator[str]:
    """Every slot is in the ledger, without a gap, and every created one has its job, once."""
    slots = sorted(facts.tables["schedule_slot"], key=lambda row: row["slot"])
    for one, two in pairwise(slots):
        if two["slot"] - (one["through"] or one["slot"]) != _SECOND:
            yield f"the ledger has a gap of {two['slot'] - one['slot']} us after {one['slot']}"
    created = {row["job"] for row in slots if row["outcome"] == "created"}
    ticks = {row["id"] for row in facts.of("tick")}
    if created != ticks:
        yield f"{len(created)} slots were created and {len(ticks)} jobs are there"
    if not created:
        yield "the schedule created nothing"


def check_active(facts: Facts) -> Iterator[str]:
    """No more handlers of the limited type ran at the same time than its limit allows."""
    died = {kill.pid: kill.at for kill in reversed(facts.kills)}
    ends = {(row["pid"], row["run"]): row["t"] for row in facts.effects if row["event"] == "end"}
    over = max((row["t"] for row in facts.effects), default=0) + 1
    moments: list[tuple[int, int]] = []
    for row in facts.effects:
        if row["event"] == "begin" and row["kind"] == "limited":
            end = ends.get((row["pid"], row["run"]), died.get(row["pid"], over))
            moments += [(row["t"], 1), (end, -1)]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    if most > ACTIVE:
        yield f"{most} handlers ran at the same time, {ACTIVE} are allowed"


def check_rate(facts: Facts) -> Iterator[str]:
    """In no span of time more rated jobs started than the rate and one burst allow."""
    rated = {row["seq"] for row in facts.of("rated")}
    starts = sorted(
        row["at"]
        for row in facts.tables["event"]
        if row["kind"] == "started" and row["job"] in rated
    )
    for first, begin in enumerate(starts):
        for last in range(first, min(first + 4 * BURST, len(starts))):
            allowed = BURST + RATE * (starts[last] - begin) / _SECOND
            if last - first + 1 > allowed + 1:
                yield f"{last - first + 1} started within {starts[last] - begin} us"
                return


def check_chains(facts: Facts) -> Iterator[str]:
    """A chain ran to its end, or was cancelled behind the step that failed."""
    for line in facts.told:
        if line["event"] != "chain":
            continue
        steps = [facts.jobs[job] for job in line["ids"] if job in facts.jobs]
        states = [step["state"] for step in steps]
        start = line["start"]
        broken = start % 7 == 0
        expected = ["failed", "cancelled", "cancelled"] if broken else ["completed"] * 3
        if states != expected:
            yield f"the chain from {start} ended as {states}"
        elif not broken and int(steps[2]["result"]) != (start + 1) * 2 + 3:
            yield f"the chain from {start} gave {steps[2]['result']}"


def check_leftovers(facts: Facts) -> Iterator[str]:
    """Nothing is left that waits, runs, lingers or is held."""
    for table in ("queue", "key_slot", "lingering"):
        if facts.tables[table]:
            yield f"{len(facts.tables[table])} rows are left in {table}"
