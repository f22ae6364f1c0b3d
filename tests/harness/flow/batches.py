"""Batches: one fan-in job for each that finished, and only what must stop is stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.harness.flow.facts import Facts, Row, relations

#: Ends that count as a failure; a cancelled member has not failed.
_FAILURES: Final = {"failed", "dead", "stale", "expired"}


def check_fan_ins(facts: Facts) -> Iterator[str]:
    """Every sealed batch has one fan-in job, created after its last member; no other has one."""
    named = Counter(batch["fan_in"] for batch in facts.tables["batch"] if batch["fan_in"])
    created = {row["id"] for row in facts.of("collect")}
    if named.keys() != created or named.total() != len(created):
        yield f"{len(created)} fan-in jobs for {named.total()} finished batches"
    for batch in facts.tables["batch"]:
        for wrong in _wrong_with(batch, facts):
            yield f"batch {batch['id']} {wrong}"


def _wrong_with(batch: Row, facts: Facts) -> Iterator[str]:
    if batch["sealed_at"] is None:
        if batch["fan_in"] or batch["finished_at"]:
            yield "was never sealed and has finished"
        return
    ends = [row["finished_at"] for row in facts.members[batch["seq"]]]
    ends += [inner["finished_at"] for inner in _inside(batch, facts)]
    if batch["finished_at"] is None:
        yield "is sealed and has not finished"
    elif None in ends:
        yield "finished before its members"
    elif any(end > batch["finished_at"] for end in ends):
        yield "has a member that ended after it"
    elif batch["cancelled_at"] is not None:
        if batch["fan_in"]:
            yield "was cancelled and has a fan-in job"
    else:
        yield from _wrong_with_fan_in(batch, facts)


def _wrong_with_fan_in(batch: Row, facts: Facts) -> Iterator[str]:
    job = facts.jobs.get(batch["fan_in"] or "")
    if job is None:
        yield "has no fan-in job"
        return
    own = relations(job)
    around = {outer["seq"]: outer["id"] for outer in facts.tables["batch"]}.get(batch["parent"])
    if (own.get("fan_in_of"), own.get("batch")) != (batch["id"], around):
        yield f"has a fan-in job that belongs to {dict(own)}"
    if job["created_at"] < batch["finished_at"]:
        yield "has a fan-in job that was created before it finished"
    if job["state"] != "completed":
        yield f"has a fan-in job that is {job['state']}"
    elif int(job["result"]) != (count := len(facts.members[batch["seq"]])):
        yield f"has {count} members, and its fan-in job saw {job['result']}"


def check_stops(facts: Facts) -> Iterator[str]:
    """The members of a batch are cancelled if it stops, and it stops only if it must."""
    states = {row["seq"]: row["state"] for row in facts.jobs.values()}
    stopping = {batch["seq"] for batch in facts.tables["batch"] if batch["stopping_at"]}
    asked = {line["batch"] for line in facts.told if line["event"] == "cancelling"}
    # Members that a producer has cancelled, or has tried to.
    named = {line["job"] for line in facts.told if line["event"] == "cancelling a member"}
    alone = {row["seq"] for row in facts.jobs.values() if row["id"] in named}
    for batch in facts.tables["batch"]:
        own = facts.members[batch["seq"]]
        found = {states.get(row["job"]) for row in own}
        has_failed = batch["on_failure"] == "cancel_rest" and bool(found & _FAILURES)
        must_stop = has_failed or batch["cancelled_at"] is not None
        is_within = batch["parent"] in stopping
        if must_stop and batch["seq"] not in stopping:
            yield f"batch {batch['id']} was to stop, and did not"
        if batch["seq"] in stopping and not must_stop and not is_within:
            yield f"batch {batch['id']} stopped without a reason"
        if batch["cancelled_at"] is not None and batch["id"] not in asked and not is_within:
            yield f"batch {batch['id']} was cancelled, and no one asked for it"
        cancelled = {row["job"] for row in own if states.get(row["job"]) == "cancelled"}
        if batch["seq"] not in stopping and not cancelled <= alone:
            yield f"batch {batch['id']} did not stop and has cancelled members"


def check_told(facts: Facts) -> Iterator[str]:
    """What a producer was told about a batch is so."""
    batches = {batch["id"]: batch for batch in facts.tables["batch"]}
    for line in facts.told:
        column = {"sealed": "sealed_at", "cancelled": "cancelled_at"}.get(line["event"])
        if column is not None and not batches.get(line["batch"], {}).get(column):
            yield f"batch {line['batch']} was {line['event']}, and is not"


def _inside(batch: Row, facts: Facts) -> list[Row]:
    """Return the batches inside a batch."""
    return [row for row in facts.tables["batch"] if row["parent"] == batch["seq"]]
