"""Where a command works: an operator at the URL in force, for as long as the command takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from trellis.cli.options import resolve_url
from trellis.config import sources
from trellis.errors import ConfigurationError
from trellis.operations.operator import Operator, connect

T = TypeVar("T")


def operate(url: str | None, action: Callable[[Operator], Awaitable[T]]) -> T:
    """Run an action with an operator; nothing is created where nothing is."""

    async def work() -> T:
        async with operator_at(url) as jobs:
            return await action(jobs)

    return asyncio.run(work())


def operator_at(url: str | None) -> Operator:
    """Return the operator, not yet opened."""
    place = resolve_url(url)
    with blaming(place):
        return connect(place, actor="cli")


@contextmanager
def blaming(url: str) -> Iterator[None]:
    """Where a wrong URL comes from the settings, say from which."""
    try:
        yield
    except ConfigurationError as error:
        found = sources().get("TRELLIS_URL")
        if found is None or found.text != url:
            raise
        raise type(error)(f"{found.origin}: {error}") from error
