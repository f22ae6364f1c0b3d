"""C1: every acknowledged job is there, as it was asked for, once; nothing else is.

An answer that never came proves nothing: such a job may be there (recovered) or not (unknown).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.harness.faults.checker.histories import Histories, Op
from tests.harness.faults.checker.violations import Violation, show_op

_RULE = "C1 conservation"


def check_conservation(histories: Histories) -> Iterator[Violation]:
    """Compare what producers were told with what the database has."""
    asked = {hashed: op for op in histories.ops for hashed in op.hashes}
    for op in histories.ops:
        yield from _lost(histories, op)
    seen: dict[str, str] = {}
    for row in histories.rows.values():
        if row.hash not in asked:
            text = f"{row.id} was invented: nobody asked for payload {row.hash}"
            yield Violation(_RULE, text)
        elif row.hash in seen:
            text = f"{row.id} and {seen[row.hash]} are the same request, made into two jobs"
            yield Violation(_RULE, text, (show_op(asked[row.hash]),))
        seen[row.hash] = row.id


def _lost(histories: Histories, op: Op) -> Iterator[Violation]:
    if op.ids is None:
        return
    if len(op.ids) != len(op.hashes):
        text = f"{op.name} asked for {len(op.hashes)} jobs and was told of {len(op.ids)}"
        yield Violation(_RULE, text, (show_op(op),))
    for job, hashed in zip(op.ids, op.hashes, strict=False):
        row = histories.rows.get(job)
        if row is None and job not in histories.removed:
            yield Violation(_RULE, f"{job} was acknowledged and is lost", (show_op(op),))
        elif row is not None and row.hash != hashed:
            text = f"{job} has payload {row.hash}; {hashed} was acknowledged"
            yield Violation(_RULE, text, (show_op(op),))


def sort_requests(histories: Histories) -> Counter[str]:
    """Count the requests: ok, lost, recovered (no answer, but there), unknown (neither)."""
    there = {row.hash for row in histories.rows.values()}
    words = {
        (True, True): "ok",
        (True, False): "lost",
        (False, True): "recovered",
        (False, False): "unknown",
    }
    return Counter(
        words[op.ids is not None, hashed in there] for op in histories.ops for hashed in op.hashes
    )
