"""Where a worker keeps the jobs of a service, as its handler processes must know it.

The worker may use another URL than the program names. It sends the URL to its handler processes, so
that jobs which a handler creates there go to the same engine. Jobs on `memory://` are in the memory
of the worker: a handler process cannot reach them, and every use of them there is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple

from trellis.errors import ConfigurationError

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class WorkerLocation(NamedTuple):
    """Where a worker keeps the jobs of a service, and how it sets up the service."""

    url: str
    #: Whether other processes can reach the jobs.
    is_shared: bool = True
    #: Sets up the state that handlers share, if the service has any.
    make_lifespan: Lifespan | None = None


_urls: Final[dict[str, str]] = {}
_unreachable: Final[set[str]] = set()


def set_location(service: str, url: str, is_shared: bool) -> None:  # noqa: FBT001 - as it is sent
    """Store, in a handler process, where the worker keeps the jobs of a service."""
    _urls[service] = url
    if not is_shared:
        _unreachable.add(url)


def worker_url(service: str) -> str | None:
    """Return where the worker keeps the jobs of a service; None outside handler processes."""
    return _urls.get(service)


def check_reachable(url: str) -> str:
    """Return the URL; raise `ConfigurationError` if its jobs are in the memory of the worker."""
    if url in _unreachable:
        raise ConfigurationError(
            f"This handler runs in a separate process (isolation='process'), but jobs at {url} "
            "are in the memory of its worker. To create or read jobs here, keep them in a file: "
            "sqlite:///jobs.db."
        )
    return url
