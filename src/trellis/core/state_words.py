"""The words of other job systems for the states of a job: one table for each profile of the API.

Programs that were written for such a system read and send its words (`trellis.server.profiles`).
Where it has no word for a state, the nearest word of it is shown, and `cancelled` where none is
near. A job whose attempts are used up (`dead`) is shown as failed, because these systems have no
dead letters. Filters know the words that no state has (`SYNONYMS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trellis.core.states import GROUPS, State
from trellis.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class StateWords:
    """The words of one profile."""

    words: Mapping[State, str]
    #: The word for an active job whose handler has begun, where it differs.
    begun: str | None = None

    def word(self, state: State, *, begun: bool = False) -> str:
        """Return the word for the state of a job.

        >>> PROVISIONING.word(State.ACTIVE), PROVISIONING.word(State.ACTIVE, begun=True)
        ('CLAIMED', 'PROCESSING')
        """
        if begun and state is State.ACTIVE and self.begun is not None:
            return self.begun
        return self.words[state]

    def states(self, word: str) -> tuple[State, ...]:
        """Return the states that a word stands for; raise `ConfigurationError` if it is unknown.

        >>> [str(state) for state in AGENT_ORCHESTRATION.states("failed")]
        ['failed', 'expired', 'stale', 'dead', 'dismissed']
        """
        if word == self.begun:
            return (State.ACTIVE,)
        found = tuple(state for state in State if self.words[state] == word)
        if not found:
            raise ConfigurationError(
                f"{word!r} is not a status here. Known: {', '.join(self.known)}."
            )
        return found

    @property
    def known(self) -> tuple[str, ...]:
        """All words, in the order of the lifecycle."""
        begun = () if self.begun is None else (self.begun,)
        return tuple(dict.fromkeys((*self.words.values(), *begun)))


def _table(
    *,
    waiting: str,
    active: str,
    completed: str,
    failed: str,
    cancelled: str,
    with_errors: str | None = None,
    begun: str | None = None,
) -> StateWords:
    return StateWords(
        {
            State.PENDING: waiting,
            State.RETRY: waiting,
            State.ACTIVE: active,
            State.COMPLETED: completed,
            State.COMPLETED_WITH_ERRORS: with_errors or completed,
            State.FAILED: failed,
            State.DEAD: failed,
            State.DISMISSED: failed,
            State.STALE: failed,
            State.EXPIRED: failed,
            State.CANCELLED: cancelled,
            State.SKIPPED: cancelled,
        },
        begun,
    )


#: Workers that only speak HTTP.
PROVISIONING: Final = _table(
    waiting="QUEUED", active="CLAIMED", begun="PROCESSING",
    completed="SUCCESS", failed="FAILED", cancelled="CANCELLED",
)  # fmt: skip
#: Jobs that lock a table.
TABLE_MAINTENANCE: Final = _table(
    waiting="pending", active="running",
    completed="completed", failed="failed", cancelled="cancelled",
)  # fmt: skip
#: Jobs with phases and items.
DOCS_PUBLISHING: Final = _table(
    waiting="queued", active="in_progress",
    completed="completed", with_errors="completed_with_errors",
    failed="failed", cancelled="cancelled",
)  # fmt: skip
#: A list of recent jobs by status.
AGENT_ORCHESTRATION: Final = _table(
    waiting="pending", active="running",
    completed="completed", failed="failed", cancelled="cancelled",
)  # fmt: skip
PROFILES: Final = (PROVISIONING, TABLE_MAINTENANCE, DOCS_PUBLISHING, AGENT_ORCHESTRATION)


def _synonyms() -> dict[str, frozenset[State]]:
    found: dict[str, set[State]] = {}
    for profile in PROFILES:
        for word in profile.known:
            if word.lower() not in {*State, *GROUPS}:
                found.setdefault(word.lower(), set()).update(profile.states(word))
    return {word: frozenset(states) for word, states in found.items()}


#: The words of all profiles that are no state and no group of states; filters take them too.
SYNONYMS: Final = _synonyms()
