"""What every engine does with limits in a claim: which lanes may be read, and how far.

A lane is in the scope of its queue and of its type, so up to two limits hold for it. `core.limits`
decides how many jobs each limit lets start; a `Budget` counts down while the claim takes jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from trellis.core.audit import Action, Change
from trellis.core.durations import Instant
from trellis.core.events import JsonValue
from trellis.core.limits import LimitSetting, Scope, ScopeKind, Spent, Use, allowance
from trellis.engines.demand import Demand

_ACTIONS: Final[dict[ScopeKind, Action]] = {
    "queue": "queue.limit",
    "type": "type.limit",
    "key": "key.limit",
}
#: Service, queue and type.
Names = tuple[str, str, str]


class LimitStatus(NamedTuple):
    """A limit as operators see it."""

    setting: LimitSetting
    #: Jobs of it that run, and ended attempts whose handlers may still run.
    running: int
    #: How many jobs may start now by its rate; None: it has no rate, or each key has a bucket.
    tokens: int | None
    #: When the next job may start by its rate; None: at once.
    next_at: Instant | None


def status_of(setting: LimitSetting, use: Use, now: Instant) -> LimitStatus:
    """Return a limit as operators see it."""
    bucket = None if setting.scope.kind == "key" else setting.in_force.bucket
    tokens = None if bucket is None else bucket.tokens(use.spent, now)
    next_at = None if bucket is None or tokens else bucket.next_at(use.spent, now)
    return LimitStatus(setting, use.running, tokens, next_at)


def change_of(before: LimitSetting, after: LimitSetting) -> Change | None:
    """Return the audit entry of a change; None if nothing changes.

    It has the parts of the limit in force that change, and which parts an operator has set.
    """
    if before == after:
        return None
    old, new = map(_audited, (before, after))
    changed = [name for name, value in new.items() if old[name] != value]
    return Change(
        _ACTIONS[after.scope.kind],
        str(after.scope),
        {name: old[name] for name in changed},
        {name: new[name] for name in changed},
    )


def _audited(setting: LimitSetting) -> dict[str, JsonValue]:
    active, rate, burst = setting.in_force.active, setting.in_force.rate, setting.in_force.burst
    set_parts: list[JsonValue] = [*sorted(setting.override.parts)]
    return {"active": active, "rate": rate, "burst": burst, "set_by_operator": set_parts}


def scopes_of(lane: Sequence[object]) -> tuple[Scope, Scope]:
    """Return the scopes of a lane, which begins with service, queue and type."""
    service, queue, job_type = map(str, lane[:3])
    return Scope("queue", service, queue), Scope("type", service, job_type)


def key_scope(lane: Sequence[object]) -> Scope:
    """Return the scope of the keys of a lane, which begins with service, queue and type."""
    return Scope("key", str(lane[0]), str(lane[2]))


def limited(settings: Iterable[LimitSetting]) -> dict[Scope, LimitSetting]:
    """Return the settings that limit anything now, by scope."""
    return {each.scope: each for each in settings if each.in_force}


class Budget:
    """How many jobs a claim may take of each limited scope; counts down while it takes them."""

    def __init__(
        self,
        settings: Mapping[Scope, LimitSetting],
        uses: Mapping[Scope, Use],
        demands: Sequence[Demand],
        now: Instant,
    ) -> None:
        self._settings = settings
        self._uses = uses
        self._now = now
        self.left = {
            scope: allowed
            for scope, setting in settings.items()
            if (allowed := allowance(setting.in_force, uses.get(scope, Use()), now)) is not None
        }
        self._taken = dict.fromkeys(self.left, 0)
        #: How many of limited lanes can start at once; None: any number.
        self.free = min((each.free for each in demands if each.free is not None), default=None)

    def scopes(self, lane: Sequence[object]) -> list[Scope]:
        """Return the limited scopes of a lane."""
        return [scope for scope in scopes_of(lane) if scope in self.left]

    def room(self, lane: Sequence[object]) -> int | None:
        """Return how many more jobs of a lane may be taken; None: any number."""
        allowed = [self.left[scope] for scope in self.scopes(lane)]
        if allowed and self.free is not None:
            allowed.append(max(0, self.free))
        return min(allowed, default=None)

    def take(self, lane: Sequence[object], count: int = 1) -> None:
        """Count jobs of a lane that the claim takes."""
        scopes = self.scopes(lane)
        for scope in scopes:
            self.left[scope] -= count
            self._taken[scope] += count
        if scopes and self.free is not None:
            self.free -= count

    def start(self, now: Instant) -> None:
        """Let the jobs start at this moment, not before the budget was made."""
        self._now = now

    def spent(self) -> dict[Scope, Spent]:
        """Return the buckets that must be stored anew."""
        spent: dict[Scope, Spent] = {}
        for scope, taken in self._taken.items():
            bucket = self._settings[scope].in_force.bucket
            before = self._uses.get(scope, Use()).spent
            if bucket is not None and (taken or bucket.is_outdated(before, self._now)):
                spent[scope] = bucket.take(before, self._now, taken)
        return spent

    def token_times(self) -> dict[Scope, Instant]:
        """Return when each rate of which no token is left lets the next job start."""
        moments: dict[Scope, Instant] = {}
        spent = self.spent()
        for scope, left in self.left.items():
            bucket = self._settings[scope].in_force.bucket
            if left <= 0 and bucket is not None:
                of = spent.get(scope, self._uses.get(scope, Use()).spent)
                if not bucket.tokens(of, self._now):
                    moments[scope] = bucket.next_at(of, self._now)
        return moments


def next_token(
    token_times: Mapping[Scope, Instant], waiting: Iterable[Sequence[object]]
) -> Instant | None:
    """Return when a rate lets the next job of these lanes start, in which jobs wait."""
    scopes = {scope for lane in waiting for scope in scopes_of(lane)}
    return min((at for scope, at in token_times.items() if scope in scopes), default=None)
