"""Mistakes that both type checkers must catch: one on every line marked so."""

from __future__ import annotations

from tests.typing.accepted import (
    Invoice,
    Sync,
    billing,
    greet,
    report,
    send_invoice,
    slow,
    sync_tickets,
    tick,
    tidy,
)
from trellis import ActiveJob, Service


async def mistakes() -> None:
    await send_invoice.create(Sync("x"))  # E: another payload
    await send_invoice.create({"order_id": 1})  # E: a dict
    await send_invoice.create()  # E: nothing
    await sync_tickets.submit(Invoice(order_id=1, email=""))  # E: another payload
    wrong: str = await (await sync_tickets.create(Sync("x"))).wait()  # E: the result is an int
    await send_invoice.create_many([Sync("x")])  # E: other payloads
    await greet.create_many("abc")  # E: a text is not a list of payloads
    await tidy.create("x")  # E: another payload
    await greet.create("x", "y")  # E: one payload
    await greet.create("x", dely=3)  # E: no such option
    greet("x")  # E: a job is not a function
    send_invoice | greet  # E: the result of one is not the payload of the other
    await (greet | greet).create(7)  # E: another payload of a chain
    await greet.create("x", on="sometimes")  # E: no such end
    print(wrong)

    @billing.job(retires=3)  # E: no such policy
    async def misspelt(number: int) -> int:
        return number

    @report.handler  # E: a handler of another payload
    async def other(invoice: Invoice) -> int:
        return invoice.order_id

    @slow.job(isolation="thread")  # E: no such isolation
    def elsewhere(number: int) -> int:
        return number

    @slow.job
    async def locked(job: ActiveJob[int]) -> None:
        job.lock("ledger", wait=job)  # E: not a span
        async with job.lock(7):  # E: not a name
            print(job.payload.upper())  # E: the payload is a number


def mistakes_without_a_loop() -> None:
    send_invoice.create_sync(Sync("x"))  # E: another payload
    send_invoice.create_sync()  # E: nothing
    greet.create_sync("x", dely=3)  # E: no such option
    tick.create_sync("x")  # E: it takes nothing
    wrong: str = sync_tickets.create_sync(Sync("x")).wait_sync()  # E: the result is an int
    greet.ref("x").wait_sync(for_long=3)  # E: no such option
    greet.create_many_sync(["x"], dedupe="x")  # E: not for many
    len(greet.create_many_sync("abc"))  # E: a text is not a list of payloads
    for event in greet.ref("x").events_sync():
        event.kid()  # E: no such field
    Service("shop", defaults={"timeot": "1m"})  # E: no such option
    Service("shop", defaults={"timeout": [1]})  # E: not a span
    Service("shop", defaults={"name": "x"})  # E: only for one type
    Service("shop", include=7)  # E: not a list
    print(wrong)
