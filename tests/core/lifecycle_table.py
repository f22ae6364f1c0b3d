"""The lifecycle as it was designed, written down by hand a second time.

Nothing here is derived from `trellis.core.lifecycle`. Each line: the command, the states it acts
on, what must be true (`not` before a word negates it), the state it leads to, the event, and what
it does to the head besides. Lines exclude each other, so their order means nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trellis.core.states import State

_TABLE: Final = """
Claim      | pending, retry | due, not deadline passed                                 | active                | started         | new fence, claims+1, attempt+1
Complete   | active         | fence, not item errors                                   | completed             | completed       | no error
Complete   | active         | fence, item errors                                       | completed_with_errors | completed       | no error
Fail       | active         | fence, asked                                             | cancelled             | cancelled       |
Fail       | active         | fence, not asked, gave up                                | cancelled             | cancelled       |
Fail       | active         | fence, not asked, not gave up, retryable, left           | retry                 | retry           | run_at=wait, error=exception
Fail       | active         | fence, not asked, not gave up, retryable, not left, dlq  | dead                  | dead            | error=exception
Fail       | active         | fence, not asked, not gave up, retryable, not left, not dlq | failed             | failed          | error=exception
Fail       | active         | fence, not asked, not gave up, not retryable             | failed                | failed          | error=exception
Snooze     | active         | fence, asked                                             | cancelled             | cancelled       |
Snooze     | active         | fence, not asked                                         | retry                 | retry           | run_at=snooze, attempt-1
Release    | active         | fence, asked                                             | cancelled             | cancelled       |
Release    | active         | fence, not asked, not begun                              | retry                 | retry           | attempt-1
Release    | active         | fence, not asked, begun, on_shutdown=requeue             | retry                 | retry           | attempt-1
Release    | active         | fence, not asked, begun, on_shutdown=fail                | failed                | failed          | error=shutdown
LoseLease  | active         | fence, asked                                             | cancelled             | cancelled       |
LoseLease  | active         | fence, not asked, on_lost=retry, left                    | retry                 | retry           | run_at=wait, error=lease_lost
LoseLease  | active         | fence, not asked, on_lost=retry, not left, dlq           | dead                  | dead            | error=lease_lost
LoseLease  | active         | fence, not asked, on_lost=retry, not left, not dlq       | failed                | failed          | error=lease_lost
LoseLease  | active         | fence, not asked, on_lost=fail                           | failed                | failed          | error=lease_lost
LoseLease  | active         | fence, not asked, on_lost=stale                          | stale                 | stale           | error=lease_lost
LoseLease  | active         | fence, not asked, on_lost=block, not blocked             | active                | blocked         | blocked, error=lease_lost
Crash      | active         | fence, asked                                             | cancelled             | cancelled       |
Crash      | active         | fence, not asked, not begun                              | retry                 | retry           | attempt-1
Crash      | active         | fence, not asked, begun, not alone                       | retry                 | retry           | attempt-1, suspect, error=crash
Crash      | active         | fence, not asked, begun, alone, last crash, dlq          | dead                  | dead            | crashes+1, error=crash_loop
Crash      | active         | fence, not asked, begun, alone, last crash, not dlq      | failed                | failed          | crashes+1, error=crash_loop
Crash      | active         | fence, not asked, begun, alone, not last crash, on_lost=retry, left | retry      | retry           | run_at=wait, crashes+1, error=crash
Crash      | active         | fence, not asked, begun, alone, not last crash, on_lost=retry, not left, dlq | dead | dead         | crashes+1, error=crash
Crash      | active         | fence, not asked, begun, alone, not last crash, on_lost=retry, not left, not dlq | failed | failed | crashes+1, error=crash
Crash      | active         | fence, not asked, begun, alone, not last crash, on_lost=fail | failed            | failed          | crashes+1, error=crash
Crash      | active         | fence, not asked, begun, alone, not last crash, on_lost=stale | stale            | stale           | crashes+1, error=crash
Crash      | active         | fence, not asked, begun, alone, not last crash, on_lost=block, not blocked | active | blocked      | blocked, crashes+1, error=crash
ReleaseKey | active         | blocked, asked                                           | cancelled             | cancelled       |
ReleaseKey | active         | blocked, not asked, then=retry, left                     | retry                 | retry           | run_at=wait, error=lease_lost
ReleaseKey | active         | blocked, not asked, then=retry, not left, dlq            | dead                  | dead            | error=lease_lost
ReleaseKey | active         | blocked, not asked, then=retry, not left, not dlq        | failed                | failed          | error=lease_lost
ReleaseKey | active         | blocked, not asked, then=fail                            | failed                | failed          | error=lease_lost
Cancel     | pending, retry |                                                          | cancelled             | cancelled       |
Cancel     | active         | forced                                                   | cancelled             | cancelled       |
Cancel     | active         | not forced, not asked                                    | active                | cancelRequested | asked
Resolve    | pending        | never claimed                                            | pending               | resolved        | not before now
Adjust     | pending        |                                                          | pending               | adjusted        | adjusted
Adjust     | retry          |                                                          | retry                 | adjusted        | adjusted
Adjust     | active         | not new time                                             | active                | adjusted        |
Expire     | pending, retry, active | deadline passed                                  | expired               | expired         |
Skip       | pending        | never claimed                                            | skipped               | skipped         | no error
Exhaust    | pending, retry | dlq                                                      | dead                  | dead            | error=exhausted
Exhaust    | pending, retry | not dlq                                                  | failed                | failed          | error=exhausted
Retry      | failed         |                                                          | pending               | retried         | run_at=now, generation+1, attempt=0, crashes=0, no error
RetryItems | completed_with_errors, failed, dead |                                    | pending               | retried         | run_at=now, generation+1, attempt=0, crashes=0, no error
Replay     | dead           |                                                          | pending               | retried         | run_at=now, generation+1, attempt=0, crashes=0, no error
Dismiss    | dead           |                                                          | dismissed             | dismissed       |
"""  # noqa: E501 - a table reads by its columns


class Line(NamedTuple):
    """One line of the table."""

    command: str
    sources: frozenset[State]
    #: Words that must be true, and words that must not be.
    given: frozenset[str]
    unless: frozenset[str]
    target: State
    event: str
    effects: frozenset[str]

    def fits(self, command: str, state: State, facts: frozenset[str]) -> bool:
        """Tell whether this line speaks of such a case."""
        return (
            self.command == command
            and state in self.sources
            and self.given <= facts
            and not self.unless & facts
        )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _line(text: str) -> Line:
    command, sources, given, target, event, effects = (part.strip() for part in text.split("|"))
    return Line(
        command,
        frozenset(State(word) for word in _words(sources)),
        frozenset(word for word in _words(given) if not word.startswith("not ")),
        frozenset(word.removeprefix("not ") for word in _words(given) if word.startswith("not ")),
        State(target),
        event,
        frozenset(_words(effects)),
    )


EXPECTED: Final = tuple(_line(text) for text in _TABLE.strip().splitlines())


def expected(command: str, state: State, facts: frozenset[str]) -> Line | None:
    """Return the one line for this case; None means that the command must be refused."""
    fitting = [line for line in EXPECTED if line.fits(command, state, facts)]
    if len(fitting) > 1:
        raise AssertionError(f"{command} in {state} with {sorted(facts)}: two lines fit.")
    return fitting[0] if fitting else None
