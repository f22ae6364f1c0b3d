"""The scenes without an accident: many jobs, failing ones, jobs in turn, a dead letter."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from trellis.cli.demo.jobs import (
    BACKOFF,
    Deposit,
    Order,
    Picture,
    call_shaky_service,
    deposit,
    ship_order,
    thumbnail,
)
from trellis.cli.demo.stage import Stage
from trellis.cli.demo.telling import Seen
from trellis.client.ref import JobRef
from trellis.core.durations import SECOND, micros
from trellis.core.events import Event, EventKind
from trellis.engines.values import JobFilter
from trellis.errors import JobDead

_BURST: Final = 400
_ACCOUNTS: Final = ("ada", "bob", "cleo")
_DEPOSITS: Final = 24


async def burst(stage: Stage) -> Seen:
    """Create many jobs at once."""
    began = time.monotonic()
    album = stage.folder / "album.txt"
    refs = await thumbnail.create_many([Picture(number=n, album=album) for n in range(_BURST)])
    stage.tell.say(f"{_BURST} jobs created in {time.monotonic() - began:.1f} s")
    results = await _results(stage, refs)
    took = time.monotonic() - began
    right = sum(result == number for number, result in enumerate(results))
    runs = Counter(album.read_text(encoding="utf-8").split())
    once = sum(count == 1 for count in runs.values())
    ran = "each ran once" if once == _BURST else f"{_BURST - once} did NOT run once"
    return Seen(f"{right} results after {took:.1f} s, {ran}", right == once == _BURST)


async def _results(stage: Stage, refs: Sequence[JobRef[int]]) -> list[int]:
    """Wait for all results and show on the way how many there are."""
    everything = asyncio.gather(*(ref.wait("60s") for ref in refs))
    where = JobFilter(types=(thumbnail.name,))
    try:
        with stage.tell.bar("thumbnails") as progress:
            while not everything.done():
                counts = (await stage.engine.count(where, "state")).groups
                progress(counts.get("completed", 0), len(refs))
                await asyncio.sleep(0.1)
            progress(len(refs), len(refs))
        return await everything
    finally:
        # Whoever interrupts us would leave waiters behind, to complain about a closed engine.
        everything.cancel()
        await asyncio.gather(everything, return_exceptions=True)


async def retry(stage: Stage) -> Seen:
    """Have a handler fail twice."""
    ref = await call_shaky_service.create("the bank")
    async for event in ref.events(follow=True):
        if event.kind is EventKind.RETRY:
            wait, why = BACKOFF[event.attempt - 1], event.data["error"][1]
            stage.tell.say(f"attempt {event.attempt} failed ({why}), next in {wait}")
    await ref.wait("30s")
    waits = _waits(await stage.journal(ref))
    in_words = " and ".join(f"{wait / SECOND:.2f} s" for wait in waits)
    enough = len(waits) == len(BACKOFF) and all(
        wait >= micros(promised) for wait, promised in zip(waits, BACKOFF, strict=True)
    )
    return Seen(f"worked on attempt {len(waits) + 1}, after waits of {in_words}", enough)


def _waits(journal: Sequence[Event]) -> list[int]:
    """Return how long a job waited after each failure, by the engine's clock."""
    return [
        after.at - before.at
        for before, after in pairwise(journal)
        if (before.kind, after.kind) == (EventKind.RETRY, EventKind.STARTED)
    ]


class Entry(NamedTuple):
    """A line of the ledger."""

    account: str
    number: int
    began: int
    ended: int
    pid: str


async def one_at_a_time(stage: Stage) -> Seen:
    """Create jobs of three keys, and look into what they have written."""
    ledger = stage.folder / "ledger.txt"
    deposits = [
        Deposit(account=_ACCOUNTS[number % len(_ACCOUNTS)], number=number, ledger=ledger)
        for number in range(_DEPOSITS)
    ]
    refs = await deposit.create_many(deposits)
    stage.tell.say(f"{_DEPOSITS} deposits to {len(_ACCOUNTS)} accounts created, all at once")
    await asyncio.gather(*(ref.wait("30s") for ref in refs))
    entries = _read(ledger)
    pairs = [
        pair
        for account in _ACCOUNTS
        for pair in pairwise(sorted(each for each in entries if each.account == account))
    ]
    overlaps = sum(later.began < earlier.ended for earlier, later in pairs)
    processes = len({entry.pid for entry in entries})
    by = "one process" if processes == 1 else f"{processes} processes"
    found = f"{overlaps} before their turn" if overlaps else "none before its turn"
    words = f"{len(entries)} deposits by {by}, {found}"
    return Seen(words, len(entries) == _DEPOSITS and not overlaps)


def _read(ledger: Path) -> list[Entry]:
    lines = [line.split() for line in ledger.read_text(encoding="utf-8").splitlines()]
    return [
        Entry(account, int(number), int(began), int(ended), pid)
        for account, number, began, ended, pid in lines
    ]


async def dead_letter(stage: Stage) -> Seen:
    """Create a job that cannot work until somebody mends what is wrong."""
    address = stage.folder / "address.txt"
    ref = await ship_order.create(Order(number=7, address=address))
    try:
        await ref.wait("30s")
    except JobDead:
        status = await ref.status()
        stage.tell.say(f"attempt {status.attempt} failed ({status.error}), and was the last")
        stage.tell.say("the job is kept as a dead letter, for somebody to look at")
    else:
        return Seen("the order was shipped without an address", holds=False)
    stage.tell.say("the address is found, and the job replayed")
    address.write_text("1 Trellis Lane", encoding="utf-8")
    await ref.replay()
    result = await ref.wait("30s")
    return Seen(f"dead after {status.attempt} attempts, then replayed: {result}", holds=True)
