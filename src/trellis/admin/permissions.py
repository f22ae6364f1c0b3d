"""Permissions of NATS users: what a service needs, and nothing that lets it change others' jobs.

The fence of a job holds only if every program that writes its subjects follows it, so on a server
that several services share each has a user of its own. Reads cannot be limited to a service: the
engine names what it reads in the body of a request, and hints come from the feed of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trellis.core.names import check_service, check_type
from trellis.engines.jetstream.subjects import Subjects, check_prefix, consumer_of
from trellis.errors import ConfigurationError


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


def _block(name: str, subjects: Sequence[str]) -> list[str]:
    return [f"  {name}: {{ allow: [", *(f'    "{subject}"' for subject in subjects), "  ] }"]


def subjects_of(prefix: str) -> Subjects:
    """Return the names of a deployment; raise `ConfigurationError` for a wrong prefix."""
    return Subjects(check_prefix(prefix))


def admin_permissions(subjects: Subjects) -> Permissions:
    """Return what `trellis jobs serve`, `trellis migrate` and operators need."""
    prefix = subjects.prefix
    return Permissions(
        (f"{prefix}.>", "$JS.API.>", "$JS.ACK.>", "$SRV.>", "_INBOX.>"),
        (f"{prefix}.>", "$SRV.>", "_INBOX.>"),
    )


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
            *_writes(subjects, service),
            *_reads(subjects),
            *(each for name in types for each in _work(subjects, service, name)),
            subjects.internal("*"),
        ),
        ("_INBOX.>", subjects.feed(">"), f"{subjects.prefix}.woken.>"),
    )


def _writes(subjects: Subjects, service: str) -> list[str]:
    prefix = subjects.prefix
    own = (
        ("keys", service, ">"), ("marks", service, ">"), ("contracts", service),
        ("contracts", service, ">"), ("schedules", service, ">"), ("slots", service, ">"),
        ("archive", service), ("setting", "limits", "of", service), ("used", "*", service, ">"),
        # Batches and jobs that wait for others may span services.
        ("batch", ">"), ("joined", ">"), ("waits", ">"), ("watch", ">"), ("left", ">"), ("audit",),
    )  # fmt: skip
    return [
        f"{prefix}.jobs.{service}.>",
        f"{prefix}.jobs.workers.{service}.>",
        *(".".join((prefix, "jobs", "trellis", *each)) for each in own),
        f"{prefix}.later.{service}.>",
        *(subjects.value(each, ">") for each in ("session", "held", "lock")),
        subjects.value("type", service, ">"),
    ]


def _reads(subjects: Subjects) -> list[str]:
    streams = (subjects.jobs, subjects.state)
    return [
        "$JS.API.STREAM.NAMES",
        *(f"$JS.API.STREAM.MSG.GET.{each}" for each in streams),
        *(f"$JS.API.DIRECT.GET.{each}" for each in streams),
        *(f"$JS.API.STREAM.INFO.{each}" for each in (*streams, subjects.work)),
        f"$JS.API.CONSUMER.INFO.{subjects.jobs}.work_feed",
        f"$JS.API.CONSUMER.INFO.{subjects.later}.later_feed",
    ]


def _work(subjects: Subjects, service: str, job_type: str) -> list[str]:
    stream, name = subjects.work, consumer_of(service, job_type)
    return [
        f"$JS.API.CONSUMER.CREATE.{stream}.{name}.{subjects.work_of(service, job_type)}",
        f"$JS.API.CONSUMER.INFO.{stream}.{name}",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}",
        f"$JS.ACK.{stream}.{name}.>",
        f"$JS.ACK.*.*.{stream}.{name}.>",
    ]
