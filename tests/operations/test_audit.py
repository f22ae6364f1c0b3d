"""Every change through an operator leaves one entry of the audit; reading leaves none."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

import trellis
from tests.operations.steps import BOOM, ended
from trellis import ConfigurationError, Operator, State, schedules
from trellis.core.commands import Fail
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.engines.values import Item, Note, WorkerInfo
from trellis.operations.batches import Batches
from trellis.operations.schedules import Schedules
from trellis.operations.selection import Found, Selection
from trellis.testing.builders import a_declaration, a_job, a_keyed_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.batches import end, opened
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept_one,
    claim_one,
    give_up_lost,
    reap_lapsed,
    settle,
    start,
)

WHY: Final = "too many"


class Steps:
    """What the changes are made to."""

    def __init__(self, engine: Engine, clock: ManualClock, jobs: Operator) -> None:
        self.engine = engine
        self.clock = clock
        self.jobs = jobs

    async def waiting(self) -> str:
        return (await accept_one(self.engine, a_job())).definition.id

    async def failed(self) -> str:
        return (await ended(self.engine, State.FAILED))[0]

    async def dead(self) -> str:
        return (await ended(self.engine, State.DEAD))[0]

    async def with_items(self) -> str:
        taken = await start(self.engine, await a_session(self.engine), a_job())
        definition, head = taken
        note = Note(definition.row, head.claims, fence_of(taken), Item("a", "failed"))
        await self.engine.note([note])
        await settle(self.engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        return definition.id

    async def blocked(self) -> str:
        policy = Policy(on_lost="block", retry=Retry.fixed(0), key=IN_TURN)
        await start(
            self.engine,
            await a_session(self.engine),
            a_keyed_job("user/7", IN_TURN, policy=policy),
        )
        self.clock.advance("30s")
        await reap_lapsed(self.engine)
        return (await give_up_lost(self.engine))[0].definition.id

    async def batch(self) -> str:
        new, _ = await opened(self.engine, 1)
        await end(
            self.engine, await claim_one(self.engine, await a_session(self.engine)), State.FAILED
        )
        return new.id

    async def schedule(self, **parts: Any) -> str:  # noqa: ANN401 - any part of a declaration
        declared = a_declaration(**parts)
        await schedules.declare_schedules(self.engine, "shop", [declared], lambda _: True)
        return declared.name

    async def archive(self, *, on: bool) -> str:
        await self.engine.declare_archive("shop", By("worker"))
        if not on:
            await self.engine.set_archive("shop", on=False)
        return "shop"

    async def picked(self, job_id: str) -> Selection:
        return await self.jobs.pick([job_id])


Change = Callable[[Steps], Awaitable[object]]


async def _resume(steps: Steps) -> None:
    await steps.jobs.pause("shop/mails")
    await steps.jobs.resume("shop/mails", reason=WHY)


async def _accept_all(steps: Steps) -> None:
    await steps.jobs.drain_all()
    await steps.jobs.accept_all(WHY)


async def _reset_limit(steps: Steps) -> None:
    await steps.waiting()
    await steps.jobs.set_limit("shop/invoices", active=3)
    await steps.jobs.reset_limit("shop/invoices", reason=WHY)


async def _drain(steps: Steps) -> None:
    info = WorkerInfo("mia", "host", 1, "1", '{"types":[]}')
    await steps.engine.open_session(info, 30_000_000)
    await steps.jobs.drain("mia", reason=WHY)


#: Every method that changes something, as it is called for the test; the last entry is its own.
CHANGES: Final[dict[str, Change]] = {
    "cancel": lambda at: _then(at.waiting(), lambda job: at.jobs.cancel(job, WHY)),
    "adjust": lambda at: _then(
        at.waiting(), lambda job: at.jobs.adjust(job, priority=2, reason=WHY)
    ),
    "retry": lambda at: _then(at.failed(), lambda job: at.jobs.retry(job, reason=WHY)),
    "replay": lambda at: _then(at.dead(), lambda job: at.jobs.replay(job, reason=WHY)),
    "dismiss": lambda at: _then(at.dead(), lambda job: at.jobs.dismiss(job, reason=WHY)),
    "clone": lambda at: _then(at.waiting(), lambda job: at.jobs.clone(job, reason=WHY)),
    "delete": lambda at: _then(at.failed(), lambda job: at.jobs.delete(job, reason=WHY)),
    "release_key": lambda at: _then(at.blocked(), lambda job: at.jobs.release_key(job, reason=WHY)),
    "pause": lambda at: at.jobs.pause("shop/mails", reason=WHY),
    "resume": _resume,
    "drain_queue": lambda at: at.jobs.drain_queue("shop/mails", reason=WHY),
    "set_aging": lambda at: at.jobs.set_aging("10m", reason=WHY),
    "drain_all": lambda at: at.jobs.drain_all(WHY),
    "accept_all": _accept_all,
    "drain": _drain,
    "set_limit": lambda at: _then(
        at.waiting(), lambda _: at.jobs.set_limit("shop/invoices", active=3, reason=WHY)
    ),
    "reset_limit": _reset_limit,
    "archive_off": lambda at: _then(
        at.archive(on=True), lambda each: at.jobs.archive_off(each, WHY)
    ),
    "archive_on": lambda at: _then(
        at.archive(on=False), lambda each: at.jobs.archive_on(each, WHY)
    ),
}
#: The same of batches.
BATCHES: Final[dict[str, Change]] = {
    "seal": lambda at: _then(at.batch(), lambda each: at.jobs.batches.seal(each, reason=WHY)),
    "cancel": lambda at: _then(at.batch(), lambda each: at.jobs.batches.cancel(each, reason=WHY)),
    "retry_failed": lambda at: _then(
        at.batch(), lambda each: at.jobs.batches.retry_failed(each, reason=WHY)
    ),
}
BATCH_READS: Final = frozenset({"find", "get", "members", "graph"})
_START: Final = datetime(2040, 1, 1, tzinfo=UTC)


async def _remove_window(steps: Steps) -> None:
    name = await steps.schedule()
    of = steps.jobs.schedules
    await of.add_window(name, _START, _START + timedelta(hours=1))
    await of.remove_window(name, _START, reason=WHY)


async def _undo_schedule(steps: Steps, verb: str) -> None:
    of = steps.jobs.schedules
    name = await steps.schedule()
    await of.pause(name)
    await getattr(of, verb)(name, reason=WHY)


#: The same of schedules.
SCHEDULES: Final[dict[str, Change]] = {
    "change": lambda at: _then(
        at.schedule(), lambda each: at.jobs.schedules.change(each, every="7m", reason=WHY)
    ),
    "pause": lambda at: _then(
        at.schedule(), lambda each: at.jobs.schedules.pause(each, reason=WHY)
    ),
    "resume": lambda at: _undo_schedule(at, "resume"),
    "reset": lambda at: _undo_schedule(at, "reset"),
    "add_window": lambda at: _then(
        at.schedule(),
        lambda each: at.jobs.schedules.add_window(
            each, _START, _START + timedelta(hours=1), reason=WHY
        ),
    ),
    "remove_window": _remove_window,
    "run": lambda at: _then(at.schedule(), lambda each: at.jobs.schedules.run(each, reason=WHY)),
}
SCHEDULE_READS: Final = frozenset({"find", "get", "slots"})
#: The same of a selection of jobs.
BULK: Final[dict[str, Change]] = {
    "cancel": lambda at: _then(at.waiting(), lambda job: _bulk(at, job, "cancel", reason=WHY)),
    "adjust": lambda at: _then(
        at.waiting(), lambda job: _bulk(at, job, "adjust", priority=2, reason=WHY)
    ),
    "retry": lambda at: _then(at.failed(), lambda job: _bulk(at, job, "retry", reason=WHY)),
    "replay": lambda at: _then(at.dead(), lambda job: _bulk(at, job, "replay", reason=WHY)),
    "dismiss": lambda at: _then(at.dead(), lambda job: _bulk(at, job, "dismiss", reason=WHY)),
    "clone": lambda at: _then(at.waiting(), lambda job: _bulk(at, job, "clone", reason=WHY)),
    "delete": lambda at: _then(at.failed(), lambda job: _bulk(at, job, "delete", reason=WHY)),
}
#: Methods that read.
READS: Final = frozenset(
    {
        "pick", "find", "count", "get", "why", "journal", "outcomes", "attempts", "progress",
        "items", "logs", "wait", "keys", "key", "queues", "drain_history", "workers", "locks",
        "audit", "changes", "graph", "links", "limits", "health", "aging",
        "contracts", "contract", "plan_contract", "archives",
    }
)  # fmt: skip
#: Changes whose entries are tested with the rest of their subject.
ELSEWHERE: Final = frozenset({"accept_contract"})
BULK_READS: Final = frozenset({"count", "meant_for", "page"})


async def _then(made: Awaitable[str], change: Callable[[str], Awaitable[object]]) -> None:
    await change(await made)


async def _bulk(steps: Steps, job_id: str, verb: str, **options: object) -> None:
    tally = await getattr(await steps.picked(job_id), verb)(**options)
    assert tally.done == 1


@pytest.fixture
def steps(engine: Engine, clock: ManualClock, jobs: Operator) -> Steps:
    return Steps(engine, clock, jobs)


def _methods(*kinds: type) -> set[str]:
    """Return the public methods, those of the parts that a class is made of included."""
    return {
        name
        for kind in kinds
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and not name.endswith("_sync")
    }


def test_every_method_is_known_to_change_something_or_to_read() -> None:
    """A new method that changes something belongs into CHANGES, which tests its entry."""
    assert _methods(Operator) == CHANGES.keys() | READS | ELSEWHERE
    assert _methods(Selection, Found) == BULK.keys() | BULK_READS
    assert _methods(Batches) == BATCHES.keys() | BATCH_READS
    assert _methods(Schedules) == SCHEDULES.keys() | SCHEDULE_READS


@pytest.mark.parametrize(
    "change",
    [*CHANGES.values(), *BATCHES.values(), *SCHEDULES.values()],
    ids=[
        *CHANGES,
        *(f"batch-{name}" for name in BATCHES),
        *(f"schedule-{name}" for name in SCHEDULES),
    ],
)
async def test_a_change_leaves_one_entry(change: Change, steps: Steps) -> None:
    await change(steps)
    # What must be done before has no reason.
    (own,) = [each for each in await steps.jobs.audit() if each.reason == WHY]
    assert own.actor == "ann"
    # It says what changed, in values with names.
    assert own.before != own.after
    assert "value" not in {*own.before, *own.after}


@pytest.mark.parametrize("change", BULK.values(), ids=[*BULK])
async def test_a_bulk_change_leaves_one_entry_per_job(change: Change, steps: Steps) -> None:
    await change(steps)
    (entry,) = await steps.jobs.audit()
    assert (entry.actor, entry.reason) == ("ann", WHY)


async def test_a_retry_of_failed_items_leaves_one_entry(steps: Steps) -> None:
    await steps.jobs.retry(await steps.with_items(), failed_items=True, reason=WHY)
    (entry,) = await steps.jobs.audit()
    assert (entry.action, entry.reason) == ("job.retry_items", WHY)


async def test_a_change_that_is_in_effect_already_leaves_none(steps: Steps) -> None:
    job_id = await steps.waiting()
    for _ in range(2):
        await steps.jobs.cancel(job_id, WHY)
        await steps.jobs.pause("shop/mails", reason=WHY)
    assert [each.action for each in await steps.jobs.audit()] == ["queue.pause", "job.cancel"]


async def test_nor_does_one_of_a_schedule_a_limit_or_aging(steps: Steps) -> None:
    await steps.waiting()
    name, of = await steps.schedule(), steps.jobs.schedules
    for _ in range(2):
        await of.change(name, every="7m", missed="all")
        await of.pause(name)
        await of.add_window(name, _START, _START + timedelta(hours=1))
        await steps.jobs.set_limit("shop/invoices", active=3)
        await steps.jobs.set_aging("10m")
    for _ in range(2):
        await of.resume(name)
        await of.reset(name)
        await steps.jobs.reset_limit("shop/invoices")
        await steps.jobs.set_aging(None)
    assert [each.action for each in await steps.jobs.audit()][::-1] == [
        "schedule.set", "schedule.pause", "schedule.window", "queue.limit", "queue.aging",
        "schedule.resume", "schedule.reset", "queue.limit", "queue.aging",
    ]  # fmt: skip


async def test_a_schedule_that_starts_again_after_its_clock_was_set_back_names_its_next_slots(
    steps: Steps,
) -> None:
    name = await steps.schedule()
    steps.clock.advance("90d")
    await schedules.fire_due(steps.engine)
    steps.clock.step_wall("90d", back=True)
    await steps.jobs.schedules.reset(name)
    (entry,) = await steps.jobs.audit()
    assert entry.before["next"] > entry.after["next"]


async def test_entries_have_values_that_people_and_programs_can_read(steps: Steps) -> None:
    job_id = await steps.waiting()
    at = datetime(2040, 1, 1, tzinfo=UTC)
    await steps.jobs.adjust(job_id, run_at=at, queue="slow")
    (entry,) = await steps.jobs.audit(target=job_id[-6:])
    assert (entry.before["queue"], entry.after) == ("invoices", {"run_at": at, "queue": "slow"})
    assert isinstance(entry.before["run_at"], datetime)


async def test_the_audit_is_filtered_and_paged(steps: Steps) -> None:
    await steps.jobs.pause("shop/mails")
    steps.clock.advance("1h")
    await steps.jobs.resume("shop/mails")
    assert [each.action for each in await steps.jobs.audit(since="30m")] == ["queue.resume"]
    until = datetime.fromtimestamp(steps.clock.now() / 1e6, UTC) - timedelta(minutes=1)
    assert [each.action for each in await steps.jobs.audit(until=until)] == ["queue.pause"]
    (last,) = await steps.jobs.audit(limit=1, action="queue")
    assert [each.action for each in await steps.jobs.audit(after=last.number)] == ["queue.pause"]
    assert await steps.jobs.audit(actor="bob") == []


async def test_a_wrong_filter_is_refused(jobs: Operator) -> None:
    with pytest.raises(ConfigurationError, match="who"):
        await jobs.audit(who="ann")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="limit"):
        await jobs.audit(limit=0)
    with pytest.raises(ConfigurationError, match="not a time"):
        await jobs.audit(since="long ago")


@pytest.mark.parametrize("name", ["maintenance", "workflow", " "])
def test_no_operator_may_have_the_name_of_a_component(name: str, engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="Nothing was changed"):
        Operator(engine, actor=name)


async def test_the_actor_is_an_argument_or_a_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    await trellis.engines.make_engine(url).migrate()
    monkeypatch.setenv("TRELLIS_ACTOR", "zoe")
    for actor in (None, "ann"):
        async with trellis.connect(url, actor=actor) as jobs:
            await jobs.pause("shop/mails")
            await jobs.resume("shop/mails")
    async with trellis.connect(url) as jobs:
        assert [each.actor for each in await jobs.audit()] == ["ann", "ann", "zoe", "zoe"]
