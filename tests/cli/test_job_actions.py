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
    assert (done.code, done.err) == (0, "3 jobs cancelled or asked to stop.\n")
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
