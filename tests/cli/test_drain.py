"""`trellis drain`: the switch, its effect, and its history."""

from __future__ import annotations

import json
import socket

from tests.cli.conftest import Run

_ON = "No new job is accepted in any queue; workers go on with the jobs that are there.\n"


def test_the_switch_keeps_new_jobs_out_until_it_is_off(steer: Run, ids: dict[str, str]) -> None:
    assert steer("drain").out == "New jobs are accepted.\n"
    on = steer("drain", "on", "--reason", "moving \x1b[2Jhouse")
    assert (on.code, on.out, on.err) == (0, "", _ON)
    refused = steer("enqueue", "shop/bill", "7")
    assert (refused.code, refused.out) == (4, "")
    assert "an operator drains all queues" in refused.err
    assert steer("jobs", "clone", ids["completed"]).code == 4
    first, second = steer("drain", "status").out.splitlines()
    assert f"{first}\n" == _ON
    assert second.endswith(": moving \\x1b[2Jhouse")
    assert f"@{socket.gethostname()}" in second
    assert steer("drain", "off").err == "New jobs are accepted.\n"
    assert steer("enqueue", "shop/bill", "7").code == 0


def test_the_history_is_kept_and_a_repetition_adds_nothing(steer: Run) -> None:
    for words in (("on",), ("on",), ("off",), ("off",)):
        assert steer("drain", *words).code == 0
    found = json.loads(steer("drain", "status", "--json").out)
    assert (found["on"], [each["on"] for each in found["changes"]]) == (False, [False, True])
    document = json.loads(steer("drain", "on", "--json", "--reason", "why not").out)
    assert (document["on"], document["reason"]) == (True, "why not")


def test_queues_say_that_nothing_new_is_accepted(steer: Run) -> None:
    steer("drain", "on")
    assert _ON in steer("queues").err
    assert "draining everywhere" in steer("jobs", "top", "--once").out


def test_a_reason_that_is_given_later_is_recorded(steer: Run) -> None:
    steer("drain", "on")
    assert json.loads(steer("drain", "on", "--json", "--reason", "upgrade").out)["on"] is True
    found = json.loads(steer("drain", "status", "--json").out)
    assert [(each["on"], each["reason"]) for each in found["changes"]] == [
        (True, "upgrade"),
        (True, None),
    ]
