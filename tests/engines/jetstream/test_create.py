"""Creations that need more messages than one write may have."""

from __future__ import annotations

import pytest

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.job import NewJob, Prerequisite
from trellis.core.states import State
from trellis.engines.values import Accepted
from trellis.errors import CapabilityMissing
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept


def a_chain(length: int) -> list[NewJob]:
    """Return jobs that follow each other, to be stored together."""
    jobs = [a_job()]
    for _ in range(length - 1):
        jobs.append(a_job(after=(Prerequisite(jobs[-1].id),)))
    return [new._replace(together=True) for new in jobs]


async def test_the_longest_chain_is_stored_and_a_longer_one_is_refused_whole(
    engine: ManualEngine,
) -> None:
    assert {type(each) for each in await engine.create(a_chain(250))} == {Accepted}
    jobs = a_chain(251)
    with pytest.raises(CapabilityMissing, match="Nothing was stored"):
        await engine.create(jobs)
    assert {*(await engine.load([new.id for new in jobs])).records} == {None}


async def test_jobs_that_wait_for_many_others_are_stored_in_several_writes(
    engine: ManualEngine,
) -> None:
    others = [new.definition.id for new in await accept(engine, *(a_job() for _ in range(600)))]
    waiting = [
        a_job(after=tuple(map(Prerequisite, others[start : start + 10])))
        for start in range(0, 600, 10)
    ]
    assert {type(each) for each in await engine.create(waiting)} == {Accepted}
    for new in waiting:
        found = await engine.load([new.id])
        assert found.records[0] is not None
        assert found.records[0].head.state is State.PENDING
