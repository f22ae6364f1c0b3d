"""C6: never more jobs of a key at once than it allows, in the engine and on the machine.

In the engine: between `started` and the end of an attempt its key has one slot less. On the
machine: handlers of one key that overlap are a breach, unless the earlier one's attempt had ended
in the engine before the later one started; then the first was a zombie, and it is counted by what
had been done to its process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.faults.checker.histories import Event, Histories, Run, transitions
from tests.faults.checker.violations import Violation, about

_RULE = "C6 keys"


class Tenure(NamedTuple):
    """One attempt in engine order: from its start to its end, by `seq`."""

    job: str
    fence: str
    began: int
    ended: int | None


class Overlap(NamedTuple):
    """Two handlers of one key on the machine at once."""

    earlier: Run
    later: Run


def check_keys(histories: Histories) -> Iterator[Violation]:
    """Check the slots of every key, then its handlers."""
    tenures = {tenure.fence: tenure for tenure in tenures_of(histories)}
    by_key: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in tenures.values():
        row = histories.rows.get(tenure.job)
        if row is not None and row.key is not None:
            by_key[row.key].append(tenure)
    for key, held in by_key.items():
        yield from _over_limit(histories, key, held)
    for overlap in overlaps(histories):
        if not _had_ended(overlap, tenures):
            yield _breach(histories, overlap)
    for slot in histories.slots:
        text = f"a slot of key {slot.key_hash} is still taken at the end, by {slot.job}"
        yield about(histories, _RULE, text, *([slot.job] if slot.job else []))


def tenures_of(histories: Histories) -> Iterator[Tenure]:
    """Return every attempt as the engine saw it."""
    for job, journal in histories.journals.items():
        start: Event | None = None
        for event in transitions(journal):
            if start is not None and start.fence and event.state != "active":
                yield Tenure(job, start.fence, start.seq, event.seq)
                start = None
            elif event.kind == "started":
                start = event
        if start is not None and start.fence:
            yield Tenure(job, start.fence, start.seq, None)


def _over_limit(histories: Histories, key: str, held: list[Tenure]) -> Iterator[Violation]:
    """Sweep over the moments at which slots of a key were taken and freed."""
    moments = [(tenure.began, 1, tenure) for tenure in held]
    moments += [(tenure.ended, -1, tenure) for tenure in held if tenure.ended is not None]
    holders: list[str] = []
    for seq, change, tenure in sorted(moments, key=lambda moment: moment[0]):
        if change < 0:
            holders.remove(tenure.job)
            continue
        holders.append(tenure.job)
        limit = histories.rows[tenure.job].max_active
        if len(holders) > limit:
            text = f"key {key} allows {limit}, and {len(holders)} held a slot: {holders}"
            yield about(histories, _RULE, text, *dict.fromkeys(holders), at=seq)
            return


def overlaps(histories: Histories) -> Iterator[Overlap]:
    """Return the pairs of runs of one key that were on the machine at once, where one may run.

    A run that never ended lasted as long as its process gave signs of life.
    """
    alive: dict[int, int] = defaultdict(int)
    for run in histories.runs:
        alive[run.pid] = max(alive[run.pid], run.ended or run.began)
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in histories.runs:
        row = histories.rows.get(run.job)
        if run.key is not None and (row is None or row.max_active == 1):
            by_key[run.key].append(run)
    for runs in by_key.values():
        open_runs: list[Run] = []
        for run in sorted(runs, key=lambda run: run.began):
            open_runs = [each for each in open_runs if _end(each, alive) > run.began]
            yield from (Overlap(each, run) for each in open_runs)
            open_runs.append(run)


def _end(run: Run, alive: dict[int, int]) -> int:
    return alive[run.pid] if run.ended is None else run.ended


def _had_ended(overlap: Overlap, tenures: dict[str, Tenure]) -> bool:
    """Tell whether the earlier attempt was over in the engine before the later one started."""
    earlier, later = (tenures.get(run.fence) for run in overlap)
    if earlier is None or later is None or earlier.ended is None:
        return False
    return earlier.ended < later.began


def _breach(histories: Histories, overlap: Overlap) -> Violation:
    earlier, later = overlap
    text = (
        f"handlers of key {earlier.key} ran at once: {later.job} in {later.pid} began while "
        f"{earlier.job} in {earlier.pid}, whose attempt had not ended, was running"
    )
    return about(histories, _RULE, text, *dict.fromkeys((earlier.job, later.job)))


def overlap_causes(histories: Histories) -> Counter[str]:
    """Count the overlaps by what had been done to the process of the earlier handler."""
    causes: Counter[str] = Counter()
    for earlier, later in overlaps(histories):
        faults = histories.faults_by_pid.get(earlier.pid, [])
        before = [fault.kind for fault in faults if fault.t < later.began]
        causes[before[-1] if before else "no fault"] += 1
    return causes
