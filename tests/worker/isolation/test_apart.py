"""Types that run apart: which can, for how long, and how many slots their attempts may take."""

from __future__ import annotations

import asyncio

import pytest

from tests.harness import hostile_jobs
from tests.worker.faulty import eventually
from trellis import Service
from trellis.declaration.imports import importable
from trellis.worker.isolation.apart import ApartTypes
from trellis.worker.isolation.pool import _MOST_STARTING, HandlerPool, NotStarted
from trellis.worker.local_type import LocalType

SLOTS = 10


@pytest.fixture
def poison() -> LocalType:
    return LocalType(hostile_jobs.poison.job_type)


async def test_a_type_runs_apart_in_half_of_the_slots_until_it_is_replaced(
    poison: LocalType,
) -> None:
    apart = ApartTypes([poison], {}, SLOTS)
    apart.add_crash(poison)
    assert (poison.in_process, poison.limit) == (True, 5)
    assert apart.crashed.get_nowait() == "hostile/poison"
    apart.replace({"hostile/poison": 60.0, "hostile/unknown": 60.0})
    assert poison.in_process
    apart.replace({})
    assert (poison.in_process, poison.limit) == (False, None)


async def test_it_ends_after_its_time(poison: LocalType) -> None:
    ApartTypes([poison], {}, SLOTS).replace({"hostile/poison": 0.01})
    assert poison.in_process
    await eventually(lambda: not poison.in_process)


async def test_a_handler_that_no_other_process_can_import_stays() -> None:
    @Service("here").job
    def inner(number: int) -> None: ...

    local_type = LocalType(inner.job_type)
    ApartTypes([local_type], {}, SLOTS).add_crash(local_type)
    assert (local_type.in_process, local_type.limit) == (False, None)


async def test_few_processes_start_at_a_time_and_an_idle_one_is_used_instead() -> None:
    name = importable(hostile_jobs.quick.job_type)
    pool, wanted = HandlerPool(SLOTS), _MOST_STARTING + 2
    taking = [asyncio.create_task(pool.take(name, fresh=False)) for _ in range(wanted)]
    await asyncio.sleep(0)
    assert len(pool._living) == _MOST_STARTING
    used = []
    for taken in asyncio.as_completed(taking):
        used.append(await taken)
        pool.give_back(used[-1])
    assert len(set(used)) < wanted
    await pool.close()


async def test_a_pool_that_closes_starts_no_process_for_those_that_wait() -> None:
    name, pool = importable(hostile_jobs.quick.job_type), HandlerPool(SLOTS)
    taking = [asyncio.create_task(pool.take(name, fresh=True)) for _ in range(_MOST_STARTING + 1)]
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(NotStarted):
        await taking[-1]
    await asyncio.gather(*taking, return_exceptions=True)
