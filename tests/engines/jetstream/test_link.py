"""Writes with expectations on a real server, and what their answers mean."""

from __future__ import annotations

import asyncio

import pytest
from nats import errors as nats_errors
from nats.aio.msg import Msg

from trellis.core.job import JobId
from trellis.engines.jetstream.link import Expect, Link, Message, Outdated, Written
from trellis.engines.jetstream.subjects import JobName, Subjects
from trellis.errors import EngineClosed, EngineUnavailable, Unstorable

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
    count = 700
    await link.write(*(Message(deployed.ready(JOB, number), b"") for number in range(count)))
    assert len(await link.following(deployed.jobs, deployed.whole(JOB), 1)) == count
    assert len(await link.following(deployed.jobs, deployed.whole(JOB), 1, 300)) == 300
    assert len(await link.last_many(deployed.jobs, [deployed.whole(JOB)])) == count


async def test_the_feed_has_what_is_stored_and_nothing_else(link: Link, deployed: Subjects) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Msg) -> None:
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
