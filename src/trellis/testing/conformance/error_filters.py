"""Filters and counts by the latest error and by the time of the end."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Fail
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND, Micros
from trellis.core.job import Failure, JobRecord, SessionId
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter
from trellis.testing.builders import a_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import a_session, accept_one, claim_one, ids, settle, start
from trellis.testing.conformance.suite import EngineSuite

#: Messages with characters that have a meaning in patterns, queries and JSON.
ODD = (
    "100% of 5_0 done",
    "100x of 5y0 done",
    'He said "no"',
    "C:\\temp\\new",
    "it's; drop table--",
    "*.txt [a-z]?",
    "Привет, МИР",
    "line one\nline two\ttab",
    "smile 🙂 \u2028 end",
)


async def _failed(
    engine: Engine, session: SessionId, message: str, code: str = "exception"
) -> JobRecord:
    taken = await start(engine, session, a_job())
    error = Failure(code, message, "Traceback: secret detail")
    return await settle(engine, taken, Fail(fence_of(taken), error, retryable=False))


async def _found(engine: Engine, where: JobFilter) -> list[str]:
    await engine.catch_up()
    found = ids(list((await engine.find(where)).jobs))[::-1]
    assert (await engine.count(where)).total == len(found)
    return list(found)


class TestFailures(EngineSuite):
    """Jobs are found and counted by a part of their error, and by when they ended."""

    async def test_a_job_is_found_by_any_part_of_its_error_s_message(self, engine: Engine) -> None:
        session = await a_session(engine)
        failed = {message: await _failed(engine, session, message) for message in ODD}
        for message, record in failed.items():
            for part in (message, message[1:-1], message[-4:], message[2:7]):
                expected = [each.definition.id for text, each in failed.items() if part in text]
                assert record.definition.id in expected
                assert await _found(engine, JobFilter(error_contains=part)) == expected, part

    async def test_nothing_in_the_wanted_text_is_a_pattern(self, engine: Engine) -> None:
        await _failed(engine, await a_session(engine), "plain words")
        for part in ("%", "_", "*", "?", "plain%", "p_ain", "[a-z]", "' or '1'='1", '"', "\\", "$"):
            assert await _found(engine, JobFilter(error_contains=part)) == [], part

    async def test_upper_and_lower_case_are_the_same(self, engine: Engine) -> None:
        session = await a_session(engine)
        ascii_one = await _failed(engine, session, "Connection REFUSED")
        other = await _failed(engine, session, "Превышено Время Ärger")
        for part, record in (
            ("connection refused", ascii_one),
            ("CONNECTION", ascii_one),
            ("превышено время", other),
            ("ВРЕМЯ ä", other),
        ):
            assert await _found(engine, JobFilter(error_contains=part)) == ids([record]), part

    async def test_the_data_of_a_failure_is_kept_with_it(self, engine: Engine) -> None:
        data = '{"order": 7, "why": "no \\"such\\" one: \\u00e9"}'
        error = Failure("not_found", "no such order", "a stack", data)
        taken = await start(engine, await a_session(engine), a_job())
        ended = await settle(engine, taken, Fail(fence_of(taken), error, retryable=False))
        assert ended.head.error == error
        assert (await engine.outcomes(ended.definition.id))[-1].error == error
        assert await _found(engine, JobFilter(error_contains="such order")) == ids([ended])
        assert await _found(engine, JobFilter(error_contains="why")) == []
        assert (await engine.count(JobFilter(), "error")).groups == {"not_found": 1}

    async def test_the_code_counts_and_the_detail_does_not(self, engine: Engine) -> None:
        session = await a_session(engine)
        record = await _failed(engine, session, "boom", "out_of_memory")
        assert await _found(engine, JobFilter(error_contains="Of_Mem")) == ids([record])
        assert await _found(engine, JobFilter(error_contains="secret detail")) == []
        assert await _found(engine, JobFilter(error_contains="memoryboom")) == []

    async def test_a_job_without_an_error_mentions_nothing(self, engine: Engine) -> None:
        session = await a_session(engine)
        done = await start(engine, session, a_job())
        await settle(engine, done, complete(done))
        await accept_one(engine, a_job(delay=SECOND))
        assert await _found(engine, JobFilter(error_contains="")) == []
        failed = await _failed(engine, session, "boom")
        assert await _found(engine, JobFilter(error_contains="")) == ids([failed])

    async def test_a_job_that_waits_for_a_retry_is_found_by_its_latest_error(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine, "1h")
        taken = await start(engine, session, a_job())
        await settle(engine, taken, Fail(fence_of(taken), Failure("timeout", "first"), delay=0))
        assert await _found(engine, JobFilter(error_contains="first")) == ids([taken])
        again = await claim_one(engine, session)
        await settle(
            engine, again, Fail(fence_of(again), Failure("exception", "second"), retryable=False)
        )
        assert await _found(engine, JobFilter(error_contains="first")) == []
        assert await _found(engine, JobFilter(error_contains="second")) == ids([taken])

    async def test_jobs_are_counted_by_the_code_of_their_latest_error(self, engine: Engine) -> None:
        session = await a_session(engine)
        for code in ("timeout", "timeout", "exception", 'odd "code"'):
            await _failed(engine, session, "x", code)
        await accept_one(engine, a_job())
        await engine.catch_up()
        groups = (await engine.count(JobFilter(), "error")).groups
        assert groups == {"": 1, "exception": 1, 'odd "code"': 1, "timeout": 2}
        where = JobFilter(error_contains="time")
        assert (await engine.count(where, "error")).groups == {"timeout": 2}

    async def test_jobs_are_found_by_when_they_ended(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        begin, ended = clock.now(), []
        for _ in range(3):
            ended.append(await _failed(engine, session, "boom"))
            clock.advance("10s")
        await accept_one(engine, a_job())

        async def within(start: Micros | None, end: Micros | None) -> list[str]:
            first = None if start is None else begin + start
            last = None if end is None else begin + end
            return await _found(engine, JobFilter(finished_from=first, finished_before=last))

        assert await within(0, None) == ids(ended)
        assert await within(10 * SECOND, None) == ids(ended[1:])
        assert await within(10 * SECOND + 1, None) == ids(ended[2:])
        assert await within(None, 10 * SECOND) == ids(ended[:1])
        assert await within(None, 10 * SECOND + 1) == ids(ended[:2])
        assert await within(10 * SECOND, 20 * SECOND) == ids(ended[1:2])
        assert await within(20 * SECOND + 1, None) == []

    async def test_a_job_that_came_back_has_not_ended(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        failed = await _failed(engine, await a_session(engine), "boom")
        where = JobFilter(finished_before=clock.now() + SECOND)
        assert await _found(engine, where) == ids([failed])
        await settle(engine, failed, RetryJob())
        assert await _found(engine, where) == []
