"""Writes with expectations on a real server, and what their answers mean."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlparse

import pytest
from nats import errors as nats_errors
from nats.aio.client import Srv
from nats.aio.msg import Msg

from tests.harness.servers.nats import NatsServer
from trellis.core.job import JobId
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.jetstream.link import Expect, Link, Message, Outdated, Written
from trellis.engines.jetstream.subjects import JobName, Subjects
from trellis.engines.values import JobFilter
from trellis.errors import (
    EngineClosed,
    EngineUnavailable,
    NatsRefused,
    OutcomeUnknown,
    Unstorable,
)

JOB = JobName("shop", "mail", JobId("01K0"))


def event(names: Subjects, kind: str, after: int) -> Message:
    """A lifecycle event that is stored only if this is the last sequence of the job."""
    return Message(names.event(JOB, kind), b"{}", {}, Expect(after, names.fence(JOB)))


async def test_only_one_of_two_writes_with_the_same_expectation_is_stored(
    link: Link, deployed: Subjects
) -> None:
    answers = await asyncio.gather(
        *(link.write(event(deployed, kind, 0)) for kind in ("created", "started", "retry"))
    )
    assert sorted(type(each).__name__ for each in answers) == ["Outdated", "Outdated", "Written"]


async def test_a_batch_with_one_outdated_expectation_stores_nothing(
    link: Link, deployed: Subjects
) -> None:
    assert await link.write(event(deployed, "created", 0)) == Written(1)
    key = Message(deployed.key("shop", "mail", "k"), b"{}", {}, Expect(5))
    assert await link.write(event(deployed, "started", 1), key) == Outdated(0)
    assert await link.write(event(deployed, "started", 1), key._replace(expect=Expect(0))) == (
        Written(3)
    )
    assert [each.subject for each in await link.following(deployed.jobs, ">", 1)] == [
        deployed.event(JOB, "created"),
        deployed.event(JOB, "started"),
        deployed.key("shop", "mail", "k"),
    ]


class ForgetfulLink(Link):
    """Loses the answer to its next write: the server has stored it."""

    loses = 1

    async def _send(self, messages: object, name: str) -> dict[str, object]:
        answer = await super()._send(messages, name)  # type: ignore[arg-type]
        if self.loses:
            self.loses -= 1
            raise nats_errors.TimeoutError
        return answer


class ReplacedLink(ForgetfulLink):
    """Before the write is repeated, another one replaces its states, and upkeep deletes these."""

    other: Link
    subjects: tuple[str, ...]
    stream: str

    async def _send(self, messages: object, name: str) -> dict[str, object]:
        try:
            return await super()._send(messages, name)
        except nats_errors.TimeoutError:
            for subject in self.subjects:
                await self.other.write(Message(subject, b"2"))
                wanted = {"filter": subject, "keep": 1}
                await self.other.api(f"STREAM.PURGE.{self.stream}", wanted)
            raise


class DeafLink(Link):
    """Hears no answer when it first sends several messages at once: the server has stored some."""

    async def _try_each(self, messages: object, name: str) -> list[dict[str, object] | None]:
        answers = await super()._try_each(messages, name)  # type: ignore[arg-type]
        return [None] * len(answers)


async def test_many_writes_whose_answers_were_lost_are_found_each_and_not_stored_twice(
    nats_url: str, link: Link, deployed: Subjects
) -> None:
    jobs = [JOB._replace(id=JobId(f"01K{number}")) for number in range(3)]
    messages = [
        Message(deployed.event(job, "created"), b"{}", {}, Expect(0, deployed.fence(job)))
        for job in jobs
    ]
    await link.write(messages[1])
    deaf = DeafLink([nats_url])
    await deaf.open()
    assert await deaf.write_each(messages) == [Written(2), Outdated(1), Written(3)]
    assert len(await link.following(deployed.jobs, ">", 1)) == 3
    await deaf.close()


async def test_writes_that_are_sent_at_once_are_stored_or_refused_each_alone(
    link: Link, deployed: Subjects
) -> None:
    others = [JOB._replace(id=JobId(f"01J{number}")) for number in range(100)]
    messages = [
        Message(deployed.event(job, "created"), b"{}", {}, Expect(0, deployed.fence(job)))
        for job in others
    ]
    first = await link.write_each(messages[:50])
    assert first == [Written(number) for number in range(1, 51)]
    second = await link.write_each(messages)
    assert [type(each) for each in second] == [Outdated] * 50 + [Written] * 50
    large = messages[0]._replace(body=b"x" * link.max_payload)
    with pytest.raises(Unstorable, match="Nothing was stored"):
        await link.write_each([event(deployed, "created", 0), large])
    assert await link.write(event(deployed, "created", 0)) == Written(101)


@pytest.mark.parametrize("size", [1, 3])
async def test_a_write_whose_answer_was_lost_is_found_and_not_stored_twice(
    nats_url: str, deployed: Subjects, size: int
) -> None:
    link = ForgetfulLink([nats_url])
    await link.open()
    hints = [Message(deployed.ready(JOB, number), b"") for number in range(size - 1)]
    assert await link.write(event(deployed, "created", 0), *hints) == Written(size)
    assert len(await link.following(deployed.jobs, ">", 1)) == size
    await link.close()


async def test_a_lost_answer_to_a_refused_write_stays_a_refusal(
    nats_url: str, link: Link, deployed: Subjects
) -> None:
    await link.write(event(deployed, "created", 0))
    forgetful = ForgetfulLink([nats_url])
    await forgetful.open()
    assert await forgetful.write(event(deployed, "started", 0)) == Outdated(1)
    await forgetful.close()


async def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_was_stored(
    nats_url: str, link: Link, subjects: Subjects
) -> None:
    stream = {"name": subjects.prefix, "subjects": [subjects.prefix], "max_msgs": 1}
    await link.api(f"STREAM.CREATE.{subjects.prefix}", stream | {"discard": "new"})
    forgetful = ForgetfulLink(nats_url.split(","))
    await forgetful.open()
    with pytest.raises(OutcomeUnknown, match=r"maximum messages exceeded .* may be stored"):
        await forgetful.write(Message(subjects.prefix, b""))
    with pytest.raises(NatsRefused, match="maximum messages exceeded"):
        await forgetful.write(Message(subjects.prefix, b""))
    await forgetful.close()
    await link.api(f"STREAM.DELETE.{subjects.prefix}")


async def test_a_message_that_the_server_would_not_take_is_not_sent(
    link: Link, deployed: Subjects
) -> None:
    large = event(deployed, "created", 0)._replace(body=b"x" * link.max_payload)
    with pytest.raises(Unstorable, match="Nothing was stored"):
        await link.write(large)
    assert await link.write(event(deployed, "created", 0)) == Written(1)


async def test_reads_find_the_last_the_next_and_many(link: Link, deployed: Subjects) -> None:
    for after, kind in enumerate(("created", "started", "completed")):
        await link.write(event(deployed, kind, after))
    last = await link.last(deployed.jobs, deployed.fence(JOB))
    assert last is not None
    assert (last.subject, last.sequence) == (deployed.event(JOB, "completed"), 3)
    second = await link.next(deployed.jobs, deployed.fence(JOB), 2)
    assert second is not None
    assert second.sequence == 2
    assert await link.get(deployed.jobs, 9) is None
    assert await link.last(deployed.jobs, deployed.identity(JobId("none"))) is None
    found = await link.last_many(deployed.jobs, [deployed.whole(JOB)])
    assert [each.sequence for each in found] == [1, 2, 3]
    assert await link.last_many(deployed.jobs, [deployed.own("batch", "*")]) == []


async def test_many_messages_are_read_in_pages(link: Link, deployed: Subjects) -> None:
    count = 2_500
    await link.write_each([Message(deployed.ready(JOB, number), b"") for number in range(count)])
    assert len(await link.following(deployed.jobs, deployed.whole(JOB), 1, 5_000)) == count
    assert len(await link.following(deployed.jobs, deployed.whole(JOB), 1, 300)) == 300
    assert len(await link.last_many(deployed.jobs, [deployed.whole(JOB)])) == count


@pytest.mark.parametrize("family", ["held", "batch"])
async def test_the_last_messages_of_more_subjects_than_a_server_names_at_once_are_read(
    link: Link, deployed: Subjects, family: str
) -> None:
    name = deployed.value if family == "held" else deployed.own
    stream = deployed.state if family == "held" else deployed.jobs
    subjects = [name(family, str(number)) for number in range(2_500)]
    await link.write_each([Message(each, b"1") for each in subjects])
    await link.write_each([Message(each, b"2") for each in subjects[::5]])
    found = await link.last_many(stream, [name(family, "*"), name("none", "*"), subjects[7]])
    assert sorted(each.subject for each in found) == sorted(subjects)
    assert {each.subject for each in found if each.body == b"2"} == set(subjects[::5])


async def test_an_engine_that_is_opened_again_listens_once(
    nats_url: str, deployed: Subjects
) -> None:
    # A worker opens its engine before each renewal of its lease.
    engine = JetStreamEngine(nats_url, prefix=deployed.prefix)
    await engine.open()
    listening = len(engine._link.client._subs)
    for _ in range(3):
        await engine.open()
    assert len(engine._link.client._subs) == listening
    await engine._link.close()
    await engine.open()
    assert len(engine._link.client._subs) == listening
    await engine.close()


async def test_the_feed_has_what_is_stored_and_nothing_else(link: Link, deployed: Subjects) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    def hear(message: Msg) -> None:
        heard.put_nowait(message.subject)

    await link.listen(deployed.feed(">"), hear)
    await link.flush()
    await link.write(event(deployed, "created", 0))
    await link.write(event(deployed, "started", 0))
    await link.write(event(deployed, "completed", 1))
    assert [await heard.get() for _ in range(2)] == [
        deployed.feed("shop", "mail", JOB.id, "created"),
        deployed.feed("shop", "mail", JOB.id, "completed"),
    ]


async def test_a_server_that_is_not_there_is_an_engine_that_cannot_be_used() -> None:
    with pytest.raises(EngineUnavailable, match="No NATS server answers"):
        await Link(["nats://127.0.0.1:1"], patience=0.2).open()


async def test_a_closed_link_says_so(link: Link, deployed: Subjects) -> None:
    await link.close()
    with pytest.raises(EngineClosed):
        await link.last(deployed.jobs, ">")
    await link.open()


async def test_a_cancel_that_comes_together_with_the_answer_is_not_lost(link: Link) -> None:
    asked = asyncio.create_task(link.ask("$JS.API.INFO", b"", 60))
    while not link.client._resp_map:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    (answer,) = link.client._resp_map.values()
    answer.add_done_callback(lambda _: asked.cancel())
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_a_hint_that_cannot_be_sent_is_no_error(own_nats: NatsServer) -> None:
    link = Link([own_nats.url])
    await link.open()
    own_nats.kill()
    while link.client.is_connected:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await link.tell("trellis.woken.limit")
    await link.close()


async def test_no_subject_carries_a_further_command(link: Link) -> None:
    heard: list[str] = []
    await link.listen("stolen", lambda message: heard.append(message.subject))
    for subject in ("a 1\r\nb\r\nPUB stolen 0\r\n\r\nPUB a", "a\r\nPUB stolen 0\r\n"):
        await link.tell(subject, b"c")
        with pytest.raises(nats_errors.Error):
            await link.api(subject)
    await link.flush()
    assert heard == []


async def test_a_server_that_reads_nothing_keeps_no_program_from_the_next_one(
    own_nats: NatsServer, nats_url: str
) -> None:
    link = Link([own_nats.url])
    await link.open()
    link.client._server_pool[:] = [Srv(urlparse(nats_url))]
    assert own_nats.pid is not None
    os.kill(own_nats.pid, signal.SIGSTOP)
    try:
        for _ in range(16):  # more than sockets buffer
            await link.tell("anything", b"x" * 1_000_000)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await link.client.flush_now()
        await link.client._process_op_err(nats_errors.StaleConnectionError())  # no pong
        assert await link.api("INFO")
    finally:
        os.kill(own_nats.pid, signal.SIGCONT)
    await link.close()


async def test_a_connection_to_a_server_that_reads_nothing_can_be_closed(
    own_nats: NatsServer,
) -> None:
    link = Link([own_nats.url])
    await link.open()
    assert own_nats.pid is not None
    os.kill(own_nats.pid, signal.SIGSTOP)
    try:
        for _ in range(16):
            await link.tell("anything", b"x" * 1_000_000)
        await link.close()
    finally:
        os.kill(own_nats.pid, signal.SIGCONT)


async def test_a_write_is_known_although_its_states_were_replaced_and_deleted(
    nats_url: str, link: Link, deployed: Subjects
) -> None:
    first, second = deployed.own("number", "a"), deployed.own("number", "b")
    forgetful = ReplacedLink([nats_url])
    forgetful.other, forgetful.subjects, forgetful.stream = link, (first, second), deployed.jobs
    await forgetful.open()
    job = event(deployed, "created", 0)
    written = await forgetful.write(
        Message(first, b"1", {}, Expect(0)), job, Message(second, b"1", {}, Expect(0))
    )
    await forgetful.close()
    assert written == Written(3)
    assert [each.sequence for each in await link.following(deployed.jobs, job.subject, 1)] == [2]


async def test_a_read_of_a_stream_that_is_not_there_says_what_to_do(link: Link) -> None:
    with pytest.raises(EngineUnavailable, match=r"was deleted.*Run `trellis migrate`"):
        await link.last("none", ">")


async def test_a_list_while_no_server_answers_says_so(own_nats: NatsServer) -> None:
    engine = JetStreamEngine(own_nats.url)
    await engine.migrate()
    await engine.open()
    await asyncio.to_thread(own_nats.kill)
    try:
        for call in (engine.count, engine.find):
            with pytest.raises(EngineUnavailable, match="Start"):
                await call(JobFilter())
    finally:
        await asyncio.to_thread(own_nats.start)
        await engine.close()


class DoubtfulLink(Link):
    """A connection whose first write has no answer; then no stream takes the repetition."""

    answers: list[dict[str, Any] | None]

    async def _try(self, messages: Sequence[Message], name: str) -> dict[str, Any] | None:
        return self.answers.pop(0)


@pytest.mark.parametrize(("answers", "error"), [([None, {}], OutcomeUnknown), ([{}], NatsRefused)])
async def test_what_keeps_from_looking_says_nothing_about_a_write_without_an_answer(
    nats_url: str, deployed: Subjects, answers: list[dict[str, Any] | None], error: type[Exception]
) -> None:
    link = DoubtfulLink([nats_url])
    link.answers = answers

    async def refuse() -> None:
        raise NatsRefused("The jobs were moved.", 0)

    link.check_silence = refuse
    await link.open()
    with pytest.raises(error):
        await link.write(event(deployed, "created", 0))
    await link.close()
