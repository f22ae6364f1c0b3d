"""A service whose surroundings are in another module than its handlers."""

from __future__ import annotations

import os
from contextvars import ContextVar

from trellis import Retry, Service

app = Service("around", "sqlite:///somewhere-else.db")
place: ContextVar[str] = ContextVar("place", default="nowhere")


@app.job(isolation="process")
def where(_: int) -> list[str]:
    return [place.get(), str(os.getpid())]


@app.job(isolation="process")
async def where_async(_: int) -> list[str]:
    return [place.get(), str(os.getpid())]


@app.job(isolation="process", retry=Retry.never(), dead_letters=False)
def breaks(_: int) -> None:
    raise ValueError("broken there")
