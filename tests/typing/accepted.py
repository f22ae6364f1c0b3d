"""Everyday calls that both type checkers must accept, with the types they must infer."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

from pydantic import BaseModel

from trellis import (
    Accepted,
    ActiveJob,
    Answer,
    Chain,
    ChainRef,
    Coalesced,
    Context,
    Job,
    JobEvent,
    JobLogLine,
    JobRef,
    JobView,
    PerKey,
    Rejected,
    Replaced,
    Retry,
    Service,
    State,
)

app = Service("hello")
billing = Service("billing", "sqlite:///billing.db", include=["shop.jobs"])
slow = Service("slow", defaults={"timeout": "10m", "retry": Retry(attempts=2), "queue": "slow"})


class Invoice(BaseModel):
    order_id: int
    email: str


@dataclass
class Sent:
    message_id: str


@dataclass
class Sync:
    origin: str


@app.job
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.job
async def tick() -> int:
    return 1


@app.job
def tock() -> int:
    return 1


@app.job
async def tidy(days: int = 7) -> int:
    return days


@app.job(timeout=3)
def prune(days: int = 7) -> str:
    return str(days)


@app.job(timeout=3)
async def slow_tick(job: ActiveJob[None]) -> int:
    return job.attempt


@billing.job(retry=Retry(attempts=5), timeout="10m", concurrency=8)
async def send_invoice(job: ActiveJob[Invoice]) -> Sent:
    async for page in job.track(range(3), step="render"):
        job.log.info("page", number=page)
    for page in job.track(range(3)):
        assert_type(page, int)
    return Sent(message_id=f"{job.id}/{job.attempt}")


@billing.job(per_key=PerKey("zendesk/{origin}/tickets", queued=1, when_full="coalesce"))
def sync_tickets(job: ActiveJob[Sync]) -> int:
    return len(job.payload.origin)


@slow.job(isolation="process", timeout=None, capture_logs=False)
def resize(path: str) -> bytes:
    return path.encode()


@billing.job
def book(job: ActiveJob[Sync]) -> str:
    with job.lock("ledger"), job.lock("tax", wait="10s") as lock:
        return lock.name


@billing.job
async def seen(job: ActiveJob[Sync]) -> None:
    async with job.lock("edition", 7, wait=3), job.lock(("a", 1), ("b",)), billing.lock("tax"):
        pass
    async with job.lock("ledger", wait=3):
        job.phase("book")
        job.items.complete("page-1")
        assert_type(job.items.pending(["page-1", "page-2"]), list[str])
        job.progress(1, 2, message="half")
        job.heartbeat()
    assert_type(job.payload, Sync)
    assert_type(job.context, Context)
    assert_type(job.key, str | None)
    assert_type(job.deadline, datetime | None)
    assert_type(job.cancelled, bool)
    assert_type(job.stopping, bool)
    if job.lease is not None:
        assert_type(job.lease.ends_at, datetime)


report = billing.declare("report", payload=Sync, result=int)


@report.handler
async def make_report(job: ActiveJob[Sync]) -> int:
    return 1


async def main() -> None:
    ref = await greet.create("world")
    assert_type(greet, Job[str, str])
    assert_type(ref, JobRef[str])
    assert_type(await ref.wait(timeout="5s"), str)
    assert_type(await greet.create("again", config={"a": 1}, expect=ref), JobRef[str])
    assert_type(await ref.fingerprint(), str)
    assert_type((await ref.items())[0].name, str)
    assert_type(greet.ref("01ARZ3NDEKTSV4RRFFQ69G5FAV"), JobRef[str])
    assert_type(send_invoice, Job[Invoice, Sent])
    assert_type(sync_tickets, Job[Sync, int])
    assert_type(make_report, Job[Sync, int])
    assert_type(tick, Job[None, int])
    assert_type(tock, Job[None, int])
    assert_type(slow_tick, Job[None, int])
    assert_type(await tick.create(), JobRef[int])
    assert_type(await slow_tick.create(delay=3), JobRef[int])
    assert_type(await tidy.create(), JobRef[int])
    assert_type(await tidy.create(30, delay=3), JobRef[int])
    assert_type(await prune.submit(), Answer[str])
    assert_type(await tidy.create_many([1, 2]), list[JobRef[int]])
    assert_type(await prune.run_inline(), str)
    assert_type(await greet.run_inline("world"), str)
    invoice = Invoice(order_id=1, email="a@b.c")
    assert_type(await (await send_invoice.create(invoice, delay="10m")).wait(), Sent)
    assert_type(await send_invoice.create_many([invoice]), list[JobRef[Sent]])
    match await sync_tickets.submit(Sync("eu")):
        case Accepted(waiting) | Coalesced(waiting):
            assert_type(await waiting.wait(), int)
        case Replaced(_, skipped):
            assert_type(skipped, str)
        case Rejected(reason):
            print(reason)


async def chains(first: JobRef[int]) -> None:
    chain = greet | greet
    assert_type(chain, Chain[str, str])
    assert_type(greet | tick, Chain[str, int])
    assert_type(chain | tick, Chain[str, int])
    ref = await chain.create("world", after=[first], tags={"customer": "7"})
    assert_type(ref, ChainRef[str])
    assert_type(await ref.wait("5s"), str)
    assert_type(await greet.create("world", after=[first, ref.id], on="finished"), JobRef[str])
    flow = app.workflow()
    flow.step("hello", greet, "world")
    flow.step("again", greet, payload_from="hello")
    flow.step("tick", tick, after=["hello", "again"], on="finished", delay="5s")
    print((await flow.create())["tick"].id)


async def follow(ref: JobRef[int]) -> None:
    async for event in ref.events(follow=True):
        assert_type(event, JobEvent)
        assert_type(event.state, State)
    async for line in ref.logs():
        assert_type(line, JobLogLine)
    assert_type(await ref.status(), JobView)
    assert_type(await ref.cancel("enough", force=True), JobView)
    assert_type(await ref.clone(), JobRef[int])
    assert_type(await ref.retry(), JobView)


async def join(connection: sqlite3.Connection) -> None:
    assert_type(await greet.create("world", tx=connection), JobRef[str])
    assert_type(await tick.create(tx=connection), JobRef[int])
    assert_type(await greet.create_many(["a", "b"], tx=connection), list[JobRef[str]])


def without_a_loop(connection: sqlite3.Connection) -> None:
    with billing as entered:
        assert_type(entered, Service)
        ref = greet.create_sync("world", delay="10m", tx=connection)
        assert_type(ref, JobRef[str])
        assert_type(ref.wait_sync("5s"), str)
        assert_type(ref.wait_sync(timeout=5), str)
        assert_type(ref.status_sync(), JobView)
        assert_type(ref.cancel_sync("enough", force=True), JobView)
        assert_type(ref.clone_sync(), JobRef[str])
        assert_type(tick.create_sync(), JobRef[int])
        assert_type(tick.create_sync(delay=3).wait_sync(), int)
        assert_type(greet.submit_sync("world"), Answer[str])
        assert_type(greet.create_many_sync(["a"], tags={"customer": "7"}), list[JobRef[str]])
        assert_type(greet.run_inline_sync("world"), str)
        for event in ref.events_sync(follow=True):
            assert_type(event, JobEvent)
        for line in ref.logs_sync():
            assert_type(line.message, str)
    assert_type(billing.open_sync(), Service)
    billing.close_sync()
