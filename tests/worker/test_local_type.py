"""Contexts that a program puts around plain handlers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trellis import JobDead, Retry, Service
from trellis.worker import local_type

seen: list[tuple[str, int]] = []


def note(what: str) -> None:
    seen.append((what, threading.get_ident()))


@contextmanager
def outer() -> Iterator[None]:
    note("outer in")
    try:
        yield
    finally:
        note("outer out")


@contextmanager
def inner() -> Iterator[None]:
    note("inner in")
    try:
        yield
    finally:
        note("inner out")


@pytest.fixture(autouse=True)
def contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_type, "_handler_contexts", [])
    local_type.add_handler_context(outer)
    local_type.add_handler_context(inner)
    local_type.add_handler_context(outer)  # it is there already
    seen.clear()


async def test_a_plain_handler_runs_inside_all_contexts_in_one_thread() -> None:
    app = Service("shop", "memory://")

    @app.job
    def plain(number: int) -> int:
        note("handler")
        return number + 1

    async with app.worker():
        assert await (await plain.create(1)).wait("30s") == 2
    seen_in_order = [what for what, _ in seen]
    assert seen_in_order == ["outer in", "inner in", "handler", "inner out", "outer out"]
    assert len({thread for _, thread in seen}) == 1
    assert seen[0][1] != threading.get_ident()


async def test_contexts_are_left_when_the_handler_raises() -> None:
    app = Service("shop", "memory://")

    @app.job(retry=Retry.never())
    def plain(number: int) -> int:
        raise ValueError(str(number))

    async with app.worker():
        with pytest.raises(JobDead, match="ValueError: 7"):
            await (await plain.create(7)).wait("30s")
    assert [what for what, _ in seen][-2:] == ["inner out", "outer out"]


async def test_coroutines_are_left_alone() -> None:
    app = Service("shop", "memory://")

    @app.job
    async def awaited(number: int) -> int:
        return number

    async with app.worker():
        assert await (await awaited.create(1)).wait("30s") == 1
    assert seen == []


def test_without_contexts_a_handler_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_type, "_handler_contexts", [])
    assert local_type.in_handler_contexts(note) is note
