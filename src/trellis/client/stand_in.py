"""What takes the place of every service's engine for a while: how tests rebind a whole program.

Code sees the innermost stand-in that was entered around it (a context variable: tasks and threads
with a copied context see it too); code outside of all, say in a plain thread, sees the one entered
last. One that has ended is seen by nobody, whatever context still names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from trellis.client.source import Source


class StandIn(Protocol):
    """Another place where the jobs of all services are kept."""

    @property
    def url(self) -> str:
        """What a service says when asked where its jobs are."""

    def source_for(self, owner: object) -> Source:
        """Return the place; take note of who asks for it."""


_entered: Final[list[StandIn]] = []
_around: Final[ContextVar[tuple[StandIn, ...]]] = ContextVar("trellis_stand_ins", default=())


def current_stand_in() -> StandIn | None:
    """Return what stands in for the engines of all services here and now, if anything."""
    if not _entered:
        return None
    for stand_in in reversed(_around.get()):
        if stand_in in _entered:
            return stand_in
    last = _entered[-1:]
    return last[0] if last else None


def enter(stand_in: StandIn) -> None:
    """Let it stand in, for the code around which it is entered first of all."""
    _entered.append(stand_in)
    _around.set((*_still_entered(), stand_in))


def leave(stand_in: StandIn) -> None:
    """Let everything be as it was before."""
    _entered.remove(stand_in)
    _around.set(_still_entered())


@contextmanager
def acting(stand_in: StandIn) -> Iterator[None]:
    """Let the code inside see this stand-in, whatever else was entered since."""
    token = _around.set((*_around.get(), stand_in))
    try:
        yield
    finally:
        _around.reset(token)


def _still_entered() -> tuple[StandIn, ...]:
    return tuple(each for each in _around.get() if each in _entered)
