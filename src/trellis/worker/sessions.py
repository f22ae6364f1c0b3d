"""The session of a worker process: who it is, and the id under which it claims.

A session lives as long as its process, across reconnects. Only when it was reaped behind our back
does the process start another.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from trellis.contract.declaration import JobType
from trellis.contract.settings import WorkerSettings
from trellis.core.job import SessionId
from trellis.core.spans import Micros
from trellis.engines.port import Engine
from trellis.engines.values import Session, WorkerInfo
from trellis.worker.board import Board


class SessionHolder:
    """The current session id; read from any thread."""

    def __init__(self, engine: Engine, info: WorkerInfo, lease: Micros, board: Board) -> None:
        self._engine = engine
        self._info = info
        self._board = board
        self.lease = lease
        self.id = SessionId(0)

    async def open(self) -> Session:
        """Start a session and make it the current one."""
        session = await self._engine.open_session(self._info, self.lease)
        self.id = session.id
        self._board.opened(session.id)
        return session


def describe_worker(job_types: Iterable[JobType], settings: WorkerSettings) -> WorkerInfo:
    """Return who this process is and what it can do."""
    host = socket.gethostname()
    types = sorted(f"{each.service}/{each.name}" for each in job_types)
    facts = {"types": types, "slots": settings.concurrency}
    details = json.dumps(facts, separators=(",", ":"))
    name = settings.name or f"{host}-{os.getpid()}"
    return WorkerInfo(name, host, os.getpid(), _version(), details)


def _version() -> str:
    try:
        return version("trellis-jobs")
    except PackageNotFoundError:
        return ""
