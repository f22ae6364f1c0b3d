"""The seal of a deployment whose jobs are moved to another store: its streams take no write.

One update of the stream of the jobs takes its subjects away and writes the seal into its metadata,
so that the server refuses every write from then on, of any program and any version. Only then is
it checked that no worker is active; if one is, the subjects are given back. A seal that was not
checked, because the program died before, counts as none and is lifted.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, Final

from trellis import failpoints
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.keys import CODEC
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.locks import LockTable
from trellis.engines.jetstream.sessions import SessionTable
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.transfer import Busy, Seal

_SUBJECT: Final = "moved"


class DeploymentSeal:
    """The seal of one deployment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions = SessionTable(store)
        self._locks = LockTable(store, self._sessions)

    async def read(self) -> Seal | None:
        """Return the seal, if there is one; lift one that was not checked."""
        found = await self._found()
        if found is None:
            return None
        if not found["isChecked"]:
            await self._lift()
            return None
        if not await self._is_shut(self._store.subjects.state):
            await self._shut(self._store.subjects.state, found)
        return _seal(found)

    async def put(self, instance: str, address: str) -> Seal | Busy:
        """Refuse every write from now on; return what prevents it while workers are active."""
        known = await self.read()
        if known is not None:
            return known
        jobs = self._store.subjects.jobs
        new = {
            "id": secrets.token_hex(16),
            "instance": instance,
            "address": address,
            "isFinished": False,
            "isChecked": False,
        }
        await self._shut(jobs, new)
        failpoints.reach("jetstream.seal")
        busy = await self._busy()
        if any(busy):
            await self._lift()
            return busy
        checked = new | {"isChecked": True}
        await self._shut(jobs, checked)
        await self._shut(self._store.subjects.state, checked)
        return _seal(checked)

    async def finish(self) -> None:
        """Record that all jobs were exported."""
        found = await self._found()
        if found is not None:
            await self._shut(self._store.subjects.jobs, found | {"isFinished": True})

    async def _found(self) -> dict[str, Any] | None:
        return await topology.moved(self._store.link, self._store.subjects)

    async def _is_shut(self, stream: str) -> bool:
        info = await self._store.link.api(f"STREAM.INFO.{stream}")
        return topology.MOVED in (info["config"].get("metadata") or {})

    async def _shut(self, stream: str, seal: dict[str, Any]) -> None:
        """Take the subjects of a stream away; wait until all that was under way is stored."""
        link, own = self._store.link, f"{self._store.subjects.prefix}.{_SUBJECT}.{stream}"
        config: dict[str, Any] = (await link.api(f"STREAM.INFO.{stream}"))["config"]
        metadata = (config.get("metadata") or {}) | {topology.MOVED: json.dumps(seal)}
        await link.api(
            f"STREAM.UPDATE.{stream}", config | {"subjects": [own], "metadata": metadata}
        )
        # The leader stores messages in the order in which it took them: this one is the last.
        await link.write(Message(own, b""))

    async def _lift(self) -> None:
        """Give the streams their subjects back."""
        await lift(self._store.link, self._store.subjects)

    async def _busy(self) -> Busy:
        now = self._store.time.now()
        claimed = await self._sessions.claimed(await self._sessions.places())
        sessions = (await self._sessions.all()).values()
        told = self._store.time.told()
        live = sum(each.ended_at is None and not each.is_lapsed(told) for each in sessions)
        lingering = await self._locks.count_lingering(now)
        wanted = self._store.subjects.own("keys", "*", "*", "h", "*")
        for _, value in await self._store.values([wanted], CODEC):
            slots = () if value.value is None else value.value.slots
            lingering += sum((each.linger_until or 0) > now for each in slots)
        return Busy(len(claimed), live, lingering)


async def lift(link: Link, subjects: Subjects) -> None:
    """Give the streams of a sealed deployment their subjects back."""
    for part in topology.parts(subjects, replicas=1):  # the number that they have is kept
        if part.consumer is None and part.stream in {subjects.jobs, subjects.state}:
            info = await link.api(f"STREAM.INFO.{part.stream}")
            config: dict[str, Any] = info["config"]
            metadata = dict(config.get("metadata") or {})
            if metadata.pop(topology.MOVED, None) is not None:
                changed = {"subjects": part.config["subjects"], "metadata": metadata}
                await link.api(f"STREAM.UPDATE.{part.stream}", config | changed)


def _seal(found: dict[str, Any]) -> Seal:
    return Seal(found["id"], found["instance"], found["address"], found["isFinished"])
