"""The passive presence of worker processes: a message per type, for displays of other programs.

Nothing rests on it: leases are judged by sessions. A message goes with a renewal, at most every
half minute, expires in the stream after three of these spans, and is never waited for.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

from trellis.core.durations import SECOND, Instant, to_datetime
from trellis.core.job import SessionId
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import is_token
from trellis.engines.values import WorkerInfo
from trellis.engines.wire import dump
from trellis.errors import EngineError

EVERY: Final = 30 * SECOND
#: How long a worker counts as present after its last message.
FRESH: Final = 3 * EVERY


class Presences:
    """Tells which types the worker processes of this engine work on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: dict[SessionId, Instant] = {}

    async def tell(self, session: SessionId, info: WorkerInfo) -> None:
        """Send the messages of a process, unless it has sent some a moment ago."""
        now = self._store.time.now()
        if now - self._told.get(session, now - EVERY) < EVERY:
            return
        self._told[session] = now
        subjects, instance = self._store.subjects, f"{session:016x}"
        details: dict[str, Any] = json.loads(info.details)
        for name in details.get("types", ()):
            service, _, job_type = str(name).partition("/")
            if is_token(service) and is_token(job_type):
                body = {
                    "service": service,
                    "jobType": job_type,
                    "instanceId": instance,
                    "concurrency": details.get("slots"),
                    "version": info.version or None,
                    "timestamp": _iso(now),
                }
                given = {name: value for name, value in body.items() if value is not None}
                subject = subjects.presence(service, job_type, instance)
                headers = {"Nats-TTL": f"{FRESH // SECOND}s"}
                with suppress(EngineError):
                    await self._store.link.tell(subject, dump(given), **headers)

    def forget(self, session: SessionId) -> None:
        """Forget a process that has ended."""
        self._told.pop(session, None)


def _iso(at: Instant) -> str:
    return to_datetime(at).isoformat(timespec="microseconds").replace("+00:00", "Z")
