"""Small histories as text: a bad one and its repaired twin, written as one diff.

Lines that start with `-` are only in the bad history, those with `+` only in the good one, all
others in both. Times are milliseconds, on all clocks. A story says what matters; the rest is made
up so that it fits: rows say what the journal says, every job was asked for and acknowledged, and
whoever completed a job ran it.

    J created @0                     an event of job J
    J started a1 @5                  by attempt 1 of session a
    J retry a1 @9 error=exception    words: back (attempt given back), suspect, late
    run J a1 6..8 in 7               a handler's run in process 7; `6..` never ended
    ask J K @0 delay=50              one call of a producer; words: unheard, told=X
    job J key=k active=1 attempts=5  what is promised about J; words: gone (no row), unasked
    row J attempt=2                  what the row says instead
    outcome J by=b1                  what was stored instead; word: none
    slot k J                         a slot that is still taken
    differs event J/2 a b            a row of the kept projection has a, of a rebuilt one b
    session a in 7 lease=30 heard=9  whose fences begin with a; when it was last renewed
    fault stop 7 @10..40             kill, stop, pause, cut_off, term (grace=20 held_up=5), crash;
                                     server_kill, server_stop, cut, leader_kill, node_stop,
                                     quorum_kill, all_kill, admin_kill (of no process);
                                     target=guardian: which part of the worker was hit
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tests.harness.faults.checker.folding import fold
from tests.harness.faults.checker.histories import (
    Difference,
    Event,
    Fault,
    Histories,
    Op,
    Outcome,
    Row,
    Run,
    Session,
    Slot,
)
from tests.harness.faults.checker.settling import ENDED
from tests.harness.faults.checker.states import LATE, STEPS

_NS: Final = 1_000_000
_US: Final = 1_000


class Story(NamedTuple):
    """A history that breaks a rule, and how it must have been."""

    title: str
    rule: str
    text: str

    @property
    def bad(self) -> Histories:
        return tell(_pick(self.text, "-"))

    @property
    def good(self) -> Histories:
        return tell(_pick(self.text, "+"))


def _pick(text: str, mark: str) -> list[str]:
    lines = [line.strip() for line in text.strip().splitlines()]
    return [line.lstrip("+- ") for line in lines if line and line[0] not in "+-".replace(mark, "")]


def tell(lines: list[str]) -> Histories:
    """Make the histories that these lines tell."""
    teller = _Teller()
    for line in lines:
        teller.hear(line)
    return teller.finish()


class _Words:
    """The words of a line: names by position, numbers after @ and =, and flags."""

    def __init__(self, line: str) -> None:
        self.names: list[str] = []
        self.given: dict[str, str] = {}
        self.begins, self.ends = 0, None
        for word in line.split():
            if word.startswith("@") or ".." in word:
                begin, _, end = word.removeprefix("@").partition("..")
                self.begins, self.ends = int(begin), int(end) if end else None
            elif "=" in word:
                name, _, value = word.partition("=")
                self.given[name] = value
            else:
                self.names.append(word)

    def number(self, name: str, default: int = 0) -> int:
        return int(self.given.get(name, default))


class _Teller:
    def __init__(self) -> None:
        self.told = Histories()
        self._jobs: dict[str, Row] = {}
        self._gone: set[str] = set()
        self._asked: set[str] = set()
        self._rows: dict[str, dict[str, Any]] = {}
        self._outcomes: dict[str, str | None] = {}

    def hear(self, line: str) -> None:
        words = _Words(line)
        subjects: dict[str, Callable[[_Words], None]] = {
            "ask": self._ask, "job": self._job, "run": self._run, "row": self._row,
            "outcome": self._outcome, "slot": self._slot, "session": self._session,
            "fault": self._fault, "differs": self._differs,
        }  # fmt: skip
        subjects.get(words.names[0], self._event)(words)

    def _ask(self, words: _Words) -> None:
        jobs = [name for name in words.names[1:] if name != "unheard"]
        ids = tuple(words.given["told"].split(",")) if "told" in words.given else tuple(jobs)
        self._asked.update(jobs)
        self.told.ops.append(
            Op(
                f"ask{len(self.told.ops)}",
                words.begins * _NS,
                tuple(jobs),
                words.number("delay") * _NS,
                None if "unheard" in words.names else ids,
            )
        )

    def _job(self, words: _Words) -> None:
        job = words.names[1]
        if "gone" in words.names:
            self._gone.add(job)
        if "unasked" in words.names:
            self._asked.add(job)
        deadline = words.number("deadline") * _US if "deadline" in words.given else None
        self._jobs[job] = Row(
            job,
            words.given.get("payload", job),
            {},
            words.given.get("key"),
            words.number("active", 1),
            words.number("attempts", 5),
            words.number("crashes", 3),
            deadline,
        )

    def _event(self, words: _Words) -> None:
        job, kind = words.names[:2]
        fence = _fence(words.names[2]) if len(words.names) > 2 else None
        is_note = kind in ("late", "note")
        before = self._head(job)
        version = 0 if is_note else words.number("v", before.get("version", 0) + 1)
        state: str = before["state"] if is_note else STEPS[kind][1][0]
        attempt = before.get("attempt", 0) + (kind == "started")
        self.told.events.append(
            Event(
                len(self.told.events) + 1,
                job,
                version,
                LATE if kind == "late" else kind,
                words.given.get("state", state),
                words.begins * _US,
                words.number("attempt", attempt),
                fence,
                _data(words, fence, before),
            )
        )

    def _head(self, job: str) -> dict[str, Any]:
        journal = [event for event in self.told.events if event.job == job]
        return fold(journal) if journal and journal[0].kind == "created" else {}

    def _run(self, words: _Words) -> None:
        _, job, fence, _, pid = words.names[:5]
        how = words.names[5] if len(words.names) > 5 else "returned"
        ended = None if words.ends is None else words.ends * _NS
        row = self._jobs.get(job)
        self.told.runs.append(
            Run(
                job,
                _fence(fence),
                1,
                int(pid),
                words.given.get("kind", "plain"),
                row.key if row else None,
                words.begins * _NS,
                ended,
                None if ended is None else how,
            )
        )

    def _row(self, words: _Words) -> None:
        values = {name: _plain(value) for name, value in words.given.items()}
        self._rows.setdefault(words.names[1], {}).update(values)

    def _outcome(self, words: _Words) -> None:
        self._outcomes[words.names[1]] = words.given.get("by")

    def _slot(self, words: _Words) -> None:
        self.told.slots.append(Slot(words.names[1], words.names[2], None))

    def _differs(self, words: _Words) -> None:
        self.told.differences.append(Difference(*words.names[1:5]))

    def _session(self, words: _Words) -> None:
        name = words.names[1].rjust(16, "0")
        lease, heard = words.number("lease") * _US, words.number("heard") * _US
        self.told.sessions[name] = Session(name, int(words.names[3]), lease, heard)

    def _fault(self, words: _Words) -> None:
        kind, pids = words.names[1], tuple(map(int, words.names[2:]))
        until = None if words.ends is None else words.ends * _NS
        grace = words.number("grace") * _NS
        held_up = words.number("held_up") * _NS
        ended_at = None if words.ends is None else words.ends * _US
        fault = Fault(
            "kill", words.begins * _NS, pids, words.given.get("target", ""), until, grace, held_up,
            words.begins * _US, ended_at,
        )  # fmt: skip
        self.told.faults.append(replace(fault, kind=kind))  # type: ignore[arg-type]

    # -- what nobody said ----------------------------------------------------------------------

    def finish(self) -> Histories:
        for job, journal in self.told.journals.items():
            head = fold(journal) if journal[0].kind == "created" else {"state": "completed"}
            row = self._jobs.get(job, Row(job, job, {}))
            if job not in self._gone:
                self.told.rows[job] = replace(row, head={**head, **self._rows.get(job, {})})
            if job not in self._asked and row.hash not in self._asked:
                self.told.ops.append(Op(job, 0, (row.hash,), 0, (job,)))
            self._imagine_outcomes(job, journal)
        self._imagine_runs()
        return self.told

    def _imagine_outcomes(self, job: str, journal: list[Event]) -> None:
        generation = 0
        for event in journal:
            generation += event.kind == "retried"
            if event.version == 0 or event.state not in ENDED or event.kind == "dismissed":
                continue
            by = event.fence
            if job in self._outcomes:
                name = self._outcomes[job]
                if name is None:
                    continue
                by = _fence(name)
            result = {"by": by} if event.kind == "completed" else None
            self.told.outcomes.append(Outcome(job, generation, event.state, result))

    def _imagine_runs(self) -> None:
        known = {run.fence for run in self.told.runs}
        for event in self.told.events:
            if event.kind == "completed" and event.fence and event.fence not in known:
                row = self._jobs.get(event.job)
                ended = event.at * 1000 - 1
                key = row.key if row else None
                run = Run(event.job, event.fence, 1, 1, "plain", key, ended - 1, ended, "returned")
                self.told.runs.append(run)


def _fence(name: str) -> str:
    """Spell out a fence: a1 is token 1 of session a."""
    return name[0].rjust(16, "0") + name[1:].rjust(16, "0")


def _plain(value: str) -> object:
    return int(value) if value.lstrip("-").isdecimal() else value


def _data(words: _Words, fence: str | None, before: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if "error" in words.given:
        code, _, by = words.given["error"].partition("/")
        data["error"] = [code, f"in {_fence(by) if by else fence}", None]
    if "run_at" in words.given or words.names[1] == "retry":
        data["run_at"] = words.number("run_at", words.begins) * _US
    if "back" in words.names:
        data["attempt"] = before.get("attempt", 0) - 1
    if "crashed" in words.given:
        data["crashes"] = words.number("crashed")
    if "suspect" in words.names:
        data["suspect"] = True
    return data
