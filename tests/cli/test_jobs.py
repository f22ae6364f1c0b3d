"""`trellis jobs list`, `count`, `wait` and `top`: what they write, in every form."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run
from tests.harness import ROOT
from trellis.cli.format import JOB_COLUMN_NAMES
from trellis.cli.jobs import list_command
from trellis.insight.filters import WORDS


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
        (("worker:berlin", "state:running"), "active"),
        (("--worker", "host-1", "--state", "completed"), "completed"),
        (("--state", "retry", "--service", "shop"), "retry"),
        (("--type", "bill", "--error", "boom"), "failed"),
        (("since:1h", "until:now", "queue:invoices", "state:completed"), "completed"),
    ],
)
def test_filters_are_words_or_options(
    look: Run, ids: dict[str, str], words: tuple[str, ...], name: str
) -> None:
    assert look("jobs", "list", "-q", *words).out.split() == [ids[name]]


def test_every_filter_word_is_an_option_and_is_in_the_guide(look: Run) -> None:
    guide = (ROOT / "docs/guides/cli.md").read_text()
    options = {name for each in list_command.params for name in each.opts}
    for word in WORDS:
        assert f"`{word}:" in guide
        assert f"--{word}" in options or word == "id"
    assert look("jobs", "list", "--tenant", "acme").err == "No job matches.\n"


def test_the_columns_of_a_list_are_chosen(look: Run, ids: dict[str, str]) -> None:
    ran = look("jobs", "list", "--columns", "id,Payload,worker,queue", "--limit", "0")
    header, *rows = ran.out.splitlines()
    assert header.split() == ["ID", "PAYLOAD", "WORKER", "QUEUE"]
    found = {row.split()[0]: row for row in rows}
    assert found[ids["active"]].split()[-2:] == ["berlin", "invoices"]
    assert '"order": 7, "password": "**********"' in found[ids["waiting"]]
    every = look("dlq", "list", "--columns", ",".join(JOB_COLUMN_NAMES))
    assert (every.code, every.out.split()[0]) == (0, "ID")
    wrong = look("jobs", "list", "--columns", "id,colour")
    assert (wrong.code, "There is no column 'colour'. Known: id, state" in wrong.err) == (2, True)


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
        "TYPE", "JOBS", "shop/bill", "1", "shop/sync", "1",
    ]  # fmt: skip
    assert json.loads(look("jobs", "count", "--by", "tag:tenant", "--json").out) == {
        "": 6,
        "acme": 1,
    }
    refused = look("jobs", "count", "--by", "colour")
    assert (refused.code, "Jobs cannot be counted by 'colour'" in refused.err) == (2, True)


def test_what_failed_is_one_word(look: Run, ids: dict[str, str]) -> None:
    wanted = [ids["dead"], ids["failed"]]
    for words in (("--failed",), ("state:unsuccessful",), ("--failed", "finished-after:1h")):
        assert look("jobs", "list", "-q", *words).out.split() == wanted, words
    assert look("jobs", "list", "-q", "--failed", "--finished-before", "1h").out == ""
    twice = look("jobs", "list", "--failed", "state:dead")
    assert (twice.code, "Name the states once" in twice.err) == (2, True)


def test_an_empty_list_has_no_header(look: Run) -> None:
    ran = look("jobs", "list", "state:skipped")
    assert (ran.out, ran.err) == ("", "No job matches.\n")


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


def test_without_a_terminal_top_is_shown_once(look: Run, ids: dict[str, str]) -> None:
    ran = look("jobs", "top")
    assert ran.code == 0
    assert f"{ids['active'][-8:]}  shop/sync  1/5" in ran.out
    assert "30% render page 3" in ran.out
    assert "1 dead" in ran.out.splitlines()[0]
    assert json.loads(look("jobs", "top", "--json").out)["states"]["dead"] == 1
    assert look("jobs", "top", "--interval", "2").code == 0
