"""Handlers that return garbage, raise odd exceptions or never end: only their job is affected."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from pydantic import BaseModel

from tests.worker.faulty import eventually
from trellis import Job, JobDead, JobFailed, JobRef, Retry, Service
from trellis.core.events import EventKind
from trellis.core.job import JobId


class Mute:
    """Something that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


class MuteError(Exception):
    """An error that cannot be converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class OwnKind(BaseException):
    """What no `except Exception` catches."""


class Receipt(BaseModel):
    """What a handler promised to return."""

    number: int


def _circle() -> list[object]:
    circle: list[object] = []
    circle.append(circle)
    return circle


def _deep() -> list[object]:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    return deep


NOT_JSON: Final[dict[str, Callable[[], object]]] = {
    "an object": object,
    "something mute": Mute,
    "not a number": lambda: float("nan"),
    "half a character": lambda: "\ud800",
    "a NUL": lambda: "a\0b",
    "bytes that are no text": lambda: b"\xff",
    "a circle": _circle,
    "a deep nest": _deep,
    "a lock": threading.Lock,
    "an error": lambda: ValueError("returned, not raised"),
    "an object among data": lambda: {"a": [{"b": object()}]},
}
NOT_ORDINARY: Final[dict[str, Callable[[], BaseException]]] = {
    "CancelledError": asyncio.CancelledError,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit("bye"),
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [KeyboardInterrupt()]),
    "OwnKind": OwnKind,
    "MuteError": MuteError,
    "ValueError": lambda: ValueError("\ud800\0" + "x" * 100_000),
}


@pytest.fixture
async def shop() -> AsyncIterator[Service]:
    async with Service("shop", "memory://") as shop:
        yield shop


async def ended(shop: Service, jobs: dict[str, Job[None, Any]]) -> dict[str, Exception]:
    """Run each once in a worker with a single slot; return what a waiting caller gets."""
    raised: dict[str, Exception] = {}

    @shop.job
    async def fine() -> str:
        return "fine"

    async with shop.worker(concurrency=1):
        for name, job in jobs.items():
            ref = await job.create()
            with pytest.raises((JobFailed, JobDead)) as failure:
                await ref.wait("20s")
            raised[name] = failure.value
        assert await (await fine.create()).wait("20s") == "fine"
    return raised


def _returning(shop: Service, name: str, value: object, kind: type) -> Job[None, Any]:
    async def handler() -> Any:  # noqa: ANN401 - that is the point
        return value

    handler.__annotations__["return"] = kind
    return shop.job(name=name.replace(" ", "_"))(handler)


async def test_a_result_that_cannot_be_encoded_fails_its_job_for_good(shop: Service) -> None:
    jobs = {name: _returning(shop, name, make(), object) for name, make in NOT_JSON.items()}
    for name, raised in (await ended(shop, jobs)).items():
        assert isinstance(raised, JobFailed), name
        assert "The result c" in str(raised), name  # cannot be written, contains ...


async def test_a_result_that_is_not_of_its_type_fails_its_job_for_good(shop: Service) -> None:
    jobs = {name: _returning(shop, name, make(), Receipt) for name, make in NOT_JSON.items()}
    jobs["a wrong field"] = _returning(shop, "a wrong field", {"number": "seven"}, Receipt)
    jobs["nothing"] = _returning(shop, "nothing", None, Receipt)
    answers = await ended(shop, jobs)
    for name, raised in answers.items():
        assert isinstance(raised, JobFailed), name
        assert "The result does not fit its type" in str(raised), name
    assert str(answers["nothing"]).endswith("The handler returned None: is a `return` missing?")


async def test_whatever_a_handler_raises_is_a_failed_attempt_and_named(shop: Service) -> None:
    jobs: dict[str, Job[None, Any]] = {}
    for name, make in NOT_ORDINARY.items():

        async def at_once(make: Callable[[], BaseException] = make) -> None:
            raise make()

        async def later(make: Callable[[], BaseException] = make) -> None:
            await asyncio.sleep(0)
            raise make()

        def in_a_thread(make: Callable[[], BaseException] = make) -> None:
            raise make()

        for handler in (at_once, later, in_a_thread):
            label = f"{name}_{handler.__name__}"
            call = _without_arguments(handler)
            jobs[label] = shop.job(name=label, retry=Retry.never())(call)
    for label, raised in (await ended(shop, jobs)).items():
        assert isinstance(raised, JobDead), label
        assert label.partition("_")[0] in str(raised), label


def _without_arguments(handler: Callable[..., Any]) -> Callable[[], Any]:
    if asyncio.iscoroutinefunction(handler):

        async def call() -> None:
            await handler()

        return call

    def call_here() -> None:
        handler()

    return call_here


async def test_a_handler_that_defies_its_timeout_loses_its_job_and_only_a_slot(
    shop: Service,
) -> None:
    let_go = asyncio.Event()

    @shop.job(timeout="50ms", retry=Retry.never())
    async def stubborn() -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    @shop.job
    async def fine() -> str:
        return "fine"

    async with shop.worker(concurrency=2, lease="600ms"):
        ref = await stubborn.create()
        assert await (await fine.create()).wait("20s") == "fine"
        with pytest.raises(JobDead, match="took longer than 50ms"):
            await ref.wait("30s")
        let_go.set()
        await eventually(lambda: _is_refused(shop, ref))


async def _is_refused(shop: Service, ref: JobRef[str]) -> bool:
    engine = await shop.connection.engine()
    events = await engine.journal(JobId(ref.id))
    return events[-1].kind is EventKind.STALE_COMPLETION_IGNORED
