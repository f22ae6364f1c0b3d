"""What a process that only runs a handler must know about the service: where its jobs are kept.

The worker may have been pointed elsewhere than the program says, so it tells its handler processes,
and what a handler creates there goes to the same place. Jobs that live in the memory of the worker
are out of their reach: creating one is refused, because nobody would ever see it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple

from trellis.errors import ConfigurationError

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class Home(NamedTuple):
    """A service as its worker has it."""

    url: str
    #: Whether other processes see the jobs that are kept there.
    is_shared: bool = True
    #: What sets up the state that handlers share, if anything.
    make_lifespan: Lifespan | None = None


_told: Final[dict[str, str]] = {}
_out_of_reach: Final[set[str]] = set()


def tell(service: str, url: str, is_shared: bool) -> None:  # noqa: FBT001 - as it travels
    """Note where the worker keeps the jobs of a service; only a handler process is told."""
    _told[service] = url
    if not is_shared:
        _out_of_reach.add(url)


def told_url(service: str) -> str | None:
    """Return where the worker keeps the jobs of a service; None if nobody has said it."""
    return _told.get(service)


def within_reach(url: str) -> str:
    """Return the URL, unless what is kept there lives in the worker's process and not in this."""
    if url in _out_of_reach:
        raise ConfigurationError(
            f"This handler runs in a process of its own (isolation='process'), but jobs at {url} "
            "live in the memory of its worker. Keep them in a file to create or read jobs here: "
            "sqlite:///jobs.db."
        )
    return url
