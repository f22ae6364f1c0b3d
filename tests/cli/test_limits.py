"""`trellis queues set` and `trellis queues limits`."""

from __future__ import annotations

import json

from tests.cli.conftest import Run


def test_a_limit_is_set_shown_and_reset(steer: Run) -> None:
    both = ("--concurrency", "5", "--rate", "100/1m")
    done = steer("queues", "set", "shop/bill", *both, "--reason", "slow mail server")
    assert (done.code, done.out) == (0, "")
    assert done.err == "Queue shop/bill: 0 of 5 at a time, 100 per 1m.\n"
    assert "0 of 5 at a time" in steer("queues").out
    (limit,) = json.loads(steer("queues", "limits", "--json").out)
    assert (limit["kind"], limit["active"], limit["rate"]) == ("queue", 5, "100/1m")
    assert limit["set_by_operator"] == ["active", "rate"]
    assert "shop/bill" in steer("queues", "limits").out
    one = json.loads(steer("queues", "set", "shop/bill", "--concurrency", "none", "--json").out)
    assert (one["active"], one["rate"]) == (None, "100/1m")
    assert steer("queues", "set", "shop/bill", "--reset").err == "Queue shop/bill: no limit.\n"
    assert "There is no limit" in steer("queues", "limits").err


def test_a_type_is_limited_by_its_name(steer: Run) -> None:
    done = steer("queues", "set", "--type", "shop/bill", "--rate", "1/1s", "--burst", "3")
    assert done.err == "Type shop/bill: 1 per 1s (burst 3).\n"


def test_the_rate_of_each_key_of_a_type_is_set_shown_and_reset(steer: Run) -> None:
    done = steer("queues", "set", "--per-key", "shop/bill", "--rate", "1/1s", "--burst", "3")
    assert (done.code, done.err) == (0, "Each key of shop/bill: 1 per 1s (burst 3) per key.\n")
    (limit,) = json.loads(steer("queues", "limits", "--json").out)
    assert (limit["kind"], limit["rate"], limit["tokens"]) == ("key", "1/1s", None)
    assert "1 per 1s (burst 3) per key" in steer("queues", "limits").out
    done = steer("queues", "set", "--per-key", "shop/bill", "--reset")
    assert done.err == "Each key of shop/bill: no limit.\n"
    refused = steer("queues", "set", "--per-key", "shop/bill", "--concurrency", "3")
    assert (refused.code, "is part of the code (PerKey)" in refused.err) == (2, True)
    refused = steer("queues", "set", "--per-key", "--type", "shop/bill", "--rate", "1/1s")
    assert (refused.code, "--per-key those of each key" in refused.err) == (2, True)
    refused = steer("queues", "set", "--per-key", "shop/bil", "--rate", "1/1s")
    assert (refused.code, "There is no type shop/bil here" in refused.err) == (3, True)


def test_what_cannot_be_a_limit_is_refused(steer: Run) -> None:
    for words, message in (
        (("--concurrency", "0"), "A limit of 0 jobs would never start one"),
        (("--rate", "0/1m"), "would never start a job"),
        (("--rate", "often"), "is no rate"),
        ((), "Nothing to change was given, so nothing was changed"),
        (("--concurrency", "few"), "--concurrency is a number or none"),
        (("--reset", "--rate", "1/1s"), "--reset lifts what was set"),
    ):
        refused = steer("queues", "set", "shop/bill", *words)
        assert refused.code == 2, words
        assert message in refused.err, refused.err
    assert "names no type" in steer("queues", "set", "--type", "bill", "--rate", "1/1s").err
