"""The health of a JetStream engine: servers, streams, clocks, space, and what this user may not do.

Everything is asked of the server over the connection of the engine; nothing is stored. A client
cannot read the settings of the servers, such as `sync_interval`; the facts say where they are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from trellis.core.durations import SECOND
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.access import REMEDY
from trellis.engines.jetstream.answers import read_instant
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.permissions import Missing, missing_permissions
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.topology import Difference, Part
from trellis.engines.transfer import Seal, seal_warnings
from trellis.engines.values import Health
from trellis.errors import AccessDenied, EngineUnavailable, NatsRefused, VersionMismatch

#: Seconds until a stream counts as one that does not answer.
_WAIT: Final = 2.0
_LARGEST: Final = 2 * 1024 * 1024
#: Seconds by which clocks may differ.
_CLOCK: Final = 1.0
#: Seconds without a sign of a peer, and messages that it may be behind.
_SILENT: Final = 5.0
_LAG: Final = 1000
#: The share of a limit in use that is too high.
_FULL: Final = 0.85
#: Messages of a feed that may be on their way, and seconds after which it must have moved.
_PENDING: Final = 10_000
_MOVES: Final = 1.0
_UNSEEN: Final = "not visible to this user"
_SYNC: Final = (
    "not visible to clients; see sync_interval in http://SERVER:8222/jsz?config=1 of each server"
)


class Look(NamedTuple):
    """What the server says about a stream or consumer, and when it was asked."""

    part: Part
    #: None: it is missing; empty: there was no answer.
    info: Mapping[str, Any] | None
    #: Why there was no answer.
    error: Exception | None = None
    #: How many seconds the clock of the answering server is ahead of this machine's.
    ahead: float = 0.0

    @property
    def leader(self) -> str | None:
        """The server that leads it, as far as it is known."""
        leader: str | None = ((self.info or {}).get("cluster") or {}).get("leader")
        return leader


async def describe(link: Link, subjects: Subjects) -> Health:
    """Ask the servers, and try what this user may do."""
    jobs = await _look(link, Part(subjects.jobs, None, {}))
    replicas = int((jobs.info or {}).get("config", {}).get("num_replicas", 1))
    looks = list(
        await asyncio.gather(*(_look(link, part) for part in topology.parts(subjects, replicas)))
    )
    account = await _account(link)
    missing = await missing_permissions(link, subjects)
    stuck = await _stuck(link, looks)
    facts = _facts(link, looks, account, missing)
    warnings = (
        *seal_warnings(seal_in(jobs.info)),
        *_permissions(missing),
        *_server(link),
        *findings(looks, account, stuck),
        *_batches(link),
    )
    return Health("jetstream", _durability(replicas), facts, warnings)


def seal_in(info: Mapping[str, Any] | None) -> Seal | None:
    """Return that jobs were moved to another store, by what the server says of their stream."""
    text = ((info or {}).get("config", {}).get("metadata") or {}).get(topology.MOVED)
    if text is None:
        return None
    found = json.loads(text)
    return Seal(found["id"], found["instance"], found["address"], found["isFinished"])


def _durability(replicas: int) -> str:
    if replicas == 1:
        return (
            "what was acknowledged is kept by one server and survives a crash of it; a power cut "
            "only with sync_interval: always, which a client cannot read"
        )
    return (
        f"what was acknowledged is kept by a majority of {replicas} servers and survives the loss "
        "of the others; a power cut of a majority at once only with sync_interval: always, which a "
        "client cannot read"
    )


# -- asking ------------------------------------------------------------------------------------


async def _look(link: Link, part: Part) -> Look:
    before = time.time()
    try:
        info = await topology.present(link, part, wait=_WAIT)
    except (AccessDenied, EngineUnavailable, NatsRefused) as error:
        return Look(part, {}, error)
    ahead = 0.0
    if info is not None:
        ahead = read_instant(info["ts"]) / SECOND - (before + time.time()) / 2
    return Look(part, info, None, ahead)


async def _account(link: Link) -> Mapping[str, Any] | None:
    """Return what the account uses; None: this user may not know."""
    try:
        return await link.api("INFO", wait=_WAIT)
    except (AccessDenied, EngineUnavailable):
        return None


async def _stuck(link: Link, looks: Sequence[Look]) -> set[str]:
    """Return the feeds that have something to send and have not sent anything for a moment."""
    behind = [look for look in looks if _pending(look)]
    if not behind:
        return set()
    await asyncio.sleep(_MOVES)
    again = [await _look(link, look.part) for look in behind]
    return {
        old.part.name
        for old, new in zip(behind, again, strict=True)
        if _pending(new) and (old.info or {}).get("delivered") == (new.info or {}).get("delivered")
    }


def _pending(look: Look) -> int:
    if look.part.consumer is None or not look.info:
        return 0
    return int(look.info.get("num_pending", 0))


# -- facts -------------------------------------------------------------------------------------


def _facts(
    link: Link, looks: Sequence[Look], account: Mapping[str, Any] | None, missing: Missing
) -> dict[str, Any]:
    jobs, streams = looks[0], [look for look in looks if look.part.consumer is None]
    server, state = link.server, (jobs.info or {}).get("state", {})
    seen = [look for look in streams if look.info]
    return {
        "server": f"{server.get('server_name', '')} {server.get('version', '')}".strip(),
        "cluster": ((jobs.info or {}).get("cluster") or {}).get("name") or "none",
        "replicas": (jobs.info or {}).get("config", {}).get("num_replicas", _UNSEEN),
        "leaders": ", ".join(f"{look.part.name} on {look.leader or 'no server'}" for look in seen),
        "sync_interval": _SYNC,
        "max_payload": link.max_payload,
        "messages": state.get("messages", _UNSEEN),
        "size_bytes": state.get("bytes", _UNSEEN),
        "storage": _UNSEEN if account is None else _storage(account),
        "clock_ahead_seconds": round(jobs.ahead, 3),
        "clock_spread_seconds": round(_spread(seen), 3),
        "work_waiting": _messages_of(looks, "workqueue"),
        **{
            f"{look.part.consumer}_pending": _pending(look) if look.info else _UNSEEN
            for look in looks
            if look.part.consumer is not None
        },
        "services": ", ".join(missing.allowed) or "none yet",
    }


def _messages_of(looks: Sequence[Look], retention: str) -> int | str:
    for look in looks:
        if look.part.config.get("retention") == retention and look.info:
            return int(look.info["state"]["messages"])
    return _UNSEEN


def _tiers(account: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what the account uses: in all, or of each number of replicas."""
    tiers: Mapping[str, Mapping[str, Any]] = account.get("tiers") or {}
    yield from tiers.items()
    if not tiers:
        yield "", account


def _storage(account: Mapping[str, Any]) -> str:
    found = []
    for name, tier in _tiers(account):
        most = tier["limits"]["max_storage"]
        limit = f"of {most:,}" if most > 0 else "(no limit of the account; max_file of the servers)"
        found.append(f"{name} {tier['storage']:,} bytes {limit}".strip())
    return "; ".join(found)


def _spread(seen: Sequence[Look]) -> float:
    """Return by how many seconds the clocks of the leaders differ."""
    ahead = {look.leader: look.ahead for look in seen if look.leader is not None}
    return max(ahead.values()) - min(ahead.values()) if ahead else 0.0


# -- findings ----------------------------------------------------------------------------------


def findings(
    looks: Sequence[Look], account: Mapping[str, Any] | None, stuck: set[str]
) -> Iterator[str]:
    """Yield a sentence for everything that is wrong with the streams and servers."""
    for look in looks:
        yield from _part(look)
    for look in looks:
        yield from _peers(look)
    yield from _clocks(looks)
    yield from _space(account)
    yield from _feeds(looks, stuck)


def _permissions(missing: Missing) -> Iterator[str]:
    if missing.shared:
        yield (
            f"The server denies this user what every client and worker needs: "
            f"{', '.join(missing.shared)}. {REMEDY}"
        )
    for service, subjects in missing.partly.items():
        types = " ".join(f"--type {name}" for name in missing.types.get(service, ()))
        yield (
            f"This user may do a part of what service {service} needs. The server denies: "
            f"{', '.join(subjects)}. Grant what this writes: "
            f"trellis nats permissions --service {service} {types}".rstrip()
        )


def _server(link: Link) -> Iterator[str]:
    try:
        topology.check_version(link.version)
    except VersionMismatch as error:
        yield str(error)
    if link.max_payload < _LARGEST:
        yield (
            f"The server takes messages of at most {link.max_payload:,} bytes. A job with a "
            "payload or result near 1 MiB does not fit. Set max_payload: 2MB on every server, and "
            "reload them."
        )


def _part(look: Look) -> Iterator[str]:
    """Yield that a stream or consumer is missing, differs, or does not answer."""
    part, kind = look.part, "stream" if look.part.consumer is None else "consumer"
    if look.error is not None:
        if not isinstance(look.error, AccessDenied):
            yield (
                f"The {kind} {part.name} does not answer: {look.error} If a majority of its "
                "servers is down, nothing can be stored until they are back."
            )
    elif look.info is None:
        yield f"The {kind} {part.name} is missing: run `trellis migrate`. {_lost(part)}"
    elif seal_in(look.info) is None:  # a sealed one has no subjects; that is said once
        yield from _changes(Difference(part, look.info["config"]), kind)


def _lost(part: Part) -> str:
    """Return what was deleted with a stream or consumer."""
    if part.consumer is None and part.stream.endswith("JOBS"):
        return "All jobs were deleted with it, so stop the workers and restore a backup before."
    if part.stream.endswith("JOBS_STATE"):
        return "Sessions and locks were deleted with it: all leases are over."
    if part.stream.endswith("JOBS_ADVISORIES"):
        return "Jobs whose work message was given up are then hinted at by the janitor."
    return (
        "What was deleted with it is then made again: hints at waiting jobs, or the view of keys."
    )


def _changes(found: Difference, kind: str) -> Iterator[str]:
    """Yield that another program changed a stream or consumer."""
    if found.remedy is not None:
        yield found.remedy
    if names := [each for each in found.names if each not in found.lasting]:
        yield (
            f"The {kind} {found.part.name} was changed by another program ({', '.join(names)}). "
            "Run `trellis migrate` to put it right."
        )


def _peers(look: Look) -> Iterator[str]:
    cluster = (look.info or {}).get("cluster") or {}
    if look.info and cluster and not cluster.get("leader"):
        yield (
            f"{look.part.name} has no leader: nothing can be stored in it. Start the servers of "
            "the cluster that are down."
        )
    if "desired" in cluster:
        doing = (cluster["desired"].get("status") or {}).get("description", "moving")
        yield (
            f"The servers are still giving {look.part.name} its replicas ({doing}). Stop no server "
            "until that is over: writes may stop, and what no other server has is lost with it."
        )
    for peer in cluster.get("replicas") or ():
        name, silent = peer["name"], peer.get("active", 0) / 1e9
        if peer.get("offline") or silent > _SILENT:
            yield (
                f"Server {name} keeps {look.part.name} and is offline (last heard of "
                f"{silent:.0f} s ago). Start it: one more loss may stop all writes."
            )
        elif not peer.get("current") or peer.get("lag", 0) > _LAG:
            yield (
                f"Server {name} is behind with {look.part.name} by {peer.get('lag', 0):,} "
                "operations. If that does not shrink, check its disk and network."
            )


def _clocks(looks: Sequence[Look]) -> Iterator[str]:
    seen = [look for look in looks if look.info]
    if seen and abs(seen[0].ahead) > _CLOCK:
        yield (
            f"The clock of server {seen[0].leader} is {seen[0].ahead:+.1f} s from this machine's. "
            "Trellis uses the server's; times that you give and logs differ. Synchronise both "
            "(NTP)."
        )
    if (spread := _spread(seen)) > _CLOCK:
        names = sorted({look.leader for look in seen if look.leader is not None})
        yield (
            f"The clocks of {', '.join(names)} differ by {spread:.1f} s. Leases end that much too "
            "early or late when another of them leads. Synchronise them (NTP)."
        )


def _space(account: Mapping[str, Any] | None) -> Iterator[str]:
    for name, tier in _tiers(account or {"limits": {}}):
        for what, used, limit in (
            ("bytes of storage", "storage", "max_storage"),
            ("streams", "streams", "max_streams"),
            ("consumers", "consumers", "max_consumers"),
        ):
            most = tier["limits"].get(limit, -1)
            if most > 0 and tier[used] >= _FULL * most:
                yield (
                    f"The account uses {tier[used]:,} of {most:,} {what} {name}".rstrip()
                    + f". At the limit the server refuses to store jobs. Raise {limit} of the "
                    "account, or shorten the retention of jobs."
                )


def _feeds(looks: Sequence[Look], stuck: set[str]) -> Iterator[str]:
    for look in looks:
        if look.part.name in stuck:
            yield (
                f"The feed {look.part.name} has {_pending(look):,} messages and sends none: jobs "
                "wait although workers are free. If that lasts, restart the server that leads "
                f"{look.part.stream}."
            )
        elif _pending(look) > _PENDING:
            yield (
                f"The feed {look.part.name} is {_pending(look):,} messages behind: jobs start "
                "late. The servers have more to do than they can; see their CPU and disks."
            )


def _batches(link: Link) -> Iterator[str]:
    if link.crowded:
        yield (
            f"The server refused {link.crowded:,} writes of this program because too many batches "
            "were open; they were repeated. Raise the limit on every server: jetstream { limits { "
            "batch { max_inflight_per_stream: 500 } } }"
        )
