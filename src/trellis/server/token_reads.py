"""Reading the tokens of requests: what arrives at the same time with one token shares a read.

A request never uses a read that began before it arrived, so a token that was revoked before is
refused.
"""

from __future__ import annotations

import asyncio

from trellis.engines.port import Engine
from trellis.engines.tokens import TokenRecord
from trellis.operations.tokens import find_token


class TokenReads:
    """Finds tokens by their text."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By text: the read that has begun, and the one that requests wait for meanwhile.
        self._begun: dict[str, asyncio.Task[TokenRecord | None]] = {}
        self._next: dict[str, asyncio.Task[TokenRecord | None]] = {}

    async def find(self, text: str) -> TokenRecord | None:
        """Return the token if it is valid now; None if it gives no access."""
        if text not in self._next:
            self._next[text] = asyncio.ensure_future(self._read(text))
        return await asyncio.shield(self._next[text])

    async def _read(self, text: str) -> TokenRecord | None:
        if text in self._begun:
            await asyncio.wait([self._begun[text]])
        task = self._begun[text] = self._next.pop(text)
        try:
            return await find_token(self._engine, text)
        finally:
            if self._begun.get(text) is task:
                del self._begun[text]
