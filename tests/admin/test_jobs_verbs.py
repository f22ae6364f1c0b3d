"""What is said about the RPC `Jobs.*` is what it does: members of requests and of answers."""

from __future__ import annotations

import asyncio
import json
from types import UnionType
from typing import Any, NamedTuple, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from tests.admin.test_jobs_rpc import BOOM, ONCE, Caller
from trellis.admin.jobs_verbs import VERBS
from trellis.admin.runtime import AdminRuntime
from trellis.admin.wire_job import iso
from trellis.core.commands import Complete, Fail
from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.core.policy import KeyPolicy
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.values import LogLine, Note, Progress
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, a_keyed_job, fence_of
from trellis.testing.conformance.helpers import a_session, settle, start

NEWEST = KeyPolicy("user/{id}", active=1, queued=1, when_full="replace-oldest")


@pytest.fixture
def call(whole_runtime: AdminRuntime, link: Link, subjects: Subjects) -> Caller:
    assert whole_runtime.rpc is not None
    return Caller(link, subjects)


class Members:
    """Compares answers with typed dictionaries, and keeps which members it has seen."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.known: set[str] = set()

    def check(self, value: object, kind: Any) -> None:  # noqa: ANN401 - a type hint
        if is_typeddict(kind):
            self._check_members(value, kind)
        elif get_origin(kind) is list:
            assert isinstance(value, list)
            for each in value:
                self.check(each, *get_args(kind))
        elif kind is not Any:
            kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
            assert type(value) in kinds or (float in kinds and type(value) is int)

    def _check_members(self, value: object, kind: type) -> None:
        assert isinstance(value, dict)
        hints = get_type_hints(kind, include_extras=True)
        optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
        assert hints.keys() - optional <= value.keys() <= hints.keys()
        self.known |= {f"{kind.__name__}.{name}" for name in hints}
        for name, member in value.items():
            self.seen.add(f"{kind.__name__}.{name}")
            self.check(member, *get_args(hints[name]) if name in optional else (hints[name],))


class Made(NamedTuple):
    """Ids of jobs in several states."""

    done: JobId
    failed: JobId
    dead: list[JobId]
    #: One runs, and the others were created one after another.
    keyed: list[JobId]


async def make_jobs(engine: Engine, clock: ManualClock) -> Made:
    session = await a_session(engine)
    done = await start(engine, session, a_job(deadline_in=3600 * SECOND))
    fence = fence_of(done)
    notes = (Progress(1, 2, "send", "half"), LogLine("info", "hello"))
    await engine.note([Note(done.definition.row, 1, fence, body) for body in notes])
    await settle(engine, done, Complete(fence, "7", started_at=clock.now()))
    failed = [await start(engine, session, a_job(policy=ONCE, type=name)) for name in "abc"]
    for each in failed:
        await settle(engine, each, Fail(fence_of(each), BOOM, retryable=each is not failed[0]))
    held = await start(engine, session, a_keyed_job("user/7", NEWEST))
    later = [a_keyed_job("user/7", NEWEST) for _ in range(3)]
    for new in later:
        await engine.create([new])
    ended, *dead = (each.definition.id for each in failed)
    keyed = [held.definition.id, *(new.id for new in later)]
    return Made(done.definition.id, ended, dead, keyed)


async def test_answers_have_all_the_members_that_the_page_names_and_no_other(
    call: Caller, engine: Engine, link: Link, subjects: Subjects, clock: ManualClock
) -> None:
    made = await make_jobs(engine, clock)
    presence = {
        "service": "shop", "jobType": "invoice", "instanceId": "i1", "concurrency": 4,
        "version": "1", "timestamp": iso(clock.now()),
    }  # fmt: skip
    heard = subjects.presence("shop", "invoice", "i1")
    await link.ask(heard, json.dumps(presence).encode(), 5)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("Health", {}),
        ("ListServices", {"limit": 9}),
        ("List", {"limit": 1}),
        ("ListDLQ", {"limit": 9}),
        *(("Get", {"id": each}) for each in (made.done, *made.dead, *made.keyed)),
        ("GetKey", {"service": "shop", "type": "invoice", "key": "user/7"}),
        ("Retry", {"id": made.failed}),
        ("ReplayDLQ", {"id": made.dead[0]}),
        ("DismissDLQ", {"id": made.dead[1]}),
        ("Cancel", {"id": made.keyed[0]}),
    ]
    members = Members()
    for name, given in calls:
        answer, verb = await call(name, **given), VERBS[name]
        assert answer.code is None
        members.check(answer.body, verb.answer)
        if verb.entry is not None:
            members.check(answer.body["entries"], list[verb.entry])  # type: ignore[name-defined]
    assert members.seen == members.known
    assert {name for name, _ in calls} == VERBS.keys()


async def test_each_verb_refuses_members_that_the_page_does_not_name(call: Caller) -> None:
    for name, verb in VERBS.items():
        answer = await call(name, surprise=1)
        assert (answer.code, answer.body["error"]["type"]) == ("400", "ValidationError")
        known = ", ".join(verb.request.__annotations__) or "none"
        assert answer.body["error"]["message"] == f"Unknown: surprise. Known are: {known}."


@pytest.mark.parametrize("asked", ["PING", "PING.trellis-jobs", "INFO", "INFO.trellis-jobs"])
async def test_tools_of_nats_find_the_micro_service_and_its_contract(
    call: Caller, link: Link, subjects: Subjects, asked: str
) -> None:
    answer = await _of_service(link, f"$SRV.{asked}", subjects)
    instance = answer.pop("id")
    assert answer.pop("type") == f"io.nats.micro.v1.{asked.partition('.')[0].lower()}_response"
    endpoints = answer.pop("endpoints", None)
    answer.pop("description", None)
    assert answer == {
        "name": "trellis-jobs", "version": "1.0.0", "metadata": {"contract": "trellis.jobs@v1"},
    }  # fmt: skip
    if asked.startswith("INFO"):
        assert {each["name"]: each["subject"] for each in endpoints} == {
            name: f"{subjects.prefix}.rpc.jobs.v1.{name}" for name in _NAMES
        }
        assert len({each["queue_group"] for each in endpoints}) == 1
    else:
        assert endpoints is None
    assert instance


#: What the contract of `Jobs.*` names.
_NAMES = (
    "Health", "ListServices", "List", "Get", "GetKey", "Retry", "Cancel", "ListDLQ", "ReplayDLQ",
    "DismissDLQ",
)  # fmt: skip


async def _of_service(link: Link, subject: str, subjects: Subjects) -> dict[str, Any]:
    """Return the answer of the service of this test; those of other tests answer on it, too."""
    inbox = link.client.new_inbox()
    info = await link.client.subscribe(inbox)
    await link.client.publish("$SRV.INFO", b"", reply=inbox)
    wanted = None
    async with asyncio.timeout(20):
        while wanted is None:
            told = json.loads((await info.next_msg(20)).data)
            if told["endpoints"][0]["subject"].startswith(f"{subjects.prefix}."):
                wanted = told["id"]
        await link.client.publish(subject, b"", reply=inbox)
        while True:
            told = json.loads((await info.next_msg(20)).data)
            if told["id"] == wanted:
                await info.unsubscribe()
                return dict(told)
