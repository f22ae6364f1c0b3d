"""What only trying can tell: whether settings arrive, whether a pooler is on the way, who is heard.

On connections of its own, which are gone afterwards; nothing is changed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from trellis.engines.postgres.connection import PINNED, PLAIN, Link, connect
from trellis.engines.postgres.url import Address
from trellis.errors import TrellisError

#: How long our own word may take to come back.
_ECHO: Final = 2.0

Pooler = Literal["none", "session", "transaction"]


class Probe(NamedTuple):
    """What was found."""

    #: What stands between us and the server.
    pooler: Pooler = "none"
    #: Settings of the connections that claim which are not as wanted, with what they are.
    astray: Mapping[str, str] = {}
    #: Whether what is told is heard; None if nobody is to listen.
    can_hear: bool | None = None
    #: Why nothing could be tried.
    error: str | None = None


async def probe(address: Address) -> Probe:
    """Try what matters."""
    try:
        async with AsyncExitStack() as stack:
            one, other = [await stack.enter_async_context(_link(address)) for _ in range(2)]
            pooler = await _pooler(one, other)
            heard = await _is_heard(address, one) if address.can_listen else None
            return Probe(pooler, await _astray(one), heard)
    except TrellisError as error:
        return Probe(error=str(error))


@asynccontextmanager
async def _link(address: Address) -> AsyncIterator[Link]:
    link = Link(address, PINNED)
    try:
        yield link
    finally:
        await link.close()


async def _astray(link: Link) -> dict[str, str]:
    async with link.transaction() as connection:
        rows = await connection.rows("health_settings", list(PINNED))
    return {name: found for name, found in rows if found != PINNED[name]}


async def _pooler(one: Link, other: Link) -> Pooler:
    """Tell what is on the way: a pooler has a number of its own, and may share its connections."""
    seen: dict[Link, set[int]] = {one: set(), other: set()}
    for link in (one, one, other, one, other, other):  # whichever of a few is next, or the last
        named, found = await _backend(link)
        if named == found:
            return "none"
        seen[link].add(found)
    return "transaction" if len(seen[one]) > 1 or seen[one] & seen[other] else "session"


async def _backend(link: Link) -> tuple[int, int]:
    """Return the number of the server process as we were told, and as it is."""
    async with link.transaction() as connection:
        return connection.driver.get_server_pid(), await connection.value("backend_pid")


async def _is_heard(address: Address, mouth: Link) -> bool:
    """Tell whether a word comes from where we work to where we listen."""
    ear = address
    if address.listen is not None:
        ear = replace(address, dsn=address.listen, pooler="none", listen=None)
    connection = await connect(ear, PLAIN)
    heard, word = asyncio.Event(), secrets.token_hex(8)

    def hear(_connection: Any, _pid: int, _channel: str, said: object) -> None:  # noqa: ANN401
        if said == word:
            heard.set()

    try:
        channel = f"{address.schema}_doctor"
        await connection.driver.add_listener(channel, hear)
        await mouth.rows("notify", channel, word)
        async with asyncio.timeout(_ECHO):
            await heard.wait()
    except TimeoutError:
        return False
    else:
        return True
    finally:
        connection.driver.terminate()
