"""The groups beside `jobs`: dlq, keys, workers, queues and locks."""

from __future__ import annotations

import json

from tests.cli.conftest import Run


def test_each_group_lists_by_default(look: Run, ids: dict[str, str]) -> None:
    assert look("dlq").out.split()[6] == ids["dead"]
    assert look("keys").out.splitlines()[1].split() == ["eu", "shop/sync", "1", ids["active"]]
    header, worker = look("workers").out.splitlines()
    assert header.split()[1:5] == ["NAME", "HOST", "PID", "STATE"]
    assert "berlin  host-1  4242  live    1/3" in worker
    assert "  0.1.0    shop/sync, shop/bill" in worker
    queues = look("queues")
    assert queues.out.splitlines()[0].split() == [
        "QUEUE", "WAITING", "OLDEST", "ACTIVE", "RUN/MIN", "FAIL/MIN", "MEDIAN", "NOTE",
    ]  # fmt: skip
    first = queues.out.splitlines()[1].split()
    assert (first[:2], first[3:6]) == (["shop/invoices", "3"], ["1", "1.0", "0.6"])
    assert queues.err == "RUN/MIN, FAIL/MIN and MEDIAN are of the last 5 min.\n"
    _, *locks = look("locks").out.splitlines()
    assert [row.split()[:3] for row in locks] == [
        ["nightly", "berlin", "-"],
        ["(maintenance)", "berlin", "-"],
    ]
    assert look("keys", "--quiet").out == "eu\n"
    assert json.loads(look("queues", "--json").out)[0]["waiting"] == 3
    assert json.loads(look("workers", "--jsonl").out)["types"] == ["shop/sync", "shop/bill"]


def test_a_key_is_shown_with_its_holders_and_its_waiting_jobs(
    look: Run, ids: dict[str, str]
) -> None:
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


def test_dead_letters_are_replayed_and_dismissed(steer: Run, ids: dict[str, str]) -> None:
    assert steer("dlq", "replay", "type:sync", "-y", "-q").out.split() == [ids["dead"]]
    assert steer("dlq", "dismiss", "--all", "-y").err == "No job matches; nothing to do.\n"
    wrong = steer("dlq", "replay", "state:failed", "-y")
    assert (wrong.code, "handles dead jobs only" in wrong.err) == (2, True)
    assert steer("dlq", "list", "state:failed").code == 2


def test_queues_and_workers_are_paused_and_drained(steer: Run) -> None:
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
