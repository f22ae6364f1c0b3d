"""The streams and feeds of a deployment: what they must be, and what differs from that.

Only `migrate` makes or changes them. The streams of work are fed by consumers on their sources, so
that a restart of the server repeats only the last moments. Neither roll-ups nor schedules are
allowed in the stream of the jobs: with them, a service that may write its own subjects could delete
the jobs of all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trellis.engines.jetstream.hints import STARTABLE
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.values import Migration
from trellis.errors import NatsRefused

#: The version of the topology and of the messages in it.
SCHEMA: Final = 1
_MARK: Final = "trellis.schema"
#: The oldest version of the server that has sources driven by a consumer.
FLOOR: Final = (2, 14)
_SECOND: Final = 1_000_000_000
_WEEK: Final = 7 * 86_400 * _SECOND
_NO_STREAM, _NO_CONSUMER = 10059, 10014
#: Three replicas were asked of one server, or of a cluster with fewer peers.
_TOO_FEW: Final = frozenset({10005, 10074})


class Part(NamedTuple):
    """A stream, or a consumer on one."""

    stream: str
    consumer: str | None
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.stream if self.consumer is None else f"{self.stream} > {self.consumer}"


class Difference(NamedTuple):
    """A part that is missing, or that differs."""

    part: Part
    #: None: it is missing.
    found: Mapping[str, Any] | None

    @property
    def script(self) -> str:
        """The configuration that `migrate` puts in place, as JSON."""
        return json.dumps(self.part.config, indent=1, sort_keys=True)


def parts(subjects: Subjects, replicas: int) -> list[Part]:
    """Return all parts, each after those that it needs."""
    prefix, jobs, later = subjects.prefix, subjects.jobs, subjects.later
    hints = [
        (f"{prefix}.jobs.*.*.*.{kind}", f"{prefix}.work.$1.$2") for kind in (*STARTABLE, "ready.*")
    ]
    due = [(f"{prefix}.due.*.*.*", f"{prefix}.work.$1.$2")]
    keys = [(subjects.own("keys", "*", "*", "h", "*"), "$KV." + subjects.stream("JOBS_KEYS"))]
    shared = {"num_replicas": replicas, "storage": "file", "metadata": {_MARK: str(SCHEMA)}}
    feeds = {"work_feed": (jobs, hints), "later_feed": (later, due)}
    return [
        _stream(jobs, shared, subjects=[f"{prefix}.jobs.>"], allow_direct=True, allow_atomic=True,
                allow_msg_ttl=True,
                republish={"src": f"{prefix}.jobs.>", "dest": f"{prefix}.feed.>"}),
        _stream(later, shared, subjects=[f"{prefix}.later.>", f"{prefix}.due.>"],
                allow_msg_schedules=True, allow_msg_ttl=True, allow_direct=True,
                republish={"src": f"{prefix}.due.>", "dest": f"{prefix}.woken.>"}),
        _stream(subjects.state, shared, subjects=[f"{prefix}.state.>"], max_msgs_per_subject=1,
                allow_direct=True, allow_atomic=True),
        *(_feed(prefix, name, source, moves) for name, (source, moves) in feeds.items()),
        _stream(subjects.work, shared, retention="workqueue", allow_direct=True,
                sources=[_source(prefix, name, *feed) for name, feed in feeds.items()]),
        _stream(subjects.stream("JOBS_ADVISORIES"), shared | {"num_replicas": 1},
                max_age=_WEEK, subjects=[
            f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{subjects.work}.>"
            for kind in ("MAX_DELIVERIES", "MSG_TERMINATED")
        ]),
        _stream("KV_" + subjects.stream("JOBS_KEYS"), shared, max_msgs_per_subject=1,
                allow_direct=True, sources=[{"name": jobs, "subject_transforms": [
                    {"src": keys[0][0], "dest": f"{keys[0][1]}.$1.$2.$3"}]}]),
    ]  # fmt: skip


def _stream(name: str, shared: Mapping[str, Any], **config: Any) -> Part:  # noqa: ANN401
    whole = {"name": name, "retention": "limits", "discard": "old", "max_age": 0,
             "max_msgs": -1, "max_bytes": -1}  # fmt: skip
    return Part(name, None, whole | dict(shared) | config)


def _feed(prefix: str, name: str, source: str, moves: list[tuple[str, str]]) -> Part:
    return Part(source, name, {
        "name": name,
        "durable_name": name,
        "deliver_subject": f"{prefix}.internal.{name}",
        "ack_policy": "flow_control",
        "flow_control": True,
        "idle_heartbeat": _SECOND,
        "max_deliver": -1,
        "filter_subjects": [src for src, _ in moves],
    })  # fmt: skip


def _source(prefix: str, name: str, source: str, moves: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "name": source,
        "consumer": {"name": name, "deliver_subject": f"{prefix}.internal.{name}"},
        "subject_transforms": [{"src": src, "dest": dest} for src, dest in moves],
    }


async def differences(link: Link, subjects: Subjects, replicas: int) -> list[Difference]:
    """Return the parts that are missing or differ, in the order in which they are put in place."""
    found = []
    for part in parts(subjects, replicas):
        config = await _present(link, part)
        if config is None or not _fits(part.config, config):
            found.append(Difference(part, config))
    return found


async def _present(link: Link, part: Part) -> Mapping[str, Any] | None:
    verb = f"STREAM.INFO.{part.stream}"
    if part.consumer is not None:
        verb = f"CONSUMER.INFO.{part.stream}.{part.consumer}"
    try:
        config: Mapping[str, Any] = (await link.api(verb))["config"]
    except NatsRefused as error:
        if error.number in {_NO_STREAM, _NO_CONSUMER}:
            return None
        raise
    return config


def _fits(wanted: object, found: object) -> bool:
    """Return whether everything that is wanted is there; the server adds defaults of its own."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _fits(value, found.get(name)) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(wanted) == len(found) and all(map(_fits, wanted, found))
        )
    # The server leaves out what is false, zero or empty.
    return wanted == found or (not wanted and not found)


async def put(link: Link, difference: Difference) -> None:
    """Make or change one part."""
    part, found = difference
    if part.consumer is None:
        verb = "CREATE" if found is None else "UPDATE"
        await link.api(f"STREAM.{verb}.{part.stream}", part.config)
        return
    await link.api(
        f"CONSUMER.CREATE.{part.stream}.{part.consumer}",
        {"stream_name": part.stream, "config": dict(part.config), "action": ""},
    )


async def migrate(
    link: Link, subjects: Subjects, replicas: int | None, *, dry_run: bool
) -> Migration:
    """Bring the topology up to date; with `dry_run` only return what would be put in place."""
    before = await schema_of(link, subjects)
    if replicas is None:
        replicas = await replicas_of(link, subjects)
    missing = await differences(link, subjects, replicas)
    if not dry_run:
        for difference in missing:
            await put(link, difference)
    scripts = tuple((SCHEMA, difference.script) for difference in missing)
    return Migration(before, SCHEMA, scripts)


async def schema_of(link: Link, subjects: Subjects) -> int:
    """Return the version of the topology that is in place; 0: there is none."""
    found = await _present(link, Part(subjects.jobs, None, {}))
    if found is None:
        return 0
    return int((found.get("metadata") or {}).get(_MARK, 0))


async def replicas_of(link: Link, subjects: Subjects) -> int:
    """Return how many replicas the streams have, or can have: three, or one."""
    found = await _present(link, Part(subjects.jobs, None, {}))
    if found is not None:
        return int(found["num_replicas"])
    name = subjects.stream("JOBS_PROBE")
    try:
        await link.api(
            f"STREAM.CREATE.{name}",
            {"name": name, "subjects": [f"{subjects.prefix}.probe"], "num_replicas": 3,
             "storage": "memory"},
        )  # fmt: skip
    except NatsRefused as error:
        if error.number in _TOO_FEW:
            return 1
        raise
    await link.api(f"STREAM.DELETE.{name}")
    return 3


__all__ = ["FLOOR", "SCHEMA", "Difference", "Part", "differences", "migrate", "parts"]
