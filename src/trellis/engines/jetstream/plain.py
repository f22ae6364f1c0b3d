"""New jobs, and decisions that change nothing but their jobs: stored many at a time.

Each message is guarded by the last event of its job. On one server they are sent one after the
other without waiting for answers: there, a batch is first written to files of its own, and takes
milliseconds whatever its size. With replicas one batch costs less; one with an outdated message is
refused as a whole, and then each message is sent alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trellis.core.job import JobRecord
from trellis.core.lifecycle import Transition
from trellis.engines.jetstream.link import Message, WriteResult, Written
from trellis.engines.jetstream.message import encode_transition
from trellis.engines.jetstream.store import Current, Store
from trellis.errors import EngineError

#: From how many messages on a batch is used with replicas.
_BATCHED: Final = 8
#: The most messages that are stored together.
TOGETHER: Final = 500


class PlainWriter:
    """Stores messages that do not depend on each other."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def store(
        self,
        decided: Sequence[tuple[Current, Transition]],
        messages: Sequence[Message] | None = None,
    ) -> list[Current | EngineError | None]:
        """Return each job after its decision; None: another write was first; or why it failed.

        `messages`: those of these decisions, if they were made before.
        """
        found: list[Current | EngineError | None] = []
        written = messages or [self.message(*each) for each in decided]
        for start in range(0, len(decided), TOGETHER):
            part = decided[start : start + TOGETHER]
            results = await self.write(written[start : start + TOGETHER])
            for each, result in zip(part, results, strict=True):
                if isinstance(result, Written):
                    found.append(after(*each, result.sequence))
                else:
                    found.append(result if isinstance(result, EngineError) else None)
        return found

    async def write(self, messages: Sequence[Message]) -> list[WriteResult | EngineError]:
        """Store messages, at most `TOGETHER`; each may be outdated or fail alone."""
        link, size = self._store.link, len(messages)
        try:
            if self._store.replicas > 1 and size >= _BATCHED:
                answer = await link.write(*messages)
                if isinstance(answer, Written):
                    last = answer.sequence
                    return [Written(sequence) for sequence in range(last - size + 1, last + 1)]
            return await link.write_each(messages)
        except EngineError as error:
            return [error] * size

    def message(self, current: Current, transition: Transition) -> Message:
        """Return the message of a decision."""
        wire = encode_transition(
            transition, current.created.definition, is_watched=current.is_watched
        )
        return self._store.lifecycle_message(current, transition.event.kind.value, wire)


def after(current: Current, transition: Transition, sequence: int) -> Current:
    """Return a job after a decision that is stored with this sequence."""
    record = JobRecord(transition.definition, transition.head)
    return current._replace(record=record, sequence=sequence, at=transition.event.at)
