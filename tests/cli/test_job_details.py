"""`trellis jobs show`, `why` and `logs`."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trellis import ActiveJob, Fail, JobFailed, PerKey, Service, fingerprint


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


def test_the_journal_in_json_has_times_and_errors_that_programs_can_read(
    look: Run, ids: dict[str, str]
) -> None:
    *_, last = json.loads(look("jobs", "show", ids["retry"], "--json").out)["journal"]
    assert last["data"]["run_at"].endswith("Z")
    assert datetime.fromisoformat(last["data"]["run_at"]) > datetime.fromisoformat(last["at"])
    assert last["data"]["error"]["code"] == "exception"


def test_a_job_is_shown_with_its_configuration_and_what_it_expects(
    command: Run, tmp_path: Path
) -> None:
    vines = Service("vines", f"sqlite:///{tmp_path / 'jobs.db'}")
    config = {"region": "eu", "api_key": "hunter2"}
    deploy = vines.declare("deploy", payload=str, result=str)
    ref = deploy.create_sync("blue", config=config, expect=fingerprint("plan"))
    ran = command("jobs", "show", ref.id, "--url", vines.url)
    assert 'Config      {"region": "eu", "api_key": "**********"}\n' in ran.out
    assert f"            {fingerprint(config)}\n" in ran.out
    assert f"Expects     {fingerprint('plan')}\n" in ran.out
    document = json.loads(command("jobs", "show", ref.id, "--json", "--url", vines.url).out)
    assert (document["config"]["api_key"], document["config_fingerprint"], document["expect"]) == (
        "**********",
        fingerprint(config),
        fingerprint("plan"),
    )


def test_a_failed_job_is_shown_with_its_traceback_and_the_next_command(
    look: Run, ids: dict[str, str]
) -> None:
    ran = look("jobs", "show", ids["failed"])
    assert "    Traceback ...\n      raise\\x1b[0m\n" in ran.out
    assert f"→ trellis jobs retry {ids['failed']}" in ran.out


def test_a_job_is_shown_with_who_ran_it_and_how_each_attempt_ended(
    look: Run, ids: dict[str, str]
) -> None:
    ran = look("jobs", "show", ids["retry"]).out
    assert "Worker      berlin (process 4242 on host-1)\n" in ran
    (line,) = (each for each in ran.splitlines() if each.startswith("Attempts"))
    assert line.startswith("Attempts    1  berlin  ")
    assert line.endswith("ms  retry  exception: ValueError: boom \\x1b[2J\\x1b[31m\\x07")
    document = json.loads(look("jobs", "show", ids["completed"], "--json").out)
    (attempt,) = document["attempts"]
    assert (attempt["claim"], attempt["worker"], attempt["ended_by"]) == (1, "berlin", "completed")
    assert document["updated_at"] == document["finished_at"] == attempt["ended_at"]
    assert (document["worker_pid"], document["result"]["paid"]) == (4242, True)


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
    assert (ran.code, "An empty text is not the id of a job. Write its id" in ran.err) == (3, True)


def test_why_explains_what_a_job_waits_for(look: Run, ids: dict[str, str]) -> None:
    ran = look("jobs", "why", ids["held"])
    assert ran.code == 0
    assert f"Key 'eu' is held by job {ids['active']}" in ran.out
    assert f"  → trellis jobs why {ids['active']}" in ran.out
    causes = json.loads(look("jobs", "why", "--json", ids["dead"]).out)["causes"]
    assert causes[0]["command"] == f"trellis dlq replay {ids['dead']}"


def test_logs_are_lines_of_text_or_json(look: Run, ids: dict[str, str]) -> None:
    first, second = look("jobs", "logs", ids["active"]).out.splitlines()
    assert first.endswith(" #1 info    starting user=ada")
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


def test_only_what_differs_from_the_default_policy_is_shown(command: Run, tmp_path: Path) -> None:
    shop = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")
    plain = shop.declare("plain", result=str).create_sync()
    page = command("jobs", "show", plain.id, "--url", shop.url).out
    assert "Policy      the defaults\n" in page
    by_id = PerKey("{id}")
    slow = shop.declare("slow", payload=dict[str, int], result=str, timeout="7m", per_key=by_id)
    ref = slow.create_sync({"id": 7}, attempts=5)
    page = command("jobs", "show", ref.id, "--url", shop.url).out
    policy = page[page.index("Policy") : page.index("Trace")].splitlines()
    assert policy[0] == "Policy      attempts 5 (set for this job)"
    assert policy[1].startswith("            timeout 7m (declared when it was created;")
    assert policy[2].startswith("            per_key {id}: 1 at once")
    document = json.loads(command("jobs", "show", ref.id, "--json", "--url", shop.url).out)
    assert {"on_lost", "retention", "timeout"} < {each["name"] for each in document["policy"]}


def test_an_attempt_does_not_repeat_an_error_code_that_says_how_it_ended(
    command: Run, tmp_path: Path
) -> None:
    shop = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")

    @shop.job
    def bill(job: ActiveJob[int]) -> None:
        raise Fail("no such order")

    async def run() -> str:
        async with shop, shop.worker():
            ref = await bill.create(1)
            with pytest.raises(JobFailed):
                await ref.wait("10s")
            return ref.id

    page = command("jobs", "show", asyncio.run(run()), "--url", shop.url).out
    (line,) = (each for each in page.splitlines() if each.startswith("Attempts"))
    assert line.endswith("  failed  no such order")
