"""What may be said about one job when it is created: the same keywords in every creating call."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypedDict

from trellis.core.spans import Span


class ManyOptions(TypedDict, total=False):
    """What many jobs created together may share."""

    #: Start this long after creation, by the engine's clock.
    delay: Span
    #: Start not before this moment (an aware datetime).
    at: datetime
    #: From -4 (last) to 4 (first).
    priority: int
    #: The job expires if it has not ended by then.
    deadline: Span | datetime
    #: Labels to find jobs by.
    tags: Mapping[str, str]
    #: Configuration the job must run with, whatever changes later; plain data.
    config: object
    #: A hash that the handler's world must match: a plan, a revision.
    expect: str
    #: A database connection of your own: the job is stored by its commit, together with your rows.
    tx: object


class CreateOptions(ManyOptions, total=False):
    """What may be said about one job."""

    #: While a job with this key waits, creating another gives back that one.
    dedupe: str
    #: As long as the job is retained, creating it again with this key gives back the same job.
    idempotency_key: str
