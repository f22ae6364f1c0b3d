"""The settings of a worker: tuned defaults, then `TRELLIS_*` variables, then what the program says.

The heartbeat must come at least three times per lease, so that one lost renewal costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from trellis.contract import given
from trellis.core.spans import SECOND, Micros, Span, in_words
from trellis.errors import ConfigurationError

_SPANS: Final = ("lease", "heartbeat", "sweep", "grace", "poll")
DEFAULT_URL: Final = "sqlite:///trellis.db"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker process behaves."""

    #: Jobs that run at the same time.
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

    def __post_init__(self) -> None:
        if given.whole_number("concurrency", self.concurrency) < 1:
            raise ConfigurationError(
                f"concurrency must be at least 1, not {self.concurrency}: "
                "a worker without slots runs nothing."
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

    def with_options(
        self,
        *,
        concurrency: int | None = None,
        lease: Span | None = None,
        grace: Span | None = None,
        poll: Span | None = None,
    ) -> WorkerSettings:
        """Return these settings with what the program or the command line asks for."""
        changes: dict[str, Any] = {}
        if concurrency is not None:
            changes["concurrency"] = concurrency
        if lease is not None:
            changes |= _around_lease(given.positive_span("lease", lease))
        if grace is not None:
            changes["grace"] = given.span("grace", grace)
        if poll is not None:
            changes["poll"] = given.positive_span("poll", poll)
        return replace(self, **changes)

    def in_words(self) -> dict[str, str]:
        """Return every setting the way people write it."""
        shown = {name: in_words(getattr(self, name)) for name in _SPANS}
        return {"concurrency": str(self.concurrency), **shown}


def _around_lease(lease: Micros) -> dict[str, Micros]:
    """Return a lease with the heartbeat and sweep that go with it."""
    tuned = WorkerSettings()
    return {
        "lease": lease,
        "heartbeat": min(tuned.heartbeat, lease // 3),
        "sweep": max(min(tuned.sweep, lease // 3), SECOND // 10),
    }


def worker_settings(environ: Mapping[str, str]) -> WorkerSettings:
    """Return the defaults with what `TRELLIS_CONCURRENCY`, `TRELLIS_LEASE`, ... say."""
    changes: dict[str, Any] = {}
    lease = environ.get("TRELLIS_LEASE")
    if lease:
        changes |= _around_lease(given.positive_span("TRELLIS_LEASE", lease))
    told: list[str] = []
    for field in fields(WorkerSettings):
        variable = f"TRELLIS_{field.name.upper()}"
        text = environ.get(variable)
        if text:
            changes[field.name] = _read(variable, text)
            told.append(f"{variable}={text}")
    try:
        return replace(WorkerSettings(), **changes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{', '.join(told)} cannot work: {error}") from error


def _read(variable: str, text: str) -> int:
    if variable != "TRELLIS_CONCURRENCY":
        return given.span(variable, text)
    if not text.isdecimal():
        raise ConfigurationError(f"{variable} must be a whole number, not {text!r}.")
    return int(text)
