"""`python -m bench.load.streams COUNT URL`: open streams in one process.

Each stream ends after the completion of the job with the tag of the last one. Every tenth stream is
cut off again and again and resumes. The last line is JSON: the events of each stream, as a digest
of their ids in order, and for the first stream the events themselves.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from bench.load.app import LAST

#: Every stream with such a number resumes after so many events.
_RESUMING: Final = 10
_RESUME_AFTER: Final = 500
_AT_ONCE: Final = 20
_LIMIT: Final = 1 << 22


@dataclass
class Followed:
    """What one stream has received."""

    number: int
    ids: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    #: Where to resume.
    place: str = ""
    resumed: int = 0
    resets: int = 0


class Follower:
    """Follows all changes by several streams."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._token = os.environ["TRELLIS_TOKEN"]
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def follow(self, followed: Followed, ready: asyncio.Event) -> None:
        """Read one stream to its end."""
        while not await self._read(followed, ready):
            followed.resumed += 1

    async def _read(self, followed: Followed, ready: asyncio.Event) -> bool:
        """Connect once; return whether the last event has come."""
        async with self._gate:
            reader, writer = await self._connect(followed.place)
        since = len(followed.ids)
        try:
            while True:
                block = (await reader.readuntil(b"\n\n")).decode()
                fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
                followed.place = fields.get("id", followed.place)
                match fields.get("event"):
                    case "ready":
                        ready.set()
                    case "reset":
                        followed.resets += 1
                    case "change":
                        followed.ids.append(fields["id"])
                        if followed.number == 0:
                            followed.data.append(fields["data"])
                        if _is_last(fields["data"]):
                            return True
                    case _:
                        pass
                is_resuming = followed.number % _RESUMING == 1
                if is_resuming and len(followed.ids) - since >= _RESUME_AFTER:
                    return False
        except asyncio.IncompleteReadError:
            return False
        finally:
            writer.close()

    async def _connect(self, place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=_LIMIT)
        after = f"Last-Event-ID: {place}\r\n" if place else ""
        # HTTP/1.0: the events come as they are, not in chunks.
        writer.write(
            f"GET /api/v1/stream HTTP/1.0\r\nHost: {self._host}:{self._port}\r\n{after}"
            f"Authorization: Bearer {self._token}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(head.decode())
        return reader, writer


async def follow(count: int, url: str) -> None:
    """Follow until the last event."""
    follower = Follower(url)
    all_followed = [Followed(number) for number in range(count)]
    ready = [asyncio.Event() for _ in range(count)]
    tasks = [
        asyncio.create_task(follower.follow(each, when))
        for each, when in zip(all_followed, ready, strict=True)
    ]
    for when, task in zip(ready, tasks, strict=True):
        opened = asyncio.create_task(when.wait())
        await asyncio.wait({opened, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    print("ready", flush=True)
    await asyncio.gather(*tasks)
    print(json.dumps([_summary(each) for each in all_followed]), flush=True)


def _is_last(data: str) -> bool:
    if LAST not in data:
        return False
    return bool(json.loads(data)["event"]["kind"] == "completed")


def _summary(followed: Followed) -> dict[str, object]:
    return {
        "events": len(followed.ids),
        "different": len(set(followed.ids)),
        "digest": hashlib.sha256("\n".join(followed.ids).encode()).hexdigest(),
        "resumed": followed.resumed,
        "resets": followed.resets,
        "data": [_key(each) for each in followed.data],
    }


def _key(data: str) -> list[object]:
    change = json.loads(data)
    return [change["job_id"], change["event"]["kind"]]


if __name__ == "__main__":
    asyncio.run(follow(int(sys.argv[1]), sys.argv[2]))
