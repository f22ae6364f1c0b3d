"""A job type: its names, policies and codecs, and its handler, if this program has it.

Programs that only create jobs may use a declaration without the handler. A job type has at most one
handler.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeAlias, Unpack

from trellis.core.names import check_queue, check_type
from trellis.core.policy import Hook
from trellis.declaration import checks
from trellis.declaration.codec import Codec, NothingCodec, codec_for
from trellis.declaration.extensions import Extensions, read_around
from trellis.declaration.fair import check_fair
from trellis.declaration.options import (
    DeclareOptions,
    Isolation,
    TypeOptions,
    check_limit,
    check_options,
    make_policy,
)
from trellis.declaration.per_key import PerKey, check_fields, check_secrets
from trellis.declaration.secrets import write_pointer
from trellis.declaration.signature import NO_PAYLOAD, Handler, read_handler
from trellis.declaration.upgrades import Upgrades
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError

#: Returns an open engine.
Reach: TypeAlias = Callable[[], Coroutine[Any, Any, Engine]]


class JobType:
    """One type of job of a service."""

    def __init__(
        self, service: str, payload: object, result: object, /, **options: Unpack[TypeOptions]
    ) -> None:
        check_options(options, TypeOptions, "A job type has")
        name = check_type(checks.text("name", options.get("name", ""), "greet"))
        self.service = service
        self.name = name
        #: The queue of its jobs.
        self.queue = check_queue(checks.text("queue", options.get("queue") or name, "letters"))
        #: How many run at the same time in one worker process; None: as many as it has slots.
        self.concurrency = _concurrency(name, options.get("concurrency"))
        #: How many run at the same time over all workers, and how many start per time.
        self.limit = check_limit(options.get("limit"))
        #: Which tenant a job belongs to; None: to none, unless its creator names one.
        self.fair = check_fair(options.get("fair"))
        deadline = options.get("deadline")
        #: The deadline of jobs created without one, in microseconds after creation.
        self.deadline = None if deadline is None else checks.positive_duration("deadline", deadline)
        #: Where its handler runs: in the worker, or in a separate process.
        self.isolation: Isolation = checks.one_of(
            Isolation, "isolation", options.get("isolation", "auto")
        )
        #: Whether records of `logging` are added to the log of the job.
        self.capture_logs = checks.flag("capture_logs", options.get("capture_logs", True))
        #: The version of the payloads that it creates, and how older ones are read.
        self.schema_version = checks.whole_number(
            "schema_version", options.get("schema_version", 1), least=1
        )
        self.upgrades = Upgrades(f"{service}/{name}", self.schema_version)
        self.payload: Codec = codec_for(payload, "a payload")
        self.result: Codec = codec_for(result, "a result")
        #: The policy of its jobs.
        self.policy = replace(
            make_policy(**_policies(options)), secrets=_secrets(self.payload, self.result)
        )
        #: None where only the declaration is known.
        self.handler: Handler | None = None
        #: Returns the engine of its jobs, opened on the present event loop; None outside a service.
        self.reach: Reach | None = None
        #: Whether it is a hook of another type.
        self.is_hook = False
        config = options.get("config")
        #: Returns the present configuration, for jobs that expect a certain one.
        self.current_config = None if config is None else read_handler(config)
        #: What its service adds around its runs; the service gives its own.
        self.extensions = Extensions()
        #: The surroundings of this type only, inside those of its service.
        self.arounds = tuple(map(read_around, options.get("around", ())))
        self._payload_type = payload
        self._check_templates()

    def _check_templates(self) -> None:
        for derived in (self.policy.key, self.fair):
            if derived is not None:
                check_fields(derived.template, self.payload.field_names(), self.name)
                check_secrets(derived.template, self.payload.secrets(), self.name)

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
        self._check_config(handler)
        self.handler = handler
        return handler

    def _check_config(self, handler: Handler) -> None:
        config = self.current_config
        if config is None:
            return
        if config.is_async and not handler.is_async:
            raise ConfigurationError(
                f"{handler.name} is a plain function, so its config function {config.name} must be "
                "one, too. Both run in the same thread."
            )
        if config.takes != "nothing" and config.payload != handler.payload:
            raise ConfigurationError(
                f"{config.name} takes {config.payload!r}, but its jobs have {handler.payload!r}."
            )

    def add_hook(self, hook: Hook) -> None:
        """Have a job of the hook's type created whenever a job of this type ends like that."""
        self.policy = replace(self.policy, hooks=(*self.policy.hooks, hook))

    def read(self, payload: str, schema_version: int) -> Any:  # noqa: ANN401 - the handler types it
        """Return the validated payload of a job, upgraded first if its version is lower."""
        if schema_version != self.schema_version:
            payload = self.upgrades.apply(payload, schema_version)
        return self.payload.decode(payload)

    @property
    def default_payload(self) -> object:
        """The payload of a job that is created without one: the handler's default, else None."""
        default = NO_PAYLOAD if self.handler is None else self.handler.default
        return None if default is NO_PAYLOAD else default

    @property
    def takes_nothing(self) -> bool:
        """Whether its jobs have no payload."""
        return isinstance(self.payload, NothingCodec)

    @property
    def may_be_claimed_ahead(self) -> bool:
        """Whether a worker may claim its jobs before a slot is free.

        Not if a lost claim costs more than a repeated attempt: one attempt only, a lost job that is
        not retried, or a key or a limit that other jobs wait for. Nor if each call needs a
        separate process.
        """
        policy = self.policy
        return (
            policy.retry.attempts > 1
            and policy.on_lost == "retry"
            and policy.key is None
            and not self.limit
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


def check_defaults(defaults: DeclareOptions) -> DeclareOptions:
    """Return the defaults of a service; raise for an option that is wrong for every type."""
    check_options(defaults, DeclareOptions, "The defaults of a service have")
    policies = _policies(defaults)
    others: Any = {name: value for name, value in defaults.items() if name not in policies}
    try:
        # A type may add the key that a policy of the defaults needs.
        make_policy(**{**policies, "per_key": policies.get("per_key") or PerKey("any")})
        JobType("any", None, None, **{**others, "name": "any"})
    except ConfigurationError as error:
        raise ConfigurationError(f"The defaults of a service: {error}") from error
    return defaults


def _policies(options: DeclareOptions) -> Any:  # noqa: ANN401 - a TypedDict minus some keys has no type
    others = {
        "name",
        "queue",
        "concurrency",
        "limit",
        "fair",
        "deadline",
        "isolation",
        "capture_logs",
        "config",
        "schema_version",
        "around",
    }
    return {name: value for name, value in options.items() if name not in others}


def _secrets(payload: Codec, result: Codec) -> tuple[str, ...]:
    paths = [("payload", *path) for path in payload.secrets()]
    paths += [("result", *path) for path in result.secrets()]
    return tuple(sorted(map(write_pointer, paths)))
