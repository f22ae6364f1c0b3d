"""What the shared verbs see of a running transaction, on every SQL engine.

A verb is an `async def` over this protocol. On PostgreSQL it really waits for the server. On SQLite
every coroutine here returns at once, so the writer thread runs a whole verb with `run_through`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from trellis.core.durations import Instant, Micros
from trellis.core.job import Definition, NewJob
from trellis.core.lifecycle import Transition
from trellis.engines.sql.rows import Row
from trellis.engines.values import Topic

T = TypeVar("T")


class Transaction(Protocol):
    """One transaction: statements by name, one reading of the clock, hints."""

    #: The moment of this transaction: the same for all that a verb writes. On PostgreSQL it is not
    #: known before `read_clock`.
    now: Instant
    #: The hints to publish once this is committed.
    topics: set[Topic]
    #: Whether the application began this transaction and will end it, on PostgreSQL. Then nothing
    #: waits for a lock, and keys' slots are handed over after the commit.
    is_callers: bool

    def rows(self, name: str, *values: Any) -> Awaitable[Sequence[Row]]:  # noqa: ANN401
        """Run a statement; return its rows."""

    def one(self, name: str, *values: Any) -> Awaitable[Row | None]:  # noqa: ANN401
        """Run a statement; return its first row."""

    def value(self, name: str, *values: Any) -> Awaitable[Any]:  # noqa: ANN401
        """Run a statement; return the first value of its first row, None without rows."""

    def run(self, name: str, *values: Any) -> Awaitable[None]:  # noqa: ANN401
        """Run a statement that returns nothing."""

    def run_many(self, name: str, rows: Sequence[Row]) -> Awaitable[None]:
        """Run a statement for many rows at once; nothing is run for none.

        On PostgreSQL it takes an array for each column, on SQLite it has `values (?, ...)`.
        """

    def changed(self, name: str, *values: Any) -> Awaitable[int]:  # noqa: ANN401
        """Run a statement that changes rows; return how many.

        On PostgreSQL it must end in `returning`.
        """

    def lock(self, name: str, *values: Any) -> Awaitable[None]:  # noqa: ANN401
        """Run a statement that takes locks until the transaction ends; a list needs no `array`.

        Nothing is run on SQLite, where a transaction that writes has the file for itself.
        """

    def read_clock(self) -> Awaitable[None]:
        """Fix `now`: after all locks are taken, so that times follow the order of commits."""

    @property
    def lease_clock(self) -> tuple[object, ...]:
        """The values with which statements compare the ends of leases.

        On PostgreSQL `now`, or null before it is fixed, which is the server's clock; on SQLite the
        name of the boot and the time since then.
        """

    def lease_until(self, lease: Micros) -> tuple[object, ...]:
        """Return the columns for the end of a lease that begins now."""

    def array(self, values: Sequence[object]) -> object:
        """Return a list as a statement takes it: an array, or JSON text."""

    def hand_over(self, key_hashes: Sequence[str]) -> Awaitable[int]:
        """Give free slots of these keys to their waiting jobs; return how many.

        The jobs of a key get them in the order of claims: priority, due time, creation. PostgreSQL
        needs one statement for all keys.
        """


class Storage(Protocol):
    """How an engine writes the rows of a job and its event, in a transaction under way."""

    def insert(self, jobs: Sequence[NewJob]) -> Awaitable[None]:
        """Store new jobs, in the order given; a due one with a key waits for its slot."""

    def insert_following(self, jobs: Sequence[NewJob]) -> Awaitable[None]:
        """Store jobs that follow others; those of tenants are ranked by their promotion.

        On PostgreSQL one with a key may get its slot after the commit: the lock of a key comes
        before those of the rows that this transaction has, so it is only tried.
        """

    def end(self, transition: Transition) -> Awaitable[bool]:
        """End a live job; False if its version or fence is no longer the one decided against.

        A watched job is not ended either: see `followups.py`.
        """

    def end_watched(self, transitions: Sequence[Transition]) -> Awaitable[set[int]]:
        """End live jobs, watched ones too; return the numbers of those whose guards held."""

    def move(self, transition: Transition) -> Awaitable[bool]:
        """Change a live job that stays live; False as for `end`.

        A waiting job becomes ready or waits for its time; one with a key has yet to be judged by
        its slot.
        """

    def redefine(self, definition: Definition) -> Awaitable[None]:
        """Store the queue, priority and attempts of a live job, which an operator has changed."""


def run_through(verb: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, and return its result."""
    try:
        verb.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    verb.close()
    raise RuntimeError("A verb waited, although this engine runs its verbs without waiting.")
