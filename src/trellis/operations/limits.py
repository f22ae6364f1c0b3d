"""Limits over the fleet, as operators read and change them."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias

from trellis.core.contracts import parse_contract
from trellis.core.limits import Limit, LimitChange, Override, Part, Reset, Scope, ScopeKind
from trellis.core.names import check_queue, check_service, check_type
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter
from trellis.errors import ConfigurationError, ContractTooNew, NotFound
from trellis.insight.limits import LimitView, limit_view
from trellis.insight.worker_views import worker_view
from trellis.operations.queues import whole_name
from trellis.portal import synced

#: A part of a limit that stays as it is.
Keep: TypeAlias = Literal["keep"]
KEEP: Final = "keep"
#: How alike a name must be to be suggested.
_ALIKE: Final = 0.8


class LimitOperations:
    """The part of the operator's API about limits."""

    _actor: str

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine that has the jobs."""

    async def limits(self) -> list[LimitView]:
        """Return every limit of a queue or a type that is in force, with its use."""
        return [
            limit_view(each)
            for each in await self.engine.limits()
            if each.setting.in_force or each.setting.override.parts
        ]

    async def set_limit(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,  # noqa: A002 - the word used everywhere
        per_key: str | None = None,
        active: int | Keep | None = KEEP,
        rate: str | Keep | None = KEEP,
        burst: int | None = None,
        reason: str = "",
    ) -> LimitView:
        """Limit a queue, or a type, over all workers: `set_limit("shop/mails", active=5)`.

        `per_key="shop/send"` names a type and sets the rate of each of its keys. None lifts a part
        of the limit, a part that is not given stays as it is. What is set here counts instead of
        what the code declares, until `reset_limit`. Raises `NotFound` for a name that no job,
        contract, worker, schedule or setting has.
        """
        change = _override(active, rate, burst)
        if per_key is not None and "active" in change.parts:
            raise ConfigurationError(
                "How many jobs of a key run at a time is part of the code (PerKey), because jobs "
                "hold slots of it. Nothing was changed. For keys, give a rate (100/1m)."
            )
        return await self._change(_scope(queue, type, per_key), change, reason)

    async def reset_limit(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,  # noqa: A002 - the word used everywhere
        per_key: str | None = None,
        reason: str = "",
    ) -> LimitView:
        """Let the limit that the code declares count again."""
        return await self._change(_scope(queue, type, per_key), Reset(), reason)

    async def _change(
        self, named: tuple[ScopeKind, str], change: LimitChange, reason: str
    ) -> LimitView:
        kind, written = named
        if kind == "queue":
            written = await whole_name(self.engine, written)
        service, _, name = written.partition("/")
        if not name:
            raise ConfigurationError(
                f"{written!r} names no type, so nothing was changed. Write service/type."
            )
        check = check_queue if kind == "queue" else check_type
        scope = Scope(kind, check_service(service), check(name))
        await _check_known(self.engine, scope)
        await self.engine.change_limit(scope, change, By(self._actor, reason))
        found = {each.setting.scope: each for each in await self.engine.limits()}
        return limit_view(found[scope])

    limits_sync = synced(limits)
    set_limit_sync = synced(set_limit)
    reset_limit_sync = synced(reset_limit)


def _scope(queue: str | None, job_type: str | None, per_key: str | None) -> tuple[ScopeKind, str]:
    """Return what was named: its kind, and the name as written."""
    kinds: tuple[ScopeKind, ...] = ("queue", "type", "key")
    written = (queue, job_type, per_key)
    named = [(kind, name) for kind, name in zip(kinds, written, strict=True) if name is not None]
    if len(named) != 1:
        raise ConfigurationError(
            "Name a queue, a type, or a type per key to limit; nothing was changed."
        )
    return named[0]


async def _check_known(engine: Engine, scope: Scope) -> None:
    """Raise `NotFound` for a name that nothing here has: its limit would limit nothing."""
    kind: Literal["queue", "type"] = "queue" if scope.kind == "queue" else "type"
    known = await _known_names(engine, kind, scope.service)
    if str(scope) in known:
        return
    close = get_close_matches(str(scope), known, 3, _ALIKE)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise NotFound(
        f"There is no {kind} {scope} here: no job, contract, worker, schedule or setting "
        f"names it. Nothing was changed.{hint} See them with: trellis "
        + ("queues" if kind == "queue" else "contract list")
    )


async def _known_names(engine: Engine, kind: Literal["queue", "type"], service: str) -> set[str]:
    """Return the names of queues, or of types, as service/name: all that this service has."""
    is_queue = kind == "queue"
    limited = [each.setting.scope for each in await engine.limits()]
    found = {str(scope) for scope in limited if (scope.kind == "queue") == is_queue}
    if is_queue:
        found |= {f"{each.service}/{each.queue}" for each in await engine.queue_settings()}
    for each in await engine.contracts(service):
        with suppress(ContractTooNew):
            for name, entry in parse_contract(each.body).jobs.items():
                found.add(f"{service}/{(entry['queueName'] or name) if is_queue else name}")
    now = await engine.now()
    for worker in (worker_view(each, now) for each in await engine.sessions()):
        if worker.state != "ended":  # a type has a queue of its own, unless it names another
            found.update(worker.types)
    for schedule in await engine.schedules():
        template = schedule.template
        found.add(f"{schedule.service}/{template.queue if is_queue else template.type}")
    jobs = await engine.count(JobFilter(), "service", kind)
    return found | {f"{owner}/{name}" for owner, name in jobs.combinations}


def _override(active: int | Keep | None, rate: str | Keep | None, burst: int | None) -> Override:
    """Return the change that sets these parts."""
    parts: set[Part] = set()
    if active != KEEP:
        parts.add("active")
    if rate != KEEP:
        parts.add("rate")
    if not parts:
        raise ConfigurationError(
            "Nothing to change was given, so nothing was changed. Give the number of jobs that may "
            "run at a time, a rate (100/1m), or none to lift one of them; burst belongs to a rate."
        )
    limit = Limit(
        None if active == KEEP else active,
        None if rate == KEEP else rate,
        burst,
    )
    return Override(limit, frozenset(parts))
