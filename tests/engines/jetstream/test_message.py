"""What is read back of a message is what was written, to the last character."""

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import Step, policies, steps
from tests.engines.jetstream.manual import ManualEngine
from trellis.core.job import (
    Context,
    Dedupe,
    JobId,
    JobRecord,
    NewJob,
    Prerequisite,
    Relations,
    define,
)
from trellis.core.lifecycle import Transition, creation, decide, first_run_at
from trellis.core.policy import KeyPolicy, Policy
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.message import (
    RAW,
    Created,
    StoredEvent,
    StoredRemoval,
    decode,
    decode_note,
    encode_created,
    encode_note,
    encode_removal,
    encode_transition,
    name_of,
    note_name,
    record_of,
    request_of,
)
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.values import (
    Begun,
    Heartbeat,
    Item,
    LateResult,
    LogLine,
    Note,
    NoteBody,
    Phase,
    Progress,
)
from trellis.testing.builders import (
    a_context,
    a_fence,
    a_job,
    a_keyed_job,
    a_record,
    complete,
    fence_of,
)
from trellis.testing.clock import START
from trellis.testing.conformance.helpers import a_session, settle, start

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_texts = st.one_of(
    st.recursive(
        st.none() | st.booleans() | st.integers() | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    ).map(json.dumps),
    st.sampled_from(['{ "a" : 1.10 }', '"\u00e9"', "1e5", '{"a":1,"a":2}', "not JSON", ""]),
)
requests = st.builds(
    NewJob,
    id=st.just(JobId("01K0")),
    service=st.just("shop"),
    type=st.just("mail"),
    queue=st.sampled_from(["mails", "slow"]),
    payload=json_texts,
    policy=policies,
    context=st.builds(
        Context, texts, st.just(a_context().traceparent), st.none() | st.just("a=b,c=d")
    ),
    priority=st.integers(-4, 4),
    run_at=st.none() | st.integers(START, START + 10**9),
    deadline_at=st.none() | st.just(START + 10**12),
    key=texts,
    key_hash=st.just("k1"),
    dedupe=st.none() | st.builds(Dedupe, texts),
    idempotency_key=st.none() | texts,
    tags=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    config=st.none() | json_texts,
    expect=st.none() | texts,
    attempts=st.none() | st.integers(1, 4),
    timeout=st.none() | st.integers(1, 10**9),
    relations=st.none() | st.builds(Relations, tenant=st.none() | texts),
    after=st.lists(st.builds(Prerequisite, st.just(JobId("01K9"))), max_size=1).map(tuple),
)


def created(new: NewJob) -> tuple[Created, JobRecord]:
    """Send the first message of a job through the wire."""
    definition = define(new, 0, START)
    event, head = creation(START, first_run_at(new, START))
    wire = encode_created(new, definition, event, head)
    stored = decode(name_of(new), 7, wire.headers, wire.body)
    assert isinstance(stored, StoredEvent)
    assert stored.event == event
    assert stored.created is not None
    return stored.created, record_of(stored.created, stored)


@given(requests)
def test_a_created_job_is_read_as_it_was_written(new: NewJob) -> None:
    first, record = created(new)
    _, head = creation(START, first_run_at(new, START))
    assert record == (define(new, 7, START), head)
    assert first.request == request_of(new)


@given(requests, st.lists(steps, max_size=12))
def test_the_last_event_and_the_first_make_the_job(new: NewJob, story: list[Step]) -> None:
    first, record = created(new)
    now, payload = START, None
    for number, step in enumerate(story, 1):
        now += step.pause
        decision = decide(record, step.command(record.head, number), now)
        if not isinstance(decision, Transition):
            continue
        wire = encode_transition(decision, first.definition)
        stored = decode(name_of(new), 7 + number, wire.headers, wire.body)
        assert isinstance(stored, StoredEvent)
        assert stored.event == decision.event
        assert stored.started_at == getattr(decision.command, "started_at", None)
        payload = payload or getattr(decision.command, "payload", None)
        record = record_of(first, stored, payload)
        assert record == (decision.definition, decision.head)


@pytest.mark.parametrize("state", [None, "vendor=a,other=b"])
async def test_every_stored_message_about_a_job_names_its_request_and_trace_in_headers(
    engine: ManualEngine, link: Link, deployed: Subjects, state: str | None
) -> None:
    port, trace = cast("Engine", engine), f"00-{'a' * 32}-{'b' * 16}-01"
    new = a_job(context=Context("request-7", trace, state))
    taken = await start(port, await a_session(port), new)
    note = Note(taken.definition.row, taken.head.claims, fence_of(taken), Progress(1, 2))
    await port.note([note])
    await settle(port, taken, complete(taken))
    stored = await link.following(deployed.jobs, deployed.whole(name_of(new)), 1)
    names = [got.subject.split(".")[5] for got in stored]
    assert names == ["created", "started", "progress", "completed"]
    expected = {"request-id": "request-7", "traceparent": trace}
    if state is not None:
        expected["tracestate"] = state
    wanted = ("request-id", "traceparent", "tracestate")
    for got in stored:
        shown = {name: value for name, value in got.headers.items() if name in wanted}
        assert shown == expected, got.subject


@given(json_texts)
def test_a_result_keeps_its_text(result: str) -> None:
    from trellis.core.commands import Claim, Complete  # noqa: PLC0415

    record, fence = a_record(7), a_fence()
    claimed = decide(record, Claim(fence), START)
    assert isinstance(claimed, Transition)
    ended = decide(JobRecord(*record)._replace(head=claimed.head), Complete(fence, result), START)
    assert isinstance(ended, Transition)
    wire = encode_transition(ended, record.definition)
    stored = decode(name_of(record.definition), 9, wire.headers, wire.body)
    assert isinstance(stored, StoredEvent)
    assert stored.raw == result


def test_other_programs_read_one_json_object() -> None:
    new = a_job(payload='{ "order" : 7 }', key="user/1", policy=Policy())
    definition = define(new, 0, START)
    wire = encode_created(new, definition, *creation(START, START))
    body = json.loads(wire.body)
    assert body["payload"] == {"order": 7}
    assert (body["jobId"], body["service"], body["jobType"]) == (new.id, "shop", "invoice")
    assert (body["eventType"], body["state"], body["tries"]) == ("created", "pending", 0)
    assert body["concurrency"]["key"] == "user/1"
    assert wire.body[int(wire.headers[RAW]) : -1] == b'{ "order" : 7 }'


@pytest.mark.parametrize(
    "body",
    [
        Begun(START),
        Heartbeat(),
        Progress(1.5, 3.0, "copy", "half"),
        Phase("load"),
        Item("row 1", "failed", "why", "load"),
        LogLine("info", "caf\u00e9 \ud800", '{"a":1}'),
        LateResult("Complete", "too late"),
    ],
)
def test_a_note_is_read_as_it_was_written(body: NoteBody) -> None:
    record, fence = a_record(7), a_fence()
    note = Note(7, 3, fence, body)
    wire = encode_note(*record, note, START + 5)
    stored = decode_note(name_of(record.definition), 12, wire.body)
    assert (stored.row, stored.claim, stored.fence, stored.body) == note
    assert stored.at == START + 5
    assert (stored.event is not None) == (note_name(body) == "staleCompletionIgnored")


def test_a_removal_says_what_was_removed() -> None:
    record = a_record(7)
    wire = encode_removal(record, START + 9)
    stored = decode(name_of(record.definition), 20, wire.headers, wire.body)
    assert stored == StoredRemoval(name_of(record.definition), 20, 7, START + 9, record.head.state)


@pytest.mark.parametrize(
    ("replaced", "shown"),
    [
        (None, {"outcome": "accepted"}),
        (JobId("job-1"), {"outcome": "replaced", "replacedJobId": "job-1"}),
    ],
)
def test_a_keyed_job_says_how_it_was_admitted(
    replaced: JobId | None, shown: dict[str, str]
) -> None:
    new = a_keyed_job("user/1", KeyPolicy("user/{id}"))
    definition = define(new, 0, START)
    event, head = creation(START, first_run_at(new, START))
    wire = encode_created(new, definition, event, head, replaced=replaced)
    assert json.loads(wire.body)["queuePolicy"] == shown


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", "info"), ("warning", "warn"), ("critical", "error")]
)
def test_log_lines_have_levels_that_other_languages_know(level: str, shown: str) -> None:
    record = a_record()
    note = Note(1, 1, a_fence(), LogLine(level, "hello", None))
    wire = encode_note(*record, note, START)
    assert [each["level"] for each in json.loads(wire.body)["logs"]] == [shown]
    assert decode_note(name_of(record.definition), 1, wire.body).body == note.body
