"""One verb for many jobs: a preview with the number of jobs first, then the same with that number.

A filter may match more than was meant, so nothing is changed unless the caller names how many jobs
it expects, and their number is still the same.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, Literal, cast

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trellis.errors import ConfigurationError
from trellis.insight.filters import Filters
from trellis.insight.views import JobView
from trellis.operations.operator import Operator
from trellis.operations.selection import Selection, Tally, Verb
from trellis.server.access import Changer
from trellis.server.jobs import Adjustment
from trellis.server.problems import problem

router: Final = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
#: The most jobs that one request changes, and jobs in a preview.
MOST: Final = 10_000
_SAMPLE: Final = 10
_Several = str | list[str]


class Which(BaseModel):
    """The filters of the command line; every given one must match."""

    model_config = ConfigDict(extra="forbid")

    state: _Several | None = None
    type: _Several | None = None
    service: _Several | None = None
    queue: _Several | None = None
    key: str | None = None
    tenant: str | None = None
    tag: dict[str, str] | None = None
    since: str | None = None
    until: str | None = None
    finished_after: str | None = None
    finished_before: str | None = None
    error: str | None = None
    worker: str | None = None
    batch: str | None = None
    parent: str | None = None
    schedule: str | None = None
    id: str | None = None


class BulkAction(Adjustment):
    """A verb, the jobs it is for, and whether it is only asked what would happen."""

    verb: Literal["cancel", "set", "retry", "replay", "dismiss", "clone", "delete"]
    #: All jobs that match; without a state, those in the states in which the verb is possible.
    filter: Which | None = None
    #: Instead of a filter: the ids of jobs.
    ids: list[str] | None = Field(None, min_length=1, max_length=MOST)
    #: Change nothing; answer how many jobs it would be for, and show some.
    dry_run: bool = False
    #: How many jobs the preview named; needed with a filter.
    expected: int | None = Field(None, ge=0)
    #: For cancel: end running attempts at once.
    force: bool = False
    #: For retry: only the failed items.
    failed_items: bool = False

    @model_validator(mode="after")
    def _names_jobs(self) -> BulkAction:
        if (self.filter is None) == (self.ids is None):
            raise ValueError("give either filter or ids")
        if self.filter is not None and not self.filter.model_dump(exclude_none=True):
            raise ValueError("filter is empty and would mean every job; name a state or a type")
        if self.filter is not None and not self.dry_run and self.expected is None:
            raise ValueError("ask with dry_run first, then repeat with expected set to its count")
        return self


class Preview(BaseModel):
    """What a bulk action is for."""

    verb: str
    count: int
    #: The first of the jobs.
    sample: list[JobView]


class Effect(BaseModel):
    """What a bulk action did, counted by job."""

    verb: str
    done: int
    #: Of those: running jobs that a cancel has asked to stop.
    asked: int
    refused: int
    missing: int
    #: The first refusals.
    refusals: list[dict[str, str]]
    #: The jobs that it was done to; for a clone, the new jobs.
    ids: list[str]


@router.post("/actions", response_model=Preview | Effect)
async def act(body: BulkAction, jobs: Changer) -> Preview | Effect | Response:
    """Apply one verb to many jobs, or show with dry_run what it would be applied to."""
    chosen = (await _chosen(jobs, body)).meant_for(_verb(body))
    count = await chosen.count()
    if body.dry_run:
        return Preview(verb=body.verb, count=count, sample=await _first(chosen))
    if body.expected is not None and count != body.expected:
        return problem(
            HTTPStatus.CONFLICT,
            "selection_changed",
            f"{count} jobs match now, and {body.expected} were expected. Nothing was changed. "
            "Look again with dry_run.",
            count=count,
        )
    if count > MOST:
        raise ConfigurationError(
            f"{count:,} jobs match; one request changes {MOST:,} at most. Narrow the filter."
        )
    return _effect(body, await _apply(chosen, body))


async def _chosen(jobs: Operator, body: BulkAction) -> Selection:
    if body.filter is None:
        return await jobs.pick(body.ids or ())
    return jobs.find(**cast("Filters", body.filter.model_dump(exclude_none=True)))


def _verb(body: BulkAction) -> Verb:
    if body.verb == "retry" and body.failed_items:
        return "retry items"
    return "move" if body.verb == "set" and body.queue is not None else body.verb


async def _first(chosen: Selection) -> list[JobView]:
    found: list[JobView] = []
    async for view in chosen:
        found.append(view)
        if len(found) == _SAMPLE:
            break
    return found


async def _apply(chosen: Selection, body: BulkAction) -> Tally:
    match body.verb:
        case "cancel":
            return await chosen.cancel(body.reason, force=body.force)
        case "set":
            names: set[str] = {"queue", "priority", "run_at", "attempts"}
            given: Any = body.model_dump(include=names, exclude_none=True)
            return await chosen.adjust(reason=body.reason, **given)
        case "retry":
            return await chosen.retry(failed_items=body.failed_items, reason=body.reason)
        case "replay":
            return await chosen.replay(reason=body.reason)
        case "dismiss":
            return await chosen.dismiss(reason=body.reason)
        case "clone":
            return await chosen.clone(reason=body.reason)
        case "delete":
            return await chosen.delete(reason=body.reason)


def _effect(body: BulkAction, tally: Tally) -> Effect:
    return Effect(
        verb=body.verb,
        done=tally.done,
        asked=tally.asked,
        refused=tally.refused,
        missing=tally.missing,
        refusals=[{"id": job_id, "reason": reason} for job_id, reason in tally.refusals],
        ids=tally.ids,
    )
