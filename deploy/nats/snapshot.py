# ruff: noqa: INP001 - a program of its own
"""Save the streams of a Trellis deployment into a folder, or restore them from it.

    python snapshot.py save "$TRELLIS_URL" /backups/today
    python snapshot.py restore "$TRELLIS_URL" /backups/today

The URL is that of an operator, as Trellis takes it. `save` runs beside working clients; each stream
is saved as it is at one moment. `restore` needs servers without these streams; `trellis migrate`
makes the others afterwards.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from pathlib import Path

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.url import deployment_of, servers_of

CHUNK = 128 * 1024
PATIENCE = 30.0


async def ask(client: Client, subject: str, body: object) -> dict[str, object]:
    """Call the JetStream API."""
    reply = await client.request(subject, json.dumps(body).encode(), PATIENCE)
    answer: dict[str, object] = json.loads(reply.data)
    if "error" in answer:
        raise SystemExit(f"{subject}: {answer['error']}")
    return answer


async def send(client: Client, subject: str, chunk: bytes) -> Msg:
    """Send a part; in a cluster, another node takes it, and ours learns of that a moment later."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await client.request(subject, chunk, PATIENCE)
        except nats.errors.NoRespondersError:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(0.1)


async def save(client: Client, stream: str, folder: Path) -> None:
    """Save one stream: its configuration and state, and its data as the server sends it."""
    inbox = client.new_inbox()
    chunks = await client.subscribe(inbox)
    wanted = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK}
    told = await ask(client, f"$JS.API.STREAM.SNAPSHOT.{stream}", wanted)
    part = folder / f"{stream}.part"
    with part.open("wb") as file:
        while True:
            chunk = await chunks.next_msg(PATIENCE)
            if not chunk.data:
                status = (chunk.headers or {}).get("Status", "204")
                if status != "204":
                    raise SystemExit(f"{stream}: the server ended the snapshot with {status}.")
                break
            file.write(chunk.data)
            if chunk.reply:  # the server waits for this now and then
                await client.publish(chunk.reply)
    facts = {"config": told["config"], "state": told["state"]}
    (folder / f"{stream}.json").write_text(json.dumps(facts))
    part.rename(folder / f"{stream}.data")  # only a whole one has this name


async def restore(client: Client, stream: str, folder: Path) -> None:
    """Restore one stream."""
    facts = json.loads((folder / f"{stream}.json").read_text())
    # With another identity, a projection that has messages from after the backup is made again.
    facts["config"].setdefault("metadata", {})["trellis.id"] = secrets.token_hex(7)
    told = await ask(client, f"$JS.API.STREAM.RESTORE.{stream}", facts)
    subject = str(told["deliver_subject"])
    with (folder / f"{stream}.data").open("rb") as file:
        while chunk := file.read(CHUNK):
            await send(client, subject, chunk)
    answer = json.loads((await send(client, subject, b"")).data)
    if "error" in answer:
        raise SystemExit(f"{stream}: {answer['error']}")


async def main(verb: str, url: str, folder: Path) -> None:
    """Save or restore the streams of a deployment that cannot be made from others.

    The jobs come first, so that no session is missing.
    """
    action = {"save": save, "restore": restore}[verb]
    deployment = deployment_of(url)
    subjects = Subjects(deployment.prefix)
    addresses, login = servers_of(deployment.servers.split(","))
    client = await nats.connect(addresses, **login)
    try:
        for stream in (subjects.jobs, subjects.state):
            await action(client, stream, folder)
            sys.stdout.write(f"{verb}d {stream}\n")
    finally:
        await client.close()


if __name__ == "__main__":
    _, wanted, place, name = sys.argv
    Path(name).mkdir(mode=0o700, parents=True, exist_ok=True)
    asyncio.run(main(wanted, place, Path(name)))
