"""The commands that change jobs: what they ask, refuse, do and say."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.shop import make_shop


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("shop")
    return folder, make_shop(folder)


@pytest.fixture
def ids(made: tuple[Path, dict[str, str]], tmp_path: Path) -> dict[str, str]:
    """A shop of its own for each test: copied, because making one takes longer."""
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    return made[1]


@pytest.fixture
def steer(
    command: Run, tmp_path: Path, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    monkeypatch.setenv("TRELLIS_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return command


def states(steer: Run) -> dict[str, int]:
    counts: dict[str, int] = json.loads(steer("jobs", "count", "--json").out)
    return counts


def test_a_named_job_is_steered_without_asking(steer: Run, ids: dict[str, str]) -> None:
    ran = steer("jobs", "retry", ids["failed"])
    assert (ran.code, ran.out, ran.err) == (0, "", "1 job waiting to run again.\n")
    assert "Restarts    1\n" in steer("jobs", "show", ids["failed"]).out
    again = steer("jobs", "retry", ids["failed"])
    assert again.code == 4
    assert "Retry is not possible for a job that is pending. It waits to run anyway" in again.err
    nobody = steer("jobs", "cancel", "01JCZZZZZZZZZZZZZZZZZZZZZZ")
    assert (nobody.code, "was never created here" in nobody.err) == (3, True)


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


def test_what_became_of_each_is_told(steer: Run, ids: dict[str, str]) -> None:
    ran = steer("jobs", "delete", "--json", ids["completed"], ids["waiting"])
    assert ran.code == 4
    told = json.loads(ran.out)
    assert (told["done"], told["refused"], told["ids"]) == (1, 1, [ids["completed"]])
    assert told["refusals"] == [
        {"id": ids["waiting"], "reason": "It has not ended; cancel it first."}
    ]
    gone = steer("jobs", "delete", ids["completed"], ids["failed"])
    assert gone.code == 3
    assert gone.err == "1 job deleted, 1 not found.\n"


def test_dead_letters_are_replayed_and_dismissed(steer: Run, ids: dict[str, str]) -> None:
    assert steer("dlq", "replay", "type:sync", "-y", "-q").out.split() == [ids["dead"]]
    assert steer("dlq", "dismiss", "--all", "-y").err == "No job matches; nothing to do.\n"
    wrong = steer("dlq", "replay", "state:failed", "-y")
    assert (wrong.code, "handles dead jobs only" in wrong.err) == (2, True)
    assert steer("dlq", "list", "state:failed").code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("jobs", "cancel"), "Which jobs?"),
        (("dlq", "replay"), "Which jobs?"),
        (("jobs", "cancel", "01JC", "type:sync"), "not both"),
        (("jobs", "cancel", "01JC", "--type", "sync"), "not both"),
        (("jobs", "cancel", "sate:failed"), "Did you mean state:...?"),
        (("jobs", "list", "failed"), "'failed' is no filter"),
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


def test_queues_and_workers_are_steered(steer: Run) -> None:
    ran = steer("queues", "pause", "shop/invoices")
    assert ran.err == "Queue shop/invoices is paused; 3 jobs waiting there.\n"
    assert "paused" in steer("queues").out
    assert "No job of shop/typo is stored" in steer("queues", "drain", "shop/typo").err
    assert (
        json.loads(steer("queues", "resume", "shop/invoices", "--json").out)[0]["paused"] is False
    )
    assert "was asked to finish its jobs and end" in steer("workers", "drain", "berlin").err
    assert "draining" in steer("workers").out
    assert steer("workers", "drain", "paris").code == 3


def test_a_key_that_is_not_blocked_is_not_released(steer: Run, ids: dict[str, str]) -> None:
    ran = steer("keys", "release", "eu")
    assert ran.code == 4
    assert f"trellis jobs cancel {ids['active']}" in ran.err
    assert steer("keys", "release", "asia").code == 3
