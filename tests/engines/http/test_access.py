"""What tokens may do through the HTTP engine: every verb with every scope, and forged requests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.harness.shop import Shop, a_request
from trellis.core.batches import NewBatch
from trellis.core.commands import Cancel, Complete, Fail
from trellis.core.job import Failure, Fence, JobId, SessionId
from trellis.core.policy import Policy
from trellis.core.schedules import Plan, Template
from trellis.core.states import State
from trellis.engines.audit import AuditFilter
from trellis.engines.batches import BatchFilter
from trellis.engines.http.address import TOKEN
from trellis.engines.http.engine import http_engine
from trellis.engines.http.protocol import VERBS, Decided, Marks, WantedSchedule
from trellis.engines.tokens import NewToken
from trellis.engines.values import (
    Conflict,
    JobFilter,
    LateResult,
    LogLine,
    Note,
    NoteResult,
    Renewed,
    WorkerInfo,
)
from trellis.errors import AccessDenied, ConfigurationError, EngineError
from trellis.operations.logins import create_code, open_session
from trellis.operations.operator import Operator
from trellis.server.engine_access import RULES
from trellis.testing.builders import a_demand, a_job, a_worker, complete, fence_of
from trellis.testing.conformance.helpers import decided
from trellis.worker.maintenance import LEADER

SCOPES = ("admin.read", "admin.mutate", "admin.stream", "worker:shop", "submit:shop",
          "worker:other", "submit:other")  # fmt: skip
EVERYONE = frozenset(SCOPES)
WORKER, MUTATE, READ = {"worker:shop"}, {"admin.mutate"}, {"admin.read"}
CLIENTS = {"worker:shop", "submit:shop"}
ANY_WORKER = {"worker:shop", "worker:other"}
WANTED = WantedSchedule(
    "shop", "nightly", 1, Plan("@every 1m"), Template("invoice", "default", Policy()), {}, (),
    is_retired=False,
)  # fmt: skip
#: Who may make each request about jobs of the shop.
ALLOWED: dict[str, frozenset[str]] = {
    **dict.fromkeys(("catch_up", "hello", "now", "watch"), EVERYONE),
    **dict.fromkeys(
        ("activity", "batch", "batch_statuses", "count", "facts", "find", "items", "journal",
         "links", "load", "logs", "members", "outcomes"),
        frozenset(READ | CLIENTS),
    ),
    **dict.fromkeys(("archives", "sessions"), EVERYONE - MUTATE - {"admin.stream"}),
    **dict.fromkeys(("contracts", "schedules"), frozenset(READ | WORKER)),
    **dict.fromkeys(
        ("ahead", "aging", "audit", "batches", "changes", "declared_types", "drain_changes", "due",
         "due_schedules", "health", "identify", "keys", "limits", "locks", "next_due",
         "queue_settings", "rates", "slots", "token", "tokens"),
        frozenset(READ),
    ),
    **dict.fromkeys(("create", "open_batch", "seal_batch"), frozenset(MUTATE | CLIENTS)),
    **dict.fromkeys(
        ("add_schedules", "advance_schedule", "archivable", "declare_archive", "declare_limits",
         "declare_types", "note_archive", "put_contract", "remove_archived"),
        frozenset(MUTATE | WORKER),
    ),
    **dict.fromkeys(("claim", "close_session", "note", "renew", "free_lock", "take_lock"),
                    frozenset(WORKER)),
    "open_session": frozenset(ANY_WORKER),
    "commit": frozenset(WORKER | MUTATE),
    **dict.fromkeys(
        ("ask_drain", "cancel_batch", "change_limit", "finish_batches", "migrate", "promote",
         "prune", "prune_audit", "put_token", "reap", "remove", "revoke_token", "run_schedule",
         "set_aging", "set_archive", "set_drain", "set_queue"),
        frozenset(MUTATE),
    ),
}  # fmt: skip


# -- the matrix --------------------------------------------------------------------------------


def test_every_verb_has_a_rule_and_a_place_in_this_matrix() -> None:
    assert set(VERBS) == set(RULES) == set(ALLOWED)


@pytest.mark.long
async def test_every_verb_refuses_callers_without_its_scope(shop: Shop) -> None:
    worker = await shop.program("worker:shop")
    tokens = {scope: await shop.token(scope) for scope in SCOPES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN, tokens["worker:shop"])
        worker = http_engine(shop.url)
    await worker.open()
    taken = await shop.a_running_job(worker)
    await worker.close()
    job, head = taken.definition, taken.head
    wanted = Decided(job.id, head.version, head.fence, head.run_at, complete(taken))
    note = Note(job.row, 1, fence_of(taken), LogLine("info", "x"))
    known: dict[str, Any] = {
        "job_id": job.id, "ids": [job.id], "id": job.id, "session": fence_of(taken).session,
        "where": JobFilter(services=("shop",)), "service": "shop", "services": ["shop"],
        "notes": [note], "commit.transitions": [wanted], "watch.topics": ["ready"],
        "watch.since": Marks(),
        "payload": "{}", "token_id": "x", "details": '{"types":[]}', "when": "@every 1m",
        "advance_schedule.wanted": WANTED, "run_schedule.name": "nightly",
        "run_schedule.version": 1, "scopes": ["admin.mutate"], "kind": "queue",
        "due.kind": "jobs", "claim.limit": 0,
    }  # fmt: skip
    batch = await shop.engine.open_batch(NewBatch("b1", "shop"))
    assert batch is not None
    known |= {"batch_id": "b1", "batch_ids": ["b1"], "open_batch.new": NewBatch("b2", "shop"),
              "batches.where": BatchFilter(),
              "audit.where": AuditFilter()}  # fmt: skip
    last = ("commit", "close_session", "remove", "cancel_batch", "reap", "revoke_token")
    for verb in sorted(VERBS, key=lambda name: (name in last, name == "close_session", name)):
        body = a_request(verb, known)
        for scope in SCOPES:
            answer = await shop.call(verb, body, tokens[scope])
            is_allowed = answer.status_code != 403
            assert is_allowed == (scope in ALLOWED[verb]), (verb, scope, answer.text)
            assert answer.status_code not in {401, 404, 500} or not is_allowed, (verb, answer.text)


# -- forged and replayed requests --------------------------------------------------------------


async def test_another_workers_attempt_can_be_neither_settled_nor_noted(shop: Shop) -> None:
    owner, thief = [await shop.program("worker:shop") for _ in range(2)]
    taken = await shop.a_running_job(owner)
    session, fence = fence_of(taken).session, fence_of(taken)
    stolen = await decided(owner, taken, complete(taken))
    note = Note(taken.definition.row, 1, fence, LogLine("info", "x"))
    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: thief.commit([stolen]),
        lambda: thief.note([note]),
        lambda: thief.renew(session, [fence]),
        lambda: thief.close_session(session),
        lambda: thief.take_lock("x", session),
        lambda: thief.claim(session, [a_demand()], 1),
    ]
    for request in requests:
        with pytest.raises(AccessDenied, match="belongs to another worker"):
            await request()
    assert (await shop.engine.load([taken.definition.id])).records == (taken,)
    assert await shop.engine.logs(taken.definition.id) == []
    assert isinstance(await owner.renew(session, [fence]), Renewed)


async def test_a_forged_fence_settles_nothing(shop: Shop) -> None:
    worker = await shop.program("worker:shop")
    taken = await shop.a_running_job(worker)
    for fence in (fence_of(taken)._replace(token=7), Fence(SessionId(7), fence_of(taken).token)):
        good = await decided(worker, taken, complete(taken))
        before = good.before._replace(fence=fence)
        forged = good._replace(before=before, command=Complete(fence, "1"))
        try:
            assert await worker.commit([forged]) == [Conflict(taken)]
        except AccessDenied:
            assert fence.session == 7
    assert (await shop.engine.load([taken.definition.id])).records == (taken,)


async def test_a_late_result_of_an_attempt_that_never_was_is_not_journalled(shop: Shop) -> None:
    worker = await shop.program("worker:shop")
    taken = await shop.a_running_job(worker)
    forged = fence_of(taken)._replace(token=7)
    note = Note(taken.definition.row, 1, forged, LateResult("Complete"))
    assert await worker.note([note]) == [NoteResult.STALE]
    assert len(await shop.engine.journal(taken.definition.id)) == 2


async def test_a_worker_of_another_service_reaches_nothing(shop: Shop) -> None:
    taken = await shop.a_running_job(await shop.program("worker:shop"))
    other = await shop.program("worker:other", "submit:other")
    session = (await other.open_session(a_worker(), 30_000_000)).id
    job_id = taken.definition.id
    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: other.claim(session, [a_demand()], 1),
        lambda: other.create([a_job()]),
        lambda: other.load([job_id]),
        lambda: other.journal(job_id),
        lambda: other.find(JobFilter()),
        lambda: other.find(JobFilter(services=("other", "shop"))),
        lambda: other.open_session(WorkerInfo("w", "h", 1, "", '{"types":["shop/invoice"]}'), 1),
    ]
    for request in requests:
        with pytest.raises(AccessDenied, match="scope"):
            await request()
    assert await other.sessions() == []


async def test_a_worker_gives_no_operators_command(shop: Shop) -> None:
    worker = await shop.program("worker:shop")
    taken = await shop.a_running_job(worker)
    with pytest.raises(AccessDenied, match=r"admin\.mutate"):
        await worker.commit([await decided(worker, taken, Cancel(force=True))])


async def test_a_worker_does_not_lead_the_maintenance(shop: Shop) -> None:
    worker = await shop.program("worker:shop")
    session = (await worker.open_session(a_worker(), 30_000_000)).id
    holder = await worker.take_lock(LEADER, session)
    assert holder is not None
    assert holder.worker == "trellis serve"
    assert await shop.engine.locks() == []


async def test_a_repeated_settlement_is_stored_once(shop: Shop) -> None:
    worker = await shop.program("worker:shop")
    taken = await shop.a_running_job(worker)
    once = await decided(worker, taken, complete(taken))
    first, second = await worker.commit([once]), await worker.commit([once])
    assert first != second
    assert isinstance(second[0], Conflict)
    assert len(await shop.engine.journal(taken.definition.id)) == 3


async def test_the_server_stores_its_own_decision_not_the_clients(shop: Shop) -> None:
    worker = await shop.program("worker:shop")
    taken = await shop.a_running_job(worker)
    failed = await decided(worker, taken, Fail(fence_of(taken), Failure("exception", "boom")))
    claimed = failed.head._replace(state=State.COMPLETED, attempt=0, version=99)
    lied = failed._replace(head=claimed, definition=taken.definition._replace(priority=4))
    await worker.commit([lied])
    (stored,) = (await shop.engine.load([taken.definition.id])).records
    assert stored is not None
    assert (stored.head.state, stored.head.attempt, stored.head.version) == (State.RETRY, 1, 3)
    assert stored.definition.priority == 0


async def test_the_audit_names_the_token_whatever_the_caller_says(shop: Shop) -> None:
    await shop.engine.create([new := a_job()])
    operator = await shop.program("admin.mutate", "admin.read")
    (record,) = (await operator.load([new.id])).records
    assert record is not None
    await operator.commit([await decided(operator, record, Cancel(actor="maintenance"))])
    (cancelled,) = [each for each in await shop.operator.audit() if each.action == "job.cancel"]
    assert cancelled.actor == "token:test"


async def test_a_token_makes_no_token_that_may_do_more(shop: Shop) -> None:
    operator = await shop.program("admin.mutate")
    new = NewToken("x" * 12, "0" * 64, "", ("worker:shop",), 1_000_000)
    with pytest.raises(AccessDenied, match="worker:shop"):
        await operator.put_token(new)
    made = await operator.put_token(new._replace(scopes=("admin.mutate",)))
    assert made.scopes == ("admin.mutate",)


async def test_a_token_can_end_itself(shop: Shop) -> None:
    operator = Operator(await shop.program("admin.mutate"))
    (own,) = await shop.operator.tokens.find()
    assert (await operator.tokens.revoke(own.id)).state == "revoked"
    with pytest.raises(AccessDenied):
        await operator.engine.now()


async def test_a_login_is_given_by_an_operator_who_may_do_as_much(shop: Shop) -> None:
    operator = await shop.program("admin.read", "admin.mutate", "admin.stream")
    assert await open_session(shop.engine, await create_code(operator, "ann")) is not None
    with pytest.raises(AccessDenied, match=r"admin\.read"):
        await create_code(await shop.program("admin.mutate"), "eve")
    forged = NewToken("s" * 12, "0" * 64, "", ("session", "admin.read"), 1_000_000)
    with pytest.raises(ConfigurationError, match="There is no scope 'session'"):
        await operator.put_token(forged)


async def test_a_session_belongs_to_its_token_on_every_replica(shop: Shop) -> None:
    worker = await shop.program("worker:shop")
    session = (await worker.open_session(a_worker(), 30_000_000)).id
    (stored,) = await shop.engine.sessions()
    assert stored.id == session
    assert json.loads(stored.info.details)["token"]
    assert stored.is_worker


async def test_an_unknown_job_of_no_service_is_simply_not_there(shop: Shop) -> None:
    client = await shop.program("submit:shop")
    assert (await client.load([JobId("01J00000000000000000000000")])).records == (None,)


@pytest.mark.parametrize("token", [None, "trl_wrong", "a b"])
async def test_without_a_valid_token_the_error_says_which_command_helps(
    shop: Shop, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    if token is not None:
        monkeypatch.setenv(TOKEN, token)
    with pytest.raises(Exception, match="trellis tokens create") as caught:  # noqa: PT012
        program = http_engine(shop.url)
        await program.open()
    assert isinstance(caught.value, EngineError) or token == "a b"


async def test_a_revoked_token_ends_access_at_once(shop: Shop) -> None:
    worker = await shop.program("worker:shop")
    await worker.now()
    (token,) = await shop.operator.tokens.find()
    await shop.operator.tokens.revoke(token.id)
    with pytest.raises(AccessDenied, match=TOKEN):
        await worker.now()
