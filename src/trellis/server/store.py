"""Routes about all but single jobs: queues, limits, keys, workers, schedules, batches, audit."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from trellis import __version__
from trellis.config import DEFAULT_URL, environment, sources, variable_of, worker_settings
from trellis.core.batches import BatchState
from trellis.engines.redaction import shown
from trellis.insight.audit import AuditView
from trellis.insight.batches import BatchView
from trellis.insight.limits import LimitView
from trellis.insight.schedule_views import ScheduleView, SlotView
from trellis.insight.shared_views import DrainView, KeyView, LockView, QueueView
from trellis.insight.views import JobView
from trellis.insight.worker_views import WorkerView
from trellis.operations.contracts import ContractView
from trellis.server.access import Changer, Reader
from trellis.server.jobs import Change, Limit, Row
from trellis.server.limits import Limits

router: Final = APIRouter(prefix="/api/v1", tags=["store"])


class Release(Change):
    """Which key is released, and what becomes of the job that blocks it."""

    #: The key, or the id of the job that holds it.
    held: str
    then: Literal["retry", "fail"] = "retry"


class SettingsView(BaseModel):
    """What is in force; secrets are masked."""

    version: str
    engine: str
    durability: str
    #: Where the jobs are, without a password.
    url: str
    #: The settings of workers, as the environment of this server has them.
    worker: dict[str, Any]
    #: Where those come from that are not defaults.
    origins: dict[str, str]
    #: The limits of this server.
    limits: Limits
    #: What the engine reports about itself.
    facts: dict[str, Any]


@router.get("/counts")
async def counts(jobs: Reader, by: Annotated[str, Query()] = "state") -> dict[str, int]:
    """Count jobs by state, type, queue, service, error, worker, tenant or tag:NAME."""
    return await jobs.count(by)


@router.get("/queues")
async def queues(jobs: Reader) -> list[QueueView]:
    """List queues with what waits in them."""
    return await jobs.queues()


@router.post("/queues/{service}/{queue}/{verb}")
async def change_queue(
    service: str,
    queue: str,
    verb: Literal["pause", "resume", "drain"],
    jobs: Changer,
    body: Change | None = None,
) -> QueueView:
    """Pause a queue, let it accept nothing new, or open it again."""
    change = {"pause": jobs.pause, "resume": jobs.resume, "drain": jobs.drain_queue}[verb]
    return await change(f"{service}/{queue}", reason=(body or Change()).reason)


@router.get("/drain")
async def drain_history(jobs: Reader) -> list[DrainView]:
    """Return when new jobs were refused everywhere, and accepted again, the latest first."""
    return await jobs.drain_history()


@router.post("/drain/{switch}")
async def drain(
    switch: Literal["on", "off"], jobs: Changer, body: Change | None = None
) -> DrainView:
    """Refuse new jobs in every queue, or accept them again."""
    reason = (body or Change()).reason
    return await (jobs.drain_all(reason) if switch == "on" else jobs.accept_all(reason))


@router.get("/limits")
async def limits(jobs: Reader) -> list[LimitView]:
    """List limits over the fleet, with their use."""
    return await jobs.limits()


@router.get("/keys")
async def keys(
    jobs: Reader,
    service: str | None = None,
    type: str | None = None,  # noqa: A002 - the word used everywhere
) -> list[KeyView]:
    """List keys that have a holder or a waiting job."""
    return await jobs.keys(service=service, type=type)


@router.post("/keys/release")
async def release_key(jobs: Changer, body: Release) -> JobView:
    """Free a key that a lost attempt still blocks."""
    return await jobs.release_key(body.held, body.then, reason=body.reason)


@router.get("/locks")
async def locks(jobs: Reader) -> list[LockView]:
    """List locks that are held."""
    return await jobs.locks()


@router.get("/workers")
async def workers(jobs: Reader, *, ended: bool = False) -> list[WorkerView]:
    """List worker processes."""
    return await jobs.workers(ended=ended)


@router.post("/workers/{worker}/drain")
async def drain_worker(worker: str, jobs: Changer, body: Change | None = None) -> WorkerView:
    """Ask a worker process to finish its jobs and exit."""
    return await jobs.drain(worker, reason=(body or Change()).reason)


@router.get("/schedules")
async def schedules(jobs: Reader, service: str | None = None) -> list[ScheduleView]:
    """List schedules with their next runs."""
    return await jobs.schedules.find(service=service)


@router.get("/schedules/{service}/{name}/slots")
async def slots(service: str, name: str, jobs: Reader, limit: Limit = 50) -> list[SlotView]:
    """Return what the slots of a schedule led to, the latest first."""
    return await jobs.schedules.slots(f"{service}/{name}", limit=limit)


@router.post("/schedules/{service}/{name}/{verb}")
async def change_schedule(
    service: str,
    name: str,
    verb: Literal["pause", "resume", "reset"],
    jobs: Changer,
    body: Change | None = None,
) -> ScheduleView:
    """Pause a schedule, resume it, or let what the code declares count again."""
    to = jobs.schedules
    change = {"pause": to.pause, "resume": to.resume, "reset": to.reset}[verb]
    return await change(f"{service}/{name}", reason=(body or Change()).reason)


@router.get("/batches")
async def batches(
    jobs: Reader, state: BatchState | None = None, limit: Limit = 50
) -> list[BatchView]:
    """List batches with their progress, the newest first."""
    return await jobs.batches.find(state=state, limit=limit)


@router.get("/batches/{batch_id}")
async def batch(batch_id: str, jobs: Reader) -> BatchView:
    """Return a batch with its progress."""
    return await jobs.batches.get(batch_id)


@router.post("/batches/{batch_id}/{verb}")
async def change_batch(
    batch_id: str, verb: Literal["seal", "cancel"], jobs: Changer, body: Change | None = None
) -> BatchView:
    """Let a batch finish without further members, or cancel its members."""
    change = {"seal": jobs.batches.seal, "cancel": jobs.batches.cancel}[verb]
    return await change(batch_id, reason=(body or Change()).reason)


@router.get("/contracts")
async def contracts(jobs: Reader, service: str | None = None) -> list[ContractView]:
    """List stored contracts, by service, the latest first."""
    return await jobs.contracts(service)


@router.get("/audit")
async def audit(
    jobs: Reader,
    *,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
    after: Row | None = None,
    limit: Limit = 50,
) -> list[AuditView]:
    """List what operators changed, the latest first."""
    return await jobs.audit(actor=actor, action=action, target=target, after=after, limit=limit)


@router.get("/settings")
async def settings(request: Request, jobs: Reader) -> SettingsView:
    """Return the settings in force on this server."""
    health = await jobs.health()
    variables = environment()
    url = request.app.state.url or variables.get("TRELLIS_URL") or DEFAULT_URL
    found = worker_settings(variables).as_json()
    origins = {name: sources().get(variable_of(name)) for name in found}
    return SettingsView(
        version=__version__,
        engine=health.engine,
        durability=health.durability,
        url=shown(url),
        worker=found,
        origins={name: each.origin for name, each in origins.items() if each is not None},
        limits=request.app.state.limits,
        facts=dict(health.facts),
    )
