"""Keys of all types: which jobs hold them, and which job blocks one."""

from __future__ import annotations

from trellis.core.job import JobId
from trellis.core.states import LIVE
from trellis.engines.port import Engine
from trellis.engines.values import GroupBy, JobFilter
from trellis.errors import AmbiguousId, CommandRejected, JobNotFound, KeyNotFound
from trellis.insight.shared_views import KeyView, key_view
from trellis.operations.lookup import resolve_job


async def list_keys(engine: Engine, service: str | None, job_type: str | None) -> list[KeyView]:
    """Return the keys in use, by service, type and key."""
    found: list[KeyView] = []
    for owner in (service,) if service else await _groups(engine, JobFilter(), "service"):
        where = JobFilter(services=(owner,))
        for name in (job_type,) if job_type else await _groups(engine, where, "type"):
            found += [key_view(status) for status in await engine.keys(owner, name)]
    return found


async def _groups(engine: Engine, where: JobFilter, by: GroupBy) -> list[str]:
    live = where._replace(states=tuple(sorted(LIVE)))
    return sorted((await engine.count(live, by)).groups)


async def find_key(engine: Engine, key: str) -> list[KeyView]:
    """Return the key of every type that has it; raise `KeyNotFound` if no job uses it."""
    found = [each for each in await list_keys(engine, None, None) if each.key == key]
    if not found:
        raise KeyNotFound(f"No job holds or waits for the key {key!r}. See them with: trellis keys")
    return found


async def blocking_job(engine: Engine, held: str) -> JobId:
    """Return the job that blocks a key, named by the key or by the job's id."""
    using = [key for key in await list_keys(engine, None, None) if key.key == held]
    if not using:
        return await _by_id(engine, held)
    blocked = [key for key in using if key.blocked]
    if not blocked:
        raise CommandRejected(
            f"Key {held!r} is not blocked: its holder runs and frees it when it ends. "
            f"To stop it: trellis jobs cancel {using[0].holders[0]}"
        )
    if len(blocked) > 1:
        holders = tuple(key.holders[0] for key in blocked)
        raise AmbiguousId(
            f"Several types have a blocked key {held!r}. Name the job that holds it: "
            f"{', '.join(holders)}.",
            candidates=holders,
        )
    return JobId(blocked[0].holders[0])


async def _by_id(engine: Engine, held: str) -> JobId:
    try:
        return (await resolve_job(engine, held)).definition.id
    except JobNotFound as error:
        raise KeyNotFound(
            f"No job holds or waits for the key {held!r}, and no job has an id that begins with "
            "it. See them with: trellis keys"
        ) from error
