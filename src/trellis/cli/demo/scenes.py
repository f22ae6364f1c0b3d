"""The scenes of the demo: each does harm on purpose, then says what was promised and seen."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from trellis import control
from trellis.cli.demo.jobs import (
    Deposit,
    Order,
    call_shaky_service,
    deposit,
    render_film,
    ship_order,
    thumbnail,
    write_report,
)
from trellis.cli.demo.stage import LEASE, Stage
from trellis.cli.terminal import Report
from trellis.client.ref import JobRef
from trellis.core.commands import Replay
from trellis.core.events import EventKind
from trellis.core.job import JobId
from trellis.engines.values import JobFilter
from trellis.errors import JobDead

_BURST: Final = 400
_ACCOUNTS: Final = ("ada", "bob", "cleo")
_DEPOSITS: Final = 24


class Seen(NamedTuple):
    """What a scene promised and what happened."""

    promised: str
    seen: str
    holds: bool


async def burst(stage: Stage, progress: Report) -> Seen:
    """Many jobs at once."""
    began = time.monotonic()
    refs = await thumbnail.create_many(range(_BURST))
    stage.say(f"{_BURST} jobs created")
    results = await _results(stage, refs, progress)
    took = time.monotonic() - began
    right = results == list(range(_BURST))
    starts = Counter[int]()
    for ref in refs:
        journal = await stage.engine.journal(JobId(ref.id))
        starts[sum(event.kind is EventKind.STARTED for event in journal)] += 1
    seen = f"{_BURST} results in {took:.1f} s, {starts[1]} jobs ran once"
    return Seen(f"{_BURST} jobs run, each once", seen, right and starts[1] == _BURST)


async def _results(stage: Stage, refs: Sequence[JobRef[int]], progress: Report) -> list[int]:
    """Wait for all results and show on the way how many there are."""
    everything = asyncio.gather(*(ref.wait("60s") for ref in refs))
    where = JobFilter(types=(thumbnail.name,))
    try:
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
    """A handler that fails twice."""
    del stage
    ref = await call_shaky_service.create("the shaky service")
    result = await ref.wait("20s")
    status = await ref.status()
    return Seen("a failed attempt is retried after its backoff", result, status.attempt == 3)  # noqa: PLR2004 - two failures and a success


async def sudden_death(stage: Stage) -> Seen:
    """A worker process killed in the middle of a job."""
    ref = await render_film.create(15)
    victim = await stage.runner_of(ref)
    stage.kill(victim)
    stage.say(f"worker {victim} is killed; its job is free when its lease of {LEASE} is over")
    killed = time.monotonic()
    finisher = await ref.wait("30s")
    took = time.monotonic() - killed
    status = await ref.status()
    await stage.start_worker()
    seen = f"{victim} killed; {finisher} took over and finished {took:.1f} s later"
    holds = finisher != victim and status.attempt == 2  # noqa: PLR2004 - the lost one and this
    return Seen("work of a killed process is taken over", seen, holds)


async def zombie(stage: Stage) -> Seen:
    """A frozen worker that wakes up when its job has long been done by another."""
    ref = await write_report.create()
    frozen = await stage.runner_of(ref)
    stage.freeze(frozen)
    stage.say(f"worker {frozen} is frozen, and holds its job until its lease of {LEASE} is over")
    try:
        finisher = await ref.wait("30s")
    finally:
        stage.thaw(frozen)
    stage.say(f"worker {frozen} wakes up and goes on, as if nothing had happened")

    async def refused() -> bool:
        journal = await stage.engine.journal(JobId(ref.id))
        return any(event.kind is EventKind.STALE_COMPLETION_IGNORED for event in journal)

    await stage.until(refused, "the late result to be refused")
    again = await ref.wait("5s")
    seen = f"{frozen} woke up late; its result was refused, that of {finisher} stands"
    return Seen("only one attempt ever settles a job", seen, again == finisher != frozen)


async def one_at_a_time(stage: Stage) -> Seen:
    """Jobs of one key, created in no order and run by several processes."""
    ledger = stage.folder / "ledger.txt"
    deposits = [
        Deposit(account=_ACCOUNTS[number % len(_ACCOUNTS)], amount=number, ledger=ledger)
        for number in range(_DEPOSITS)
    ]
    refs = await deposit.create_many(deposits)
    await asyncio.gather(*(ref.wait("30s") for ref in refs))
    entries = [line.split() for line in ledger.read_text(encoding="utf-8").splitlines()]
    overlaps = 0
    for account in _ACCOUNTS:
        spans = sorted((int(entry[1]), int(entry[2])) for entry in entries if entry[0] == account)
        overlaps += sum(later[0] < earlier[1] for earlier, later in pairwise(spans))
    processes = len({entry[3] for entry in entries})
    by = "one process" if processes == 1 else f"{processes} processes"
    seen = f"{len(entries)} deposits by {by}, {overlaps} overlaps"
    holds = len(entries) == _DEPOSITS and overlaps == 0
    return Seen("jobs of one key never run at the same time", seen, holds)


async def dead_letter(stage: Stage) -> Seen:
    """A job that cannot work until somebody mends what is wrong."""
    address = stage.folder / "address.txt"
    ref = await ship_order.create(Order(number=7, address=address))
    died = False
    try:
        await ref.wait("20s")
    except JobDead:
        died = True
    address.write_text("1 Trellis Lane", encoding="utf-8")
    await control.apply(stage.engine, JobId(ref.id), Replay("demo"))
    result = await ref.wait("20s")
    return Seen("a dead letter waits, and runs again when replayed", result, died)
