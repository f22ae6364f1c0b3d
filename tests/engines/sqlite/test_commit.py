"""Jobs that are claimed and completed by the hundred are stored as if they came one by one."""

from __future__ import annotations

import pytest

from trellis.core.commands import Cancel, Command, Complete, Fail
from trellis.core.durations import SECOND
from trellis.core.fold import fold
from trellis.core.job import Context, Failure, JobRecord, NewJob
from trellis.core.lifecycle import Transition, decide
from trellis.core.states import State
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Committed, Conflict
from trellis.testing.builders import a_demand, a_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept, claim, journal, the


async def claimed(engine: SqliteEngine, *jobs: NewJob) -> list[JobRecord]:
    await engine.create(jobs)
    demand = a_demand(limit=len(jobs))
    return await claim(engine, await a_session(engine), demand, limit=len(jobs))


def decided(record: JobRecord, command: Command, at: int) -> Transition:
    decision = decide(record, command, at)
    assert isinstance(decision, Transition)
    return decision


async def check_stored(engine: SqliteEngine, transition: Transition) -> None:
    record = await the(engine, transition.definition.id)
    assert record.head == transition.head
    assert fold(await journal(engine, record)) == transition.head
    assert (await journal(engine, record))[-1] == transition.event


async def test_a_claim_brings_every_job_as_it_was_created(engine: SqliteEngine) -> None:
    jobs = [
        a_job(),
        a_job(payload='{"name":"Zoë 🌱","quote":"\\"\\u001e"}'),
        a_job(payload="null", tags=(("a", "b"),), config='{"x":1}', expect="hash"),
        a_job(context=Context("", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "vendor=1,other=2")),
        a_job(deadline_in=60 * SECOND),
        a_job(payload='["last"]'),
    ]
    await accept(engine, *jobs)
    taken = await claim(engine, await a_session(engine))
    assert [record.definition.payload for record in taken] == [new.payload for new in jobs]
    assert taken == [await the(engine, new.id) for new in jobs]
    assert len({fence_of(record) for record in taken}) == len(jobs)


async def test_outcomes_of_every_kind_may_come_in_one_call(engine: SqliteEngine) -> None:
    records = await claimed(engine, *(a_job() for _ in range(7)))
    at = await engine.now()
    fences = [fence_of(record) for record in records]
    commands: list[Command] = [
        Complete(fences[0], '"partly"', 3, at),
        Complete(fences[1], '{"ok":true}', 0, at),
        Complete(fences[2], None, 0, at),
        Fail(fences[3], Failure("exception", "no")),
        Complete(fences[4], None),
        Complete(fences[5], "1", 0, at),
    ]
    transitions = [decided(*each, at) for each in zip(records, commands, strict=False)]
    transitions.append(decided(records[6], Complete(fences[6], "2", 0, at), at + 1))
    assert await engine.commit(transitions) == [Committed()] * 7
    for transition in transitions:
        await check_stored(engine, transition)
    results = [(await engine.outcomes(each.definition.id))[-1:] for each in records]
    assert [[each.result for each in ended] for ended in results] == [
        ['"partly"'], ['{"ok":true}'], [None], [], [None], ["1"], ["2"],
    ]  # fmt: skip


async def test_stale_results_among_many_are_refused_alone(engine: SqliteEngine) -> None:
    records = await claimed(engine, *(a_job() for _ in range(30)))
    at = await engine.now()
    transitions = [decided(each, Complete(fence_of(each), None, 0, at), at) for each in records]
    asked = decided(records[7], Cancel(), at)
    await engine.commit([transitions[11], asked])
    # Each half has another kind of stale result: one of a changed job, one of an ended job.
    answers = [*await engine.commit(transitions[:10]), *await engine.commit(transitions[10:])]
    assert [place for place, each in enumerate(answers) if isinstance(each, Conflict)] == [7, 11]
    for transition in (*transitions[:7], asked, *transitions[8:]):
        await check_stored(engine, transition)
        assert len(await journal(engine, JobRecord(transition.definition, transition.before))) == 3


async def test_the_same_result_twice_in_one_call_counts_once(engine: SqliteEngine) -> None:
    records = await claimed(engine, a_job(), a_job())
    at = await engine.now()
    one, two = (decided(each, Complete(fence_of(each), None, 0, at), at) for each in records)
    answers = await engine.commit([one, two, one])
    assert [type(each) for each in answers] == [Committed, Committed, Conflict]
    await check_stored(engine, one)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 65, 512, 513, 600])
async def test_any_number_of_jobs_completes(engine: SqliteEngine, count: int) -> None:
    records = await claimed(engine, *(a_job() for _ in range(count)))
    assert len(records) == count
    at = await engine.now()
    transitions = [
        decided(each, Complete(fence_of(each), "1" if each.definition.row % 7 else None, 0, at), at)
        for each in records
    ]
    assert await engine.commit(transitions) == [Committed()] * count
    loaded = await engine.load([each.definition.id for each in records])
    assert {each.head.state for each in loaded.records if each} == {State.COMPLETED}
    await check_stored(engine, transitions[-1])
