"""The commands that look: what they write, in every form, and that they create nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.shop import make_shop


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="module")
def ids(folder: Path) -> dict[str, str]:
    return make_shop(folder)


@pytest.fixture
def look(command: Run, folder: Path, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TRELLIS_URL", f"sqlite:///{folder / 'jobs.db'}")
    return command


READING = (
    ("jobs", "list"),
    ("jobs", "count"),
    ("jobs", "show", "01JC"),
    ("jobs", "why", "01JC"),
    ("jobs", "logs", "01JC"),
    ("jobs", "wait", "01JC"),
    ("jobs", "top"),
    ("jobs", "cancel", "--all", "--yes"),
    ("jobs", "retry", "01JC"),
    ("jobs", "clone", "01JC"),
    ("jobs", "delete", "01JC"),
    ("dlq",),
    ("dlq", "replay", "--all", "--yes"),
    ("dlq", "dismiss", "--all", "--yes"),
    ("keys",),
    ("keys", "show", "eu"),
    ("keys", "release", "eu"),
    ("workers",),
    ("workers", "drain", "x"),
    ("queues",),
    ("queues", "pause", "shop/x"),
    ("locks",),
    ("doctor",),
    ("enqueue", "shop/greet"),
)


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_where_no_database_is_none_is_made_and_its_path_is_told(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = command(*arguments)
    assert (ran.code, ran.out) == (5, "")
    assert str(tmp_path / "trellis.db") in ran.err
    assert "Traceback" not in ran.err
    assert not list(tmp_path.iterdir())


def test_jobs_are_listed_newest_first_with_what_matters(look: Run, ids: dict[str, str]) -> None:
    ran = look("jobs", "list")
    assert ran.code == 0
    header, *rows = ran.out.splitlines()
    assert header.split() == ["ID", "STATE", "TYPE", "ATTEMPT", "AGE", "NOTE"]
    assert [row.split()[0] for row in rows] == list(reversed(ids.values()))
    assert f"{ids['active']}  active     shop/sync" in ran.out
    assert "key eu" in ran.out
    assert ran.err == ""


def test_ids_alone_are_written_for_other_programs(look: Run, ids: dict[str, str]) -> None:
    assert look("jobs", "list", "--quiet", "state:failed,dead").out.split() == [
        ids["dead"],
        ids["failed"],
    ]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("type:shop/bill", "state:pending"), "waiting"),
        (("tag:tenant=acme",), "waiting"),
        (("error:VALUEERROR", "state:dead"), "dead"),
        (("key:eu", "state:active"), "active"),
        (("--state", "retry", "--service", "shop"), "retry"),
        (("--type", "bill", "--error", "boom"), "failed"),
        (("since:1h", "until:now", "queue:invoices", "state:completed"), "completed"),
    ],
)
def test_filters_are_words_or_options(
    look: Run, ids: dict[str, str], words: tuple[str, ...], name: str
) -> None:
    assert look("jobs", "list", "-q", *words).out.split() == [ids[name]]


def test_a_list_says_how_much_it_leaves_out(look: Run) -> None:
    ran = look("jobs", "list", "--limit", "2")
    assert len(ran.out.splitlines()) == 3
    assert "The newest 2 of 7 jobs; --limit 0 lists all." in ran.err
    assert len(look("jobs", "list", "-q", "--limit", "0").out.split()) == 7
    assert look("jobs", "list", "state:skipped").err == "No job matches.\n"


def test_json_is_one_document_and_jsonl_one_per_line(look: Run, ids: dict[str, str]) -> None:
    document = json.loads(look("jobs", "list", "--json").out)
    lines = [json.loads(line) for line in look("jobs", "list", "--jsonl").out.splitlines()]
    assert document == lines
    assert [job["id"] for job in document] == list(reversed(ids.values()))
    assert json.loads(look("jobs", "list", "--json", "state:skipped").out) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "list"),
        ("jobs", "show", "failed"),
        ("jobs", "why", "retry"),
        ("jobs", "logs", "active"),
        ("jobs", "logs", "active", "--jsonl"),
        ("jobs", "list", "--json"),
        ("jobs", "wait", "dead"),
        ("jobs", "top"),
        ("dlq",),
    ],
    ids=" ".join,
)
def test_nothing_a_job_says_acts_on_the_terminal(
    look: Run, ids: dict[str, str], arguments: tuple[str, ...]
) -> None:
    ran = look(*(ids.get(word, word) for word in arguments))
    for text in (ran.out, ran.err):
        assert not set(text) & {"\x1b", "\x07", "\r", "\x9b", "\u202e"}
        assert "\nall is well" not in text


def test_a_job_is_shown_with_its_secrets_masked(look: Run, ids: dict[str, str]) -> None:
    ran = look("jobs", "show", ids["waiting"])
    assert ran.code == 0
    assert "hunter2" not in ran.out
    assert '{"order": 7, "password": "**********"}' in ran.out
    assert "tenant=acme" in ran.out
    shown = look("jobs", "show", ids["completed"], "--json").out
    assert "t0p" not in shown
    assert json.loads(shown)["outcomes"][0]["result"]["paid"] is True
    assert [each["kind"] for each in json.loads(shown)["journal"]] == [
        "created",
        "started",
        "completed",
    ]


def test_a_failed_job_is_shown_with_its_traceback_and_the_next_command(
    look: Run, ids: dict[str, str]
) -> None:
    ran = look("jobs", "show", ids["failed"])
    assert "    Traceback ...\n      raise\\x1b[0m\n" in ran.out
    assert f"→ trellis jobs retry {ids['failed']}" in ran.out


def test_a_short_id_will_do_and_an_unclear_one_lists_the_candidates(
    look: Run, ids: dict[str, str]
) -> None:
    assert look("jobs", "show", ids["held"].lower()).code == 0
    assert look("jobs", "show", ids["held"][-8:]).code == 0
    ran = look("jobs", "show", "01")
    assert ran.code == 2
    assert "is the beginning or the end of several ids" in ran.err
    ran = look("jobs", "show", "XYZ")
    assert (ran.code, ran.err) == (3, "No job has an id that begins or ends with 'XYZ'.\n")
    ran = look("jobs", "show", "")
    assert (ran.code, "An empty text names no job. Write its id" in ran.err) == (3, True)


def test_why_says_what_holds_a_job_back(look: Run, ids: dict[str, str]) -> None:
    ran = look("jobs", "why", ids["held"])
    assert ran.code == 0
    assert f"Key 'eu' is held by job {ids['active']}" in ran.out
    assert f"  → trellis jobs why {ids['active']}" in ran.out
    causes = json.loads(look("jobs", "why", "--json", ids["dead"]).out)["causes"]
    assert causes[0]["command"] == f"trellis dlq replay {ids['dead']}"


def test_logs_are_lines_of_text_or_json(look: Run, ids: dict[str, str]) -> None:
    first, second = look("jobs", "logs", ids["active"]).out.splitlines()
    assert first.endswith("info    starting user=ada")
    assert "warning boom \\x1b[2J" in second
    line = json.loads(look("jobs", "logs", "--jsonl", ids["active"]).out.splitlines()[0])
    assert json.loads(look("jobs", "logs", "--json", ids["active"]).out)[0] == line
    assert look("jobs", "logs", "--json", "--jsonl", ids["active"]).code == 2
    assert json.loads(look("jobs", "logs", "--json", ids["dead"]).out) == []
    assert (line["level"], line["fields"]) == ("info", {"user": "ada"})
    assert look("jobs", "logs", "-f", ids["dead"]).err.splitlines() == [
        "The job has logged nothing.",
        "The job is dead.",
    ]


def test_jobs_are_counted_by_what_is_asked(look: Run) -> None:
    counts = json.loads(look("jobs", "count", "--json").out)
    assert counts == {
        "active": 1,
        "completed": 1,
        "dead": 1,
        "failed": 1,
        "pending": 2,
        "retry": 1,
    }
    assert look("jobs", "count", "--by", "type", "state:dead,failed").out.split() == [
        "TYPE", "JOBS", "bill", "1", "sync", "1",
    ]  # fmt: skip


def test_the_rest_is_listed_too(look: Run, ids: dict[str, str]) -> None:
    assert look("dlq").out.split()[6] == ids["dead"]
    assert look("keys").out.splitlines()[1].split() == ["eu", "shop/sync", "1", ids["active"]]
    header, worker = look("workers").out.splitlines()
    assert header.split()[1:5] == ["NAME", "HOST", "PID", "STATE"]
    assert "berlin  host-1  4242  live    1/3" in worker
    assert "  0.1.0    shop/sync, shop/bill" in worker
    assert "shop/invoices        3       1" in look("queues").out
    assert look("locks").out.splitlines()[1].split()[:3] == ["nightly", "berlin", "-"]
    assert look("keys", "--quiet").out == "eu\n"
    assert json.loads(look("queues", "--json").out)[0]["waiting"] == 3
    assert json.loads(look("workers", "--jsonl").out)["types"] == ["shop/sync", "shop/bill"]


def test_a_key_is_shown_with_who_holds_it_and_who_waits(look: Run, ids: dict[str, str]) -> None:
    first, _, *rows = look("keys", "show", "eu").out.splitlines()
    assert first == "Key 'eu' of shop/sync: held by 1 job, 1 waiting."
    shown = {row.split()[0]: row.split()[1] for row in rows}
    assert (len(rows), shown[ids["active"]]) == (2, "active")
    (key,) = json.loads(look("keys", "show", "eu", "--json").out)
    assert key["holders"] == [ids["active"]]
    assert {job["id"] for job in key["jobs"]} == set(shown)
    unknown = look("keys", "show", "mars")
    assert (unknown.code, unknown.out) == (3, "")
    assert "No job holds or waits for the key 'mars'" in unknown.err


def test_top_is_one_picture_where_there_is_no_terminal(look: Run, ids: dict[str, str]) -> None:
    ran = look("jobs", "top")
    assert ran.code == 0
    assert f"{ids['active']}  shop/sync      1/5" in ran.out
    assert "30% render page 3" in ran.out
    assert "1 dead" in ran.out.splitlines()[0]
    assert json.loads(look("jobs", "top", "--json").out)["states"]["dead"] == 1
    assert look("jobs", "top", "--interval", "2").code == 0


def test_waiting_exits_by_the_outcome(look: Run, ids: dict[str, str]) -> None:
    done = look("jobs", "wait", ids["completed"])
    assert (done.code, json.loads(done.out)) == (0, {"paid": True, "token": "**********"})
    dead = look("jobs", "wait", ids["dead"], ids["completed"])
    assert (dead.code, dead.out) == (1, "")
    late = look("jobs", "wait", ids["held"], "--timeout", "10ms")
    assert (late.code, late.out) == (6, "")
    assert f"is still pending after 10ms. Key 'eu' is held by job {ids['active']}" in late.err
    documents = json.loads(look("jobs", "wait", "--json", ids["dead"], ids["failed"]).out)
    assert [each["state"] for each in documents] == ["dead", "failed"]
