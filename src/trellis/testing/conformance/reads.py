"""Reads: load, find, count and journals; filters that match exactly."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Cancel, LoseLease
from trellis.core.job import JobId, NewJob
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Counts, JobFilter, Loaded, TagGroup
from trellis.testing.builders import a_job, a_job_id, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim_one,
    ids,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite


async def _found(engine: Engine, where: JobFilter) -> set[str]:
    await engine.catch_up()
    return {record.definition.id for record in (await engine.find(where)).jobs}


class TestLoad(EngineSuite):
    """A job is loaded by its id."""

    async def test_jobs_are_loaded_in_the_order_asked(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        one, two = await accept(engine, a_job(), a_job())
        asked = [two.definition.id, a_job_id(), one.definition.id, two.definition.id]
        assert await engine.load(asked) == Loaded(clock.now(), (two, None, one, two))
        assert await engine.load([]) == Loaded(clock.now(), ())

    async def test_the_engine_returns_its_time(self, engine: Engine, clock: ManualClock) -> None:
        assert await engine.now() == clock.now()
        clock.advance("1h")
        assert await engine.now() == clock.now()

    async def test_an_id_that_cannot_be_stored_is_an_id_without_a_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        one = await accept_one(engine, a_job())
        asked = [JobId("a\0b"), one.definition.id, JobId("\ud800"), JobId("ä"), JobId("")]
        assert await engine.load(asked) == Loaded(clock.now(), (None, one, None, None, None))

    async def test_a_job_that_never_was_has_no_history(self, engine: Engine) -> None:
        assert await engine.journal(a_job_id()) == []
        assert await engine.outcomes(a_job_id()) == []

    async def test_an_engine_reports_its_health(self, engine: Engine) -> None:
        health = await engine.health()
        assert health.engine
        assert health.durability


class TestFind(EngineSuite):
    """Pages of jobs, newest first, that match every part of a filter."""

    async def test_jobs_are_found_newest_first(self, engine: Engine, clock: ManualClock) -> None:
        records = await accept(engine, a_job(), a_job(priority=4), a_job())
        await engine.catch_up()
        page = await engine.find(JobFilter())
        assert list(page.jobs) == records[::-1]
        assert (page.as_of, page.next_after) == (clock.now(), None)

    async def test_pages_follow_each_other_without_gap_or_overlap(self, engine: Engine) -> None:
        records = await accept(engine, *(a_job() for _ in range(7)))
        await engine.catch_up()
        seen, after, pages = [], None, 0
        while True:
            page = await engine.find(JobFilter(), after=after, limit=3)
            seen += ids(list(page.jobs))
            pages += 1
            if page.next_after is None:
                break
            after = page.next_after
        assert seen == ids(records[::-1])
        assert pages == 3

    async def test_a_page_that_is_just_full_is_the_last(self, engine: Engine) -> None:
        await accept(engine, a_job(), a_job())
        await engine.catch_up()
        assert (await engine.find(JobFilter(), limit=2)).next_after is None

    async def test_a_job_created_while_paging_changes_no_later_page(self, engine: Engine) -> None:
        records = await accept(engine, *(a_job() for _ in range(4)))
        await engine.catch_up()
        page = await engine.find(JobFilter(), limit=2)
        await accept_one(engine, a_job())
        await engine.catch_up()
        rest = await engine.find(JobFilter(), after=page.next_after, limit=2)
        assert list(rest.jobs) == [records[1], records[0]]

    async def test_each_part_of_a_filter_matches_exactly(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        jobs: dict[str, NewJob] = {
            "plain": a_job(),
            "other service": a_job(service="depot"),
            "other type": a_job(type="refund"),
            "other queue": a_job(queue="slow"),
            "keyed": a_keyed_job("user/7", KeyPolicy("user/{id}")),
            "tagged": a_job(tags=(("team", "ops"), ("tier", "gold"))),
            "half tagged": a_job(tags=(("team", "ops"),)),
        }
        await accept(engine, *jobs.values())
        clock.advance("1h")
        jobs["late"] = a_job()
        await accept_one(engine, jobs["late"])
        late, tag = clock.now(), ("team", "ops")
        expectations: list[tuple[JobFilter, set[str]]] = [
            (JobFilter(), set(jobs)),
            (JobFilter(services=("depot",)), {"other service"}),
            (JobFilter(services=("depot", "shop")), set(jobs)),
            (JobFilter(types=("refund", "nothing")), {"other type"}),
            (JobFilter(queues=("slow",)), {"other queue"}),
            (JobFilter(key="user/7"), {"keyed"}),
            (JobFilter(key="user/8"), set()),
            (JobFilter(tags=(tag,)), {"tagged", "half tagged"}),
            (JobFilter(tags=(tag, ("tier", "gold"))), {"tagged"}),
            (JobFilter(tags=(("team", "gold"),)), set()),
            (JobFilter(created_from=late), {"late"}),
            (JobFilter(created_before=late), set(jobs) - {"late"}),
            (JobFilter(created_from=late, created_before=late), set()),
            (JobFilter(id_prefix=jobs["plain"].id), {"plain"}),
            (JobFilter(id_prefix=""), set(jobs)),
            (JobFilter(id_suffix=jobs["plain"].id), {"plain"}),
            (JobFilter(id_suffix=""), set(jobs)),
            (JobFilter(services=("shop",), types=("refund",), queues=("slow",)), set()),
        ]
        for where, names in expectations:
            assert await _found(engine, where) == {jobs[name].id for name in names}, where
            assert (await engine.count(where, "state")).total == len(names), where

    async def test_an_id_prefix_finds_what_begins_with_it_and_nothing_else(
        self, engine: Engine
    ) -> None:
        one, two = await accept(engine, a_job(id=JobId("01AB_X")), a_job(id=JobId("01ABCX")))
        assert await _found(engine, JobFilter(id_prefix="01AB")) == set(ids([one, two]))
        assert await _found(engine, JobFilter(id_prefix="01AB_")) == set(ids([one]))
        assert await _found(engine, JobFilter(id_prefix="01AB%")) == set()
        assert await _found(engine, JobFilter(id_prefix="1AB")) == set()

    async def test_an_id_suffix_finds_what_ends_with_it_and_nothing_else(
        self, engine: Engine
    ) -> None:
        one, two = await accept(engine, a_job(id=JobId("01X_AB")), a_job(id=JobId("01XCAB")))
        assert await _found(engine, JobFilter(id_suffix="AB")) == set(ids([one, two]))
        assert await _found(engine, JobFilter(id_suffix="_AB")) == set(ids([one]))
        assert await _found(engine, JobFilter(id_prefix="01X", id_suffix="CAB")) == set(ids([two]))
        for text in ("%AB", "A", "001X_AB", "ab"):
            assert await _found(engine, JobFilter(id_suffix=text)) == set(), text

    async def test_jobs_that_block_their_keys_are_found(self, engine: Engine) -> None:
        rule = KeyPolicy("{id}")
        policy = Policy(on_lost="block", key=rule)
        session = await a_session(engine)
        lost, _ = [
            await start(engine, session, a_keyed_job(key, rule, policy=policy)) for key in "ab"
        ]
        await accept_one(engine, a_job())
        assert await _found(engine, JobFilter(blocked=True)) == set()
        await settle(engine, lost, LoseLease(fence_of(lost)))
        assert await _found(engine, JobFilter(blocked=True)) == {lost.definition.id}
        assert await _found(engine, JobFilter(blocked=True, states=(State.RETRY,))) == set()

    async def test_values_in_a_filter_are_only_values(self, engine: Engine) -> None:
        odd = "x' or '1'='1"
        record = await accept_one(engine, a_job(tags=((odd, odd), ('a"b', "c\\d"))))
        await accept_one(engine, a_job())
        for where in (JobFilter(tags=((odd, odd),)), JobFilter(tags=(('a"b', "c\\d"),))):
            assert await _found(engine, where) == set(ids([record]))
        for where in (JobFilter(types=(odd,)), JobFilter(key=odd), JobFilter(id_prefix=odd)):
            assert await _found(engine, where) == set()

    async def test_jobs_are_found_by_the_state_they_are_in_now(self, engine: Engine) -> None:
        session = await a_session(engine)
        done = await start(engine, session, a_job())
        await settle(engine, done, complete(done))
        running = await start(engine, session, a_job())
        cancelled = await accept_one(engine, a_job())
        await settle(engine, cancelled, Cancel())
        waiting = await accept_one(engine, a_job())
        for state, record in (
            (State.COMPLETED, done),
            (State.ACTIVE, running),
            (State.CANCELLED, cancelled),
            (State.PENDING, waiting),
        ):
            assert await _found(engine, JobFilter(states=(state,))) == set(ids([record]))
        both = JobFilter(states=(State.ACTIVE, State.PENDING))
        assert await _found(engine, both) == set(ids([running, waiting]))

    async def test_what_is_found_is_what_is_loaded(self, engine: Engine) -> None:
        await accept(engine, a_job(), a_job(tags=(("a", "b"),)))
        await claim_one(engine, await a_session(engine))
        await engine.catch_up()
        for record in (await engine.find(JobFilter())).jobs:
            assert record == await the(engine, record.definition.id)


class TestCount(EngineSuite):
    """Counts per combination of state, type, queue, service and error."""

    async def test_jobs_are_counted_per_group(self, engine: Engine, clock: ManualClock) -> None:
        await accept(
            engine,
            a_job(),
            a_job(),
            a_job(type="refund", queue="slow"),
            a_job(service="depot"),
        )
        await claim_one(engine, await a_session(engine))
        await engine.catch_up()
        now = clock.now()
        anything = JobFilter()
        counted = await engine.count(anything, "state")
        assert counted == Counts(now, {("active",): 1, ("pending",): 3})
        assert counted.groups == {"active": 1, "pending": 3}
        assert (await engine.count(anything, "type")).groups == {"invoice": 3, "refund": 1}
        assert (await engine.count(anything, "queue")).groups == {"invoices": 3, "slow": 1}
        assert (await engine.count(anything, "service")).groups == {"shop": 3, "depot": 1}

    async def test_jobs_are_counted_by_the_value_of_a_tag(self, engine: Engine) -> None:
        names = ('a "b".c', "d")
        for number, name in enumerate((*names, names[0])):
            await accept_one(engine, a_job(tags=((name, "x"), ("number", str(number)))))
        await accept_one(engine, a_job())
        await engine.catch_up()
        counted = await engine.count(JobFilter(), TagGroup(names[0]))
        assert counted.groups == {"": 2, "x": 2}
        where = JobFilter(tags=((names[0], "x"),))
        pairs = await engine.count(where, "service", TagGroup("number"), TagGroup("d"))
        assert pairs.combinations == {("shop", "0", ""): 1, ("shop", "2", ""): 1}

    async def test_jobs_are_counted_per_combination_of_groups(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await accept(engine, a_job(), a_job(), a_job(type="refund"), a_job(service="depot"))
        await claim_one(engine, await a_session(engine))
        await engine.catch_up()
        counted = await engine.count(JobFilter(), "service", "type", "state")
        assert counted.as_of == clock.now()
        assert list(counted.combinations.items()) == [
            (("depot", "invoice", "pending"), 1),
            (("shop", "invoice", "active"), 1),
            (("shop", "invoice", "pending"), 1),
            (("shop", "refund", "pending"), 1),
        ]
        where = JobFilter(services=("depot",))
        assert (await engine.count(where, "state")).combinations == {("pending",): 1}
        assert (await engine.count(JobFilter(types=("x",)), "type", "queue")).combinations == {}

    async def test_only_matching_jobs_are_counted(self, engine: Engine) -> None:
        await accept(engine, a_job(), a_job(type="refund"))
        await engine.catch_up()
        where = JobFilter(types=("refund",))
        assert (await engine.count(where, "state")).groups == {"pending": 1}
        assert (await engine.count(JobFilter(types=("x",)), "state")).groups == {}

    async def test_without_a_group_all_jobs_are_counted_together(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await accept(engine, a_job(), a_job(type="refund"), a_job(service="depot"))
        await engine.catch_up()
        assert await engine.count(JobFilter()) == Counts(clock.now(), {(): 3})
        assert await engine.count(JobFilter(types=("refund",))) == Counts(clock.now(), {(): 1})
        assert await engine.count(JobFilter(types=("x",))) == Counts(clock.now(), {(): 0})
