"""Workflows: jobs with names that wait for each other, created together.

`after=[ref]` is enough for most graphs: a job can only name jobs that exist, so no circle arises.
A `Workflow` is for graphs that are described before any of their jobs exists; there, names can form
a circle, and `create` refuses it. All steps are stored together in one call of the engine, or none
is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, TypeVar, Unpack, overload

from trellis.client.engine_access import EngineAccess
from trellis.client.job import Job
from trellis.client.ref import JobRef
from trellis.client.requests import StepOptions, new_follower, new_job
from trellis.client.results import Rejected, answer
from trellis.client.submission import PAGE, store, store_sync
from trellis.core.admission import Reason
from trellis.core.job import FollowsOn, JobId, NewJob, Prerequisite
from trellis.declaration import checks
from trellis.declaration.options import check_options
from trellis.declaration.signature import NO_PAYLOAD
from trellis.engines.values import CreateResult
from trellis.errors import ConfigurationError, WorkflowCycle
from trellis.portal import portal

P = TypeVar("P")


class _Step(NamedTuple):
    job: Job[Any, Any]
    payload: object
    after: tuple[str, ...]
    on: FollowsOn
    payload_from: str | None
    options: StepOptions


class Workflow:
    """A graph of jobs by name.

    ```
    flow = shop.workflow()
    flow.step("reserve", reserve, order)
    flow.step("pay", pay, order, after=["reserve"])
    flow.step("pack", pack, order, after=["reserve"])
    flow.step("send", send, order, after=["pay", "pack"])
    refs = await flow.create()
    ```
    """

    def __init__(self, access: EngineAccess) -> None:
        self._access = access
        self._steps: dict[str, _Step] = {}

    @overload
    def step(
        self,
        name: str,
        job: Job[None, Any],
        /,
        *,
        after: Sequence[str] = (),
        on: FollowsOn = "success",
        **options: Unpack[StepOptions],
    ) -> None: ...
    @overload
    def step(
        self,
        name: str,
        job: Job[P, Any],
        payload: P,
        /,
        *,
        after: Sequence[str] = (),
        on: FollowsOn = "success",
        **options: Unpack[StepOptions],
    ) -> None: ...
    @overload
    def step(
        self,
        name: str,
        job: Job[Any, Any],
        /,
        *,
        payload_from: str,
        after: Sequence[str] = (),
        on: FollowsOn = "success",
        **options: Unpack[StepOptions],
    ) -> None: ...
    def step(
        self,
        name: str,
        job: Job[Any, Any],
        payload: object = NO_PAYLOAD,
        /,
        *,
        after: Sequence[str] = (),
        on: FollowsOn = "success",
        payload_from: str | None = None,
        **options: Unpack[StepOptions],
    ) -> None:
        """Add a job under a name; `after` and `payload_from` name other steps, also later ones.

        With `payload_from` the result of that step, which must succeed, is the payload of this one.
        """
        checks.text("name", name, "pay")
        if name in self._steps:
            raise ConfigurationError(
                f"The workflow already has a step {name!r}. Give each step another name."
            )
        if isinstance(after, str):
            raise ConfigurationError(f"after= is a list of names. Write after=[{after!r}].")
        check_options(options, StepOptions, "A step of a workflow has")
        self._steps[name] = _Step(job, payload, tuple(after), on, payload_from, options)

    async def create(self, *, tx: object = None) -> dict[str, JobRef[Any]]:
        """Create all steps, at most 1,000, in one call; return their references by name.

        Nothing is stored if one is refused, and if steps wait for each other in a circle
        (`WorkflowCycle`).
        """
        jobs = self._requests()
        return self._refs(jobs, await store_linked(self._access, list(jobs.values()), tx), tx)

    def create_sync(self, *, tx: object = None) -> dict[str, JobRef[Any]]:
        """`create`, for code without an event loop."""
        portal.refuse_loops("create")
        jobs = self._requests()
        return self._refs(jobs, store_linked_sync(self._access, list(jobs.values()), tx), tx)

    def _requests(self) -> dict[str, NewJob]:
        """Return the requests by name, each after those that it waits for."""
        requests: dict[str, NewJob] = {}
        for name in self._order():
            step = self._steps[name]
            check_same_engine(self._access, [step.job])
            if step.payload_from is not None:
                source = requests[step.payload_from]
                new = new_follower(step.job.job_type, source, **step.options)
            else:
                given = step.payload
                if given is NO_PAYLOAD:
                    given = step.job.job_type.default_payload
                new = new_job(step.job.job_type, given, **step.options)
            others = (requests[each].id for each in step.after if each != step.payload_from)
            checks.one_of(FollowsOn, "on", step.on)
            links = (*new.after, *(Prerequisite(each, step.on) for each in others))
            requests[name] = new._replace(after=links)
        return requests

    def _order(self) -> Iterable[str]:
        graph: dict[str, list[str]] = {}
        for name, step in self._steps.items():
            graph[name] = [*step.after, *([step.payload_from] if step.payload_from else [])]
            for each in graph[name]:
                if each not in self._steps:
                    raise ConfigurationError(
                        f"Step {name!r} is to follow {each!r}, which is no step of the workflow. "
                        "Nothing was stored. Add that step, or follow an existing job with "
                        "create(..., after=[ref])."
                    )
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            cycle = tuple(reversed(error.args[1]))
            raise WorkflowCycle(
                f"Steps wait for each other in a circle: {' waits for '.join(cycle)}. Nothing was "
                "stored. Remove one of these links."
            ) from None

    def _refs(
        self, jobs: dict[str, NewJob], ids: list[JobId], tx: object
    ) -> dict[str, JobRef[Any]]:
        return {
            name: JobRef(job_id, self._steps[name].job.job_type, self._access, tx)
            for name, job_id in zip(jobs, ids, strict=True)
        }


# -- storing -----------------------------------------------------------------------------------


def check_same_engine(access: EngineAccess, jobs: Iterable[Job[Any, Any]]) -> None:
    """Refuse jobs of services that are stored elsewhere."""
    for job in jobs:
        if job.access.url != access.url:
            raise ConfigurationError(
                f"{job.job_type.service}/{job.name} is stored in another database than the jobs it "
                "is to follow. Nothing was stored. Give both services the same URL."
            )


async def store_linked(access: EngineAccess, jobs: Sequence[NewJob], tx: object) -> list[JobId]:
    """Store jobs that follow each other, all of them; if one is refused, store none and raise."""
    return _stored(jobs, await store(access, _together(jobs), tx))


def store_linked_sync(access: EngineAccess, jobs: Sequence[NewJob], tx: object) -> list[JobId]:
    """`store_linked`, for code without an event loop."""
    return _stored(jobs, store_sync(access, _together(jobs), tx))


def _together(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Let the engine store all or none; refuse more jobs than one call of it takes."""
    if len(jobs) > PAGE:
        raise ConfigurationError(
            f"A workflow or chain has at most {PAGE:,} jobs, because all of them are stored in one "
            f"step; this one has {len(jobs):,}. Nothing was stored. Create it in parts, with "
            "after= from one to the next, or put jobs that run side by side into a batch."
        )
    return [new._replace(together=True) for new in jobs]


def _stored(jobs: Sequence[NewJob], results: Sequence[CreateResult]) -> list[JobId]:
    """Return the ids of the jobs; raise the first refusal."""

    def refer(job_id: JobId) -> Any:  # noqa: ANN401 - no reference is needed
        return job_id

    for new, result in zip(jobs, results, strict=True):
        found = answer(new, result, refer)
        if isinstance(found, Rejected) and found.reason is not Reason.OTHER_REFUSED:
            if len(jobs) > 1:
                found.error.add_note(f"None of the {len(jobs):,} jobs of the call was stored.")
            raise found.error
    return [new.id for new in jobs]
