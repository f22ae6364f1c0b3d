"""`trellis audit`, and the audit of every command that changes something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import rich_click as click

from tests.cli.conftest import Run
from trellis.cli.app import trellis

WHY: Final = "too many"

#: The command lines that change something; words in braces are ids of the shop's jobs. Each leaves
#: one entry with this action. A new command that takes --reason belongs here.
CHANGES: Final = {
    "jobs cancel": ("jobs cancel {waiting}", "job.cancel"),
    "jobs move": ("jobs move {waiting} --queue slow", "job.set"),
    "jobs set": ("jobs set {waiting} --priority 2", "job.set"),
    "jobs retry": ("jobs retry {failed}", "job.retry"),
    "jobs clone": ("jobs clone {completed}", "job.clone"),
    "jobs delete": ("jobs delete {completed}", "job.delete"),
    "dlq replay": ("dlq replay {dead}", "job.replay"),
    "dlq dismiss": ("dlq dismiss {dead}", "job.dismiss"),
    "workers drain": ("workers drain berlin", "worker.drain"),
    "queues pause": ("queues pause shop/mails", "queue.pause"),
    "queues drain": ("queues drain shop/mails", "queue.drain"),
    "queues set": ("queues set shop/bill --concurrency 3", "queue.limit"),
    "queues aging": ("queues aging 10m", "queue.aging"),
    "drain on": ("drain on", "drain.on"),
}
#: The same, with what must be done before.
CHANGES_AFTER: Final = {
    "queues resume": ("queues pause shop/mails", "queues resume shop/mails", "queue.resume"),
    "drain off": ("drain on", "drain off", "drain.off"),
}
#: Commands with --reason whose entry another test shows.
ELSEWHERE: Final = {
    "keys release": "tests/operations/test_audit.py: no job of the shop blocks its key",
    "migrate": "test_a_migration_leaves_one_entry",
    "move": "tests/engines/postgres/test_moving.py",
    "queues accept": "tests/operations/test_contracts.py",
    **dict.fromkeys(("tokens create", "tokens revoke"), "conformance/tokens.py"),
    **dict.fromkeys(
        (
            "archive on", "archive off", "batches seal", "batches cancel", "batches retry-failed",
            "schedules pause", "schedules resume", "schedules set", "schedules reset",
            "schedules run", "schedules window add", "schedules window remove",
        ),
        "tests/operations/test_audit.py",
    ),
}  # fmt: skip
#: Commands that change nothing that is stored, create jobs as programs do, or let a browser in.
WITHOUT_ENTRY: Final = frozenset(
    {
        "demo", "worker", "serve", "tokens list", "tokens login",
        "enqueue", "jobs list", "jobs show", "jobs why", "jobs logs",
        "jobs graph", "jobs items", "jobs wait", "jobs top", "jobs count", "jobs follow",
        "dlq list", "keys list", "keys show", "workers list", "queues list", "queues limits",
        "drain status", "audit list", "audit show", "locks",
        "contract list", "contract show", "contract export", "contract import", "queues plan",
        "doctor", "completion", "schedules list", "schedules show", "schedules slots",
        "batches list", "batches show", "archive list", "jobs serve", "jobs rebuild",
        "nats permissions",
    }
)  # fmt: skip


def _commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        whole = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from _commands(command, whole)
        elif command is not None:
            yield whole, command


def test_every_command_that_changes_something_takes_a_reason_and_is_tested() -> None:
    found = dict(_commands(trellis))
    with_reason = {
        path
        for path, command in found.items()
        if any("--reason" in parameter.opts for parameter in command.params)
    }
    assert with_reason == {*CHANGES, *CHANGES_AFTER, *ELSEWHERE}
    assert found.keys() - with_reason == WITHOUT_ENTRY


@pytest.fixture(autouse=True)
def actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_ACTOR", "zoe")


def _entries(run: Run) -> list[dict[str, object]]:
    listed = run("audit", "list", "--json")
    found: list[dict[str, object]] = json.loads(listed.out)
    return found


@pytest.mark.parametrize(("line", "action"), CHANGES.values(), ids=[*CHANGES])
def test_a_command_leaves_one_entry(
    line: str, action: str, steer: Run, ids: dict[str, str]
) -> None:
    assert steer(*line.format(**ids).split(), "--reason", WHY).code == 0
    (entry,) = _entries(steer)
    assert (entry["actor"], entry["action"], entry["reason"]) == ("zoe", action, WHY)


@pytest.mark.parametrize(("first", "line", "action"), CHANGES_AFTER.values(), ids=[*CHANGES_AFTER])
def test_a_command_that_undoes_another_leaves_one_more(
    first: str, line: str, action: str, steer: Run
) -> None:
    steer(*first.split())
    assert steer(*line.split(), "--reason", WHY).code == 0
    last, _ = _entries(steer)
    assert (last["action"], last["reason"]) == (action, WHY)


def test_a_migration_leaves_one_entry(command: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    for _ in range(2):
        assert command("migrate", "--url", url, "--reason", WHY).code == 0
    (entry,) = json.loads(command("audit", "--json", "--url", url).out)
    assert (entry["action"], entry["actor"], entry["reason"]) == ("schema.migrate", "zoe", WHY)
    assert entry["before"] == {"version": 0}


def test_a_refused_command_leaves_none(steer: Run, ids: dict[str, str]) -> None:
    assert steer("jobs", "retry", ids["waiting"]).code == 4
    assert steer("jobs", "delete", ids["waiting"]).code == 4
    assert steer("jobs", "cancel", "--all", "--dry-run").code == 0
    assert _entries(steer) == []


def test_without_a_reason_nothing_is_changed_where_one_is_required(
    steer: Run, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_REQUIRE_REASON", "true")
    for line, _ in CHANGES.values():
        refused = steer(*line.format(**ids).split())
        assert (refused.code, refused.out) == (2, "")
        assert "Nothing was done" in refused.err.replace("\n", " ")
    assert _entries(steer) == []
    assert steer("jobs", "cancel", ids["waiting"], "--dry-run").code == 0
    assert steer("jobs", "cancel", ids["waiting"], "--reason", WHY).code == 0
    monkeypatch.setenv("TRELLIS_REQUIRE_REASON", "perhaps")
    wrong = steer("jobs", "cancel", ids["held"])
    assert (wrong.code, "true or false" in wrong.err) == (2, True)


def test_the_setting_may_be_in_the_file(
    steer: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRELLIS_ACTOR")
    (tmp_path / "trellis.toml").write_text('require_reason = true\nactor = "night shift"\n')
    monkeypatch.chdir(tmp_path)
    assert steer("queues", "pause", "shop/mails").code == 2
    assert steer("queues", "pause", "shop/mails", "--reason", WHY).code == 0
    assert [each["actor"] for each in _entries(steer)] == ["night shift"]


def test_the_list_says_who_changed_what_and_why(steer: Run, ids: dict[str, str]) -> None:
    assert steer("audit").err == "No operator has changed anything that matches.\n"
    steer("jobs", "move", ids["waiting"], "--queue", "slow", "--reason", "a \x1b[2J\u202eb")
    steer("queues", "pause", "shop/mails")
    header, last, first = steer("audit").out.splitlines()
    assert header.split() == ["NUMBER", "WHEN", "WHO", "WHAT", "TARGET", "CHANGE", "REASON"]
    assert last.split()[3:] == [
        "zoe", "queue.pause", "shop/mails", "paused", "false", "->", "true",
    ]  # fmt: skip
    assert f"{ids['waiting']}  queue invoices -> slow  a \\x1b[2J\\u202eb" in first


def test_the_list_is_filtered_and_paged(steer: Run, ids: dict[str, str]) -> None:
    for name in ("waiting", "held"):
        steer("jobs", "cancel", ids[name])
    steer("queues", "pause", "shop/mails")
    assert steer("audit", "-q").out.split() == ["3", "2", "1"]
    assert steer("audit", "list", "--action", "job", "-q").out.split() == ["2", "1"]
    assert steer("audit", "list", "--target", ids["waiting"][-8:], "-q").out == "1\n"
    assert steer("audit", "list", "--actor", "ann", "--since", "1h", "-q").out == ""
    assert steer("audit", "list", "--until", "1h", "-q").out == ""
    page = steer("audit", "list", "--limit", "2", "-q")
    assert (page.out.split(), "--before 2" in page.err) == (["3", "2"], True)
    assert steer("audit", "list", "--before", "2", "-q").out == "1\n"
    assert steer("audit", "list", "--limit", "0", "-q").out.split() == ["3", "2", "1"]
    assert len(steer("audit", "list", "--jsonl").out.splitlines()) == 3
    assert steer("audit", "list", "--since", "long ago").code == 2


def test_one_entry_is_shown_whole(steer: Run, ids: dict[str, str]) -> None:
    steer("jobs", "set", ids["waiting"], "--priority", "3", "--reason", WHY)
    shown = steer("audit", "show", "1").out.splitlines()
    assert shown[2:] == [
        "Who     zoe",
        "What    job.set",
        f"Target  {ids['waiting']}",
        "Change  priority 0 -> 3",
        "Reason  too many",
    ]
    assert json.loads(steer("audit", "show", "1", "--json").out)["after"] == {"priority": 3}
    missing = steer("audit", "show", "7")
    assert (missing.code, "There is no entry 7" in missing.err) == (3, True)


def test_the_page_of_a_job_has_its_entries(steer: Run, ids: dict[str, str]) -> None:
    steer("jobs", "set", ids["waiting"], "--priority", "3")
    steer("jobs", "cancel", ids["waiting"], "--reason", WHY)
    page = steer("jobs", "show", ids["waiting"]).out.splitlines()
    first, second = page[-2:]
    assert first.startswith("Audit       ")
    assert first.endswith("job.set by zoe (priority 0 -> 3)")
    assert second.endswith("job.cancel by zoe (state pending -> cancelled): too many")
    document = json.loads(steer("jobs", "show", ids["waiting"], "--json").out)
    assert [each["action"] for each in document["audit"]] == ["job.cancel", "job.set"]


def test_doctor_names_a_large_audit(steer: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.insight.doctor.LARGE_AUDIT", 2)
    for words in (("pause",), ("resume",)):
        steer("queues", *words, "shop/mails")
    assert "The audit has more than" not in steer("doctor", "--quick").out
    steer("queues", "pause", "shop/mails")
    assert "The audit has more than 2 entries" in steer("doctor", "--quick").out
