"""The wrapper around an engine passes every verb through and reports each call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trellis.core.batches import NewBatch
from trellis.core.commands import Cancel
from trellis.core.job import SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.limits import Reset, Scope
from trellis.core.policy import DEFAULT_POLICY
from trellis.core.schedules import Plan, Schedule, Step, Template
from trellis.engines import flow_port, port
from trellis.engines.audit import AuditFilter, By
from trellis.engines.batches import BatchFilter
from trellis.engines.contracts import NewContract
from trellis.engines.instrumented import Call, Instrumented, instrumented, verbs
from trellis.engines.memory import MemoryEngine
from trellis.engines.operating import Drain
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.tokens import NewToken
from trellis.engines.transfer import CanExport
from trellis.engines.values import Begun, Health, JobFilter, Note, QueueSettings, Topic
from trellis.testing.builders import a_demand, a_job, a_worker, fence_of

NONE = SessionId(7)
SCHEDULE = Schedule("shop", "nightly", Plan("0 3 * * *"), Template("a", "a", DEFAULT_POLICY))
#: The arguments of every verb that needs some, and how many items its answer then has.
CALLS: dict[str, tuple[tuple[Any, ...], int]] = {
    "create": (([a_job(), a_job()],), 2),
    "create_within": ((None, [a_job()]), 1),
    "claim": ((NONE, [a_demand()], 5), 0),
    "commit": (([],), 0),
    "note": (([],), 0),
    "remove": (([a_job().id],), 1),
    "set_queue": ((QueueSettings("shop", "invoices"),), 1),
    "set_drain": ((Drain(on=True, actor="ann"),), 1),
    "drain_changes": ((), 0),
    "audit": ((AuditFilter(),), 0),
    "set_aging": ((60_000_000, By()), 1),
    "aging": ((), 1),
    "prune_audit": ((1, 10), 0),
    "rates": ((), 1),
    "facts": (([a_job().id],), 1),
    "identify": (([NONE],), 1),
    "open_session": ((a_worker(), 1_000_000), 1),
    "renew": ((NONE, []), 1),
    "close_session": ((NONE,), 1),
    "reap": ((NONE,), 1),
    "ask_drain": ((NONE,), 1),
    "take_lock": (("backup", NONE), 1),
    "free_lock": (("backup", NONE), 1),
    "due": (("jobs", 5), 0),
    "promote": ((5,), 0),
    "prune": ((5,), 0),
    "load": (([a_job().id, a_job().id, a_job().id],), 3),
    "find": ((JobFilter(),), 0),
    "count": ((JobFilter(), "state"), 1),
    "journal": ((a_job().id,), 0),
    "outcomes": ((a_job().id,), 0),
    "activity": ((a_job().id,), 1),
    "ahead": ((a_job().id, ["shop/invoice"], 5), 1),
    "items": ((a_job().id,), 0),
    "logs": ((a_job().id,), 0),
    "keys": (("shop", "invoice"), 0),
    "watch": ((["ready"],), 1),
    "add_schedules": (([],), 0),
    "due_schedules": ((5,), 1),
    "advance_schedule": ((Step(SCHEDULE),), 0),
    "run_schedule": ((SCHEDULE, a_job(), By()), 1),
    "slots": (("shop", "nightly"), 0),
    "links": (([a_job().id],), 0),
    "declare_limits": (([],), 1),
    "change_limit": ((Scope("queue", "shop", "invoices"), Reset(), By()), 1),
    "open_batch": ((NewBatch(a_job().id, "shop"),), 1),
    "seal_batch": (("none",), 1),
    "cancel_batch": (("none", By()), 1),
    "finish_batches": ((5,), 0),
    "batch": (("none",), 1),
    "batch_statuses": ((["none"],), 1),
    "batches": ((BatchFilter(),), 0),
    "members": (("none",), 0),
    "put_contract": ((NewContract("shop", 0, "{}", "f", "deployed"),), 1),
    "put_token": ((NewToken("0123456789ab", "hash", "ci", ("admin.read",), 1),), 1),
    "token": (("0123456789ab",), 1),
    "tokens": ((), 0),
    "revoke_token": (("0123456789ab",), 1),
    "declare_archive": (("shop", By()), 1),
    "declare_types": (([],), 1),
    "set_archive": (("shop",), 1),
    "archivable": (("shop", 5), 0),
    "remove_archived": (([],), 0),
    "note_archive": (("shop", None), 1),
    "changes": ((), 1),
    **dict.fromkeys(("schedules", "limits", "contracts", "archives", "declared_types"), ((), 0)),
    **dict.fromkeys(("sessions", "locks", "queue_settings"), ((), 0)),
    **dict.fromkeys(("open", "close", "migrate", "health"), ((), 1)),
    **dict.fromkeys(("now", "catch_up", "next_due"), ((), 1)),
}

#: Arguments that must be named.
NAMED: dict[str, dict[str, Any]] = {"set_archive": {"on": True}}
#: The protocols that an engine consists of.
PARTS = [
    each for each in Engine.__mro__[1:] if each.__module__ in {port.__name__, flow_port.__name__}
]


def test_every_method_of_the_port_is_a_verb_of_the_wrapper() -> None:
    declared = {
        name for part in (*PARTS, Engine) for name in vars(part) if not name.startswith("_")
    }
    assert verbs().keys() == declared - {"capabilities"} == CALLS.keys()
    assert {name for name in dir(Instrumented) if not name.startswith("_")} == declared
    assert not [name for part in PARTS for name in vars(part) if name == "capabilities"]


def test_every_verb_keeps_its_declaration() -> None:
    for name, declared in verbs().items():
        assert inspect.signature(getattr(Instrumented, name)) == inspect.signature(declared)


@pytest.mark.parametrize("verb", CALLS)
async def test_each_call_is_passed_through_and_reported_once(verb: str) -> None:
    calls: list[Call] = []
    arguments, items = CALLS[verb]
    answer = getattr(instrumented(MemoryEngine(), calls.append), verb)(
        *arguments, **NAMED.get(verb, {})
    )
    if inspect.isawaitable(answer):
        assert calls == []
        answer = await answer
    expected = getattr(MemoryEngine(), verb)(*arguments, **NAMED.get(verb, {}))
    if inspect.isawaitable(expected):
        expected = await expected
    assert type(answer) is type(expected)
    assert [(call.verb, call.items, call.error) for call in calls] == [(verb, items, None)]
    assert calls[0].duration >= 0


async def test_jobs_pass_through_as_they_are() -> None:
    calls: list[Call] = []
    engine = instrumented(MemoryEngine(), calls.append)
    new = a_job()
    await engine.create([new])
    session = await engine.open_session(a_worker(), 60_000_000)
    taken = (await engine.claim(session.id, [a_demand()], 5)).jobs[0]
    begun = Note(taken.definition.row, taken.head.claims, fence_of(taken), Begun(session.now))
    await engine.note([begun])
    cancelled = decide(taken, Cancel(), await engine.now())
    assert isinstance(cancelled, Transition)
    await engine.commit([cancelled])
    assert (await engine.load([new.id])).records[0] == (taken.definition, cancelled.head)
    assert [(call.verb, call.items) for call in calls] == [
        ("create", 1),
        ("open_session", 1),
        ("claim", 1),
        ("note", 1),
        ("now", 1),
        ("commit", 1),
        ("load", 1),
    ]


class Broken(MemoryEngine):
    """Fails in the ways a call can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = OSError("the disk is gone")

    async def health(self) -> Health:
        raise self.fault

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        raise self.fault

    async def catch_up(self) -> None:
        await asyncio.Event().wait()


async def test_an_error_is_reported_and_raised() -> None:
    calls: list[Call] = []
    broken = Broken()
    engine = instrumented(broken, calls.append)
    with pytest.raises(OSError, match="disk"):
        await engine.health()
    with pytest.raises(OSError, match="disk"):
        engine.watch(["ready"])
    assert [call[:2] for call in calls] == [("health", 0), ("watch", 0)]
    assert [call.error for call in calls] == [broken.fault, broken.fault]


async def test_a_cancelled_call_is_reported() -> None:
    calls: list[Call] = []
    waiting = asyncio.ensure_future(instrumented(Broken(), calls.append).catch_up())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert isinstance(calls[0].error, asyncio.CancelledError)


async def test_an_observer_that_fails_does_not_fail_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def observer(call: Call) -> None:
        raise ValueError(call.verb)

    engine = instrumented(MemoryEngine(), observer)
    assert len(await engine.create([a_job()])) == 1
    assert "The observer of the engine failed on a call of create" in caplog.text


def test_what_an_engine_offers_beside_the_port_is_still_offered(tmp_path: Path) -> None:
    sqlite = instrumented(SqliteEngine(tmp_path / "jobs.db"), lambda _: None)
    assert isinstance(sqlite, CanExport)
    assert not isinstance(instrumented(MemoryEngine(), lambda _: None), CanExport)
