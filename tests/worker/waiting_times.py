"""From recorded intervals: did a due job wait while a slot that could run it was free?

A job waits from the moment it is due until its handler begins, wherever it is until then: in the
queue, or claimed by a worker. A slot is free while its worker lives and no handler is in
it. How long both may last at once is the patience: the time it takes to notice and to claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Worker(NamedTuple):
    """One that could run jobs of these types from one moment to another."""

    name: str
    slots: int
    types: frozenset[str]
    since: int
    until: int


class Work(NamedTuple):
    """A job: when it was due, where and when its handler ran."""

    job_id: str
    type: str
    due: int
    worker: str
    began: int
    ended: int


class Stranded(NamedTuple):
    """A job that waited too long beside a free slot."""

    job_id: str
    since: int
    until: int
    #: Workers with a slot free all the while, at the beginning of it.
    free: tuple[str, ...]


#: Time in which nothing could move: the machine was busy with something else.
Stall = tuple[int, int]


def stranded(
    workers: Sequence[Worker], done: Sequence[Work], patience: int, stalls: Sequence[Stall] = ()
) -> list[Stranded]:
    """Return every job that waited longer than the patience while a slot for it was free."""
    moments = sorted({*_moments(workers, done), *(each for stall in stalls for each in stall)})
    spans = [
        (since, until, _free(workers, done, since, until))
        for since, until in pairwise(moments)
        if not any(begin <= since and until <= end for begin, end in stalls)
    ]
    found = [_worst(work, spans) for work in done]
    return [each for each in found if each is not None and each.until - each.since > patience]


def _moments(workers: Sequence[Worker], done: Sequence[Work]) -> list[int]:
    lives = [moment for each in workers for moment in (each.since, each.until)]
    return lives + [moment for each in done for moment in (each.due, each.began, each.ended)]


def _free(
    workers: Sequence[Worker], done: Sequence[Work], since: int, until: int
) -> tuple[Worker, ...]:
    """Return the workers that have a free slot throughout this span, in which nothing changes."""
    busy = [work.worker for work in done if work.began <= since and until <= work.ended]
    return tuple(
        each
        for each in workers
        if each.since <= since and until <= each.until and busy.count(each.name) < each.slots
    )


def _worst(work: Work, spans: Sequence[tuple[int, int, tuple[Worker, ...]]]) -> Stranded | None:
    """Return the longest unbroken time this job waited beside a free slot that could run it."""
    worst: Stranded | None = None
    current: Stranded | None = None
    for since, until, free in spans:
        able = tuple(each.name for each in free if work.type in each.types)
        if not able or since < work.due or until > work.began:
            current = None
            continue
        if current is None or current.until != since:
            current = Stranded(work.job_id, since, until, able)
        current = current._replace(until=until)
        if worst is None or current.until - current.since > worst.until - worst.since:
            worst = current
    return worst
