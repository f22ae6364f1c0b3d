"""Move jobs from one store to another: from SQLite to PostgreSQL.

First every reason to refuse is checked, with nothing changed. Then the source is sealed for good:
from that moment no job can be started, changed or created there. Only then are its jobs copied,
batch by batch. So no job can run in both stores, even if the process dies half-way: run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from trellis import failpoints
from trellis.core.batches import BatchState
from trellis.core.states import WAITING, State
from trellis.engines.audit import OPERATOR, By, Change
from trellis.engines.batches import BatchFilter
from trellis.engines.contracts import NewContract
from trellis.engines.port import Engine
from trellis.engines.transfer import (
    Busy,
    CanExport,
    CanImport,
    Clash,
    Exporter,
    Importer,
    Kind,
    Seal,
    refusal,
)
from trellis.engines.values import JobFilter
from trellis.errors import CapabilityMissing, MoveRefused

Progress = Callable[[int, int], None]

#: Jobs in one transaction of the target.
BATCH_SIZE: Final = 500
_PROMOTED: Final = 1000
_SHOWN: Final = 5
_PAGE: Final = 100
#: Batches in these states were sealed at the source.
_SEALED: Final[tuple[BatchState, ...]] = ("sealed", "cancelled")
_ALL_CONTRACTS: Final = 1_000_000
_ALWAYS: Final = (*sorted(WAITING), State.DEAD)
#: A job that runs is never moved.
_HISTORY: Final = tuple(state for state in State if state is not State.ACTIVE)


class Endpoint(NamedTuple):
    """An open engine and its URL without the password."""

    engine: Engine
    address: str


class _Transfer(NamedTuple):
    """Both ends of a move, their export and import, and how many jobs are copied at once."""

    source: Endpoint
    target: Endpoint
    exporter: Exporter
    importer: Importer
    batch_size: int


class Moved(NamedTuple):
    """What a move did, or would do."""

    #: Jobs to be moved by their state, copied by this run or an earlier one.
    states: dict[str, int]
    #: How many of them this run copied, and how many were there before.
    copied: int
    known: int
    #: Ended jobs that stay at the source.
    left: int
    queues: int
    schedules: int
    is_finished: bool


async def move(
    source: Endpoint,
    target: Endpoint,
    by: By = OPERATOR,
    *,
    history: bool = False,
    dry_run: bool = False,
    batch_size: int = BATCH_SIZE,
    progress: Progress = lambda _done, _total: None,
) -> Moved:
    """Move the jobs, `batch_size` at once; with `dry_run` only return what would be done."""
    transfer = _Transfer(source, target, _exporter(source), _importer(target), batch_size)
    states = _HISTORY if history else _ALWAYS
    seal = await _known_seal(transfer)
    known = await _look_for_clashes(transfer, seal, states)
    if dry_run:
        return await _summary(transfer, states, known=known)
    if seal is None:
        while await source.engine.promote(_PROMOTED):  # decides links that were left to it
            pass
        seal = await _seal(transfer)
    await _copy_rows(transfer, seal, "audit")
    await _copy_rows(transfer, seal, "batches")
    for schedule in await source.engine.schedules():
        await _copy_rows(transfer, seal, "slots", schedule.service, schedule.name)
    await _copy_settings(source.engine, target.engine, by)
    await _copy_contracts(source.engine, target.engine)
    copied = await _copy(transfer, _move_of(seal, states), states, progress)
    await transfer.importer.assign_slots()
    await _seal_batches(source.engine, target.engine)
    what = Change("store.move", source.address, None, {"to": target.address})
    await transfer.importer.record(f"{_move_of(seal, states)}/recorded", what, by)
    failpoints.reach("move.before-finish")
    await transfer.exporter.finish()
    summary = await _summary(transfer, states)
    known = sum(summary.states.values()) - copied
    return summary._replace(copied=copied, known=known, is_finished=True)


def _exporter(source: Endpoint) -> Exporter:
    if not isinstance(source.engine, CanExport):
        raise CapabilityMissing(
            f"Jobs cannot be moved out of {source.address}. Move from sqlite:///path/to/jobs.db."
        )
    return source.engine.exporter()


def _importer(target: Endpoint) -> Importer:
    if not isinstance(target.engine, CanImport):
        raise CapabilityMissing(
            f"Jobs cannot be moved into {target.address}. Move to postgresql://host/database."
        )
    return target.engine.importer()


def _move_of(seal: Seal, states: Sequence[State]) -> str:
    """Return the name of what is copied: a later run may include more states, from the start."""
    return f"{seal.id}/{'history' if len(states) == len(_HISTORY) else 'waiting'}"


# -- before anything is changed ----------------------------------------------------------------


async def _known_seal(transfer: _Transfer) -> Seal | None:
    """Return the seal of an earlier run; refuse another target, or a source with live workers."""
    seal = await transfer.exporter.seal_of()
    if seal is None:
        await _refuse_if_busy(transfer.source)
    elif seal.instance != await transfer.importer.instance():
        raise MoveRefused(
            f"An earlier `trellis move` began to move the jobs of {transfer.source.address} to "
            f"{seal.address}, and {transfer.target.address} is another database. Give the URL of "
            "the former as --to. Nothing was changed."
        )
    return seal


async def _refuse_if_busy(source: Endpoint) -> None:
    """Raise `MoveRefused` with what still works at the source, and what to do about it."""
    live = [
        f"{each.info.name} (process {each.info.pid})"
        for each in await source.engine.sessions()
        if each.ended_at is None and not each.lapsed
    ]
    if live:
        raise MoveRefused(
            f"{source.address} has {_many(len(live), 'live worker')}: {_some(live)}. Let them "
            f"finish with `trellis workers drain NAME --url {source.address}` or stop them, then "
            "move again. Nothing was changed."
        )
    running = JobFilter(states=(State.ACTIVE,))
    active = (await source.engine.count(running, "state")).groups
    if active:
        found = (await source.engine.find(running, limit=_SHOWN)).jobs
        raise MoveRefused(
            f"{source.address} has {_many(sum(active.values()), 'active job')} whose worker is "
            f"gone: {_some([each.definition.id for each in found])}. Start a worker there: it "
            "takes them over when their lease has expired. Let it finish and stop it; then move "
            "again. Nothing was changed."
        )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


async def _look_for_clashes(transfer: _Transfer, seal: Seal | None, states: Sequence[State]) -> int:
    """Return how many of the jobs the target has already; refuse if some clash with others."""
    after = 0 if seal is None else await transfer.importer.cursor(_move_of(seal, states))
    known = sum((await transfer.exporter.counts(states, after)).values())
    clashes: list[Clash] = []
    while (
        batch := await transfer.exporter.batch(after, transfer.batch_size, states, whole=False)
    ).jobs:
        compared = await transfer.importer.compare(batch)
        known += len(compared.known)
        clashes += compared.clashes
        after = batch.last
    if clashes:
        raise MoveRefused(f"{refusal(clashes)} Nothing was changed.")
    return known


# -- the move ----------------------------------------------------------------------------------


async def _seal(transfer: _Transfer) -> Seal:
    instance = await transfer.importer.instance()
    sealed = await transfer.exporter.seal(instance, transfer.target.address)
    if isinstance(sealed, Busy):
        await _refuse_if_busy(transfer.source)
        raise MoveRefused(
            f"A handler at {transfer.source.address} that was stopped from outside may still be "
            "running. It counts as stopped after one lease (30 s by default); then move again. "
            "Nothing was changed."
        )
    if sealed.instance != instance:
        raise MoveRefused(
            f"Another run has just begun to move the jobs of {transfer.source.address} to "
            f"{sealed.address}. Nothing was changed by this run."
        )
    failpoints.reach("move.sealed")
    return sealed


async def _copy_rows(transfer: _Transfer, seal: Seal, kind: Kind, *of: str) -> None:
    """Copy the rows of a kind, oldest first; they get new numbers."""
    name = "/".join((seal.id, kind, *of))
    after = await transfer.importer.cursor(name)
    while rows := await transfer.exporter.rows(kind, after, transfer.batch_size, *of):
        await transfer.importer.import_rows(kind, name, after, rows)
        failpoints.reach("move.rows")
        after = rows[-1][0]


async def _seal_batches(source: Engine, target: Engine) -> None:
    """Let the batches finish whose members are all at the target now."""
    for state in _SEALED:
        after = None
        while page := await source.batches(BatchFilter(state), after=after, limit=_PAGE):
            for batch in page:
                if batch.finished_at is None:
                    await target.seal_batch(batch.new.id)
            after = page[-1].row


async def _copy_settings(source: Engine, target: Engine, by: By) -> None:
    """Copy settings, limits and schedules before the jobs, except those the target has."""
    existing = {(each.service, each.queue) for each in await target.queue_settings()}
    for each in await source.queue_settings():
        if (each.service, each.queue) not in existing:
            await target.set_queue(each, by)
    aging = await source.aging()
    if aging is not None and await target.aging() is None:
        await target.set_aging(aging, by)
    known = {each.setting.scope for each in await target.limits()}
    for status in await source.limits():
        scope, declared, override = status.setting
        if scope not in known:
            await target.declare_limits([(scope, declared)])
            if override.parts:
                await target.change_limit(scope, override, by)
    types = {each[:2] for each in await target.declared_types()}
    await target.declare_types([t for t in await source.declared_types() if t[:2] not in types])
    # A schedule goes on with its next slot. One that the target has already is left alone.
    await target.add_schedules(await source.schedules())
    for archive in await source.archives():
        await target.declare_archive(archive.service, by)  # one that is off needs a row to be so
        await target.set_archive(archive.service, on=archive.is_on, by=by)


async def _copy_contracts(source: Engine, target: Engine) -> None:
    """Copy the contracts of services that have none at the target; continue an earlier copy."""
    theirs = await target.contracts(limit=_ALL_CONTRACTS)
    ours = await source.contracts(limit=_ALL_CONTRACTS)
    for service in sorted({each.service for each in ours}):
        there, here = (
            [each for each in reversed(records) if each.service == service]
            for records in (theirs, ours)
        )
        known = [(each.fingerprint, each.status) for each in there]
        if known != [(each.fingerprint, each.status) for each in here[: len(known)]]:
            continue  # the target has its own
        after = there[-1].number if there else 0
        for number, each in enumerate(here[len(known) :], after):
            new = NewContract(service, number, each.body, each.fingerprint, each.status)
            await target.put_contract(new, each.by)


async def _copy(transfer: _Transfer, name: str, states: Sequence[State], progress: Progress) -> int:
    """Copy the jobs that the target does not have yet; return how many."""
    total = sum((await transfer.exporter.counts(states)).values())
    after = await transfer.importer.cursor(name)
    done = sum((await transfer.exporter.counts(states, after)).values())
    copied = 0
    while (
        batch := await transfer.exporter.batch(after, transfer.batch_size, states, whole=True)
    ).jobs:
        copied += await transfer.importer.import_batch(name, batch)
        failpoints.reach("move.batch")
        done += len(batch.jobs)
        after = batch.last
        progress(done, total)
    return copied


async def _summary(transfer: _Transfer, states: Sequence[State], *, known: int = 0) -> Moved:
    source = transfer.source.engine
    chosen = dict(await transfer.exporter.counts(states))
    left = (await source.count(JobFilter())).total - sum(chosen.values())
    queues = len(await source.queue_settings())
    schedules = len(await source.schedules())
    return Moved(chosen, 0, known, left, queues, schedules, is_finished=False)
