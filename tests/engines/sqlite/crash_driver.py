"""Die at one step of a fixed piece of work, look at what is left, and again at the next step.

Run as a program: `python crash_driver.py FAILPOINT FOLDER`. For n = 1, 2, ... it forks a child that
does the work below on a fresh file and dies (kill -9) at the n-th time the failpoint is reached;
what the child was told before it died is compared with what the file holds. It ends when a child
survives, printing how many times one died.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from trellis import failpoints, schedules
from trellis.control import apply, apply_all
from trellis.core.batches import NewBatch
from trellis.core.commands import Cancel, Command, Complete, Fail, LoseLease, Retry, Snooze
from trellis.core.fold import fold
from trellis.core.job import Failure, JobId, JobRecord, NewJob, Prerequisite, Relations
from trellis.core.policy import DEFAULT_POLICY, Hook, KeyPolicy, Policy, Retention
from trellis.core.retry import Retry as RetryPolicy
from trellis.core.schedules import Schedule, Step, change_plan
from trellis.core.states import LIVE
from trellis.engines.audit import By, Change
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import (
    Accepted,
    Item,
    JobFilter,
    LogLine,
    Note,
    Progress,
    Renewed,
    Replaced,
)
from trellis.testing.builders import (
    SERVICE,
    a_declaration,
    a_demand,
    a_job,
    a_keyed_job,
    a_worker,
    fence_of,
)

IN_TURN = KeyPolicy("k", queued=None, when_full="wait")
NEWEST = KeyPolicy("k", queued=1, when_full="replace-oldest")
FORGET = replace(DEFAULT_POLICY, retention=Retention(0, 0, 0, 0))
NO_WAIT = Policy(retry=RetryPolicy.fixed(0))
HOUR = 3_600_000_000
ERROR = Failure("exception", "boom")

HOOKED = replace(NO_WAIT, hooks=(Hook("finished", "hook", "hooks"),))
BATCH = NewBatch("B", "shop", then=a_job(type="book"))
MEMBERS = [
    a_job(
        id=JobId(f"{number:026d}"), type="page", policy=HOOKED, relations=Relations(batch=BATCH.id)
    )
    for number in range(22, 25)
]

Told = list[dict[str, object]]


def planned(number: int) -> JobId:
    """Return the same ids in every run, so that the work can be repeated after the crash."""
    return JobId(f"{number:026d}")


def jobs() -> list[NewJob]:
    """Return the jobs of the work: plain, unique in some way, keyed, short-lived, following."""
    return [
        *(a_job(id=planned(n), policy=NO_WAIT) for n in range(1, 5)),
        a_job(id=planned(5), dedupe="once"),
        a_job(id=planned(6), idempotency_key="same"),
        *(a_keyed_job("turn", IN_TURN, id=planned(n)) for n in range(7, 10)),
        *(a_keyed_job("new", NEWEST, id=planned(n), type="refund") for n in range(10, 13)),
        *(a_job(id=planned(n), policy=FORGET, type="short") for n in range(13, 16)),
        a_job(id=planned(16), delay=3_600_000_000),
        a_job(
            id=planned(19),
            type="after",
            after=(Prerequisite(planned(1)), Prerequisite(planned(2), "finished")),
            relations=Relations(payload_from=planned(1)),
        ),
        a_job(id=planned(20), type="after", after=(Prerequisite(planned(4)),)),
        a_job(id=planned(21), type="after", after=(Prerequisite(planned(20)),)),
    ]


def callers_jobs() -> list[NewJob]:
    """Return the jobs that the application creates in transactions of its own."""
    return [
        a_job(id=planned(17), type="visit", dedupe="caller"),
        a_keyed_job("caller", IN_TURN, id=planned(18), type="visit", idempotency_key="caller"),
    ]


class Work:
    """The work; `tell` says what was acknowledged, and survives the death of the process."""

    def __init__(self, engine: SqliteEngine, path: Path, told: int) -> None:
        self.engine = engine
        self._path = path
        self._told = told

    def tell(self, **facts: object) -> None:
        os.write(self._told, json.dumps(facts).encode() + b"\n")

    async def create(self) -> None:
        """Create in three calls: plain together, unique and keyed, the rest."""
        all_jobs = jobs()
        for part in (all_jobs[:4], all_jobs[4:12], all_jobs[12:]):
            answers = await self.engine.create(part)
            for new, answer in zip(part, answers, strict=True):
                if isinstance(answer, Accepted | Replaced):
                    self.tell(created=new.id)

    async def settle(self, *asked: tuple[JobRecord, Command]) -> None:
        results = await apply_all(self.engine, asked, await self.engine.now())
        for (record, command), result in zip(asked, results, strict=True):
            head = result.record.head  # type: ignore[union-attr] # all are applied here
            self.tell(job=record.definition.id, version=head.version, by=type(command).__name__)

    async def run(self) -> None:
        """Take jobs through most of what can happen to them."""
        engine = self.engine
        await self.create()
        session = (await engine.open_session(a_worker(), 30_000_000)).id
        claimed = (await engine.claim(session, [a_demand("invoice", "refund", "short")], 6)).jobs
        by_id = {record.definition.id: record for record in claimed}
        one, two, three, four = (by_id[planned(n)] for n in range(1, 5))
        await self.settle((one, Complete(fence_of(one), "1")), (two, Complete(fence_of(two), "2")))
        await self.settle((three, Fail(fence_of(three), ERROR)))
        await self.settle((four, Fail(fence_of(four), ERROR, retryable=False)))
        await apply(engine, planned(4), Retry())
        await self.talk(by_id[planned(5)])
        await self.keyed(session)
        await self.short(session)
        await apply(engine, planned(6), Cancel("enough"))
        self.visit()
        await self.grouped(session)
        await self.lock_and_remove(session)
        await self.fire()
        await engine.close_session(session)
        for lost in (await engine.due("lost", 10)).jobs:
            await self.settle((lost.record, LoseLease(fence_of(lost.record))))
        await engine.prune(10)

    async def fire(self) -> None:
        """Declare schedules whose slots of some hours are due; edit one and fire the other."""
        declared = [
            a_declaration(when="@every 1h", missed="all"),
            a_declaration("other", when="@every 1h", missed="all", overlap="skip"),
        ]
        await schedules.declare_schedules(self.engine, SERVICE, declared, lambda _: True)
        for each in await self.engine.schedules():
            due = each._replace(next_slot=(each.next_slot or 0) - 5 * HOUR)
            await self.engine.advance_schedule(Step(due))
        await schedules.change_schedule(self.engine, SERVICE, "nightly", in_vienna, By("ann"))
        await schedules.fire_due(self.engine)
        await schedules.run_schedule(self.engine, SERVICE, "other", By("ann"))

    async def talk(self, record: JobRecord) -> None:
        """Say something about an attempt, then snooze it."""
        row, claim, fence = record.definition.row, record.head.claims, fence_of(record)
        bodies = (Progress(1, 2), Item("a", "completed"), LogLine("info", "hello"))
        await self.engine.note([Note(row, claim, fence, body) for body in bodies])
        await self.settle((record, Snooze(fence, 0)))

    async def keyed(self, session: int) -> None:
        """Hand a slot over, then end an attempt from outside and report that it stopped."""
        demand = [a_demand("invoice")]
        taken = (await self.engine.claim(session, demand, 10)).jobs  # type: ignore[arg-type]
        holder = next(r for r in taken if r.definition.key == "turn")
        await self.settle((holder, Complete(fence_of(holder), "null")))
        again = (await self.engine.claim(session, demand, 10)).jobs  # type: ignore[arg-type]
        ended = next(r for r in again if r.definition.key == "turn")
        await self.settle((ended, Cancel("now", force=True)))
        renewed = await self.engine.renew(session, [], [fence_of(ended)])  # type: ignore[arg-type]
        self.tell(renewed=isinstance(renewed, Renewed))

    async def short(self, session: int) -> None:
        """Finish jobs that retention may remove at once."""
        taken = (await self.engine.claim(session, [a_demand("short")], 10)).jobs  # type: ignore[arg-type]
        await self.settle(*((record, Complete(fence_of(record), "null")) for record in taken))

    async def grouped(self, session: int) -> None:
        """End the members of a batch, which have hooks: together, then the last one alone."""
        engine = self.engine
        await engine.open_batch(BATCH)
        for new, answer in zip(MEMBERS, await engine.create(MEMBERS), strict=True):
            if isinstance(answer, Accepted):
                self.tell(created=new.id)
        await engine.seal_batch(BATCH.id)
        taken = (await engine.claim(session, [a_demand("page")], 10)).jobs  # type: ignore[arg-type]
        ends = [(each, Complete(fence_of(each), "1")) for each in taken]
        await self.settle(*ends[1:])
        await self.settle(ends[0])

    def visit(self) -> None:
        """Create on a connection of the application, together with a row of its own."""
        app = sqlite3.connect(self._path)
        app.execute("pragma wal_autocheckpoint = 0")
        app.execute("create table if not exists visits (job text)")
        answers = self.engine.create_within(app, callers_jobs())
        app.executemany("insert into visits values (?)", [(new.id,) for new in callers_jobs()])
        app.commit()
        for new, answer in zip(callers_jobs(), answers, strict=True):
            if isinstance(answer, Accepted):
                self.tell(created=new.id)
        app.close()

    async def lock_and_remove(self, session: int) -> None:
        """Take a lock and give it back; remove a job that has ended."""
        held = await self.engine.take_lock("leader", session)  # type: ignore[arg-type]
        self.tell(locked=held is None)
        await self.engine.free_lock("leader", session)  # type: ignore[arg-type]
        self.tell(removed=await self.engine.remove([planned(1), planned(2), planned(16)]))


async def work(path: Path, told: int) -> None:
    """Do all of it on this file."""
    engine = SqliteEngine(path)
    await engine.open()
    await Work(engine, path, told).run()
    await engine.close()


async def examine(path: Path, told: Told) -> None:
    """Refuse a file that lost, doubled or contradicts anything."""
    check_visits(path)
    engine = SqliteEngine(path)
    await engine.open()
    try:
        page = await engine.find(JobFilter(), limit=1000)
        records = {record.definition.id: record for record in page.jobs}
        for record in page.jobs:
            folded = fold(await engine.journal(record.definition.id))
            check(folded == record.head, f"{record.definition.id}: {folded} != {record.head}")
        await check_told(engine, records, told)
        await engine.create(jobs())  # the caller repeats its calls: same ids, no doubles
        again = await engine.find(JobFilter(), limit=1000)
        ids = Counter(record.definition.id for record in again.jobs)
        check(set(ids.values()) <= {1}, f"doubled: {ids}")
        await check_slots(engine)
    finally:
        await engine.close()
    check_file(path)


async def check_told(engine: SqliteEngine, records: dict[JobId, JobRecord], told: Told) -> None:
    """Whatever was acknowledged must be there."""
    for fact in told:
        job_id = JobId(str(fact.get("created") or fact.get("job") or ""))
        if not job_id:
            continue
        if job_id not in records:
            check(job_id in (await engine.load([job_id])).removed, f"lost: {fact}")
        elif "version" in fact:
            versions = [event.version for event in await engine.journal(job_id)]
            check(fact["version"] in versions, f"lost: {fact}, journal has {versions}")


def in_vienna(schedule: Schedule, _: int) -> tuple[Schedule, Change]:
    """Change the zone of a schedule: its next slot is the same, and its due slots are decided."""
    return change_plan(schedule, {"tz": "Europe/Vienna"}), Change("schedule.set", schedule.title)


async def check_slots(engine: SqliteEngine) -> None:
    """Every slot has one entry and, if it says so, one job; a leader goes on after the death."""
    await schedules.fire_due(engine)
    made = {
        (record.definition.relations.schedule, record.definition.relations.slot)
        for record in (await engine.find(JobFilter(), limit=1000)).jobs
        if record.definition.relations is not None and record.definition.relations.slot is not None
    }
    for each in await engine.schedules():
        ledger = await engine.slots(each.service, each.name)
        slots = [entry.decision.slot for entry in ledger]
        due = each.next_slot or 0
        check(slots == [due - n * HOUR for n in range(1, len(slots) + 1)], f"slots: {slots}")
        created = {
            (each.name, entry.decision.slot)
            for entry in ledger
            if entry.decision.outcome == "created"
        }
        check(created == {one for one in made if one[0] == each.name}, f"jobs of {each.name}")


def check_file(path: Path) -> None:
    """Look at the tables themselves."""
    connection = sqlite3.connect(path)
    try:
        (sound,) = connection.execute("pragma integrity_check").fetchone()
        check(sound == "ok", str(sound))
        for key, held in connection.execute(
            "select key_hash, count(*) from trellis_key_slot group by key_hash"
        ):
            check(held <= 1, f"key {key} has {held} slots")
        live = "select job, state from trellis_queue"
        for job, state in connection.execute(live).fetchall():
            check(state in LIVE, f"queue row {job} is {state}")
        orphans = connection.execute(
            "select count(*) from trellis_job j where not exists "
            "(select 1 from trellis_queue q where q.job = j.seq) and not exists "
            "(select 1 from trellis_outcome o where o.job = j.seq)"
        ).fetchone()[0]
        check(orphans == 0, f"{orphans} jobs stand nowhere")
        check_batch(connection)
        check_links(connection)
    finally:
        connection.close()


def check_batch(connection: sqlite3.Connection) -> None:
    """What follows an end is there exactly if the end is."""

    def count(query: str) -> int:
        return int(connection.execute(f"select count(*) from {query}").fetchone()[0])  # noqa: S608

    typed = "trellis_job j join trellis_lane l on l.id = j.lane where l.type ="
    finished = "trellis_batch b where b.finished_at is not null"
    ended = "trellis_batch_member m where m.finished_at is not null"
    outcomes = "trellis_batch_member m join trellis_outcome o on o.job = m.job"
    check(count(ended) == count(outcomes), "a member has ended and not finished, or the reverse")
    check(count(f"{typed} 'hook'") == count(outcomes), "a hook is missing, or there twice")
    check(count(f"{typed} 'book'") == count(finished), "a batch has fired and not finished")
    complete = count(ended) == len(MEMBERS)
    check(count(finished) == complete, "a complete batch has not finished")


def check_links(connection: sqlite3.Connection) -> None:
    """A job waits exactly while a job that it follows has not ended; links see every end."""
    wrong = connection.execute(
        "select q.job from trellis_queue q "
        "where (q.availability = 'waiting_for_jobs') <> exists ("
        "select 1 from trellis_dependency d where d.job = q.job and d.ended is null)"
    ).fetchall()
    check(not wrong, f"jobs {wrong} wait for nothing, or do not wait")
    unseen = connection.execute(
        "select d.job, d.prerequisite from trellis_dependency d where d.ended is null "
        "and not exists (select 1 from trellis_queue q where q.job = d.prerequisite and q.watched)"
    ).fetchall()
    check(not unseen, f"ends that nothing sees: {unseen}")


def check_visits(path: Path) -> None:
    """The application's row and its job are both there, or neither is."""
    connection = sqlite3.connect(path)
    tables = {name for (name,) in connection.execute("select name from sqlite_master")}
    if "visits" in tables:
        visits = set(connection.execute("select job from visits"))
        stored = set(connection.execute("select id from trellis_job"))
        mine = {(new.id,) for new in callers_jobs()}
        check(visits == stored & mine, f"rows of {visits}, jobs {stored & mine}")
    connection.close()


def check(holds: bool, what: str) -> None:
    """Stop with a message."""
    if not holds:
        raise SystemExit(f"broken promise: {what}")


def die_at(failpoint: str, n: int, path: Path) -> tuple[bool, Told]:
    """Run the work in a child that dies there; return whether it died, and what it was told."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        failpoints._armed, failpoints._remaining = failpoint, n
        asyncio.run(work(path, writer))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = [json.loads(line) for line in lines]
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"the work failed at {failpoint}:{n}")
    return os.WIFSIGNALED(status), told


def main() -> None:
    """Walk the failpoint from its first to its last hit."""
    failpoint, folder = sys.argv[1], Path(sys.argv[2])
    deaths = 0
    died = True
    while died:
        path = folder / f"{deaths}.db"
        died, told = die_at(failpoint, deaths + 1, path)
        asyncio.run(examine(path, told))
        deaths += died
    sys.stdout.write(f"{deaths}\n")


if __name__ == "__main__":
    main()
