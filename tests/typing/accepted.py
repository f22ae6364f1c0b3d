"""Everyday calls that both type checkers must accept, with the types they must infer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from pydantic import BaseModel

from trellis import (
    Accepted,
    ActiveJob,
    Coalesced,
    Job,
    JobRef,
    PerKey,
    Rejected,
    Replaced,
    Retry,
    Service,
)

app = Service("hello")
billing = Service("billing")


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


report = billing.declare("report", payload=Sync, result=int)


@report.handler
async def make_report(job: ActiveJob[Sync]) -> int:
    return 1


async def main() -> None:
    ref = await greet.create("world")
    assert_type(greet, Job[str, str])
    assert_type(ref, JobRef[str])
    assert_type(await ref.wait(timeout="5s"), str)
    assert_type(greet.ref("01ARZ3NDEKTSV4RRFFQ69G5FAV"), JobRef[str])
    assert_type(send_invoice, Job[Invoice, Sent])
    assert_type(sync_tickets, Job[Sync, int])
    assert_type(make_report, Job[Sync, int])
    assert_type(tick, Job[None, int])
    assert_type(tock, Job[None, int])
    assert_type(slow_tick, Job[None, int])
    assert_type(await tick.create(), JobRef[int])
    assert_type(await slow_tick.create(delay=3), JobRef[int])
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
