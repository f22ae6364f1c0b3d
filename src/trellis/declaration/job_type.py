"""A job type: its names, policies and codecs, and its handler, if this program has it.

Programs that only create jobs may use a declaration without the handler. A job type has at most one
handler.
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
    """One type of job of a service."""

    def __init__(
        self, service: str, payload: object, result: object, /, **options: Unpack[TypeOptions]
    ) -> None:
        check_options(options, TypeOptions, "A job type")
        name = check_type(checks.text("name", options.get("name", ""), "greet"))
        self.service = service
        self.name = name
        #: The queue of its jobs.
        self.queue = check_queue(checks.text("queue", options.get("queue") or name, "letters"))
        #: How many run at the same time in one worker process; None: as many as it has slots.
        self.concurrency = _concurrency(name, options.get("concurrency"))
        deadline = options.get("deadline")
        #: The deadline of jobs created without one, in microseconds after creation.
        self.deadline = None if deadline is None else checks.positive_duration("deadline", deadline)
        #: Where its handler runs: in the worker, or in a separate process.
        self.isolation: Isolation = checks.one_of(
            Isolation, "isolation", options.get("isolation", "auto")
        )
        #: Whether records of `logging` are added to the log of the job.
        self.capture_logs = checks.flag("capture_logs", options.get("capture_logs", True))
        self.payload: Codec = codec_for(payload, "a payload")
        self.result: Codec = codec_for(result, "a result")
        #: The policy of its jobs.
        self.policy = replace(
            make_policy(**_policies(options)), secrets=_secrets(self.payload, self.result)
        )
        #: None where only the declaration is known.
        self.handler: Handler | None = None
        self._payload_type = payload
        if self.policy.key is not None:
            check_fields(self.policy.key.template, self.payload.field_names(), name)
            check_secrets(self.policy.key.template, self.payload.secrets(), name)

    def __repr__(self) -> str:
        return f"<job type {self.service}/{self.name}>"

    def attach(self, function: Callable[..., Any]) -> Handler:
        """Make this function the handler; raise `ConfigurationError` if it cannot be."""
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
        """Whether a worker may claim its jobs before a slot is free.

        Not if a lost claim costs more than a repeated attempt: one attempt only, a lost job that is
        not retried, or a key that other jobs wait for. Nor if each call needs a separate process.
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
    """Return the job type of a handler: payload and result are read from its signature."""
    handler = read_handler(function)
    options.setdefault("name", handler.name)
    job_type = JobType(service, handler.payload, handler.result, **options)
    job_type.attach(function)
    return job_type


def _concurrency(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    if checks.whole_number("concurrency", value) < 1:
        raise ConfigurationError(f"concurrency={value} would never run {name}. Use at least 1.")
    return value


def _policies(options: TypeOptions) -> Any:  # noqa: ANN401 - a TypedDict minus six keys has no type
    others = {"name", "queue", "concurrency", "deadline", "isolation", "capture_logs"}
    return {name: value for name, value in options.items() if name not in others}


def _secrets(payload: Codec, result: Codec) -> tuple[str, ...]:
    paths = [("payload", *path) for path in payload.secrets()]
    paths += [("result", *path) for path in result.secrets()]
    return tuple(sorted(map(write_pointer, paths)))
