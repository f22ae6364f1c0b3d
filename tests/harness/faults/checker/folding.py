"""C7: the journal tells the row. A fold of our own, written from the design, must give the head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tests.harness.faults.checker.histories import Event, Histories, Json, transitions
from tests.harness.faults.checker.violations import Violation, about

_RULE = "C7 journal folds to the row"


def check_folding(histories: Histories) -> Iterator[Violation]:
    """Fold every journal and compare."""
    for job, row in histories.rows.items():
        journal = histories.journals.get(job)
        if journal is None:
            yield Violation(_RULE, f"{job} has a row and no journal")
            continue
        folded = fold(journal)
        wrong = {
            name: (value, folded.get(name))
            for name, value in row.head.items()
            if value != folded.get(name)
        }
        if wrong:
            words = ", ".join(f"{name} is {a!r}, not {b!r}" for name, (a, b) in wrong.items())
            yield about(histories, _RULE, f"{job}: in the row {words}", job)
    for job in histories.journals.keys() - histories.rows.keys() - histories.removed:
        yield about(histories, _RULE, f"{job} has a journal and no row", job)


_IDLE: Final[Json] = {"fence": None, "claimed_at": None, "asked_at": None, "blocked": False}
_NEW: Final[Json] = {
    "generation": 0, "attempt": 0, "claims": 0, "crashes": 0, **_IDLE, "suspect": False,
    "error": None, "finished_at": None,
}  # fmt: skip


def fold(journal: Iterable[Event]) -> Json:
    """Return what the row must say after these events."""
    head = _NEW
    for event in transitions(journal):
        head = {**head, "version": event.version, "state": event.state, **_change(head, event)}
    return head


def _change(head: Json, event: Event) -> Json:
    """Return the fields an event changes, beside state and version."""
    data = event.data
    told: Json = {name: data[name] for name in ("error", "crashes") if name in data}
    match event.kind:
        case "created":
            return {"run_at": data.get("run_at", event.at)}
        case "started":
            counted = {"attempt": head["attempt"] + 1, "claims": head["claims"] + 1}
            return {**counted, "fence": event.fence, "claimed_at": event.at}
        case "cancelRequested":
            return {**told, "asked_at": event.at}
        case "blocked":
            return {**told, "blocked": True}
        case "retry":
            attempt = data.get("attempt", head["attempt"])
            suspect = data.get("suspect", False)
            return {
                **told, **_IDLE, "run_at": data.get("run_at"), "attempt": attempt,
                "suspect": suspect,
            }  # fmt: skip
        case "retried":
            fresh = {"generation": head["generation"] + 1, "attempt": 0, "crashes": 0}
            return {
                **fresh, **_IDLE, "run_at": event.at, "suspect": False, "error": None,
                "finished_at": None,
            }  # fmt: skip
        case _:
            ended = {**told, **_IDLE, "suspect": False, "finished_at": event.at}
            return {**ended, "error": None} if event.kind in ("completed", "skipped") else ended
