"""Permissions of NATS users: what a service needs, and nothing that lets it change others' jobs.

The fence of a job holds only if every program that writes its subjects follows it, so on a server
that several services share each has a user of its own. Reads cannot be limited to a service: the
engine names what it reads in the body of a request, and hints come from the feed of all. Operators
may change the streams of their deployment only; callers of `Jobs.*` hear answers in their own
inbox only, because an answer has payloads that another caller may not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from trellis.core.names import check_service, check_type
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects, check_prefix, consumer_of
from trellis.engines.jetstream.topology import parts
from trellis.errors import AccessDenied, ConfigurationError, EngineUnavailable

#: A token that no name of a service, type or job has in this place.
_PROBE: Final = "trellis-probe"


#: The calls of `Jobs.*` by the capability that they need; `admin.stream` is to hear the feed.
CAPABILITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "admin.read": ("Health", "ListServices", "List", "Get", "GetKey", "ListDLQ"),
    "admin.mutate": ("Retry", "Cancel", "ReplayDLQ", "DismissDLQ"),
    "admin.stream": (),
}


class Permissions(NamedTuple):
    """The subjects that a user may publish to and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    def config(self) -> str:
        """Return them as a block of the server's configuration."""
        return "\n".join((
            "permissions: {",
            *_block("publish", self.publish),
            *_block("subscribe", self.subscribe),
            "}",
        ))  # fmt: skip

    def user(self, name: str, password: str) -> str:
        """Return a user with them, as an entry of `users` in the server's configuration.

        The password is a text of that configuration: quoted, or a variable like `$MAIL_PASSWORD`.
        """
        lines = (f'user: "{name}"', f"password: {password}", *self.config().splitlines())
        return "\n".join(("{", *(f"  {line}" for line in lines), "}"))

    def whole(self, name: str, account: str | None) -> str:
        """Return a block of the server's configuration with a user, in an account or in none.

        The server reads the password from a variable of its environment.
        """
        variable = re.sub(r"\W", "_", name).upper() + "_PASSWORD"
        users = ("users: [", *_indented(self.user(name, f"${variable}").splitlines()), "]")
        said = (
            f"# Give the server the password in the environment variable {variable}. One of digits",
            f"# only, or of digits and a unit like 12k, needs quotes in it: {variable}='\"1234\"'.",
            "# Add further users to this list: the server takes only the last block of a name, so",
            "# a second one in its configuration would remove the users of the first.",
        )
        if account is None:
            return "\n".join((*said, "authorization {", *_indented(users), "}"))
        inner = ("jetstream: enabled", *users)
        block = (f"{account} {{", *_indented(inner), "}")
        return "\n".join((*said, "accounts {", *_indented(block), "}"))


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _block(name: str, subjects: Sequence[str]) -> list[str]:
    return [f"  {name}: {{ allow: [", *(f'    "{subject}"' for subject in subjects), "  ] }"]


def subjects_of(prefix: str) -> Subjects:
    """Return the names of a deployment; raise `ConfigurationError` for a wrong prefix."""
    return Subjects(check_prefix(prefix))


def inbox_of(user: str) -> str:
    """Return the prefix of the inboxes of a program that calls `Jobs.*`."""
    return f"_INBOX.{user}"


def capability_permissions(subjects: Subjects, names: Sequence[str], user: str) -> Permissions:
    """Return what a program needs that calls `Jobs.*`, or hears the feed, and nothing else."""
    calls = tuple(subjects.rpc(call) for name in names for call in CAPABILITIES[name])
    heard = (subjects.feed(">"),) if "admin.stream" in names else ()
    # An empty list would allow everything.
    return Permissions(calls or (f"{subjects.prefix}.none",), (f"{inbox_of(user)}.>", *heard))


def admin_permissions(subjects: Subjects) -> Permissions:
    """Return what `trellis jobs serve`, `trellis migrate` and operators need."""
    prefix = subjects.prefix
    streams = dict.fromkeys(part.stream for part in parts(subjects, replicas=1))
    return Permissions(
        (
            f"{prefix}.>",
            *(f"$JS.API.{each}" for each in ("INFO", "STREAM.NAMES", "STREAM.LIST")),
            *(each for stream in streams for each in _whole(stream)),
            "_INBOX.>",
        ),
        (f"{prefix}.>", "$SRV.>", "_INBOX.>"),
    )


def _whole(stream: str) -> list[str]:
    """Return every use of a stream and its consumers.

    The names of consumers are free, so each of these has the stream in a place of its own: with
    `CONSUMER.*.*.JOBS.>` a consumer JOBS could be made on any stream.
    """
    return [
        f"$JS.API.STREAM.*.{stream}",
        f"$JS.API.STREAM.*.*.{stream}",
        f"$JS.API.CONSUMER.*.{stream}",
        f"$JS.API.CONSUMER.*.{stream}.>",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
        f"$JS.API.CONSUMER.LEADER.STEPDOWN.{stream}.*",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
        f"$JS.SNAPSHOT.*.{stream}.>",
        f"$JS.ACK.{stream}.>",
        f"$JS.ACK.*.*.{stream}.>",
    ]


def service_permissions(subjects: Subjects, service: str, types: Sequence[str]) -> Permissions:
    """Return what clients and workers of a service need."""
    if not types:
        raise ConfigurationError(
            "The consumers of a service are named by its types. Name each with --type."
        )
    check_service(service)
    for name in types:
        check_type(name)
    return Permissions(
        (
            *_own(subjects, service),
            *(each for name in types for each in _work(subjects, service, name)),
            *_shared(subjects),
        ),
        ("_INBOX.>", *_heard(subjects)),
    )


def _own(subjects: Subjects, service: str) -> list[str]:
    """Return what only this service writes."""
    prefix = subjects.prefix
    own = (
        ("keys", service, ">"), ("marks", service, ">"), ("contracts", service),
        ("contracts", service, ">"), ("schedules", service, ">"), ("slots", service, ">"),
        ("archive", service), ("archiving", service, ">"), ("setting", "limits", "of", service),
        ("used", "*", service, ">"),
    )  # fmt: skip
    return [
        f"{prefix}.jobs.{service}.>",
        f"{prefix}.jobs.workers.{service}.>",
        *(".".join((prefix, "jobs", "trellis", *each)) for each in own),
        f"{prefix}.later.{service}.>",
        f"{prefix}.due.{service}.>",
        subjects.value("type", service, ">"),
    ]


def _work(subjects: Subjects, service: str, job_type: str) -> list[str]:
    """Return what the workers of a type need."""
    stream, name = subjects.work, consumer_of(service, job_type)
    return [
        f"$JS.API.CONSUMER.CREATE.{stream}.{name}.{subjects.work_of(service, job_type)}",
        f"$JS.API.CONSUMER.INFO.{stream}.{name}",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}",
        f"$JS.ACK.{stream}.{name}.>",
        f"$JS.ACK.*.*.{stream}.{name}.>",
    ]


def _shared(subjects: Subjects) -> list[str]:
    """Return what every service needs: states that may span services, and reads."""
    prefix, streams = subjects.prefix, (subjects.jobs, subjects.state)
    spanning = ("batch.*", "member.>", "waits.*", "watch.*", "left.*", "audit")
    return [
        *(f"{prefix}.jobs.trellis.{each}" for each in spanning),
        *(subjects.value(each, ">") for each in ("session", "held", "lock")),
        subjects.woken("limit"),
        "$JS.API.STREAM.NAMES",
        *(f"$JS.API.STREAM.MSG.GET.{each}" for each in (*streams, subjects.work)),
        *(f"$JS.API.DIRECT.GET.{each}" for each in streams),
        *(f"$JS.API.STREAM.INFO.{each}" for each in streams),
        subjects.internal("*"),
    ]


def _heard(subjects: Subjects) -> list[str]:
    return [subjects.feed(">"), subjects.woken(">")]


# -- what a user lacks -------------------------------------------------------------------------


class Missing(NamedTuple):
    """What the server denies to the user of a connection."""

    #: Of what every service needs.
    shared: tuple[str, ...]
    #: By service: of what it needs, if the user may do a part of it.
    partly: Mapping[str, tuple[str, ...]]
    #: The services for which the user may do everything.
    allowed: tuple[str, ...]
    #: The declared types of the services.
    types: Mapping[str, Sequence[str]]


async def missing_permissions(link: Link, subjects: Subjects) -> Missing:
    """Try what this user may do, for all services whose types are declared.

    Streams refuse the messages by which it is tried, so nothing is stored.
    """
    shared = await _denied(link, _tried(_shared(subjects)), _tried(_heard(subjects)))
    types = await _declared(link, subjects)
    partly: dict[str, tuple[str, ...]] = {}
    allowed = []
    for service, names in types.items():
        wanted = [*_own(subjects, service), *(
            each for name in names for each in _work(subjects, service, name)
        )]  # fmt: skip
        tried = _tried(wanted)
        denied = set(await _denied(link, tried))
        missing = tuple(each for each, name in zip(wanted, tried, strict=True) if name in denied)
        if not missing:
            allowed.append(service)
        elif len(missing) < len(wanted):
            partly[service] = missing
    return Missing(tuple(shared), partly, tuple(allowed), types)


async def _denied(link: Link, publish: Sequence[str], subscribe: Sequence[str] = ()) -> list[str]:
    """Return which of these subjects this user may not use; nothing is stored."""
    # All streams refuse the messages, because none has this name. A request for a work message
    # without a place for the answer takes none.
    headers, unheard = {"Nats-Expected-Stream": "none"}, link.client.new_inbox()
    with link.access.collecting() as found:
        for subject in publish:
            reply = "" if subject.startswith("$") else unheard
            await link.client.publish(subject, reply=reply, headers=headers)
        for subject in subscribe:
            await (await link.client.subscribe(subject)).unsubscribe()
        await link.flush()
    return [each for each in (*publish, *subscribe) if each.lower() in found]


async def _declared(link: Link, subjects: Subjects) -> dict[str, list[str]]:
    """Return the types that workers have declared, by service."""
    types: dict[str, list[str]] = {}
    try:
        found = await link.last_many(subjects.state, [subjects.value("type", "*", "*")])
    except (AccessDenied, EngineUnavailable):
        return types
    for got in found:
        service, name = got.subject.split(".")[-2:]
        types.setdefault(service, []).append(name)
    return types


def _tried(subjects: Sequence[str]) -> list[str]:
    """Return subjects that these allow, without wildcards."""
    return [each.replace("*", _PROBE).replace(">", _PROBE) for each in subjects]
