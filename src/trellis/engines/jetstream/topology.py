"""The streams and feeds of a deployment: what they must be, and what differs from that.

Only `migrate` makes or changes them. The streams of work are fed by consumers on their sources, so
that a restart of the server repeats only the last moments. Neither roll-ups nor schedules are
allowed in the stream of the jobs: with them, a service that may write its own subjects could delete
the jobs of all. So what must be off is a part of the configuration and is compared, too. The server
never takes back some settings that another program turned on (`_FOR_GOOD`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from trellis.engines.jetstream.answers import NO_STREAM, read_instant
from trellis.engines.jetstream.hints import STARTABLE
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.writing import PATIENCE
from trellis.engines.values import Migration
from trellis.errors import EngineError, NatsRefused, VersionMismatch

#: The version of the topology and of the messages in it.
SCHEMA: Final = 1
_MARK: Final = "trellis.schema"
#: The metadata with which a stream that is made again differs from the one before. Its `created`
#: does not tell: after a restore from a backup, each replica has another.
_IDENTITY: Final = "trellis.id"
#: Metadata that the server adds.
_OF_SERVER: Final = "_nats."
#: The metadata of the stream of the jobs after they were moved to another store; see `seal.py`.
MOVED: Final = "trellis.moved"
#: The oldest version of the server that has sources driven by a consumer.
FLOOR: Final = (2, 14)
_SECOND: Final = 1_000_000_000
_WEEK: Final = 7 * 86_400 * _SECOND
NO_CONSUMER: Final = 10014
#: What the server refuses to turn off.
_FOR_GOOD: Final = (
    "allow_msg_schedules", "allow_msg_ttl", "deny_delete", "deny_purge", "sealed",
)  # fmt: skip
#: What every stream has, unless `parts` says something else of it. Placement, compression and the
#: description are the operators'.
_STREAM: Final[Mapping[str, Any]] = {
    "storage": "file", "retention": "limits", "discard": "old", "subjects": [], "sources": [],
    "max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1, "max_msg_size": -1,
    "max_consumers": -1, "no_ack": False, "republish": None, "subject_transform": None,
    "subject_delete_marker_ttl": 0, "allow_atomic": False, "allow_direct": False,
    "allow_rollup_hdrs": False, **dict.fromkeys(_FOR_GOOD, False),
}  # fmt: skip
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
    def names(self) -> list[str]:
        """The settings that differ."""
        found = self.found or {}
        return [name for name, value in self.part.config.items() if not _fits(name, value, found)]

    @property
    def lasting(self) -> dict[str, Any]:
        """The settings that the server does not let be put right, as they are."""
        if self.found is None:
            return {}
        names = [name for name in self.names if name in _FOR_GOOD and self.found.get(name)]
        if "allow_msg_schedules" in names:
            names += [name for name in self.names if name == "allow_rollup_hdrs"]  # comes with it
        return {name: self.found[name] for name in names}

    @property
    def remedy(self) -> str | None:
        """What the server does not let be put right, and what to do; None: there is nothing."""
        lasting, stream = self.lasting, self.part.stream
        if not lasting:
            return None
        again = f"Delete it with `nats stream rm {stream}`, then run `trellis migrate`"
        if stream.endswith("JOBS"):
            again = (
                "It has the jobs. Stop all programs, make a deployment with another prefix "
                "(`trellis migrate` with ?prefix=NAME in the URL), and move the jobs there with "
                "`trellis move`. A sealed stream cannot be moved: restore an older backup"
            )
        elif stream.endswith("JOBS_STATE"):
            again = f"Stop all workers. {again}: sessions and locks are empty then"
        else:
            again += ". It has no jobs, and what it had is made again"
        return (
            f"Another program turned on {', '.join(lasting)} of the stream {stream}, and the "
            f"server never turns that off again. {again}."
        )

    @property
    def script(self) -> str:
        """The configuration that `migrate` puts in place, as JSON."""
        return json.dumps(self.part.config, indent=1, sort_keys=True)


def parts(subjects: Subjects, replicas: int) -> list[Part]:
    """Return all parts, each after those that it needs."""
    prefix, jobs, later = subjects.prefix, subjects.jobs, subjects.later
    moves = {
        stream: [(each, f"{prefix}.work.$1.$2") for each in filters]
        for stream, filters in hints_of(subjects).items()
    }
    keys = [(subjects.own("keys", "*", "*", "h", "*"), "$KV." + subjects.stream("JOBS_KEYS"))]
    shared = {"num_replicas": replicas, "metadata": {_MARK: str(SCHEMA)}}
    feeds = {"work_feed": (jobs, moves[jobs]), "later_feed": (later, moves[later])}
    return [
        _stream(jobs, shared, subjects=[f"{prefix}.jobs.>"], allow_direct=True, allow_atomic=True,
                allow_msg_ttl=True,
                republish={"src": f"{prefix}.jobs.>", "dest": f"{prefix}.feed.>"}),
        _stream(later, shared, subjects=[f"{prefix}.later.>", f"{prefix}.due.>"],
                allow_msg_schedules=True, allow_rollup_hdrs=True, allow_msg_ttl=True,
                allow_direct=True),  # the server turns roll-ups on with schedules
        _stream(subjects.state, shared, subjects=[f"{prefix}.state.>"], max_msgs_per_subject=1,
                allow_direct=True, allow_atomic=True),
        *(_feed(prefix, name, source, moves) for name, (source, moves) in feeds.items()),
        # A hint that jobs may start is sent when a pull finds the work message, not before.
        _stream(subjects.work, shared, retention="workqueue", allow_direct=True,
                republish={"src": f"{prefix}.work.>", "dest": f"{prefix}.woken.>",
                           "headers_only": True},
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


def hints_of(subjects: Subjects) -> dict[str, list[str]]:
    """Return the messages that go into the work queue: filters, by the stream that has them."""
    prefix = subjects.prefix
    return {
        subjects.jobs: [f"{prefix}.jobs.*.*.*.{kind}" for kind in (*STARTABLE, "ready.*")],
        subjects.later: [f"{prefix}.due.*.*.*"],
    }


def _stream(name: str, shared: Mapping[str, Any], **config: Any) -> Part:  # noqa: ANN401
    return Part(name, None, {"name": name, **_STREAM, **shared, **config})


def _feed(prefix: str, name: str, source: str, moves: list[tuple[str, str]]) -> Part:
    return Part(source, name, {
        "name": name,
        "durable_name": name,
        "deliver_subject": f"{prefix}.internal.{name}",
        "deliver_group": "",
        "headers_only": False,
        "rate_limit_bps": 0,
        "inactive_threshold": 0,
        "pause_until": None,
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
        info = await present(link, part)
        config = None if info is None else info["config"]
        if config is None or not fits(part, config):
            found.append(Difference(part, config))
    return found


async def present(link: Link, part: Part, *, wait: float = PATIENCE) -> Mapping[str, Any] | None:
    """Return what the server says about a part; None: it is missing."""
    verb = f"STREAM.INFO.{part.stream}"
    if part.consumer is not None:
        verb = f"CONSUMER.INFO.{part.stream}.{part.consumer}"
    try:
        return await link.api(verb, wait=wait)
    except NatsRefused as error:
        if error.number in {NO_STREAM, NO_CONSUMER}:
            return None
        raise


def fits(part: Part, found: Mapping[str, Any]) -> bool:
    """Return whether a part is as it must be; what is not in its configuration is free."""
    return not Difference(part, found).names


def _fits(name: str, wanted: object, found: Mapping[str, Any]) -> bool:
    if isinstance(wanted, Mapping) and name == "metadata":  # of operators and the server, too
        there = found.get(name) or {}
        return all(there.get(key) == value for key, value in wanted.items())
    return _is_same(wanted, found.get(name))


def _is_same(wanted: object, found: object) -> bool:
    if not _is_set(wanted) or not _is_set(found):
        return _is_set(wanted) == _is_set(found)
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(_is_same(wanted.get(name), found.get(name)) for name in {*wanted, *found})
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_is_same, wanted, found))
    return wanted == found


def _is_set(value: object) -> bool:
    """Return whether a setting says something: the server leaves out what is false or empty.

    A limit of 0 is none, as is -1.
    """
    return bool(value) and value != -1


async def put(link: Link, difference: Difference) -> None:
    """Make or change one part; what differs for good stays, and what is free."""
    part, found = difference
    config = {**(found or {}), **part.config, **difference.lasting}
    if part.consumer is None:
        verb = "CREATE" if found is None else "UPDATE"
        known = {_IDENTITY: secrets.token_hex(7)} if found is None else found.get("metadata") or {}
        own = {name: value for name, value in known.items() if not name.startswith(_OF_SERVER)}
        metadata = own | part.config["metadata"]
        await link.api(f"STREAM.{verb}.{part.stream}", {**config, "metadata": metadata})
        return
    await link.api(
        f"CONSUMER.CREATE.{part.stream}.{part.consumer}",
        {"stream_name": part.stream, "config": config, "action": ""},
    )
    if (found or {}).get("pause_until"):
        await link.api(f"CONSUMER.PAUSE.{part.stream}.{part.consumer}", {})


async def migrate(
    link: Link, subjects: Subjects, replicas: int | None, *, dry_run: bool
) -> Migration:
    """Bring the topology up to date; with `dry_run` only return what would be put in place."""
    before = await schema_of(link, subjects)
    if before:
        await refuse_moved(link, subjects)
    kept = replicas or await replicas_of(link, subjects)
    # A trial with three replicas would change something, so a dry run takes what is likely.
    is_cluster = bool(link.server.get("cluster"))
    wanted = kept or (3 if is_cluster or not dry_run else 1)
    missing = await differences(link, subjects, wanted)
    if not dry_run:
        if await _forget_hints(link, subjects, missing):
            missing = await differences(link, subjects, wanted)
        missing = await _put_all(link, subjects, missing, has_choice=kept is None)
    scripts = tuple((SCHEMA, difference.script) for difference in missing)
    return Migration(before, SCHEMA, scripts)


async def _put_all(
    link: Link, subjects: Subjects, missing: list[Difference], *, has_choice: bool
) -> list[Difference]:
    """Put parts in place, and return them.

    With a choice, they have three replicas, or one if the servers refuse the first part with three.
    That is the stream of the jobs, by which a migration that continues this one knows the number.
    """
    if has_choice:
        try:
            await put(link, missing[0])
        except NatsRefused as error:
            if error.number not in _TOO_FEW:
                raise
            missing = await differences(link, subjects, 1)
            await put(link, missing[0])
    for difference in missing[has_choice:]:
        if "sealed" not in difference.lasting:  # the server refuses every change
            await put(link, difference)
    _refuse_lasting(missing)
    return missing


def _refuse_lasting(found: Sequence[Difference]) -> None:
    """Raise `EngineError` if the server keeps what another program turned on."""
    if left := [each.remedy for each in found if each.remedy is not None]:
        raise EngineError(" ".join((*left, "Everything else was put in place.")))


async def _forget_hints(link: Link, subjects: Subjects, missing: list[Difference]) -> bool:
    """Delete what follows a stream that was deleted; return whether anything was.

    A stream with sources skips what is numbered below the last message that it took. And when
    hints were deleted with their stream, the feed of the work queue must send all events once more
    after which a job may start. The message of a job that has ended is acknowledged when a worker
    sees it, and that of one whose time has not come is scheduled again.
    """
    lost = {each.part.stream for each in missing if each.part.consumer is None and not each.found}
    absent = lost | {each.part.name for each in missing if not each.found}
    gone = []
    if lost & {subjects.jobs, subjects.later}:
        gone.append(f"STREAM.DELETE.{subjects.work}")
    if subjects.jobs in lost:
        gone.append(f"STREAM.DELETE.KV_{subjects.stream('JOBS_KEYS')}")
    elif lost & {subjects.work, subjects.later}:
        gone.append(f"CONSUMER.DELETE.{subjects.jobs}.work_feed")
    gone = [each for each in gone if _named(each) not in absent]
    for verb in gone:
        await link.api(verb)
    return bool(gone)


def _named(verb: str) -> str:
    return " > ".join(verb.split(".")[2:])


def check_version(found: tuple[int, int]) -> None:
    """Raise `VersionMismatch` if the server is older than Trellis needs."""
    if found < FLOOR:
        raise VersionMismatch(
            f"The NATS server has version {'.'.join(map(str, found))}. Trellis needs "
            f"{'.'.join(map(str, FLOOR))} or later. Nothing was stored; upgrade the server."
        )


async def moved(link: Link, subjects: Subjects, wait: float = PATIENCE) -> dict[str, Any] | None:
    """Return the seal of a deployment whose jobs were moved to another store; None: it has none."""
    found = await present(link, Part(subjects.jobs, None, {}), wait=wait)
    text = ((found or {}).get("config", {}).get("metadata") or {}).get(MOVED)
    return None if text is None else dict(json.loads(text))


async def refuse_moved(link: Link, subjects: Subjects, wait: float = PATIENCE) -> None:
    """Raise `EngineError` if the jobs were moved to another store."""
    seal = await moved(link, subjects, wait)
    if seal is not None:
        raise EngineError(
            f"The jobs of {subjects.jobs} were moved to {seal['address']}, and nothing here can be "
            "changed any more; use that URL instead. Nothing was stored. If the move was "
            "interrupted, run `trellis move` again."
        )


def identity_of(info: Mapping[str, Any]) -> int:
    """Return the number by which a stream differs from one that is made again, with its name."""
    text = (info["config"].get("metadata") or {}).get(_IDENTITY)
    return int(text, 16) if text else read_instant(info["created"])


async def schema_of(link: Link, subjects: Subjects) -> int:
    """Return the version of the topology that is in place; 0: there is none."""
    found = await present(link, Part(subjects.jobs, None, {}))
    if found is None:
        return 0
    return int((found["config"].get("metadata") or {}).get(_MARK, 0))


async def replicas_of(link: Link, subjects: Subjects) -> int | None:
    """Return how many replicas the streams have; None: there are none."""
    found = await present(link, Part(subjects.jobs, None, {}))
    return None if found is None else int(found["config"]["num_replicas"])


__all__ = ["FLOOR", "SCHEMA", "Difference", "Part", "differences", "migrate", "parts"]
