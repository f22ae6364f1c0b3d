"""Mistakes that both type checkers must catch: one on every line marked so."""

from __future__ import annotations

from tests.typing.accepted import Invoice, Sync, billing, greet, report, send_invoice, sync_tickets


async def mistakes() -> None:
    await send_invoice.create(Sync("x"))  # E: another payload
    await send_invoice.create({"order_id": 1})  # E: a dict
    await send_invoice.create()  # E: nothing
    await sync_tickets.submit(Invoice(order_id=1, email=""))  # E: another payload
    wrong: str = await (await sync_tickets.create(Sync("x"))).wait()  # E: the result is an int
    await send_invoice.create_many([Sync("x")])  # E: other payloads
    await greet.create("x", dely=3)  # E: no such option
    greet("x")  # E: a job is not a function
    print(wrong)

    @billing.job(retires=3)  # E: no such policy
    async def misspelt(number: int) -> int:
        return number

    @report.handler  # E: a handler of another payload
    async def other(invoice: Invoice) -> int:
        return invoice.order_id
