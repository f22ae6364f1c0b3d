"""The settings of a worker: tuned defaults, then `TRELLIS_*` variables, then what the program says.

The heartbeat must come at least three times per lease, so that one lost renewal costs nothing.
What nobody has set follows the lease. Where the variables come from: `settings_file.environment`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from trellis.contract import given
from trellis.contract.sizes import size_in_words, to_bytes
from trellis.core.spans import SECOND, Micros, Span, in_words
from trellis.errors import ConfigurationError

DEFAULT_URL: Final = "sqlite:///trellis.db"
_STALLED_LEASES: Final = 10
#: Three renewals, each with a commit to disk, must fit into it.
_SHORTEST_LEASE: Final = SECOND // 10
#: Less than any Python process has when it has just started.
_LEAST_MEMORY: Final = 16_000_000


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker process behaves."""

    #: Jobs that run at the same time, in each process.
    concurrency: int = 10
    #: How long a worker that has gone silent keeps its jobs.
    lease: Micros = 30 * SECOND
    #: How often the lease is renewed.
    heartbeat: Micros = 10 * SECOND
    #: How often maintenance looks for lapsed workers, deadlines and old jobs.
    sweep: Micros = 5 * SECOND
    #: How long handlers may go on after the worker was told to stop.
    grace: Micros = 25 * SECOND
    #: How often the engine is asked for jobs when no hint comes.
    poll: Micros = SECOND
    #: Worker processes under one guardian.
    processes: int = 1
    #: How long a worker process may answer nothing before its guardian ends it.
    stall_limit: Micros = _STALLED_LEASES * 30 * SECOND
    #: A worker process is replaced after this many jobs.
    max_jobs: int | None = None
    #: A worker process is replaced once it has used this much memory, in bytes.
    max_memory: int | None = None
    #: Only jobs of these types are run; empty: of all.
    types: tuple[str, ...] = ()
    #: Only jobs of these queues are run; empty: of all.
    queues: tuple[str, ...] = ()
    #: What the worker is called in lists; None: after its host and process.
    name: str | None = None

    def __post_init__(self) -> None:
        for one in ("concurrency", "processes", "max_jobs"):
            _check_count(one, getattr(self, one))
        _check_memory(self.max_memory)
        if self.lease < _SHORTEST_LEASE:
            raise ConfigurationError(
                f"A lease of {in_words(self.lease)} would lapse while the worker is busy, and its "
                f"jobs would run twice. Write at least {in_words(_SHORTEST_LEASE)}."
            )
        if not 0 < self.heartbeat * 3 <= self.lease:
            raise ConfigurationError(
                f"A heartbeat every {in_words(self.heartbeat)} is too rare for a lease of "
                f"{in_words(self.lease)}. Renew at least three times per lease."
            )
        if self.poll <= 0 or self.sweep <= 0:
            raise ConfigurationError(
                "poll and sweep must be longer than nothing: write a span such as '1s'."
            )
        if self.stall_limit < self.lease:
            raise ConfigurationError(
                f"A stall_limit of {in_words(self.stall_limit)} is shorter than the lease of "
                f"{in_words(self.lease)}. Leave it out: it is {_STALLED_LEASES} leases then."
            )

    def with_options(
        self,
        *,
        concurrency: int | None = None,
        lease: Span | None = None,
        grace: Span | None = None,
        poll: Span | None = None,
        processes: int | None = None,
        stall_limit: Span | None = None,
        max_jobs: int | None = None,
        max_memory: str | int | None = None,
        types: Sequence[str] = (),
        queues: Sequence[str] = (),
        name: str | None = None,
    ) -> WorkerSettings:
        """Return these settings with what the program or the command line asks for."""
        changes: dict[str, Any] = {
            "concurrency": concurrency,
            "grace": None if grace is None else given.span("grace", grace),
            "poll": None if poll is None else given.positive_span("poll", poll),
            "processes": processes,
            "max_jobs": max_jobs,
            "max_memory": None if max_memory is None else to_bytes("max_memory", max_memory),
            "types": tuple(types) or None,
            "queues": tuple(queues) or None,
            "name": name,
        }
        if lease is not None:
            changes |= self._around_lease(given.positive_span("lease", lease))
        if stall_limit is not None:
            changes["stall_limit"] = given.positive_span("stall_limit", stall_limit)
        return replace(self, **{name: one for name, one in changes.items() if one is not None})

    def in_words(self) -> dict[str, str]:
        """Return every setting the way people write it."""
        return {field.name: _words(field.name, getattr(self, field.name)) for field in _FIELDS}

    def as_json(self) -> dict[str, Any]:
        """Return every setting for a program: numbers, spans as people write them, or None."""
        return {field.name: _plain(field.name, getattr(self, field.name)) for field in _FIELDS}

    def _around_lease(self, lease: Micros) -> dict[str, Micros]:
        """Return a lease with what goes with it, as far as nobody has set that otherwise."""
        before, after = _follow(self.lease), _follow(lease)
        return {
            "lease": lease,
            **{name: after[name] for name in after if getattr(self, name) == before[name]},
        }


_FIELDS: Final = fields(WorkerSettings)


def _follow(lease: Micros) -> dict[str, Micros]:
    """Return the spans that follow a lease unless they are set."""
    return {
        "heartbeat": min(10 * SECOND, lease // 3),
        "sweep": max(min(5 * SECOND, lease // 3), SECOND // 10),
        "stall_limit": _STALLED_LEASES * lease,
    }


def worker_settings(environ: Mapping[str, str]) -> WorkerSettings:
    """Return the defaults with what `TRELLIS_CONCURRENCY`, `TRELLIS_LEASE`, ... say."""
    return read_settings(environ, str)


def read_settings(environ: Mapping[str, str], called: Callable[[str], str] = str) -> WorkerSettings:
    """Return the settings of these variables; `called` says how a refusal names a variable."""
    changes: dict[str, Any] = {}
    told: list[str] = []
    lease = environ.get("TRELLIS_LEASE")
    if lease:
        changes |= _follow(given.positive_span(called("TRELLIS_LEASE"), lease))
    for field in _FIELDS:
        variable = variable_of(field.name)
        text = environ.get(variable)
        if text:
            changes[field.name] = _READ[field.name](called(variable), text)
            told.append(f"{called(variable)}={text}")
    try:
        return replace(WorkerSettings(), **changes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{', '.join(told)} cannot work: {error}") from error


def variable_of(name: str) -> str:
    """Return the variable that sets this setting."""
    return f"TRELLIS_{name.upper()}"


def _check_count(name: str, count: int | None) -> None:
    if count is not None and given.whole_number(name, count) < 1:
        why = {
            "concurrency": "a worker without slots runs nothing",
            "processes": "somebody must do the work",
            "max_jobs": "a process that may run none is of no use",
        }
        raise ConfigurationError(f"{name} must be at least 1, not {count}: {why[name]}.")


def _check_memory(limit: int | None) -> None:
    if limit is not None and given.whole_number("max_memory", limit) < _LEAST_MEMORY:
        raise ConfigurationError(
            f"max_memory={size_in_words(limit)} is less than a process needs to start, so it would "
            f"be replaced for ever. Write at least {size_in_words(_LEAST_MEMORY)}, with the unit: "
            "'512MB'."
        )


def _count(variable: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"{variable} must be a whole number, not {text!r}.")
    return int(text)


def _names(_variable: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _name(_variable: str, text: str) -> str:
    return text


_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    **dict.fromkeys(("lease", "heartbeat", "sweep", "grace", "poll", "stall_limit"), given.span),
    **dict.fromkeys(("concurrency", "processes", "max_jobs"), _count),
    **dict.fromkeys(("types", "queues"), _names),
    "max_memory": to_bytes,
    "name": _name,
}
_UNSET: Final = {
    "max_jobs": "no limit",
    "max_memory": "no limit",
    "types": "all",
    "queues": "all",
    "name": "host and process",
}


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - any field's value
    if not value and name in _UNSET:
        return None
    return in_words(value) if _READ[name] is given.span else value


def _words(name: str, value: Any) -> str:  # noqa: ANN401 - any field's value
    if not value and name in _UNSET:
        return _UNSET[name]
    if name == "max_memory":
        return size_in_words(value)
    if isinstance(value, tuple):
        return ", ".join(value)
    return in_words(value) if _READ[name] is given.span else str(value)
