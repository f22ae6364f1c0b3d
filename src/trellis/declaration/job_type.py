"""A job type: its names, policies and codecs, and the handler that does its work, if known here.

Producers that must not import the handler share the declaration without one; at most one handler
can ever be attached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

from trellis.core.names import check_queue, check_type
from trellis.declaration import checks
from trellis.declaration.codec import Codec, NothingCodec, codec_for
from trellis.declaration.options import Isolation, TypeOptions, check_options, make_policy
from trellis.declaration.per_key import check_fields, check_secrets
from trellis.declaration.secrets import write_pointer
from trellis.declaration.signature import Handler, read_handler
from trellis.errors import ConfigurationError


class JobType:
    """One kind of work of a service."""

    def __init__(
        self, service: str, payload: object, result: object, /, **options: Unpack[TypeOptions]
    ) -> None:
        check_options(options, TypeOptions, "A job type")
        name = check_type(checks.text("name", options.get("name", ""), "greet"))
        self.service = service
        self.name = name
        #: Where its jobs wait.
        self.queue = check_queue(checks.text("queue", options.get("queue") or name, "letters"))
        #: How many run at once in one worker process; None is as many as it has slots.
        self.concurrency = _concurrency(name, options.get("concurrency"))
        deadline = options.get("deadline")
        #: Jobs without a deadline of their own get this one, in microseconds after creation.
        self.deadline = None if deadline is None else checks.positive_duration("deadline", deadline)
        #: Where its handler runs.
        self.isolation: Isolation = checks.one_of(
            Isolation, "isolation", options.get("isolation", "auto")
        )
        #: Whether its jobs' logs take the records of `logging`, too.
        self.capture_logs = checks.flag("capture_logs", options.get("capture_logs", True))
        self.payload: Codec = codec_for(payload, "a payload")
        self.result: Codec = codec_for(result, "a result")
        #: What is promised about its jobs.
        self.policy = replace(
            make_policy(**_policies(options)), secrets=_secrets(self.payload, self.result)
        )
        #: What does the work; None where only the declaration is known.
        self.handler: Handler | None = None
        self._payload_type = payload
        if self.policy.key is not None:
            check_fields(self.policy.key.template, self.payload.field_names(), name)
            check_secrets(self.policy.key.template, self.payload.secrets(), name)

    def __repr__(self) -> str:
        return f"<job type {self.service}/{self.name}>"

    def attach(self, function: Callable[..., Any]) -> Handler:
        """Make this function the handler; refuse a second one or one for another payload."""
        handler = read_handler(function)
        if self.handler is not None:
            raise ConfigurationError(
                f"{self.service}/{self.name} already has a handler ({self.handler.name}). "
                "Give the second one another name=."
            )
        if handler.payload != self._payload_type:
            raise ConfigurationError(
                f"{handler.name} takes {handler.payload!r}, but {self.service}/{self.name} was "
                f"declared with {self._payload_type!r}."
            )
        self.handler = handler
        return handler

    @property
    def takes_nothing(self) -> bool:
        """Whether its jobs have no payload."""
        return isinstance(self.payload, NothingCodec)

    @property
    def may_be_claimed_ahead(self) -> bool:
        """Whether a worker may hold its jobs before a slot is free.

        Not where a lost claim costs more than a repetition: one attempt, a lost job that is not
        retried, or a key that others wait for; nor where every call needs a process of its own.
        """
        policy = self.policy
        return (
            policy.retry.attempts > 1
            and policy.on_lost == "retry"
            and policy.key is None
            and self.concurrency is None
            and self.isolation == "auto"
        )


def declare_handler(
    service: str, function: Callable[..., Any], /, **options: Unpack[TypeOptions]
) -> JobType:
    """Return the job type that a handler's signature and these policies describe."""
    handler = read_handler(function)
    options.setdefault("name", handler.name)
    job_type = JobType(service, handler.payload, handler.result, **options)
    job_type.attach(function)
    return job_type


def _concurrency(name: str, asked: int | None) -> int | None:
    if asked is None:
        return None
    if checks.whole_number("concurrency", asked) < 1:
        raise ConfigurationError(f"concurrency={asked} would never run {name}. Use at least 1.")
    return asked


def _policies(options: TypeOptions) -> Any:  # noqa: ANN401 - a TypedDict minus six keys has no type
    beside = {"name", "queue", "concurrency", "deadline", "isolation", "capture_logs"}
    return {name: value for name, value in options.items() if name not in beside}


def _secrets(payload: Codec, result: Codec) -> tuple[str, ...]:
    ways = [("payload", *way) for way in payload.secrets()]
    ways += [("result", *way) for way in result.secrets()]
    return tuple(sorted(map(write_pointer, ways)))
