"""Limits, rates and shares: what may run at a time, start per time, and in which turns.

Where the run changed a limit, each moment has the values that may have counted then: the last one
that was set for certain, and those that were asked for since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tests.harness.flow.facts import READING, SECOND, Change, Facts, Row, Run, relations

#: What the service declares: handlers at the same time; starts per second, and at once.
ACTIVE: Final = 3
RATE: Final = 40
BURST: Final = 5
KEY_RATE: Final = 10
KEY_BURST: Final = 2
POST_ACTIVE: Final = 2
#: Jobs of a large tenant that may start before a waiting job of a small one, beside those whose
#: turn it is: they were claimed while the small one's creation was not committed yet.
_EARLIER: Final = 20
_ENDLESS: Final = 2**63


class Values:
    """The values of one part of a limit over time."""

    def __init__(self, declared: int, changes: Iterable[Change]) -> None:
        self._declared = declared
        self.spans = [(change.value, change.span) for change in changes]

    def at(self, moment: int) -> int:
        """Return the highest value that may have counted at a moment."""
        values = [self._declared]
        for value, (asked, done) in self.spans:
            if asked <= moment:
                is_certain = done is not None and done <= moment
                values = [value] if is_certain else [*values, value]
        return max(values)

    def sum(self, since: int, until: int) -> int:
        """Return the sum of the highest values over a span of time."""
        ends = {end for _, (asked, done) in self.spans for end in (asked, done or _ENDLESS)}
        moments = [since, *sorted(end for end in ends if since < end < until), until]
        return sum(self.at(begin) * (end - begin) for begin, end in pairwise(moments))


def values(facts: Facts, scope: str, part: str, declared: int) -> Values:
    """Return the values of a part of a limit."""
    return Values(declared, [c for c in facts.changes if (c.scope, c.part) == (scope, part)])


# -- at a time ---------------------------------------------------------------------------------


def check_active(facts: Facts) -> Iterator[str]:
    """No more handlers ran at the same time than the limit of their type or queue allows."""
    for scope, declared, kinds in (
        ("limited", ACTIVE, ("limited",)),
        ("post", POST_ACTIVE, ("mail", "letter")),
    ):
        runs = [run for run in facts.runs if run.kind in kinds]
        yield from _too_many(scope, runs, values(facts, scope, "active", declared))


def _too_many(scope: str, runs: Sequence[Run], limit: Values) -> Iterator[str]:
    moments = [(run.began, 1, run) for run in runs] + [(run.ended, -1, run) for run in runs]
    running: list[Run] = []
    for _, change, run in sorted(moments, key=lambda moment: moment[:2]):
        if change < 0:
            running = [other for other in running if other is not run]
            continue
        running.append(run)
        # When the last of these was claimed, all of them were claimed and none had ended.
        allowed = limit.at(max(each.claimed_at or each.at for each in running))
        if len(running) > allowed:
            yield f"{len(running)} handlers of {scope} ran at the same time, {allowed} are allowed"
            return


# -- per time ----------------------------------------------------------------------------------


class Start(NamedTuple):
    """A start: when it counted against the rate, and when it was seen."""

    claimed_at: int
    at: int


def check_rates(facts: Facts) -> Iterator[str]:
    """In no span of time more jobs started than the rate and one burst allow.

    Each start counts twice: as the journal has it, and as the handler has it.
    """
    rate = values(facts, "rated", "rate", RATE)
    yield from _too_fast(facts, "rated", facts.of("rated"), rate, BURST)
    keys: dict[str, list[Row]] = {}
    for row in facts.of("keyed"):
        keys.setdefault(row["key"], []).append(row)
    for key, rows in sorted(keys.items()):
        yield from _too_fast(facts, f"key {key}", rows, Values(KEY_RATE, ()), KEY_BURST)


def _too_fast(
    facts: Facts, what: str, rows: Sequence[Row], rate: Values, burst: int
) -> Iterator[str]:
    journal = [Start(at, at) for row in rows for at in facts.starts.get(row["seq"], ())]
    ids = {row["id"] for row in rows}
    # A handler begins when the answer to the claim has come and the worker's loop gets to it. So
    # what a window of handlers has used of the rate began with the earliest of their claims.
    handlers = [Start(run.claimed_at or run.at, run.at) for run in facts.runs if run.job in ids]
    for source, starts in (("the journal", journal), ("the handlers", handlers)):
        wrong = _excess(sorted(starts, key=lambda start: start.at), rate, burst)
        if wrong is not None:
            yield f"{what}, by {source}: {wrong}"


def _excess(starts: Sequence[Start], rate: Values, burst: int) -> str | None:
    """Look at every window; return the one with most starts too many.

    A lower rate may leave a full bucket behind, so each change allows one burst more.
    """
    origin = min((start.claimed_at for start in starts), default=0) - READING
    opened = [
        rate.sum(origin, start.claimed_at - READING)
        + burst * SECOND * sum(1 for _, (_, done) in rate.spans if done and done < start.claimed_at)
        for start in starts
    ]
    closed = [
        rate.sum(origin, start.at)
        + burst * SECOND * sum(1 for _, (asked, _) in rate.spans if asked <= start.at)
        for start in starts
    ]
    worst, text = 0, None
    for first in range(len(starts)):
        since = opened[first]
        for last in range(first, len(starts)):
            since = min(since, opened[last])
            started = last - first + 1
            over = (started - burst) * SECOND - (closed[last] - since)
            if over > worst:
                length = starts[last].at - starts[first].at
                worst, text = over, f"{started} started within {length / SECOND:.3f} s"
    return text


# -- in turns ----------------------------------------------------------------------------------


class Wait(NamedTuple):
    """How a job of a small tenant waited: large ones behind which it came, and that passed it."""

    job: str
    backlog: int
    passed: int
    allowed: int


def waits(facts: Facts) -> Iterator[Wait]:
    """Return how each job of the small tenant waited for its first start."""
    jobs = [(row, relations(row).get("tenant")) for row in facts.of("mail", "letter")]
    spans: dict[str, list[tuple[int, int, str]]] = {"large": [], "small": []}
    for row, tenant in jobs:
        first = facts.starts.get(row["seq"], [_ENDLESS])[0]
        spans[str(tenant)].append((row["created_at"], first, row["id"]))
    for created, started, job in spans["small"]:
        waiting = [first for begin, first, _ in spans["large"] if begin <= created < first]
        others = sum(1 for begin, first, _ in spans["small"] if begin <= created < first)
        passed = sum(1 for first in waiting if first < started)
        yield Wait(job, len(waiting), passed, others + _EARLIER)


def check_turns(facts: Facts) -> Iterator[str]:
    """A job of a small tenant waits for its turn, not for all that the large one has created."""
    for job, backlog, passed, allowed in waits(facts):
        if passed > allowed:
            yield f"{passed} of {backlog} jobs of the large tenant started before {job}"
