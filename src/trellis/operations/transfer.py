"""Move jobs from one store to another: between SQLite, PostgreSQL and NATS JetStream.

First every reason to refuse is checked, with nothing changed. Then the source is sealed for good:
from that moment no job can be started, changed or created there. Only then are its jobs copied,
batch by batch. So no job can run in both stores, even if the process dies half-way: run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from trellis import failpoints
from trellis.core.states import WAITING, State
from trellis.engines.audit import OPERATOR, By, Change
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
from trellis.errors import CapabilityMissing, MoveRefused

Progress = Callable[[int, int], None]

#: Jobs in one transaction of the target.
BATCH_SIZE: Final = 500
_PROMOTED: Final = 1000
_SHOWN: Final = 5
_PAGE: Final = 100
#: Where the row of a batch says when it was sealed, and when it finished.
_SEALED_AT: Final = 9
_FINISHED_AT: Final = 12
_ALL_CONTRACTS: Final = 1_000_000
_ALWAYS: Final = (*sorted(WAITING), State.DEAD)
#: A job that runs is never moved.
_HISTORY: Final = tuple(state for state in State if state is not State.ACTIVE)


class Endpoint(NamedTuple):
    """An open engine and its URL without the password."""

    engine: Engine
    address: str
    #: None: that of the engine.
    exporter: Exporter | None = None


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
    await _refuse_sealed(transfer)
    await _refuse_itself(transfer)
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
    await _verify(transfer, states)
    await _seal_batches(transfer)
    what = Change("store.move", source.address, None, {"to": target.address})
    await transfer.importer.record(f"{_move_of(seal, states)}/recorded", what, by)
    failpoints.reach("move.before-finish")
    await transfer.exporter.finish()
    summary = await _summary(transfer, states)
    known = sum(summary.states.values()) - copied
    return summary._replace(copied=copied, known=known, is_finished=True)


def _exporter(source: Endpoint) -> Exporter:
    if source.exporter is not None:
        return source.exporter
    if not isinstance(source.engine, CanExport):
        raise CapabilityMissing(
            f"Jobs cannot be moved out of {source.address}. Move from sqlite:///path/to/jobs.db, "
            "postgresql://host/database or nats://host."
        )
    return source.engine.exporter()


def _importer(target: Endpoint) -> Importer:
    if not isinstance(target.engine, CanImport):
        raise CapabilityMissing(
            f"Jobs cannot be moved into {target.address}. Move to postgresql://host/database, "
            "nats://host or sqlite:///path/to/jobs.db."
        )
    return target.engine.importer()


def _move_of(seal: Seal, states: Sequence[State]) -> str:
    """Return the name of what is copied: a later run may include more states, from the start."""
    return f"{seal.id}/{'history' if len(states) == len(_HISTORY) else 'waiting'}"


# -- before anything is changed ----------------------------------------------------------------


async def _refuse_itself(transfer: _Transfer) -> None:
    """Refuse a target that is the source."""
    source = transfer.source.engine
    if (
        isinstance(source, CanImport)
        and await source.importer().instance() == await transfer.importer.instance()
    ):
        raise MoveRefused(
            f"{transfer.target.address} is where the jobs are already. Nothing was changed."
        )


async def _refuse_sealed(transfer: _Transfer) -> None:
    """Refuse a target whose own jobs were moved away: it takes none."""
    address = await transfer.importer.sealed_for()
    if address is not None:
        raise MoveRefused(
            f"The jobs of {transfer.target.address} were moved to {address} before, so it takes "
            "none. Give an empty store as --to, or lift the seal as docs/guides/growing.md "
            "describes. Nothing was changed."
        )


async def _known_seal(transfer: _Transfer) -> Seal | None:
    """Return the seal of an earlier run; refuse another target, or a source with live workers."""
    seal = await transfer.exporter.seal_of()
    if seal is None:
        await _refuse_if_busy(transfer)
        await _refuse_if_empty(transfer)
    elif seal.instance != await transfer.importer.instance():
        raise MoveRefused(
            f"An earlier `trellis move` began to move the jobs of {transfer.source.address} to "
            f"{seal.address}, and {transfer.target.address} is another database. Give the URL of "
            "the former as --to. Nothing was changed."
        )
    return seal


async def _refuse_if_busy(transfer: _Transfer) -> None:
    """Raise `MoveRefused` with what still works at the source, and what to do about it."""
    source = transfer.source
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
    active = (await transfer.exporter.counts((State.ACTIVE,))).get(State.ACTIVE, 0)
    if active:
        raise MoveRefused(
            f"{source.address} has {_many(active, 'active job')} whose worker is gone: "
            f"{_some(await _active(transfer.exporter))}. Start a worker there: it "
            "takes them over when their lease has expired. Let it finish and stop it; then move "
            "again. Nothing was changed."
        )


async def _refuse_if_empty(transfer: _Transfer) -> None:
    """Refuse a source without jobs and schedules: the two URLs may have been mixed up."""
    engine = transfer.source.engine
    if await transfer.exporter.counts(tuple(State)) or await engine.schedules():
        return
    raise MoveRefused(
        f"There is nothing to move in {transfer.source.address}: it has neither jobs nor "
        "schedules. Check --from and --to. Nothing was changed."
    )


async def _active(exporter: Exporter) -> list[str]:
    """Return the ids of some active jobs."""
    found: list[str] = []
    after = 0
    while len(found) <= _SHOWN:
        batch = await exporter.batch(after, _PAGE, (State.ACTIVE,), whole=False)
        if not batch.jobs:
            break
        active = {head.row for head in batch.heads if head.state == State.ACTIVE}
        found += [job.id for job in batch.jobs if job.row in active]
        after = batch.last
    return found


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
    whole = transfer.importer.is_thorough
    while (
        batch := await transfer.exporter.batch(after, transfer.batch_size, states, whole=whole)
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
        await _refuse_if_busy(transfer)
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


async def _seal_batches(transfer: _Transfer) -> None:
    """Let the batches finish whose members are all at the target now."""
    after = 0
    while rows := await transfer.exporter.rows("batches", after, _PAGE):
        for row in rows:
            if row[_SEALED_AT] is not None and row[_FINISHED_AT] is None:
                await transfer.target.engine.seal_batch(row[1])
        after = rows[-1][0]


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


async def _verify(transfer: _Transfer, states: Sequence[State]) -> None:
    """Raise `MoveRefused` unless the target has every job, or has removed it since."""
    after, missing, importer = 0, list[str](), _importer(transfer.target)
    while (
        batch := await transfer.exporter.batch(after, transfer.batch_size, states, whole=False)
    ).jobs:
        known = await importer.known([job.id for job in batch.jobs])
        missing += [job.id for job in batch.jobs if job.id not in known]
        after = batch.last
    if missing:
        raise MoveRefused(
            f"{transfer.target.address} lacks {_many(len(missing), 'copied job')}: "
            f"{_some(missing)}. {transfer.source.address} still has them and stays sealed. Find "
            "out who removed them; then make the target again and move again."
        )


async def _summary(transfer: _Transfer, states: Sequence[State], *, known: int = 0) -> Moved:
    source = transfer.source.engine
    chosen = dict(await transfer.exporter.counts(states))
    everything = await transfer.exporter.counts(tuple(State))
    left = sum(everything.values()) - sum(chosen.values())
    queues = len(await source.queue_settings())
    schedules = len(await source.schedules())
    return Moved(chosen, 0, known, left, queues, schedules, is_finished=False)
