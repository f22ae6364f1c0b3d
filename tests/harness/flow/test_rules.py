"""The rules of the flow campaign find what they are for: each history breaks one promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from tests.harness.flow.facts import SECOND, Change, Facts, Kill, Span
from tests.harness.flow.limits import ACTIVE, BURST, KEY_BURST, POST_ACTIVE, RATE
from tests.harness.flow.rules import check

Tables = dict[str, list[dict[str, Any]]]
#: When the history begins, on the wall.
BEGIN: Final = 1_000 * SECOND
LARGE: Final = 60


class History:
    """Facts that can still be changed."""

    def __init__(self) -> None:
        self.tables: Tables = {
            "record": [], "batch": [], "batch_member": [], "schedule_slot": [], "event": [],
            "queue": [], "key_slot": [], "lingering": [], "lock": [], "ended_prerequisite": [],
            "dependency": [], "session": [],
        }  # fmt: skip
        self.effects: list[dict[str, Any]] = []
        self.told: list[dict[str, Any]] = []
        self.kills = [Kill(0, 99)]
        self.changes = [Change("limited", "other", 1, Span(0, 1))]
        self.declared = Span(BEGIN - SECOND // 2, BEGIN - 1)
        self.paused = Span(BEGIN + 2 * SECOND + 5, BEGIN + 2 * SECOND + 9)

    def facts(self) -> Facts:
        return Facts(
            self.tables, self.effects, self.told, self.kills, self.changes, self.declared,
            self.paused,
        )  # fmt: skip

    def job(self, name: str, job_type: str, **parts: object) -> dict[str, Any]:
        """Add a job; one that is named again replaces the first."""
        row = {"seq": len(self.tables["record"]) + 1, "id": name, "type": job_type,
               "state": "completed", "created_at": BEGIN, "key": None, "relations": None,
               "result": None, **parts}  # fmt: skip
        self.tables["record"].append(row)
        return row

    def the(self, name: str) -> dict[str, Any]:
        return next(row for row in self.tables["record"] if row["id"] == name)

    def start(self, name: str, at: int) -> str:
        """Journal a start of a job; return the attempt."""
        token = len(self.tables["event"]) + 1
        self.tables["event"].append(
            {
                "job": self.the(name)["seq"],
                "kind": "started",
                "at": at,
                "session": 1,
                "token": token,
            }
        )
        return f"{1:016x}{token:016x}"

    def run(
        self, name: str, kind: str, at: int, *, lasts: int | None = 10, after: int = 0, pid: int = 1
    ) -> None:
        """Let a handler run, claimed `after` microseconds before it began."""
        number, attempt = len(self.effects), self.start(name, at - after)
        facts = {"pid": pid, "run": number}
        self.effects.append(
            {"event": "begin", "t": at * 1000, "at": at, "job": name, "kind": kind,
             "attempt": attempt, **facts}
        )  # fmt: skip
        if lasts is not None:
            self.effects.append({"event": "end", "t": (at + lasts) * 1000, **facts})

    def batch(self, name: str, **parts: object) -> int:
        seq = len(self.tables["batch"]) + 1
        self.tables["batch"].append(
            {"seq": seq, "id": name, "parent": None, "on_failure": "continue", "sealed_at": 1,
             "cancelled_at": None, "stopping_at": None, "finished_at": BEGIN + 50, "fan_in": None,
             **parts}
        )  # fmt: skip
        return seq

    def member(self, batch: int, name: str, at: int | None = BEGIN + 50) -> None:
        job = self.the(name)["seq"]
        self.tables["batch_member"].append({"batch": batch, "job": job, "finished_at": at})


def good() -> History:
    """Return what a run leaves behind that broke no promise."""
    history = History()
    _good_batches(history)
    for name, job_type, parent in (
        ("h1", "hooked-on_success", "h"), ("h2", "hooked-on_finished", "h"),
        ("g1", "hooked-on_failure", "g"), ("g2", "hooked-on_finished", "g"),
    ):  # fmt: skip
        history.job(name, job_type, relations=f'{{"parent": "{parent}"}}')
        history.run(name, "hook", BEGIN)
    history.job("h", "hooked")
    history.job("g", "hooked", state="failed")
    for number in range(3):
        slot = BEGIN + number * SECOND
        history.job(f"t{number}", "tick", relations=f'{{"slot": {slot}}}')
        history.tables["schedule_slot"].append(
            {"slot": slot, "through": None, "outcome": "created", "job": f"t{number}"}
        )
    for name, job_type, result in (("a", "first", "2"), ("b", "second", "4"), ("c", "third", "7")):
        history.job(name, job_type, result=result)
    history.told.append({"event": "chain", "start": 1, "ids": ["a", "b", "c"]})
    for name in ("l1", "l2"):
        history.job(name, "limited")
    history.run("l1", "limited", BEGIN + 10, lasts=10)
    history.run("l2", "limited", BEGIN + 15, lasts=None, pid=2)
    history.kills.append(Kill((BEGIN + 30) * 1000, 2))
    history.job("r", "rated")
    history.run("r", "rated", BEGIN)
    history.job("k", "keyed", key="a")
    history.run("k", "keyed", BEGIN)
    _good_turns(history)
    return history


def _good_batches(history: History) -> None:
    for name in ("m", "n", "q", "x", "y"):
        history.job(name, "child")
    history.the("q")["state"] = "failed"
    history.the("x")["state"] = history.the("y")["state"] = "cancelled"
    outer = history.batch("outer", fan_in="f1", finished_at=BEGIN + 90)
    inner = history.batch("inner", fan_in="f2", parent=outer)
    failed = history.batch("failed", on_failure="cancel_rest", stopping_at=1, fan_in="f3")
    off = history.batch("off", cancelled_at=1, stopping_at=1)
    history.batch("open", sealed_at=None, finished_at=None)
    for name, around, result, at in (
        ("f1", '"outer"', "2", BEGIN + 90), ("f2", '"inner", "batch": "outer"', "1", BEGIN + 50),
        ("f3", '"failed"', "2", BEGIN + 50),
    ):  # fmt: skip
        own = f'{{"fan_in_of": {around}}}'
        history.job(name, "collect", created_at=at, result=result, relations=own)
    for number, name in ((outer, "m"), (inner, "n"), (failed, "q"), (failed, "x"), (off, "y")):
        history.member(number, name)
    history.member(outer, "f2", BEGIN + 90)
    history.told += [
        {"event": "sealed", "batch": "outer"},
        {"event": "cancelling", "batch": "off"},
        {"event": "cancelled", "batch": "off"},
    ]


def _good_turns(history: History) -> None:
    """Let a large tenant have many jobs, and a small one come after them, to be served next."""
    tenant = '{"tenant": "%s"}'
    for number in range(LARGE):
        history.job(f"large{number}", "mail", relations=tenant % "large")
        history.run(f"large{number}", "mail", BEGIN + 1000 + number * 100)
    history.job("small", "letter", created_at=BEGIN + 500, relations=tenant % "small")
    history.run("small", "letter", BEGIN + 1150)


def test_a_run_without_a_breach_is_not_blamed() -> None:
    assert check(good().facts()) == []


# -- what is wrong -----------------------------------------------------------------------------


def row(table: str, number: int, **parts: object) -> Callable[[History], None]:
    """Change a row of a table."""
    return lambda history: history.tables[table][number].update(parts)


def named(name: str, **parts: object) -> Callable[[History], None]:
    """Change a job."""
    return lambda history: history.the(name).update(parts)


def batch(name: str, **parts: object) -> Callable[[History], None]:
    """Change a batch."""

    def change(history: History) -> None:
        next(each for each in history.tables["batch"] if each["id"] == name).update(parts)

    return change


def left(table: str) -> Callable[[History], None]:
    """Leave a row in a table."""
    return lambda history: history.tables[table].append({"job": 1})


def _lose_a_job(history: History) -> None:
    history.told.append({"event": "created", "ids": ["lost"]})


def _run_without_a_start(history: History) -> None:
    history.tables["event"].pop()


def _run_an_attempt_twice(history: History) -> None:
    begin = next(line for line in history.effects if line["event"] == "begin")
    history.effects.append({**begin, "run": 1000})


def _run_before_the_start(history: History) -> None:
    history.tables["event"][0]["at"] += SECOND


def _fire_twice(history: History) -> None:
    history.job("f4", "collect", result="2", created_at=BEGIN + 90)


def _forget_the_inner_batch(history: History) -> None:
    history.batch("second", parent=1, finished_at=BEGIN + 91, cancelled_at=1, stopping_at=1)
    history.told.append({"event": "cancelling", "batch": "second"})


def _cancel_a_member_of_a_batch_that_goes_on(history: History) -> None:
    history.the("n")["state"] = "cancelled"


def _drop_a_hook(history: History) -> None:
    history.tables["record"].remove(history.the("h1"))


def _repeat_a_hook(history: History) -> None:
    history.job("h3", "hooked-on_finished", relations='{"parent": "h"}')


def _hook_without_a_parent(history: History) -> None:
    history.job("h3", "hooked-on_finished", relations='{"parent": "gone"}')


def _lose_a_slot(history: History) -> None:
    slot = history.tables["schedule_slot"].pop(1)
    history.tables["record"].remove(history.the(slot["job"]))


def _lose_the_first_slots(history: History) -> None:
    history.declared = Span(BEGIN - 2 * SECOND, BEGIN - SECOND - 1)


def _lose_the_last_slot(history: History) -> None:
    history.paused = Span(BEGIN + 3 * SECOND, BEGIN + 3 * SECOND + 1)


def _create_after_the_pause(history: History) -> None:
    history.paused = Span(BEGIN + SECOND, BEGIN + SECOND + 5)


def _create_a_slot_twice(history: History) -> None:
    history.job("t3", "tick", relations=f'{{"slot": {BEGIN}}}')


def _skip_a_slot(history: History) -> None:
    history.tables["schedule_slot"][1].update(outcome="skipped", job=None)
    history.tables["record"].remove(history.the("t1"))


def _run_too_many(history: History) -> None:
    for number in range(ACTIVE):
        history.job(f"l{number + 3}", "limited")
        history.run(f"l{number + 3}", "limited", BEGIN + 16)


def _run_too_many_of_a_queue(history: History) -> None:
    for number in range(POST_ACTIVE):
        history.run(f"large{number}", "mail", BEGIN + 1001)


def _run_too_many_after_a_change(history: History) -> None:
    history.changes.append(Change("post", "active", 1, Span(BEGIN, BEGIN + 1)))
    history.run("large1", "mail", BEGIN + 1001)


def _start(history: History, name: str, moments: Sequence[float], *, with_runs: bool) -> None:
    for moment in moments:
        at = BEGIN + int(moment * SECOND)
        if with_runs:
            history.run(name, history.the(name)["type"], at)
        else:
            history.start(name, at)


def _at_54_per_second(history: History, *, with_runs: bool = False) -> None:
    _start(history, "r", [number / 54 for number in range(54)], with_runs=with_runs)


def _by_handlers_alone(history: History) -> None:
    """Let handlers run far behind their claims, and faster than the rate."""
    for number in range(2 * BURST + RATE):
        history.run("r", "rated", BEGIN + 5 * SECOND + number, after=number * SECOND // (4 * RATE))


def _at_once(history: History) -> None:
    _start(history, "r", [3.0] * (BURST + 3), with_runs=False)


def _by_a_key_at_once(history: History) -> None:
    _start(history, "k", [3.0] * (KEY_BURST + 1), with_runs=False)


def _as_before_the_rate_was_lowered(history: History) -> None:
    history.changes.append(Change("rated", "rate", RATE // 2, Span(BEGIN, BEGIN + 1)))
    _start(history, "r", [1 + number / RATE for number in range(RATE)], with_runs=False)


def _wait_for_the_backlog(history: History) -> None:
    small = history.the("small")["seq"]
    for event in history.tables["event"]:
        if event["job"] == small:
            event["at"] = BEGIN + 1000 + LARGE * 100 - 50


BREACHES: Final[dict[str, Callable[[History], object]]] = {
    "acknowledged": _lose_a_job,
    "acknowledged: failed": named("r", state="failed"),
    "runs: not journalled": _run_without_a_start,
    "runs: twice": _run_an_attempt_twice,
    "runs: early": _run_before_the_start,
    "fan_ins: none": batch("inner", fan_in=None),
    "fan_ins: twice": _fire_twice,
    "fan_ins: open": batch("open", fan_in="f1"),
    "fan_ins: open and finished": batch("open", finished_at=5),
    "fan_ins: unfinished": batch("off", finished_at=None),
    "fan_ins: early": row("batch_member", 0, finished_at=BEGIN + 91),
    "fan_ins: before a member": row("batch_member", 0, finished_at=None),
    "fan_ins: before an inner batch": _forget_the_inner_batch,
    "fan_ins: created early": named("f1", created_at=BEGIN + 89),
    "fan_ins: not run": named("f1", state="failed"),
    "fan_ins: of another": named("f2", relations='{"fan_in_of": "inner"}'),
    "fan_ins: members": named("f1", result="1"),
    "fan_ins: of a cancelled batch": batch("off", fan_in="f1"),
    "stops: not": batch("failed", stopping_at=None),
    "stops: cancelled and not": batch("off", stopping_at=None),
    "stops: without a reason": batch("outer", stopping_at=1),
    "stops: although it continues": batch("failed", on_failure="continue"),
    "stops: cancelled by no one": batch("outer", cancelled_at=1, stopping_at=1, fan_in=None),
    "stops: a member": _cancel_a_member_of_a_batch_that_goes_on,
    "told: sealed": batch("outer", sealed_at=None),
    "told: cancelled": batch("off", cancelled_at=None),
    "hooks: none": _drop_a_hook,
    "hooks: twice": _repeat_a_hook,
    "hooks: of none": _hook_without_a_parent,
    "hooks: of the other end": named("h", state="failed"),
    "hooks: of an unfinished job": named("h", state="active"),
    "hooks: not run": named("h1", state="pending"),
    "schedule: gap": _lose_a_slot,
    "schedule: first": _lose_the_first_slots,
    "schedule: last": _lose_the_last_slot,
    "schedule: paused": _create_after_the_pause,
    "schedule: twice": _create_a_slot_twice,
    "schedule: skipped": _skip_a_slot,
    "schedule: empty": lambda history: history.tables["schedule_slot"].clear(),
    "active": _run_too_many,
    "active: queue": _run_too_many_of_a_queue,
    "active: changed": _run_too_many_after_a_change,
    "rates: 54 per second": _at_54_per_second,
    "rates: by handlers": _by_handlers_alone,
    "rates: at once": _at_once,
    "rates: key": _by_a_key_at_once,
    "rates: lowered": _as_before_the_rate_was_lowered,
    "turns": _wait_for_the_backlog,
    "chains": named("c", state="pending"),
    "chains: result": named("c", result="8"),
    **{
        f"leftovers: {table}": left(table)
        for table in ("queue", "key_slot", "lingering", "lock", "ended_prerequisite", "dependency",
                      "session")
    },
    "exercised: kills": lambda history: history.kills.clear(),
    "exercised: changes": lambda history: history.changes.clear(),
}  # fmt: skip


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_found(breach: str) -> None:
    history = good()
    BREACHES[breach](history)
    found = check(history.facts())
    assert any(wrong.startswith(f"check_{breach.partition(':')[0]}:") for wrong in found), found


# -- what is right -----------------------------------------------------------------------------


def _at_the_rate(history: History) -> None:
    _start(history, "r", [1.0] * BURST + [1 + n / RATE for n in range(1, RATE)], with_runs=True)


def _behind_a_slow_answer(history: History) -> None:
    """Let two bursts begin together: the answer to the first claim was late."""
    late = SECOND // 4
    for number in range(2 * BURST):
        history.run("r", "rated", BEGIN + SECOND, after=late if number < BURST else 0)


def _around_a_change(history: History) -> None:
    """Let a bucket that is empty be full after the rate was lowered."""
    changed = Span(BEGIN + SECOND, BEGIN + SECOND + 10)
    history.changes.append(Change("rated", "rate", RATE // 2, changed))
    _start(history, "r", [0.9999] * BURST + [1.0001] * BURST, with_runs=True)


def _beside_what_ran_before_a_change(history: History) -> None:
    """Let two run on that were claimed before the limit was lowered to one."""
    history.changes.append(Change("post", "active", 1, Span(BEGIN + 1020, BEGIN + 1030)))
    history.effects = [line for line in history.effects if line["t"] < (BEGIN + 1100) * 1000]
    history.run("large1", "mail", BEGIN + 1005, lasts=50)
    history.run("large2", "mail", BEGIN + 1031, lasts=10, after=20)


def _under_a_change_that_may_have_failed(history: History) -> None:
    history.changes.append(Change("post", "active", POST_ACTIVE + 1, Span(BEGIN + 1000, None)))
    _run_too_many_of_a_queue(history)


def _by_a_dead_process(history: History) -> None:
    """Let others run after a process was killed whose handlers never wrote their end."""
    for number in range(ACTIVE):
        history.job(f"l{number + 3}", "limited")
        history.run(f"l{number + 3}", "limited", BEGIN + 31)


def _by_a_process_that_was_just_killed(history: History) -> None:
    """Let handlers begin after the look at the clock that is before the kill."""
    history.kills.append(Kill((BEGIN + 40) * 1000, 3))
    for number in range(2 * ACTIVE):
        history.job(f"l{number + 3}", "limited")
    for number in range(ACTIVE):
        history.run(f"l{number + 3}", "limited", BEGIN + 41, lasts=None, pid=3)
        history.run(f"l{number + 3 + ACTIVE}", "limited", BEGIN + 50)


def _alone_cancelled(history: History) -> None:
    history.told.append({"event": "cancelling a member", "job": "n"})
    _cancel_a_member_of_a_batch_that_goes_on(history)


RIGHT: Final[dict[str, Callable[[History], None]]] = {
    "starts at the rate": _at_the_rate,
    "starts behind a slow answer": _behind_a_slow_answer,
    "starts around a change of the rate": _around_a_change,
    "handlers beside those that ran before a change": _beside_what_ran_before_a_change,
    "handlers under a change that may have failed": _under_a_change_that_may_have_failed,
    "handlers after those of a dead process": _by_a_dead_process,
    "handlers after those of a process that was just killed": _by_a_process_that_was_just_killed,
    "a member that was cancelled alone": _alone_cancelled,
}


@pytest.mark.parametrize("kind", RIGHT)
def test_what_is_allowed_is_not_blamed(kind: str) -> None:
    history = good()
    RIGHT[kind](history)
    found = [wrong for wrong in check(history.facts()) if not wrong.startswith("check_exercised")]
    assert found == []
