"""The commands that change jobs: what they ask, refuse, do and report."""

from __future__ import annotations

import io
import json

import pytest

from tests.cli.conftest import Run


def states(steer: Run) -> dict[str, int]:
    counts: dict[str, int] = json.loads(steer("jobs", "count", "--json").out)
    return counts


def test_a_job_named_by_id_is_changed_without_asking(steer: Run, ids: dict[str, str]) -> None:
    ran = steer("jobs", "retry", ids["failed"])
    assert (ran.code, ran.out, ran.err) == (0, "", "1 job waiting to run again.\n")
    assert "Restarts    1\n" in steer("jobs", "show", ids["failed"]).out
    again = steer("jobs", "retry", ids["failed"])
    assert again.code == 4
    assert "Retry is not possible for a job that is pending. It waits to run anyway" in again.err
    unknown = steer("jobs", "cancel", "01JCZZZZZZZZZZZZZZZZZZZZZZ")
    assert (unknown.code, "was never created here" in unknown.err) == (3, True)


def test_a_choice_is_counted_and_needs_a_yes(steer: Run, ids: dict[str, str]) -> None:
    before = states(steer)
    asked = steer("jobs", "cancel", "type:sync")
    assert (asked.code, asked.out) == (2, "")
    assert "This would cancel 3 jobs" in asked.err.replace("\n", " ")
    shown = steer("jobs", "cancel", "type:sync", "--dry-run")
    assert (shown.code, len(shown.out.splitlines())) == (0, 4)
    assert shown.err == "Would cancel 3 jobs. Nothing was done.\n"
    assert states(steer) == before
    done = steer("jobs", "cancel", "type:sync", "--yes", "--reason", "enough")
    assert (done.code, done.err) == (0, "2 jobs cancelled, 1 job asked to stop.\n")
    assert states(steer)["cancelled"] == 2
    assert steer("jobs", "cancel", "--force", ids["active"]).code == 0
    assert states(steer)["cancelled"] == 3


def test_ids_come_through_stdin(
    steer: Run, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, code in (((), 2), (("--yes",), 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{ids['failed']}\n{ids['dead']} \n"))
        ran = steer("jobs", "clone", "-", *arguments)
        assert ran.code == code
    assert len(ran.out.split()) == 2
    assert states(steer)["pending"] == 4
    assert steer("jobs", "clone", "-", "--yes").err == "No job matches; nothing to do.\n"


def test_the_result_of_each_job_is_reported(steer: Run, ids: dict[str, str]) -> None:
    ran = steer("jobs", "delete", "--json", ids["completed"], ids["waiting"])
    assert ran.code == 4
    result = json.loads(ran.out)
    assert (result["done"], result["refused"], result["ids"]) == (1, 1, [ids["completed"]])
    assert result["refusals"] == [
        {"id": ids["waiting"], "reason": "It has not ended; cancel it first."}
    ]
    gone = steer("jobs", "delete", ids["completed"], ids["failed"])
    assert gone.code == 3
    assert gone.err == "1 job deleted, 1 not found.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("jobs", "cancel"), "Which jobs?"),
        (("dlq", "replay"), "Which jobs?"),
        (("jobs", "cancel", "01JC", "type:sync"), "not both"),
        (("jobs", "cancel", "01JC", "--type", "sync"), "not both"),
        (("jobs", "cancel", "sate:failed"), "Did you mean state:...?"),
        (("jobs", "list", "failed"), "'failed' is not a filter"),
        (("jobs", "list", "--json", "--quiet"), "Use only one of"),
        (("jobs", "lst"), "Did you mean 'list'?"),
        (("wrokers",), "Did you mean 'workers'?"),
        (("keys", "--type", "sync"), "Write --type service/type"),
        (("queues", "pause", "nothing"), "Write service/queue"),
        (("jobs", "top", "--interval", "0s"), "leaves no time at all"),
    ],
)
def test_a_wrong_command_line_changes_nothing_and_says_what_is_wrong(
    steer: Run, arguments: tuple[str, ...], words: str
) -> None:
    ran = steer(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err.replace("\n", " ")
    assert states(steer)["pending"] == 2


def test_live_jobs_are_moved_to_another_queue(steer: Run, ids: dict[str, str]) -> None:
    moved = steer("jobs", "move", ids["waiting"], "--queue", "slow", "--reason", "too many")
    assert (moved.code, moved.err) == (0, "1 job moved.\n")
    page = steer("jobs", "show", ids["waiting"]).out
    assert "Queue       slow" in page
    assert "adjusted" in page
    assert "queue slow (was invoices), actor " in page
    assert "reason too many" in page
    ended = steer("jobs", "move", ids["failed"], "--queue", "slow")
    assert ended.code == 4
    assert "A change of queue, priority, due time or attempts is not possible" in ended.err
    assert f"It has ended. Run it again with: trellis jobs retry {ids['failed']}" in ended.err
    dead = steer("jobs", "move", ids["dead"], "--queue", "slow")
    assert f"It has ended. Bring it back with: trellis dlq replay {ids['dead']}" in dead.err
    wrong = steer("jobs", "move", ids["waiting"], "--queue", "a b")
    assert (wrong.code, "a b" in wrong.err) == (2, True)


def test_priority_due_time_and_attempts_of_live_jobs_are_set(
    steer: Run, ids: dict[str, str]
) -> None:
    done = steer("jobs", "set", ids["waiting"], "--priority", "3", "--attempts", "9")
    assert (done.code, done.err) == (0, "1 job changed.\n")
    later = steer("jobs", "set", ids["waiting"], "--run-at", "2h")
    assert later.code == 0
    job = json.loads(steer("jobs", "show", ids["waiting"], "--json").out)
    assert (job["priority"], job["max_attempts"]) == (3, 9)
    (attempts,) = [each for each in job["policy"] if each["name"] == "attempts"]
    assert attempts == {"name": "attempts", "value": "9", "source": "job"}
    running = steer("jobs", "set", ids["active"], "--run-at", "2h")
    assert running.code == 4
    assert "its queue, priority and attempts can change, its due time cannot" in running.err
    nothing = steer("jobs", "set", ids["waiting"])
    assert (nothing.code, "Give --priority, --run-at or --attempts" in nothing.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "--priority", "3", "--attempts", "9"), "set priority 3, attempts 9 for 2 jobs"),
        (("set", "--run-at", "2h"), "set due time 2h for 2 jobs"),
        (("move", "--queue", "slow"), "move 2 jobs to queue slow"),
    ],
)
def test_the_question_says_what_changes(steer: Run, arguments: tuple[str, ...], words: str) -> None:
    asked = steer("jobs", *arguments, "state:pending")
    assert (asked.code, f"This would {words}," in " ".join(asked.err.split())) == (2, True)
    shown = steer("jobs", *arguments, "state:pending", "--dry-run")
    assert shown.err == f"Would {words}. Nothing was done.\n"
    nothing = steer("jobs", *arguments)
    assert "since:1h, or --all." in " ".join(nothing.err.split())


def test_states_that_never_allow_a_change_are_left_out_before_anyone_is_asked(
    steer: Run, ids: dict[str, str]
) -> None:
    wrong = steer("jobs", "set", "state:failed", "--priority", "1", "--yes")
    assert (wrong.code, wrong.out) == (2, "")
    text = " ".join(wrong.err.split())
    assert "not possible for jobs that are failed, only for: active, pending, retry." in text
    assert steer("jobs", "set", "--failed", "--priority", "1").code == 2
    some = steer("jobs", "retry", "--failed", "--yes")
    assert some.code == 0
    assert some.err.splitlines()[0].endswith("Bring dead letters back with: trellis dlq replay")
    assert some.err.splitlines()[1] == "1 job waiting to run again."
    assert json.loads(steer("jobs", "show", ids["dead"], "--json").out)["state"] == "dead"


def test_every_command_says_how_jobs_are_named(steer: Run) -> None:
    for name in ("cancel", "move", "set", "retry", "clone", "delete"):
        assert "Jobs are named by id" in steer("jobs", name, "--help").out
