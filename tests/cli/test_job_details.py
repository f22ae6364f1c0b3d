"""`trellis jobs show`, `why` and `logs`."""

from __future__ import annotations

import json

from tests.cli.conftest import Run


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


def test_a_short_id_is_enough_and_an_ambiguous_one_lists_the_candidates(
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


def test_why_explains_what_a_job_waits_for(look: Run, ids: dict[str, str]) -> None:
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
