"""Limits over the fleet: the settings of each service, and a state per scope that limits.

The state of a scope (`Used`) has the bucket of its rate and the attempts that count. A claim writes
it in the batch of its `started` events, so two claims never count at the same time. Settling a job
writes nothing: the head of a job says whether an attempt that is counted is still the present one,
and a claim that finds a scope full looks at the heads. An attempt that is ended from outside is
marked in the batch of its end, and counts while its handler may still run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from trellis.core.durations import Instant, micros
from trellis.core.job import Definition, Fence, JobRecord, SessionId
from trellis.core.limits import (
    UNSPENT,
    Limit,
    LimitChange,
    LimitSetting,
    Scope,
    Spent,
    Use,
)
from trellis.core.names import check_service
from trellis.engines.audit import By
from trellis.engines.demand import Demand
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.sessions import Held, SessionTable
from trellis.engines.jetstream.settings import CachedSettings
from trellis.engines.jetstream.state import decided, latest
from trellis.engines.jetstream.store import Current, Store, Value
from trellis.engines.jetstream.subjects import JobName
from trellis.engines.limits import (
    Budget,
    LimitStatus,
    Names,
    change_of,
    limited,
    scopes_of,
    status_of,
)
from trellis.engines.wire import codec_of
from trellis.errors import CapabilityMissing


class Counted(NamedTuple):
    """An attempt that counts."""

    job: JobName
    fence: Fence
    #: Set when it is ended while its handler may still run.
    linger_until: Instant | None = None

    def lingers(self, now: Instant) -> bool:
        """Return whether it counts although it is not the present attempt of its job."""
        return self.linger_until is not None and self.linger_until > now


class Used(NamedTuple):
    """How far the limit of a scope is used."""

    spent: Spent = UNSPENT
    #: Only of a scope with a limit of jobs at the same time.
    counted: tuple[Counted, ...] = ()
    #: Since when they are counted.
    since: Instant = 0


class Limits(NamedTuple):
    """The limits of a service, by kind and name; those that were lifted too."""

    settings: tuple[LimitSetting, ...] = ()

    def of(self, scope: Scope) -> LimitSetting:
        """Return the limit of a scope."""
        found = (each for each in self.settings if each.scope == scope)
        return next(found, LimitSetting(scope))

    def changed(self, setting: LimitSetting) -> Limits:
        """Return all limits with this one in place of the old one of its scope."""
        others = [each for each in self.settings if each.scope != setting.scope]
        return Limits(tuple(sorted([*others, setting], key=lambda each: each.scope)))


#: How long after a scope got its limit a claim may be under way that does not know it.
_SETTLING: Final = micros("1m")
_LIMITS: Final = codec_of(Limits)
_USED: Final = codec_of(Used)


class LimitTable:
    """All limits."""

    def __init__(self, store: Store, sessions: SessionTable) -> None:
        self._store, self._sessions = store, sessions
        #: The service whose limits are maintained here, or all.
        self.maintained = "*"
        #: What this process last read, for hints.
        self._known: dict[str, frozenset[Scope]] = {}
        self._cached: dict[str, CachedSettings[Value[Limits]]] = {}
        #: In which queues this process has seen jobs of a type.
        self._queues: dict[tuple[str, str], set[str]] = {}

    # -- claims --------------------------------------------------------------------------------

    async def in_force(self, services: Iterable[str]) -> dict[Scope, LimitSetting]:
        """Return the limits of these services that limit anything."""
        names = sorted(set(services))
        found = [await self._cached_of(name).get() for name in names]
        in_force: dict[Scope, LimitSetting] = {}
        for name, value in zip(names, found, strict=True):
            of_service = limited(value.value.settings if value.value is not None else ())
            self._known[name] = frozenset(of_service)
            in_force |= of_service
        return in_force

    def _cached_of(self, service: str) -> CachedSettings[Value[Limits]]:
        if service not in self._cached:
            read = partial(self._store.value, self._settings(service), _LIMITS)
            self._cached[service] = CachedSettings(self._store, read)
        return self._cached[service]

    def is_limited(self, lane: Names) -> bool:
        """Return whether a limit of a lane was in force when this process last looked."""
        known = self._known.get(lane[0], frozenset())
        return any(scope in known for scope in scopes_of(lane))

    def learn(self, definition: Definition) -> None:
        """Remember in which queue jobs of a type wait."""
        self._queues.setdefault((definition.service, definition.type), set()).add(definition.queue)

    def queues_of(self, service: str, job_type: str) -> set[str]:
        """Return in which queues this process has seen jobs of a type."""
        return self._queues.get((service, job_type), set())

    async def budget(
        self,
        draft: Draft,
        in_force: dict[Scope, LimitSetting],
        lanes: Collection[Names],
        demands: Sequence[Demand],
    ) -> Budget | None:
        """Return what a claim of these lanes may start now; None: nothing limits it.

        The states are read through the draft, which `start` then writes.
        """
        scopes = {scope for lane in lanes for scope in scopes_of(lane)} & in_force.keys()
        if not scopes:
            return None
        uses: dict[Scope, Use] = {}
        for scope in sorted(scopes):
            used = await self._used(draft, scope)
            active = in_force[scope].in_force.active
            if active is not None and len(used.counted) >= active:
                still = await self._still(used.counted, draft.now)
                if still != used.counted:
                    used = used._replace(counted=still)
                    draft.put(self._use(scope), used)
            uses[scope] = Use(len(used.counted) if active is not None else 0, used.spent)
        settings = {scope: in_force[scope] for scope in scopes}
        return Budget(settings, uses, demands, draft.now)

    async def start(
        self,
        draft: Draft,
        in_force: dict[Scope, LimitSetting],
        budget: Budget,
        started: Sequence[JobRecord],
    ) -> None:
        """Stage that these jobs start, in the batch of their events."""
        spent = budget.spent()
        starting: dict[Scope, list[Counted]] = {}
        for definition, head in started:
            if head.fence is None:
                continue
            counted = Counted(_name(definition), head.fence)
            for scope in budget.scopes(lane_of(definition)):
                starting.setdefault(scope, []).append(counted)
        for scope in starting.keys() | spent.keys():
            used = await self._used(draft, scope)
            if scope in spent:
                used = used._replace(spent=spent[scope])
            if in_force[scope].in_force.active is not None:
                used = used._replace(counted=(*used.counted, *starting.get(scope, ())))
            draft.put(self._use(scope), used)

    async def linger(
        self, draft: Draft, definition: Definition, fence: Fence, until: Instant
    ) -> None:
        """Stage that an attempt counts although it ends, in the batch of its end."""
        in_force = await self.in_force([definition.service])
        for scope in scopes_of(lane_of(definition)):
            if scope in in_force and in_force[scope].in_force.active is not None:
                used = await self._used(draft, scope)
                others = [each for each in used.counted if each.fence != fence]
                lingering = Counted(_name(definition), fence, until)
                draft.put(self._use(scope), used._replace(counted=(*others, lingering)))

    # -- upkeep --------------------------------------------------------------------------------

    async def end_lingering(self, stopped: Container[Fence]) -> int:
        """Stop counting ended attempts whose handlers have stopped; return how many."""
        return await self._drop(lambda each: each.fence in stopped)

    async def end_lingering_of(self, session: SessionId) -> int:
        """Stop counting the ended attempts of a session that was reaped; return how many."""
        return await self._drop(lambda each: each.fence.session == session)

    async def end_overdue(self) -> int:
        """Stop counting attempts that have lingered long enough; return how many."""
        now = self._store.time.now()
        return await self._drop(lambda each: not each.lingers(now))

    async def count_again(self) -> int:
        """Count attempts that started while their scope got its limit; return how many.

        A claim that has read the settings before the limit was stored does not count its jobs.
        """
        added, newest = 0, self._store.time.now() - _SETTLING
        for subject, used, _ in await latest(self._store, self._use_filter, _USED):
            if used.since > newest:
                added += await self._count_missing(subject)
        return added

    async def _count_missing(self, subject: str) -> int:
        kind, service, name = subject.split(".")[-3:]

        async def count(draft: Draft) -> int:
            used: Used = await draft.value(subject, _USED) or Used()
            known = {each.fence for each in used.counted}
            running = await self._running(Scope(kind, service, name))  # type: ignore[arg-type]
            missing = [each for each in running if each.fence not in known]
            if missing:
                draft.put(subject, used._replace(counted=(*used.counted, *missing)))
            return len(missing)

        return await decided(self._store, count)

    async def _drop(self, is_over: Callable[[Counted], bool]) -> int:
        dropped = 0
        for subject, used, _ in await latest(self._store, self._use_filter, _USED):
            over = {
                each.fence
                for each in used.counted
                if each.linger_until is not None and is_over(each)
            }
            if over:
                dropped += await self._forget(subject, over)
        return dropped

    async def _forget(self, subject: str, over: Container[Fence]) -> int:
        """Stop counting marked attempts that are not the present ones of their jobs."""

        async def forget(draft: Draft) -> int:
            used: Used = await draft.value(subject, _USED) or Used()
            marked = [each for each in used.counted if each.fence in over]
            # The end of an attempt may not be stored although it was marked.
            present = set(await self._still([each._replace(linger_until=None) for each in marked]))
            ended = [each for each in marked if each._replace(linger_until=None) not in present]
            if ended:
                kept = tuple(each for each in used.counted if each not in ended)
                draft.put(subject, used._replace(counted=kept))
            return len(ended)

        return await decided(self._store, forget)

    # -- settings ------------------------------------------------------------------------------

    async def change(
        self,
        service: str,
        change: Callable[[Limits], Iterable[LimitSetting]],
        record: Callable[[Draft, LimitSetting, LimitSetting], None] | None = None,
    ) -> Limits:
        """Store what `change` makes of the limits of a service."""
        subject = self._settings(check_service(service))

        async def store(draft: Draft) -> Limits:
            before: Limits = await draft.value(subject, _LIMITS) or Limits()
            after = before
            for setting in change(before):
                was = after.of(setting.scope)
                await self._begin_counting(draft, was, setting)
                after = after.changed(setting)
                if record is not None:
                    record(draft, was, setting)
            if after != before or record is not None:
                draft.put(subject, after)
            return after

        return await decided(self._store, store)

    async def _begin_counting(self, draft: Draft, was: LimitSetting, now: LimitSetting) -> None:
        """Count what runs already when a scope gets a limit of jobs at the same time."""
        has_active = now.in_force.active is not None
        if has_active == (was.in_force.active is not None):
            return
        used = await self._used(draft, now.scope)
        running = tuple(await self._running(now.scope)) if has_active else ()
        used = used._replace(counted=running, since=draft.now)
        draft.put(self._use(now.scope), used)

    async def statuses(self) -> list[LimitStatus]:
        """Return all limits, and how far they are used."""
        found = await latest(self._store, self._settings("*"), _LIMITS)
        settings = [setting for each in found for setting in each.value.settings]
        now, claimed = self._store.time.now(), await self._claimed() if settings else []
        statuses = []
        for setting in sorted(settings, key=lambda each: each.scope):
            used: Used = (await self._store.value(self._use(setting.scope), _USED)).value or Used()
            fences = {fence for fence, current in claimed if _is_in(current, setting.scope)}
            fences |= {each.fence for each in used.counted if each.lingers(now)}
            statuses.append(status_of(setting, Use(len(fences), used.spent), now))
        return statuses

    # -- attempts ------------------------------------------------------------------------------

    async def _still(self, counted: Sequence[Counted], now: Instant = 0) -> tuple[Counted, ...]:
        """Return those of these attempts that count now."""
        found = await asyncio.gather(*map(self._holds, counted))
        return tuple(
            each for each, holds in zip(counted, found, strict=True) if each.lingers(now) or holds
        )

    async def _holds(self, counted: Counted) -> bool:
        """Return whether an attempt is the present one, or its job cannot be read."""
        with self._store.passing_over():
            current = await self._store.read(counted.job)
            return isinstance(current, Current) and current.head.fence == counted.fence
        return True

    async def _running(self, scope: Scope) -> list[Counted]:
        return [
            Counted(current.job, fence)
            for fence, current in await self._claimed()
            if _is_in(current, scope)
        ]

    async def _claimed(self) -> list[tuple[Fence, Current]]:
        claims: dict[Fence, Held] = await self._sessions.places()
        return list((await self._sessions.claimed(claims)).items())

    async def _used(self, draft: Draft, scope: Scope) -> Used:
        found: Used | None = await draft.value(self._use(scope), _USED)
        return found or Used()

    def _settings(self, service: str) -> str:
        return self._store.subjects.own("setting", "limits", "of", service)

    def _use(self, scope: Scope) -> str:
        return self._store.subjects.own("used", *scope)

    @property
    def _use_filter(self) -> str:
        return self._store.subjects.own("used", "*", self.maintained, "*")


def lane_of(definition: Definition) -> Names:
    """Return the service, queue and type of a job."""
    return definition.service, definition.queue, definition.type


def _name(definition: Definition) -> JobName:
    return JobName(definition.service, definition.type, definition.id)


def _is_in(current: Current, scope: Scope) -> bool:
    return scope in scopes_of(lane_of(current.definition))


class LimitVerbs:
    """The part of the engine that is about limits."""

    _limits: LimitTable

    async def declare_limits(self, declared: Sequence[tuple[Scope, Limit]]) -> None:
        """Store the limits that the code declares."""
        for scope, limit in declared:
            _check(scope, limit)
        for service in sorted({scope.service for scope, _ in declared}):
            wanted = [each for each in declared if each[0].service == service]

            def declare(
                before: Limits, wanted: Sequence[tuple[Scope, Limit]] = wanted
            ) -> Iterable[LimitSetting]:
                for scope, limit in wanted:
                    setting = before.of(scope)
                    if setting.declared != limit:
                        yield setting._replace(declared=limit)

            await self._limits.change(service, declare)

    async def change_limit(self, scope: Scope, change: LimitChange, by: By) -> LimitSetting:
        """Set parts of a limit, or let the declared one count again."""

        def record(draft: Draft, before: LimitSetting, after: LimitSetting) -> None:
            if (entry := change_of(before, after)) is not None:
                draft.record(entry, by)

        def changed(before: Limits) -> Iterable[LimitSetting]:
            after = before.of(scope).changed(change)
            _check(scope, after.in_force)
            return [after]

        return (await self._limits.change(scope.service, changed, record)).of(scope)

    async def limits(self) -> list[LimitStatus]:
        """Return all limits."""
        return await self._limits.statuses()


def _check(scope: Scope, limit: Limit) -> None:
    if scope.kind == "key" and limit:
        raise CapabilityMissing(
            f"Rates per key, such as that of {scope}, are not possible on NATS JetStream. Nothing "
            "was stored. Use a rate of the type or queue, or PostgreSQL."
        )
