"""What must be true after a campaign, judged from the tables and from what handlers wrote down.

It imports nothing of Trellis. Rules about batches and limits have files of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from tests.harness.flow.batches import check_fan_ins, check_stops, check_told
from tests.harness.flow.facts import READING, SECOND, Facts, relations
from tests.harness.flow.limits import check_active, check_rates, check_turns, waits

#: Types whose jobs all succeed, however often their workers are killed.
_SUCCEED: Final = ("limited", "rated", "keyed", "mail", "letter", "tick")


def check(facts: Facts) -> list[str]:
    """Return every breach of every rule."""
    rules = (
        check_acknowledged, check_runs, check_fan_ins, check_stops, check_told, check_hooks,
        check_schedule, check_active, check_rates, check_turns, check_chains, check_leftovers,
        check_exercised,
    )  # fmt: skip
    return [f"{rule.__name__}: {wrong}" for rule in rules for wrong in rule(facts)]


def check_acknowledged(facts: Facts) -> Iterator[str]:
    """Every job that a producer was told of is there, and did what it was to do."""
    for line in facts.told:
        for job in line.get("ids", ()):
            if job not in facts.jobs:
                yield f"{job} was acknowledged and is lost"
    for row in facts.of(*_SUCCEED):
        if row["state"] != "completed":
            yield f"{row['id']}, a job of {row['type']}, is {row['state']}"


def check_runs(facts: Facts) -> Iterator[str]:
    """Every call of a handler is an attempt of its own, which began before it."""
    for attempt, count in Counter(run.attempt for run in facts.runs).items():
        if count > 1:
            yield f"attempt {attempt} ran {count} times"
    for run in facts.runs:
        if run.claimed_at is None:
            yield f"{run.job} ran, and the journal has no start of attempt {run.attempt}"
        elif run.at < run.claimed_at - READING:
            yield f"{run.job} ran {run.claimed_at - run.at} us before it was claimed"


def check_hooks(facts: Facts) -> Iterator[str]:
    """Every ended job has the jobs of its hooks, each once; all have run; there are no others."""
    hooks: dict[str, list[str]] = defaultdict(list)
    parents = {row["id"] for row in facts.of("hooked")}
    for row in facts.jobs.values():
        if row["type"].startswith("hooked-"):
            parent = relations(row).get("parent")
            hooks[str(parent)].append(row["type"].partition("-on_")[2])
            if row["state"] != "completed":
                yield f"{row['id']}, a hook of {parent}, is {row['state']}"
            if parent not in parents:
                yield f"{row['id']} is a hook of {parent}, which is not there"
    ends = {"completed": "success", "failed": "failure"}
    for row in facts.of("hooked"):
        found = sorted(hooks[row["id"]])
        if row["state"] not in ends:
            yield f"{row['id']} is {row['state']} and has hooks {found}"
        elif found != sorted(["finished", ends[row["state"]]]):
            yield f"{row['id']} ended {row['state']} and has hooks {found}"


def check_schedule(facts: Facts) -> Iterator[str]:
    """Every slot from the declaration to the pause created its job, once; no other slot did."""
    ledger = sorted(facts.tables["schedule_slot"], key=lambda row: row["slot"])
    if not ledger:
        yield "the ledger is empty"
        return
    first, latest = ledger[0]["slot"], (facts.declared.done or 0) // SECOND * SECOND + SECOND
    if not facts.declared.asked < first <= latest:
        yield f"the first slot is {first}; it was declared between {facts.declared}"
    entries = Counter(row["slot"] for row in ledger)
    created = {row["slot"]: row["job"] for row in ledger if row["outcome"] == "created"}
    due = range(first, facts.paused.asked + 1, SECOND)
    wrong = [slot for slot in due if entries[slot] != 1 or slot not in created]
    if wrong:
        found = Counter(row["outcome"] for row in ledger if row["slot"] in wrong)
        yield f"slots {wrong} were due before the pause, and the ledger has {dict(found)} of them"
    for slot in created:
        if slot > (facts.paused.done or 0) or slot % SECOND:
            yield f"slot {slot} created a job, and was due after the pause or never"
    jobs = {relations(row).get("slot"): row["id"] for row in facts.of("tick")}
    if jobs != created or len(jobs) != len(facts.of("tick")):
        yield f"{len(created)} slots created a job and {len(facts.of('tick'))} jobs are there"


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
    """Nothing is left that waits, runs, lingers, is held or is still to be decided."""
    for table in (
        "queue", "key_slot", "lingering", "lock", "ended_prerequisite", "dependency", "session",
    ):  # fmt: skip
        if rows := facts.tables[table]:
            yield f"{len(rows)} rows are left in {table}: {rows[:3]}"


def check_exercised(facts: Facts) -> Iterator[str]:
    """A run in which something did not happen proves nothing about it."""
    batches = facts.tables["batch"]
    states = {row["seq"]: row["state"] for row in facts.jobs.values()}
    stopped = [b for b in batches if b["stopping_at"] and b["cancelled_at"] is None]
    seen = {
        "process was killed": facts.kills,
        "batch inside another finished": [b for b in batches if b["parent"] and b["fan_in"]],
        "member was cancelled because another failed": [
            row
            for batch in stopped
            for row in facts.members[batch["seq"]]
            if states.get(row["job"]) == "cancelled"
        ],
        "batch was cancelled": [b for b in batches if b["cancelled_at"]],
        "hook ran": [run for run in facts.runs if run.kind == "hook"],
        "chain was told": [line for line in facts.told if line["event"] == "chain"],
        "limited, rated and keyed job ran": {run.kind for run in facts.runs}
        >= {"limited", "rated", "keyed", "mail", "letter"},
        "limit was changed": [change for change in facts.changes if change.span.done],
        "small tenant came late": [w for w in waits(facts) if w.backlog > 2 * w.allowed],
    }
    for what, found in seen.items():
        if not found:
            yield f"no {what}"
