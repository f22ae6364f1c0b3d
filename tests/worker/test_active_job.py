"""What a handler sees of its job and what it can report about it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.worker.faulty import eventually
from trellis import ActiveJob, JobCancelled, JobRef, PerKey, Retry, Service, State, fingerprint
from trellis.core.job import Context, JobId
from trellis.engines.values import Activity, Item, LogEntry, Progress


async def activity(service: Service, ref: JobRef[Any]) -> Activity:
    engine = await service.connection.engine()
    found = await engine.activity(JobId(ref.id))
    assert found is not None
    return found


async def logs(service: Service, ref: JobRef[Any]) -> list[LogEntry]:
    engine = await service.connection.engine()
    return await engine.logs(JobId(ref.id))


async def test_a_handler_sees_what_its_job_was_created_with(service: Service) -> None:
    seen: dict[str, Any] = {}

    @service.job(per_key=PerKey("shop"), config=lambda: 7)
    async def look(job: ActiveJob[str]) -> None:
        seen.update(
            id=job.id,
            payload=job.payload,
            attempt=(job.attempt, job.max_attempts),
            key=job.key,
            config=job.config,
            expect=job.expect,
            deadline=job.deadline,
            state=job.state,
            flags=(job.cancelled, job.stopping),
        )

    async with service.worker():
        ref = await look.create("x", config={"a": [1]}, expect=fingerprint(7), deadline="1h")
        await ref.wait("10s")
    status = await ref.status()
    assert seen.pop("deadline") - status.created_at == timedelta(hours=1)
    assert seen == {
        "id": ref.id,
        "payload": "x",
        "attempt": (1, 5),
        "key": "shop",
        "config": {"a": [1]},
        "expect": fingerprint(7),
        "state": None,
        "flags": (False, False),
    }


async def test_a_handler_sees_the_context_of_its_job_in_every_attempt(service: Service) -> None:
    seen: list[Context] = []

    @service.job(retry=Retry.fixed(0, attempts=2))
    async def look(job: ActiveJob[str]) -> None:
        seen.append(job.context)
        if job.attempt == 1:
            with pytest.raises(AttributeError):
                job.context = Context("other", "")  # type: ignore[misc]
            raise ValueError

    async with service.worker():
        ref = await look.create("x")
        await ref.wait("10s")
    engine = await service.connection.engine()
    (record,) = (await engine.load([JobId(ref.id)])).records
    assert record is not None
    assert seen == [record.definition.context] * 2


async def test_what_a_handler_says_is_stored_before_its_settlement(service: Service) -> None:
    @service.job
    async def talk(job: ActiveJob[int]) -> None:
        job.phase("render")
        job.items.start("page-1")
        job.items.complete("page-1", "fine")
        job.items.skip("page-2")
        job.progress(1, 2, step="pages", message="half")
        job.progress(2, 2, step="pages", message="whole")
        job.log.info("page", number=1)
        job.log.warning("slow")
        job.log.error("bad \0 text \ud800")
        job.heartbeat()

    async with service.worker():
        ref = await talk.create(1)
        await ref.wait("10s")
        noted = await activity(service, ref)
        lines = await logs(service, ref)
    assert noted.phase == "render"
    assert noted.progress == Progress(2, 2, "pages", "whole")
    assert noted.items == (
        Item("page-1", "completed", "fine", "render"),
        Item("page-2", "skipped", None, "render"),
    )
    assert [(line.level, line.message) for line in lines] == [
        ("info", "page"),
        ("warning", "slow"),
        ("error", "bad \N{REPLACEMENT CHARACTER} text ?"),
    ]
    assert lines[0].fields == '{"number": 1}'


async def test_a_handler_in_a_thread_can_say_all_of_it_too(service: Service) -> None:
    @service.job
    def talk(job: ActiveJob[int]) -> None:
        for number in job.track(range(job.payload), step="rows"):
            job.log.info("row", number=number)

    async with service.worker():
        ref = await talk.create(3)
        await ref.wait("10s")
        assert (await activity(service, ref)).progress == Progress(3, 3, "rows")
        fields = [line.fields for line in await logs(service, ref)]
        assert fields == ['{"number": 0}', '{"number": 1}', '{"number": 2}']


async def test_a_job_with_failed_items_completes_with_errors(service: Service) -> None:
    @service.job
    async def publish(job: ActiveJob[int]) -> str:
        job.items.fail("page-1", "404")
        job.items.fail("page-2")
        job.items.complete("page-2")
        return "published"

    async with service.worker():
        ref = await publish.create(1)
        assert await ref.wait("10s") == "published"
    assert (await ref.status()).state is State.COMPLETED_WITH_ERRORS


async def numbers() -> AsyncIterator[int]:
    for number in range(3):
        yield number


async def test_track_goes_through_anything_iterable(service: Service) -> None:
    @service.job
    async def count(job: ActiveJob[str]) -> list[int]:
        plain = [number async for number in job.track([5, 6])]
        source = [number async for number in job.track(numbers())]
        return plain + source + list(job.track(iter([7])))

    async with service.worker():
        assert await (await count.create("x")).wait("10s") == [5, 6, 0, 1, 2, 7]


async def test_track_stops_when_a_cancel_was_asked(service: Service) -> None:
    begun = asyncio.Event()

    @service.job
    async def endless(job: ActiveJob[str]) -> None:
        async for _ in job.track(iter(int, 1)):
            begun.set()
            await asyncio.sleep(0.001)

    async with service.worker():
        ref = await endless.create("x")
        await begun.wait()
        assert (await ref.cancel("enough")).cancel_asked
        assert (await ref.cancel()).cancel_asked
        with pytest.raises(JobCancelled):
            await ref.wait("10s")


async def test_a_forced_cancel_ends_the_job_and_then_its_handler(service: Service) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @service.job
    async def deaf() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with service.worker():
        ref = await deaf.create()
        await begun.wait()
        assert (await ref.cancel(force=True)).state is State.CANCELLED
        await asyncio.wait_for(stopped.wait(), 10)


async def test_records_of_logging_go_to_the_jobs_log(service: Service) -> None:
    logger = logging.getLogger("shop.handlers")
    logger.setLevel(logging.INFO)

    @service.job
    async def talk() -> None:
        logger.info("from %s", "logging")
        await asyncio.to_thread(logger.warning, "from another thread")

    async with service.worker():
        ref = await talk.create()
        await ref.wait("10s")
        logger.info("outside any job")
        lines = await logs(service, ref)
    assert [line.message for line in lines] == ["from logging", "from another thread"]
    assert lines[0].fields == '{"logger": "shop.handlers"}'


async def test_a_type_may_keep_logging_out_of_its_jobs_logs(service: Service) -> None:
    logger = logging.getLogger("shop.handlers")

    @service.job(capture_logs=False)
    async def talk(job: ActiveJob[None]) -> None:
        logger.warning("from logging")
        job.log.info("from the job")

    async with service.worker():
        ref = await talk.create()
        await ref.wait("10s")
        assert [line.message for line in await logs(service, ref)] == ["from the job"]


async def test_a_log_call_takes_what_logging_takes_and_never_fails(service: Service) -> None:
    @service.job
    async def talk(job: ActiveJob[int]) -> None:
        job.log.info("page %d of %s", 1, "two")
        job.log.warning(7)
        job.log.error("only %s", "one", "more")  # noqa: PLE1205 - the mistake it survives
        try:
            dict[str, int]().pop("gone")
        except KeyError:
            job.log.exception("no such page")

    async with service.worker():
        ref = await talk.create(1)
        await ref.wait("10s")
        lines = await logs(service, ref)
    assert [(line.level, line.message) for line in lines] == [
        ("info", "page 1 of two"),
        ("warning", "7"),
        ("error", "only %s one more"),
        ("error", "no such page"),
    ]
    assert "KeyError: 'gone'" in (lines[-1].fields or "")


async def test_a_chatty_job_cannot_fill_the_database(service: Service) -> None:
    @service.job
    async def chat(job: ActiveJob[int]) -> None:
        for number in range(job.payload):
            job.log.info(str(number))

    async with service.worker():
        ref = await chat.create(6000)
        await ref.wait("20s")
    engine = await service.connection.engine()
    lines = await engine.logs(JobId(ref.id), limit=10_000)
    assert [line.message for line in lines[:5000]] == [str(number) for number in range(5000)]
    assert [line.message.split("; ")[1] for line in lines[5000:]] == [
        f"{dropped} more were dropped." for dropped in ("1", "10", "100", "1,000")
    ]


async def test_only_a_handler_that_runs_for_a_while_is_reported_as_begun(service: Service) -> None:
    go_on = threading.Event()

    @service.job
    def quick() -> None:
        return None

    @service.job
    def slow() -> None:
        go_on.wait(20)

    engine = await service.connection.engine()
    async with service.worker():
        first = await quick.create()
        await first.wait("10s")
        second = await slow.create()

        async def begun() -> bool:
            noted = await engine.activity(JobId(second.id))
            return noted is not None and noted.began_at is not None

        await eventually(begun)
        go_on.set()
        await second.wait("10s")
    assert await engine.activity(JobId(first.id)) is None


async def test_two_workers_of_one_process_write_a_record_of_logging_once(service: Service) -> None:
    @service.job
    async def talk() -> None:
        logging.getLogger("shop.twice").warning("once")

    async with service.worker(), service.worker():
        ref = await talk.create()
        await ref.wait("10s")
    assert [line.message for line in await logs(service, ref)] == ["once"]


async def test_progress_of_one_phase_does_not_show_in_the_next(service: Service) -> None:
    @service.job
    async def publish(job: ActiveJob[int]) -> None:
        job.phase("render")
        job.progress(9, 10)
        job.phase("upload")

    @service.job
    async def go_on(job: ActiveJob[int]) -> None:
        job.phase("render")
        job.progress(9, 10)
        job.phase("upload")
        job.progress(1, 4)

    async with service.worker():
        ended, going = await publish.create(1), await go_on.create(1)
        await ended.wait("10s")
        await going.wait("10s")
        noted = await activity(service, ended)
        assert (noted.phase, noted.progress) == ("upload", None)
        assert (await activity(service, going)).progress == Progress(1, 4)


@pytest.mark.parametrize(
    ("report", "error", "words"),
    [
        (lambda job: job.progress(0.5, "step 1"), TypeError, "total='step 1' is not a number"),
        (lambda job: job.progress(True), TypeError, "current=True is not a number"),
        (lambda job: job.progress(float("nan")), ValueError, "current=nan is not finite"),
        (lambda job: job.progress(1, 10**400), ValueError, "is not finite"),
        (lambda job: job.progress(1, 2, step=3), TypeError, "step=3 is not a text"),
        (lambda job: job.progress(message=b"x"), TypeError, "message=b'x' is not a text"),
        (lambda job: job.phase(None), TypeError, "name=None is not a text"),
        (lambda job: list(job.track([1], step=b"x")), TypeError, "step=b'x' is not a text"),
        (lambda job: job.items.complete(7), TypeError, "name=7 is not a text"),
        (lambda job: job.items.fail("x", 7), TypeError, "detail=7 is not a text"),
    ],
)
async def test_a_report_that_no_reader_could_show_is_refused_in_the_handler(
    service: Service, report: Callable[[Any], Any], error: type[Exception], words: str
) -> None:
    @service.job
    def misuse(job: ActiveJob[int]) -> str:
        job.progress(1, 4)
        try:
            report(job)
        except (TypeError, ValueError) as refusal:
            return f"{type(refusal).__name__} {refusal}"
        return "None"

    async with service.worker():
        ref = await misuse.create(1)
        said = await ref.wait("10s")
        noted = await activity(service, ref)
    assert said.startswith(error.__name__)
    assert words in said
    assert "Nothing was reported. Write" in said
    assert (noted.progress, noted.phase, noted.items) == (Progress(1, 4), None, ())
