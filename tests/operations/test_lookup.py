"""Short ids of jobs and names of workers."""

from __future__ import annotations

import pytest

from trellis import AmbiguousId, JobNotFound, Operator
from trellis.core.job import JobId
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError, WorkerNotFound
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import a_session, accept, accept_one


async def test_the_beginning_of_an_id_is_enough_while_it_is_unique(
    jobs: Operator, engine: Engine
) -> None:
    first = JobId("01JCAAAAAAAAAAAAAAAAAAAAAA")
    await accept(engine, a_job(id=first), a_job(id=JobId("01JCBBBBBBBBBBBBBBBBBBBBBB")))
    assert (await jobs.get("01jca")).id == first
    with pytest.raises(AmbiguousId, match=r"several ids: 01JCBB.*, 01JCAA.*Write more") as refusal:
        await jobs.get("01JC")
    assert len(refusal.value.candidates) == 2
    with pytest.raises(JobNotFound, match="No job has an id that begins or ends with '01K'"):
        await jobs.get("01K")
    with pytest.raises(JobNotFound, match="never created here"):
        await jobs.get("01JCZZZZZZZZZZZZZZZZZZZZZZ")
    for text in ("", "a\0b", "\ud800", "ä" * 26):
        with pytest.raises(JobNotFound):
            await jobs.get(text)
    with pytest.raises(ConfigurationError, match="id=5 is not a text"):
        await jobs.get(5)  # type: ignore[arg-type]


async def test_the_end_of_an_id_is_enough_while_no_other_begins_or_ends_with_it(
    jobs: Operator, engine: Engine
) -> None:
    first = JobId("01JCAAAAAAAAAAAAAAAAAAAAX7")
    await accept(
        engine,
        a_job(id=first),
        a_job(id=JobId("01JCAAAAAAAAAAAAAAAAAAAAX8")),
        a_job(id=JobId("X8JCAAAAAAAAAAAAAAAAAAAAAA")),
    )
    assert (await jobs.get("x7")).id == first
    assert (await jobs.get("01JCAAAAAAAAAAAAAAAAAAAAX7")).id == first
    with pytest.raises(AmbiguousId, match="'X8' is the beginning or the end of several") as refusal:
        await jobs.get("X8")
    assert len(refusal.value.candidates) == 2


async def test_a_removed_job_is_distinguished_from_one_that_never_was(
    jobs: Operator, engine: Engine
) -> None:
    record = await accept_one(engine, a_job())
    await jobs.cancel(record.definition.id)
    await jobs.delete(record.definition.id)
    with pytest.raises(JobNotFound, match="existed and was removed"):
        await jobs.get(record.definition.id)


async def test_two_workers_of_one_name_are_distinguished_by_their_ids(
    jobs: Operator, engine: Engine
) -> None:
    await a_session(engine)
    await a_session(engine)
    with pytest.raises(WorkerNotFound, match="matches several workers"):
        await jobs.drain("worker-1")
