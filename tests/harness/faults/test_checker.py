"""The checker itself: it refuses bad histories by the right rule and accepts the repaired ones."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.harness.faults import checker
from tests.harness.faults.checker import check
from tests.harness.faults.checker.causes import second_starts
from tests.harness.faults.checker.conservation import sort_requests
from tests.harness.faults.checker.keys import overlap_causes
from tests.harness.faults.checker.sometimes import (
    GUARDIAN_KILLS,
    KILLS,
    STUCK,
    TAKEOVERS,
    ZOMBIES,
    count_sometimes,
)
from tests.harness.faults.stories import of_jobs, of_rules, of_servers
from tests.harness.faults.stories.language import Story, tell

STORIES = (*of_jobs.STORIES, *of_rules.STORIES, *of_servers.STORIES)
every_story = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.title)


@every_story
def test_a_bad_history_is_refused_by_its_rule_with_a_witness(story: Story) -> None:
    broken = [each for each in check(story.bad) if each.rule == story.rule]
    assert broken
    assert all(each.text and str(each).startswith(story.rule) for each in broken)


@every_story
def test_its_repaired_twin_is_accepted(story: Story) -> None:
    assert [str(each) for each in check(story.good)] == []


def test_every_rule_is_broken_in_at_least_two_ways() -> None:
    ways = Counter(story.rule for story in STORIES)
    assert len(ways) == len(checker.RULES)
    assert min(ways.values()) >= 2


def test_the_checker_does_not_import_what_it_judges() -> None:
    for path in Path(*checker.__path__).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not any(name.split(".")[0] == "trellis" for name in names), path


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


ZOMBIE = lines("""
    job J key=k
    job K key=k
    J created @0
    K created @0
    J started a1 @1
    J retry a1 @30 error=lease_lost
    K started b1 @31
    K completed b1 @50
    J late a1 @42
    J started b2 @51
    J completed b2 @60
    run J a1 2..41 in 7
    run K b1 32..49 in 8
    fault stop 7 @5..40
""")


def test_an_overlap_after_the_first_attempt_has_ended_is_counted_by_cause() -> None:
    assert check(tell(ZOMBIE)) == []
    assert overlap_causes(tell(ZOMBIE)) == {"ran on after stop": 1}
    assert second_starts(tell(ZOMBIE)) == {"lease lost after stop": 1}


def test_a_zombie_that_begins_what_it_has_lost_is_counted_too() -> None:
    late = tell([line.replace("run J a1 2..41", "run J a1 40..41") for line in ZOMBIE])
    assert check(late) == []
    assert overlap_causes(late) == {"began what it had lost after stop": 1}


def test_a_zombie_counts_when_its_late_result_was_refused() -> None:
    assert count_sometimes(tell(ZOMBIE))[ZOMBIES] == 1
    unheard = [line for line in ZOMBIE if "late" not in line]
    assert count_sometimes(tell(unheard))[ZOMBIES] == 0


def test_a_keyed_job_that_another_session_starts_again_is_a_takeover() -> None:
    assert count_sometimes(tell(ZOMBIE))[TAKEOVERS] == 1
    by_itself = [line.replace("b2", "a2") for line in ZOMBIE]
    assert count_sometimes(tell(by_itself))[TAKEOVERS] == 0


@pytest.mark.parametrize(("run", "counted"), [("2.. in 7", 1), ("2..9 in 7", 1), ("2..4 in 7", 0)])
def test_a_kill_counts_when_work_was_in_flight(run: str, counted: int) -> None:
    told = tell([f"run J a1 {run}", "fault kill 7 @5"])
    assert count_sometimes(told)[KILLS] == counted


@pytest.mark.parametrize(
    ("run", "target", "counted"),
    [("2.. in 7", "guardian", 1), ("2..4 in 7", "guardian", 0), ("2.. in 7", "group", 0)],
)
def test_a_kill_of_a_guardian_counts_when_a_child_of_it_had_work(
    run: str, target: str, counted: int
) -> None:
    told = tell([f"run J a1 {run}", f"fault kill 7 @5 target={target}"])
    assert count_sometimes(told)[GUARDIAN_KILLS] == counted


@pytest.mark.parametrize(("run", "counted"), [("2.. in 7", 1), ("2..9 in 7", 0), ("2.. in 8", 0)])
def test_a_sigterm_counts_when_a_handler_was_stuck_in_it(run: str, counted: int) -> None:
    told = tell([f"run J a1 {run} kind=stuck", "fault term 7 @5..20 grace=10"])
    assert count_sometimes(told)[STUCK] == counted


def test_requests_are_sorted_by_what_was_told_and_what_is_there() -> None:
    told = tell(
        lines("""
        ask J K @0
        ask L M @0 unheard
        J created @0
        L created @0
    """)
    )
    assert sort_requests(told) == {"ok": 1, "lost": 1, "recovered": 1, "unknown": 1}
