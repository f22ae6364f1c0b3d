"""The check of recorded intervals finds exactly the jobs that were stranded."""

from __future__ import annotations

from typing import Final

from tests.worker.waiting_times import Stranded, Work, Worker, stranded

ANY: Final = frozenset({"slow", "quick"})
ONE: Final = Worker("one", 1, ANY, 0, 1000)
TWO: Final = Worker("two", 1, ANY, 0, 1000)
PATIENCE: Final = 10


def test_jobs_that_take_turns_in_every_slot_there_is_are_not_stranded() -> None:
    done = [
        Work("a", "slow", 0, "one", 1, 100),
        Work("b", "slow", 0, "two", 2, 90),
        Work("c", "slow", 0, "two", 95, 200),
        Work("d", "slow", 0, "one", 105, 190),
    ]
    assert stranded([ONE, TWO], done, PATIENCE) == []


def test_a_job_in_the_line_of_a_busy_worker_is_stranded_while_another_is_free() -> None:
    done = [Work("a", "slow", 0, "one", 1, 100), Work("b", "slow", 0, "one", 101, 200)]
    assert stranded([ONE, TWO], done, PATIENCE) == [Stranded("b", 0, 101, ("one", "two"))]
    assert stranded([ONE], done, PATIENCE) == []


def test_so_is_one_that_nobody_claims_although_a_second_slot_is_free() -> None:
    pair = Worker("one", 2, ANY, 0, 1000)
    done = [Work("a", "slow", 0, "one", 1, 100), Work("b", "slow", 20, "one", 101, 200)]
    assert stranded([pair], done, PATIENCE) == [Stranded("b", 20, 101, ("one",))]


def test_it_is_the_unbroken_time_that_counts_and_not_its_sum() -> None:
    busy = [Work(f"{at}", "slow", at, "one", at, at + 95) for at in range(0, 500, 100)]
    waits = Work("x", "slow", 0, "one", 500, 510)
    assert stranded([ONE], [*busy, waits], PATIENCE) == []
    assert stranded([ONE], [*busy, waits], 4) == [Stranded("x", 95, 100, ("one",))]


def test_the_patience_may_be_used_up_but_not_a_moment_more() -> None:
    for began, is_late in ((10, False), (11, True)):
        done = [Work("a", "slow", 0, "one", began, 100)]
        assert bool(stranded([ONE], done, PATIENCE)) is is_late


def test_a_slot_that_cannot_run_the_type_is_not_free_for_it() -> None:
    other = Worker("two", 1, frozenset({"quick"}), 0, 1000)
    done = [Work("a", "slow", 0, "one", 1, 100), Work("b", "slow", 0, "one", 101, 200)]
    assert stranded([ONE, other], done, PATIENCE) == []
    done = [Work("a", "slow", 0, "one", 1, 100), Work("b", "quick", 0, "one", 101, 200)]
    assert [each.free for each in stranded([ONE, other], done, PATIENCE)] == [("one", "two")]


def test_a_worker_that_is_not_there_yet_or_any_more_is_not_free() -> None:
    done = [Work("a", "slow", 0, "one", 1, 100), Work("b", "slow", 0, "one", 101, 200)]
    for absent in (TWO._replace(since=95), TWO._replace(until=5)):
        assert stranded([ONE, absent], done, PATIENCE) == []


def test_nobody_waits_before_he_is_due() -> None:
    assert stranded([ONE, TWO], [Work("a", "slow", 500, "one", 505, 600)], PATIENCE) == []


def test_time_in_which_nothing_could_move_is_nobodys_fault() -> None:
    done = [Work("a", "slow", 0, "one", 30, 100)]
    assert stranded([ONE], done, PATIENCE, [(5, 25)]) == []
    assert stranded([ONE], done, PATIENCE, [(5, 15)]) == [Stranded("a", 15, 30, ("one",))]
