"""What a worker process counts, if metrics are switched on.

Nothing here is called for a single attempt while it runs. Settlements are counted batch by batch,
when the engine has answered; what runs at a moment is counted when a scrape asks for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from trellis.control import Applied, Result
from trellis.core.commands import Complete, FencedCommand
from trellis.core.durations import SECOND
from trellis.core.job import Definition, JobRecord
from trellis.core.lifecycle import Stale
from trellis.core.states import State
from trellis.engines.instrumented import Call, instrumented
from trellis.engines.port import Engine
from trellis.telemetry import Telemetry
from trellis.telemetry import metrics as table
from trellis.telemetry.registry import Distribution, Number, Registry, Snapshot
from trellis.worker.attempt import Attempt, HeldAttempts

if TYPE_CHECKING:
    from trellis.telemetry.tracing import Tracing

#: After this many seconds without a step a loop counts as stalled.
STALLED: Final = 0.5
_Names = tuple[str, str, str]
_item_errors: Final = attrgetter("item_errors")


class WorkerTelemetry(NamedTuple):
    """What a worker has switched on."""

    metrics: WorkerMetrics | None = None
    tracing: Tracing | None = None


#: Nothing is switched on.
NO_TELEMETRY: Final = WorkerTelemetry()


def observe(
    engine: Engine, telemetry: Telemetry, attempts: HeldAttempts, slots: int
) -> tuple[Engine, WorkerTelemetry]:
    """Return the engine, wrapped if its calls are counted, and what the worker has switched on."""
    if telemetry.registry is None:
        return engine, WorkerTelemetry(None, telemetry.tracing)
    metrics = WorkerMetrics(telemetry.registry, attempts, slots)
    return instrumented(engine, metrics.call), WorkerTelemetry(metrics, telemetry.tracing)


class _Lane:
    """The numbers of one type in one queue."""

    def __init__(self, registry: Registry, names: _Names) -> None:
        self._registry = registry
        self._names = names
        #: Attempts that began and are no longer held.
        self.ended = 0
        self.durations: Distribution = registry.distribution(table.DURATION, *names)
        # Times of the engine are in microseconds; they are divided when they are read.
        self.waits: Distribution = registry.distribution(table.WAIT, *names, scale=SECOND)
        self.completed = self.settled(State.COMPLETED)

    def settled(self, state: State) -> Number:
        return self._registry.number(table.SETTLED, *self._names, state.value)

    def complete(self, attempts: Sequence[Attempt]) -> None:
        """Count attempts that have completed."""
        self.ended += len(attempts)
        self.completed.value += len(attempts)
        self.durations.add_all([each.ended - each.began for each in attempts])
        self.waits.add_all([(each.started_at or 0) - each.record.head.run_at for each in attempts])


class WorkerMetrics:
    """Counts for one worker."""

    def __init__(self, registry: Registry, attempts: HeldAttempts, slots: int) -> None:
        self._registry = registry
        self._attempts = attempts
        self._slots = slots
        self._lanes: dict[_Names, _Lane] = {}
        self._stalls = registry.number(table.LOOP_STALLS)
        self._swept: float | None = None
        #: Returns how many settlements are not stored yet.
        self.settlements_waiting: Callable[[], int] = lambda: 0
        self._detach = registry.read_at_scrape(self._read)

    def close(self) -> None:
        """Keep what was counted as it is: the worker has ended."""
        final = self._read()
        self._detach()
        for labels, value in final[table.STARTED.name].items():
            if not isinstance(value, tuple):
                self._registry.number(table.STARTED, *labels).value += value

    # -- on the worker's loop ------------------------------------------------------------------

    def settle(
        self, batch: Sequence[tuple[Attempt, FencedCommand]], results: Sequence[Result]
    ) -> None:
        """Count a batch that the engine has answered, before its attempts are let go."""
        if _is_one_lane_completed(batch, results):
            attempts = [attempt for attempt, _ in batch]
            self._lane(attempts[0].record.definition).complete(attempts)
            return
        completed: dict[_Lane, list[Attempt]] = {}
        for (attempt, command), result in zip(batch, results, strict=True):
            lane = self._lane(attempt.record.definition)
            if type(result) is Applied and type(command) is Complete and not command.item_errors:
                completed.setdefault(lane, []).append(attempt)
            else:
                self._settle_other(lane, attempt, result)
        for lane, attempts in completed.items():
            lane.complete(attempts)

    def _settle_other(self, lane: _Lane, attempt: Attempt, result: Result) -> None:
        if not isinstance(result, Applied | Stale):
            if attempt.fence in self._attempts.held and attempt.started_at is not None:
                lane.ended += 1
            return
        if attempt.started_at is not None and attempt.fence in self._attempts.held:
            lane.ended += 1
            lane.durations.add((attempt.ended or monotonic()) - attempt.began)
            lane.waits.add(attempt.started_at - attempt.record.head.run_at)
        if isinstance(result, Stale):
            self._add(table.STALE_WRITES, attempt.record.definition)
            return
        head = result.record.head
        lane.settled(head.state).value += 1
        if head.state is State.RETRY and head.error is not None:
            self._add(table.RETRIES, attempt.record.definition)

    def leave_lost(self, attempt: Attempt) -> None:
        """Count an attempt that is let go without a settlement: it was ended elsewhere."""
        if attempt.started_at is not None:
            self._lane(attempt.record.definition).ended += 1

    def lose_lease(self, record: JobRecord) -> None:
        """Count an attempt that maintenance has ended because its lease was over."""
        self._add(table.LEASES_LOST, record.definition)

    def sweep(self, now: float) -> None:
        """Note that the loop makes a step."""
        if self._swept is not None and now - self._swept >= STALLED:
            self._stalls.value += 1
        self._swept = now

    def call(self, call: Call) -> None:
        """Count a call of the engine."""
        if call.error is not None:
            if isinstance(call.error, Exception):
                self._registry.number(table.CALL_ERRORS, call.verb).value += 1
            return
        self._registry.distribution(table.CALL_DURATION, call.verb).add(call.duration)
        if call.items:
            self._registry.distribution(table.CALL_ITEMS, call.verb).add(call.items)

    def _lane(self, definition: Definition) -> _Lane:
        names = definition.service, definition.queue, definition.type
        lane = self._lanes.get(names)
        if lane is None:
            lane = self._lanes[names] = _Lane(self._registry, names)
        return lane

    def _add(self, metric: table.Metric, definition: Definition) -> None:
        names = definition.service, definition.queue, definition.type
        self._registry.number(metric, *names).value += 1

    # -- at a scrape ---------------------------------------------------------------------------

    def _read(self) -> Snapshot:
        held = tuple(self._attempts.held.values())
        begun = Counter(_names(each) for each in held if each.started_at is not None)
        running = Counter(_names(each) for each in held if each.running and each.lost_at is None)
        names = {*self._lanes, *begun}
        ended = {name: lane.ended for name, lane in tuple(self._lanes.items())}
        return {
            table.STARTED.name: {name: ended.get(name, 0) + begun[name] for name in names},
            table.RUNNING.name: {name: running[name] for name in names},
            table.SLOTS.name: {(): self._slots},
            table.LOST_THREADS.name: {(): len(self._attempts.lost)},
            table.SETTLEMENTS_WAITING.name: {(): self.settlements_waiting()},
        }


def _is_one_lane_completed(
    batch: Sequence[tuple[Attempt, FencedCommand]], results: Sequence[Result]
) -> bool:
    """Return whether all have completed and belong together, as in most batches."""
    if {type(command) for _, command in batch} != {Complete} or set(map(type, results)) != {
        Applied
    }:
        return False
    return (
        len({attempt.type for attempt, _ in batch}) == 1
        and len({attempt.record.definition.queue for attempt, _ in batch}) == 1
        and {_item_errors(command) for _, command in batch} == {0}
    )


def _names(attempt: Attempt) -> _Names:
    definition = attempt.record.definition
    return definition.service, definition.queue, definition.type
