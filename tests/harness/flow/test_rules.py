"""The rules of the flow campaign find what they are for: each history breaks one promise."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.harness.flow.rules import ACTIVE, BURST, Facts, Kill, check

Tables = dict[str, list[dict[str, Any]]]


def job(
    seq: int, name: str, job_type: str, state: str = "completed", **rest: object
) -> dict[str, Any]:
    row = {"seq": seq, "id": name, "type": job_type, "state": state, "created_at": 50}
    return {**row, "relations": None, "result": None, **rest}


def good() -> Facts:
    """Return what a run leaves behind that broke no promise."""
    tables: Tables = {
        "record": [
            job(1, "m", "member"),
            job(2, "f", "collect", result="1"),
            job(3, "h", "hooked"),
            job(4, "h1", "hooked-on_success", relations='{"parent": "h"}'),
            job(5, "h2", "hooked-on_finished", relations='{"parent": "h"}'),
            job(6, "t", "tick"),
            job(7, "a", "first", result="2"),
            job(8, "b", "second", result="4"),
            job(9, "c", "third", result="7"),
            job(10, "r", "rated"),
        ],
        "batch": [
            {"seq": 1, "id": "B", "sealed_at": 1, "cancelled_at": None, "finished_at": 50,
             "fan_in": "f"},
            {"seq": 2, "id": "open", "sealed_at": None, "cancelled_at": None, "finished_at": None,
             "fan_in": None},
        ],
        "batch_member": [{"batch": 1, "job": 1, "finished_at": 50}],
        "schedule_slot": [
            {"slot": 1_000_000, "through": None, "outcome": "created", "job": "t"},
            {"slot": 2_000_000, "through": None, "outcome": "missed", "job": None},
        ],
        "event": [{"job": 10, "kind": "started", "at": 0}],
        "queue": [], "key_slot": [], "lingering": [],
    }  # fmt: skip
    effects = [
        {"event": "begin", "t": 10, "pid": 1, "run": 1, "kind": "limited"},
        {"event": "end", "t": 20, "pid": 1, "run": 1},
        {"event": "begin", "t": 15, "pid": 2, "run": 1, "kind": "limited"},
    ]
    told: list[dict[str, Any]] = [
        {"event": "chain", "start": 1, "ids": ["a", "b", "c"]},
        {"event": "sealed", "batch": "B"},
    ]
    return Facts(tables, effects, told, [Kill(30, 2)])


def test_a_run_without_a_breach_is_not_blamed() -> None:
    assert check(good()) == []


def _run_too_many(facts: Facts) -> None:
    facts.effects.extend(  # type: ignore[attr-defined]
        {"event": "begin", "t": 16, "pid": 9, "run": run, "kind": "limited"}
        for run in range(ACTIVE)
    )


def _run_beyond_death(facts: Facts) -> None:
    facts.effects.extend(  # type: ignore[attr-defined]
        row
        for run in range(ACTIVE)
        for row in (
            {"event": "begin", "t": 25, "pid": 8, "run": run, "kind": "limited"},
            {"event": "end", "t": 40, "pid": 8, "run": run},
        )
    )


def _start_too_fast(facts: Facts) -> None:
    facts.tables["event"].extend(  # type: ignore[attr-defined]
        {"job": 10, "kind": "started", "at": 1} for _ in range(BURST + 1)
    )


BREACHES: dict[str, Callable[[Facts], object]] = {
    "acknowledged": lambda f: f.told.append({"event": "created", "ids": ["lost"]}),  # type: ignore[attr-defined]
    "batches": lambda f: f.tables["batch"][0].update(fan_in=None),  # type: ignore[attr-defined]
    "batches: twice": lambda f: f.tables["record"].append(job(20, "f2", "collect")),  # type: ignore[attr-defined]
    "batches: open": lambda f: f.tables["batch"][1].update(fan_in="f"),  # type: ignore[attr-defined]
    "batches: early": lambda f: f.tables["batch_member"][0].update(finished_at=51),  # type: ignore[attr-defined]
    "batches: unfinished": lambda f: f.tables["batch_member"][0].update(finished_at=None),  # type: ignore[attr-defined]
    "batches: sealed": lambda f: f.tables["batch"][0].update(sealed_at=None),  # type: ignore[attr-defined]
    "hooks": lambda f: f.tables["record"].pop(3),  # type: ignore[attr-defined]
    "hooks: twice": lambda f: f.tables["record"].append({**f.tables["record"][4], "id": "h3"}),  # type: ignore[attr-defined]
    "schedule": lambda f: f.tables["schedule_slot"][1].update(slot=3_000_000),  # type: ignore[attr-defined]
    "schedule: twice": lambda f: f.tables["record"].append(job(21, "t2", "tick")),  # type: ignore[attr-defined]
    "active": _run_too_many,
    "active: death": _run_beyond_death,
    "rate": _start_too_fast,
    "chains": lambda f: f.tables["record"][8].update(state="pending"),  # type: ignore[attr-defined]
    "chains: result": lambda f: f.tables["record"][8].update(result="8"),  # type: ignore[attr-defined]
    "leftovers": lambda f: f.tables["queue"].append({"job": 1}),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_found(breach: str) -> None:
    facts = deepcopy(good())
    BREACHES[breach](facts)
    found = check(facts)
    assert any(wrong.startswith(f"check_{breach.partition(':')[0]}:") for wrong in found), found
