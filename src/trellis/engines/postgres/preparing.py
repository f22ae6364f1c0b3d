"""Statements are prepared before a transaction begins, not in the middle of it.

The driver prepares in two steps and the server waits between them for the client, neither idle nor
at work. A process that stands still just there would keep its locks for as long as it stands: no
timeout of the server applies. So what a verb may run while it holds locks is prepared before it
begins, once per connection. (Behind a transaction pooler nothing can be: there the pooler's own
timeouts must end such a client.)
"""

from __future__ import annotations

from typing import Any, Final

import asyncpg

from trellis.engines.postgres.statements import statements

_HAND_OVER: Final = ("key_lock", "key_hand_over")
_END_LINGERING: Final = (
    *_HAND_OVER, "record_by_seq", "slot_free", "slot_unclaim", "key_available",
)  # fmt: skip
#: What each verb may run after its first lock.
AHEAD: Final[dict[str, tuple[str, ...]]] = {
    "create": (
        *_HAND_OVER, "gate_patience", "gate", "clock", "create_known", "create_draining", "create",
        "key_facts", "record_by_id", "record_by_seq", "commit_end", "slot_of_job", "slot_free",
        "slot_unclaim",
    ),
    "commit": (
        *_HAND_OVER, "clock", "commit_done", "commit_end", "commit_move", "outcome_lock",
        "commit_close", "commit_revive_guard", "commit_revive", "commit_seen_at", "event",
        "record_by_seq", "key_facts", "key_availability", "slot_of_job", "slot_free",
        "slot_free_jobs", "slot_linger", "slot_unclaim", "session_lease", "lock_linger",
    ),
    "note": (
        "note_fence", "outcome_lock", "clock", "note_touch", "record_by_seq", "note_seen",
        "note_begun", "note_progress", "note_phase", "note_items_clear", "note_item", "note_log",
        "event",
    ),
    "renew": (
        *_END_LINGERING, "session_renew", "lock_outlived", "slot_stopped", "lock_stopped",
        "session_held",
    ),
    "close_session": ("clock", "session_end", "lock_of_session"),
    "reap": (
        *_END_LINGERING, "clock", "session_reap", "session_alive", "lock_of_session",
        "slot_of_session", "lock_reaped",
    ),
    "take_lock": ("lock_gate", "clock", "lock_holder", "lock_put", "lock_free"),
    "promote": (
        *_END_LINGERING, "clock", "due_later", "promote", "caller_waiting", "caller_admit",
        "slot_overdue", "lock_overdue",
    ),
    "prune": (
        "prune_pick", "prune_removal", "prune_outcome", "prune_event", "prune_note", "prune_item",
        "prune_log", "prune_idempotency", "prune_job", "prune_sessions", "remove_look",
        "outcome_lock",
    ),
}  # fmt: skip


class Connection(asyncpg.Connection):
    """A connection that knows for which verbs it is prepared."""

    __slots__ = ("_verbs",)

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - the driver's own
        super().__init__(*args, **options)
        self._verbs: set[str] = set()

    def is_ready_for(self, verb: str) -> bool:
        """Tell whether everything that a verb may run is prepared."""
        return verb in self._verbs

    async def prepare_for(self, verb: str, schema: str) -> None:
        """Prepare what a verb may run."""
        texts = statements(schema)
        # The driver has no public way into its cache; one without this way goes on as it is.
        prepare = getattr(self, "_get_statement", None)
        if prepare is not None:
            for name in AHEAD.get(verb, ()):
                await prepare(texts[name], None)
        self._verbs.add(verb)
