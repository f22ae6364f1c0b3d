"""Hooks: job types that run when a job of another type has ended, and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from trellis.core.policy import Hook, HookOn
from trellis.core.states import State
from trellis.declaration.job_type import JobType, declare_handler
from trellis.declaration.options import DeclareOptions, TypeOptions, with_defaults
from trellis.errors import ConfigurationError


@dataclass(frozen=True)
class OutcomeError:
    """Why a job did not succeed."""

    #: A short stable word: `exception`, `timeout`, `lease_lost`, ...
    code: str
    message: str
    #: The exception's type and stack, where there was one.
    detail: str | None = None
    #: What the handler gave: `raise Fail("no such order", data={"order": 7})`.
    data: Any = None


@dataclass(frozen=True)
class Outcome:
    """How a job ended: the payload of its hooks."""

    job_id: str
    service: str
    type: str
    state: State
    #: How often an operator had run the job again before.
    generation: int
    #: The attempts it took.
    attempt: int
    finished_at: datetime
    error: OutcomeError | None = None
    #: What the handler returned, as plain data.
    result: Any = None
    #: The payload of the job, as plain data.
    payload: Any = None
    tags: dict[str, str] = field(default_factory=dict)
    #: False: payload and result are left out because they are too large; read them by the id.
    is_whole: bool = True


#: Options that a hook cannot have, and why.
_REFUSED: Final[Mapping[str, str]] = {
    "per_key": "it is always created. Take a job.lock(...) in its handler instead.",
    "fair": "it has the tenant of the job that it follows. Leave fair= out.",
}


def declare_hook_type(
    job_type: JobType,
    on: HookOn,
    function: Callable[..., Any],
    options: TypeOptions,
    defaults: DeclareOptions,
) -> JobType:
    """Return the type of a hook; raise `ConfigurationError` if it cannot be one.

    Defaults of its service that a hook cannot have do not hold for it.
    """
    name = f"{job_type.service}/{job_type.name}"
    if job_type.is_hook:
        raise ConfigurationError(
            f"{name} is a hook itself, and a hook has no hooks. Handle its errors in its handler."
        )
    for option, why in _REFUSED.items():
        if options.get(option) is not None:
            raise ConfigurationError(f"A hook of {name} cannot have {option}=: {why}")
    merged = with_defaults(defaults, options)
    merged["per_key"] = merged["fair"] = None
    merged["name"] = options.get("name") or f"{job_type.name}-on_{on}"
    hook = declare_handler(job_type.service, function, **merged)
    if hook.handler is None or hook.handler.payload is not Outcome:
        raise ConfigurationError(
            f"A hook of {name} takes how the job ended: write def {function.__name__}(ended: "
            "trellis.Outcome), or job: ActiveJob[trellis.Outcome]."
        )
    hook.is_hook = True
    return hook


def hook_of(job_type: JobType, on: HookOn) -> Hook:
    """Return the hook whose jobs are of this type."""
    return Hook(on, job_type.name, job_type.queue, job_type.schema_version, job_type.deadline)
