"""Surroundings run where the handler runs, see what it does, and cannot change it."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from tests.worker.isolation import surrounded, surroundings
from trellis import ActiveJob, ConfigurationError, JobFailed, Retry, Service
from trellis.declaration.imports import around_modules
from trellis.testing import sandbox
from trellis.worker.local_type import LocalType

tenant: ContextVar[str] = ContextVar("tenant", default="none")
NEVER = Retry.never()


async def test_they_run_in_the_order_of_declaration_around_each_handler(service: Service) -> None:
    steps: list[str] = []

    @service.around
    def outer(job: ActiveJob[Any]) -> Iterator[None]:
        steps.append(f"outer {job.type} {job.payload}")
        yield
        steps.append("outer done")

    @service.around
    async def inner(_: ActiveJob[Any]) -> AsyncIterator[None]:
        steps.append("inner")
        yield
        steps.append("inner done")

    def own(_: ActiveJob[Any]) -> Iterator[None]:
        steps.append("own")
        yield

    @service.job(around=[own])
    async def greet(name: str) -> str:
        steps.append("handler")
        return name.upper()

    async with service.worker():
        assert await (await greet.create("ada")).wait("10s") == "ADA"
    assert steps == [
        "outer greet ada", "inner", "own", "handler", "inner done", "outer done",
    ]  # fmt: skip


async def test_the_handler_sees_its_context_variables_and_its_thread(service: Service) -> None:
    threads: list[int] = []

    @service.around
    def enter_tenant(job: ActiveJob[Any]) -> Iterator[None]:
        threads.append(threading.get_ident())
        token = tenant.set(f"{job.payload}")
        yield
        assert threading.get_ident() == threads[-1]
        tenant.reset(token)

    @service.job
    def plain(_: str) -> list[Any]:
        return [tenant.get(), threading.get_ident()]

    @service.job
    async def on_loop(job: ActiveJob[str]) -> list[Any]:
        return [tenant.get(), threading.get_ident()]

    async with service.worker():
        assert await (await plain.create("acme")).wait("10s") == ["acme", threads[0]]
        assert await (await on_loop.create("nova")).wait("10s") == ["nova", threads[1]]
    assert threads[0] != threads[1] == threading.get_ident()
    assert tenant.get() == "none"


async def test_an_exception_passes_through_and_cannot_be_taken_back(service: Service) -> None:
    seen: list[str] = []

    @service.around
    def swallow(_: ActiveJob[Any]) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(str(error))

    @service.job(retry=NEVER, dead_letters=False)
    def plain() -> None:
        raise ValueError("plain broke")

    @service.job(retry=NEVER, dead_letters=False)
    async def on_loop() -> None:
        raise ValueError("coroutine broke")

    async with service.worker():
        for job, message in ((plain, "plain broke"), (on_loop, "coroutine broke")):
            with pytest.raises(JobFailed, match=message):
                await (await job.create()).wait("10s")
    assert seen == ["plain broke", "coroutine broke"]


async def test_a_surrounding_may_raise_before_and_after_the_handler(service: Service) -> None:
    called: list[str] = []

    @service.around
    def refuse(job: ActiveJob[str]) -> Iterator[None]:
        if job.payload == "before":
            raise PermissionError("not before")
        yield
        if job.payload == "after":
            raise PermissionError("not after")

    @service.job(retry=NEVER, dead_letters=False)
    def work(when: str) -> None:
        called.append(when)

    async with service.worker():
        for when in ("before", "after"):
            with pytest.raises(JobFailed, match=f"not {when}"):
                await (await work.create(when)).wait("10s")
        await (await work.create("never")).wait("10s")
    assert called == ["after", "never"]


async def test_a_retry_of_a_surrounded_job_runs_again(service: Service) -> None:
    attempts: list[int] = []

    @service.around
    def count(job: ActiveJob[None]) -> Iterator[None]:
        attempts.append(job.attempt)
        yield

    @service.job(retry=Retry.fixed("0s", attempts=2))
    def flaky() -> str:
        if len(attempts) == 1:
            raise OSError("once")
        return "done"

    async with service.worker():
        assert await (await flaky.create()).wait("10s") == "done"
    assert attempts == [1, 2]


async def test_they_surround_handlers_that_are_run_inline() -> None:
    app = Service("shop", "memory://")

    @app.around
    def enter(job: ActiveJob[Any]) -> Iterator[None]:
        token = tenant.set(job.payload)
        yield
        tenant.reset(token)

    @app.job
    def plain(_: str) -> str:
        return tenant.get()

    @app.job
    async def on_loop(_: str) -> str:
        return tenant.get()

    assert await plain.run_inline("a") == "a"
    assert await on_loop.run_inline("b") == "b"


def test_they_surround_handlers_in_a_sandbox_and_plain_inline_calls() -> None:
    app = Service("shop", "memory://")
    steps: list[str] = []

    @app.around
    def enter(job: ActiveJob[Any]) -> Iterator[None]:
        token = tenant.set(job.payload)
        yield
        tenant.reset(token)

    @app.job
    def plain(_: str) -> None:
        steps.append(tenant.get())

    plain.run_inline_sync("inline")
    with sandbox() as box:
        plain.create_sync("sandbox")
        box.run_all_sync()
    assert steps == ["inline", "sandbox"]


async def test_they_run_in_the_process_of_the_handler(tmp_path: Path) -> None:
    app = surrounded.app
    assert surroundings.note_place.__module__ != surrounded.__name__
    app.connection.point_at(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with app, app.worker(concurrency=1):
        for job in (surrounded.where, surrounded.where_async):
            place, process = await (await job.create(1)).wait("30s")
            assert place == f"{job.job_type.name} in {process}"
            assert process != str(os.getpid())


def test_what_cannot_surround_is_refused_when_it_is_declared() -> None:
    app = Service("shop", "memory://")

    async def on_loop(_: ActiveJob[Any]) -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigurationError, match="does not yield"):
        app.around(lambda _: None)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="must take one argument"):

        @app.around  # type: ignore[type-var]
        def nothing() -> Iterator[None]:
            yield

    @app.job
    def plain() -> None: ...

    with pytest.raises(ConfigurationError, match="on_loop is asynchronous, but the handler plain"):
        app.around(on_loop)
    with pytest.raises(ConfigurationError, match="is asynchronous"):

        @app.job(around=[on_loop])
        def other() -> None: ...


def test_a_process_must_be_able_to_import_them() -> None:
    async def on_loop(_: ActiveJob[Any]) -> AsyncIterator[None]:
        yield

    on_loop.__module__ = "__main__"
    app = Service("shop", "memory://")
    app.around(on_loop)

    @app.job
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="main file"):
        around_modules(work.job_type)


def test_a_service_without_surroundings_calls_its_handlers_directly() -> None:
    app = Service("shop", "memory://")

    @app.job
    async def work(_: int) -> None: ...

    assert work.job_type.handler is not None
    local = LocalType(work.job_type)
    assert (local.function, local.takes) == (work.job_type.handler.function, "payload")
