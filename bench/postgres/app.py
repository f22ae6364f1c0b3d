"""Services of the measurements: one type, fifty types, and a type with keys."""

from __future__ import annotations

from typing import Final

from bench.peers.protocol import started
from bench.peers.trellis.app import Purchase
from trellis import Job, PerKey, Service

MANY: Final = 50

one = Service("one")
fifty = Service("fifty")
keyed = Service("keyed")


async def noop(purchase: Purchase) -> None:
    """Do nothing but be counted."""
    started()


of_one: Final[tuple[Job[Purchase, None], ...]] = (one.job(name="noop")(noop),)
of_fifty: Final[tuple[Job[Purchase, None], ...]] = tuple(
    fifty.job(name=f"noop_{number}")(noop) for number in range(MANY)
)
of_keys: Final[tuple[Job[Purchase, None], ...]] = (
    keyed.job(name="noop", per_key=PerKey("order/{order_id}", queued=None, when_full="wait"))(noop),
)
