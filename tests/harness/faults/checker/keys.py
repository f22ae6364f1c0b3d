"""C6: never more jobs of a key at once than it allows, in the engine and on the machine.

In the engine: between `started` and the end of an attempt its key has one slot less. On the
machine: handlers of one key that overlap, more of them than it has slots, are a breach, unless the
attempts of those that are too many had ended in the engine before the later one started, and
something had been done to their processes by then; so these were zombies, and are counted by what
had been done. Nothing frees the key of a handler
that runs on in a process nobody has touched; being cut off from the server is no excuse, as such a
process can tell when its lease is over and must have stopped its keyed handlers by then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.harness.faults.checker.histories import Event, Histories, Run, transitions
from tests.harness.faults.checker.violations import Violation, about

_RULE = "C6 keys"


class Tenure(NamedTuple):
    """One attempt in engine order: from its start to its end, by `seq`."""

    job: str
    fence: str
    began: int
    ended: int | None


class Overlap(NamedTuple):
    """Two handlers of one key at once that are one too many, in the order of their starts."""

    earlier: Run
    later: Run
    #: Whether the earlier attempt was over in the engine before the later one started.
    had_ended: bool


def check_keys(histories: Histories) -> Iterator[Violation]:
    """Check the slots of every key, then its handlers."""
    by_key: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in tenures_of(histories):
        row = histories.rows.get(tenure.job)
        if row is not None and row.key is not None:
            by_key[row.key].append(tenure)
    for key, held in by_key.items():
        yield from _over_limit(histories, key, held)
    for overlap in overlaps(histories):
        if not overlap.had_ended:
            yield _breach(histories, overlap, "whose attempt had not ended")
        elif not _done_before(histories, overlap):
            yield _breach(histories, overlap, "to whose process nothing had been done")
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
    """Return the runs of one key that were on the machine with one for which no slot was left.

    Of those beside which it ran, zombies are the ones that were too many.
    """
    tenures = {tenure.fence: tenure for tenure in tenures_of(histories)}
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in histories.runs:
        if run.key is not None:
            by_key[run.key].append(run)
    signs = _signs_of_life(histories)
    for runs in by_key.values():
        open_runs: list[Run] = []
        for run in sorted(runs, key=lambda run: run.began):
            open_runs = [each for each in open_runs if (each.ended or signs[each.pid]) > run.began]
            row = histories.rows.get(run.job)
            left = (1 if row is None else row.max_active) - 1
            pairs = [_overlap(each, run, tenures) for each in open_runs]
            pairs.sort(key=lambda each: (each.had_ended, bool(_done_before(histories, each))))
            yield from pairs[left:]
            open_runs.append(run)


def _signs_of_life(histories: Histories) -> dict[int, int]:
    """Return when each process was last heard of: a run that never ended lasted until then."""
    signs: dict[int, int] = defaultdict(int)
    for run in histories.runs:
        signs[run.pid] = max(signs[run.pid], run.ended or run.began)
    return signs


def _overlap(one: Run, other: Run, tenures: dict[str, Tenure]) -> Overlap:
    first, second = tenures.get(one.fence), tenures.get(other.fence)
    if first is None or second is None:
        return Overlap(one, other, had_ended=False)
    if first.began > second.began:  # a zombie may begin what it has long lost
        one, other, first, second = other, one, second, first
    return Overlap(one, other, first.ended is not None and first.ended < second.began)


def _breach(histories: Histories, overlap: Overlap, why: str) -> Violation:
    earlier, later, _ = overlap
    text = (
        f"handlers of key {earlier.key} ran at once: {earlier.job} in {earlier.pid}, {why}, and "
        f"{later.job} in {later.pid}"
    )
    return about(histories, _RULE, text, *dict.fromkeys((earlier.job, later.job)))


def _done_before(histories: Histories, overlap: Overlap) -> list[str]:
    """Return what had been done to the process of the earlier handler when they met."""
    met = max(overlap.earlier.began, overlap.later.began)
    faults = histories.faults_on(overlap.earlier.fence, pauses=True)
    return [fault.kind for fault in faults if fault.t < met and fault.kind != "cut_off"]


def overlap_causes(histories: Histories) -> Counter[str]:
    """Count the overlaps by what had been done to the process of the earlier handler."""
    causes: Counter[str] = Counter()
    for overlap in overlaps(histories):
        done = _done_before(histories, overlap)
        ran_on = overlap.earlier.began < overlap.later.began
        what = "ran on" if ran_on else "began what it had lost"
        causes[f"{what} after {done[-1]}" if done else f"{what}, no fault"] += 1
    return causes
