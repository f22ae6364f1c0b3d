"""The operator's view for programs without an event loop."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

import trellis
from trellis import Operator, Service, State
from trellis.errors import CalledFromLoop
from trellis.operations.selection import Found


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    greet = Service("shop", url).declare("greet", payload=int, result=int)

    async def create() -> None:
        await greet.create_many(range(3))

    asyncio.run(create())
    return url


def test_plain_functions_look_and_steer_too(url: str) -> None:
    with trellis.connect(url) as jobs:
        assert [job.payload for job in jobs.find(type="greet")] == [2, 1, 0]
        first = jobs.find().page_sync(limit=1).jobs[0]
        assert jobs.cancel_sync(first.id).state is State.CANCELLED
        assert list(jobs.logs_sync(first.id)) == []
        assert jobs.find().cancel_sync().done == 2
        assert jobs.count_sync() == {"cancelled": 3}


async def test_a_running_loop_is_not_blocked(url: str) -> None:
    with pytest.raises(CalledFromLoop), trellis.connect(url):
        pass


@pytest.mark.parametrize("kind", [Operator, Found])
def test_every_asynchronous_method_has_a_twin(kind: type) -> None:
    methods = dict(inspect.getmembers(kind, inspect.isfunction))
    asynchronous = {
        name
        for name, method in methods.items()
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if not name.startswith("_") and not name.endswith("_sync")
    }
    assert {f"{name}_sync" for name in asynchronous} <= set(methods)
