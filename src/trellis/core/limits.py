"""Limits over the fleet: how many jobs of a queue or a type run at a time, and start per time.

An engine gathers how many run and how far the bucket of a rate is used up; `allowance` decides how
many more may start. A bucket is one moment, `full_at`: when it is full again if nothing starts
until then. So it needs no counter that must be refilled, and a clock that is set back costs at most
one full bucket. With the moment it is stored by which rate it fills: under another rate it has as
many tokens as it had, so that changes, however many, give no starts away.

Each key of a type has a bucket of its own, by one rate: the scope `key` of the type. `slot_at`
decides when a waiting job of a key gets a slot: there are never more slots that no job has started
with than tokens. The claim takes the tokens, so that the rate is one of starts.

The code declares a limit, an operator may set another one: each part (`active`, `rate`) that an
operator has set wins until it is reset.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from trellis.core.durations import Instant, Micros, in_words, micros
from trellis.errors import ConfigurationError

if TYPE_CHECKING:
    from trellis.core.events import JsonValue

ScopeKind = Literal["queue", "type", "key"]
Part = Literal["active", "rate"]

_RATE: Final = re.compile(r"(\d+)\s*/\s*(\S.*)")
#: A worker that waits for tokens lets some gather, if the bucket can hold them.
_GATHER: Final[Micros] = 50_000
#: The shortest time of one token.
_FASTEST: Final[Micros] = 100
_EXAMPLE: Final = 'Write rate="100/1m": a count and a duration.'


class Scope(NamedTuple):
    """What a limit is set for: a queue, a type, or each key of a type, of a service."""

    kind: ScopeKind
    service: str
    name: str

    def __str__(self) -> str:
        return f"{self.service}/{self.name}"


class Rate(NamedTuple):
    """A token bucket: `starts` per period, at most `burst` of them at once."""

    starts: int
    period: Micros
    burst: int

    @property
    def span(self) -> Micros:
        """How long an empty bucket takes to fill."""
        return self.burst * self.period // self.starts

    def tokens(self, spent: Spent, now: Instant) -> int:
        """Return how many jobs may start now.

        >>> Rate(2, 1000, 2).tokens(UNSPENT, 5000)
        2
        """
        return self.burst - -(-self._missing(spent, now) * self.starts // self.period)

    def take(self, spent: Spent, now: Instant, taken: int) -> Spent:
        """Return the bucket after this many tokens were taken."""
        # Rounded down: rounded up, the last microsecond would cost a whole token.
        missing = self._missing(spent, now) + taken * self.period // self.starts
        return Spent(now + missing, self.span, self.burst)

    def next_at(self, spent: Spent, now: Instant) -> Instant:
        """Return when a worker that found no token should look again.

        That is when the next token comes, or a little later, so that a fast rate is not taken in
        single tokens; never later than when the bucket is full.
        """
        first = self.token_at(spent, now)
        return min(now + self._missing(spent, now), max(first, now + _GATHER))

    def token_at(self, spent: Spent, now: Instant, number: int = 1) -> Instant:
        """Return when this many tokens are there; at most a burst."""
        of_others = (self.burst - number) * self.period // self.starts
        return now + max(0, self._missing(spent, now) - of_others)

    def is_outdated(self, spent: Spent, now: Instant) -> bool:
        """Return whether a bucket must be stored anew to fill by this rate.

        So it is when the rate was changed, or when the clock was set back and the moment is later
        than an empty bucket needs.
        """
        missing = self._missing(spent, now)
        is_of_this = (spent.span, spent.burst) == (self.span, self.burst)
        return missing > 0 and (not is_of_this or spent.full_at > now + missing)

    def _missing(self, spent: Spent, now: Instant) -> Micros:
        """Return how long the bucket needs to be full, at most the time of a whole one."""
        if (spent.span, spent.burst) in {(self.span, self.burst), _UNKNOWN}:
            return min(max(spent.full_at - now, 0), self.span)
        # Stored by another rate: since then, or since it was full, it has the tokens it had.
        since = min(now, spent.full_at)
        unfilled = min(spent.full_at - since, spent.span)
        tokens = spent.burst * (spent.span - unfilled)  # in parts of a token, `span` of them
        lacking = max(self.burst * spent.span - tokens, 0)
        return max(lacking * self.period // (self.starts * spent.span) - (now - since), 0)


class Spent(NamedTuple):
    """How far a token bucket is used up."""

    #: When it is full again, if nothing starts until then.
    full_at: Instant = 0
    #: By the rate it was stored with: how long an empty bucket takes to fill, and its burst.
    span: Micros = 0
    burst: int = 0


UNSPENT: Final = Spent()
_UNKNOWN: Final = (0, 0)


def slot_at(rate: Rate, spent: Spent, unclaimed: int, now: Instant) -> Instant | None:
    """Return when the next job of a key may get a slot, by the rate of the key.

    `unclaimed` jobs have a slot and have not started: each of them will take a token. None: no time
    helps until one of them has started.

    >>> slot_at(Rate(1, 10, 2), Spent(), 1, 50), slot_at(Rate(1, 10, 2), Spent(), 2, 50)
    (50, None)
    """
    return None if unclaimed >= rate.burst else rate.token_at(spent, now, unclaimed + 1)


def parse_rate(text: str, burst: int | None = None) -> Rate:
    """Read a rate such as `100/1m`; without `burst` a whole count may start at once.

    >>> parse_rate("100/1m")
    Rate(starts=100, period=60000000, burst=100)
    """
    found = _RATE.fullmatch(str(text).strip())
    if found is None:
        raise ConfigurationError(f"rate={text!r} is no rate. {_EXAMPLE}")
    count, period = int(found[1]), micros(found[2])
    if count < 1 or period < 1:
        raise ConfigurationError(
            f"rate={text!r} would never start a job. {_EXAMPLE} To stop a queue, pause it: "
            "trellis queues pause SERVICE/QUEUE"
        )
    if count * _FASTEST > period:
        raise ConfigurationError(
            f"rate={text!r} is more than 10,000 per second, which limits nothing. Leave it out."
        )
    if burst is not None and (not _is_whole(burst) or burst < 1):
        raise ConfigurationError(f"burst={burst!r} must be a whole number of at least 1.")
    return Rate(count, period, count if burst is None else burst)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Limit:
    """How many jobs run at the same time over all workers, and how many start per time.

    >>> Limit(active=5, rate="100/1m").bucket
    Rate(starts=100, period=60000000, burst=100)
    """

    #: How many run at the same time, over all workers; None: no limit.
    active: int | None = None
    #: How many start per time: a count and a duration, `"100/1m"`; None: no limit.
    rate: str | None = None
    #: How many of them may start at once; by default the count of the rate.
    burst: int | None = None

    def __post_init__(self) -> None:
        active = self.active
        if active is not None:
            if not _is_whole(active):
                raise ConfigurationError(f"active={active!r} must be a whole number.")
            if active < 1:
                raise ConfigurationError(
                    f"A limit of {active} jobs would never start one. Use at least 1. To stop a "
                    "queue, pause it: trellis queues pause SERVICE/QUEUE"
                )
        if self.rate is not None:
            parse_rate(self.rate, self.burst)
        elif self.burst is not None:
            raise ConfigurationError(f"burst={self.burst} needs a rate. {_EXAMPLE}")

    def __bool__(self) -> bool:
        return self.active is not None or self.rate is not None

    def __str__(self) -> str:
        parts = [] if self.active is None else [f"{self.active} at a time"]
        if self.bucket is not None:
            count, period, burst = self.bucket
            at_once = "" if burst == count else f" (burst {burst})"
            parts.append(f"{count} per {in_words(period)}{at_once}")
        return ", ".join(parts) or "no limit"

    @property
    def bucket(self) -> Rate | None:
        """The rate as a token bucket."""
        return None if self.rate is None else parse_rate(self.rate, self.burst)


NO_LIMIT: Final = Limit()


class Override(NamedTuple):
    """What an operator has set: these parts of the limit count instead of the declared ones."""

    limit: Limit = NO_LIMIT
    parts: frozenset[Part] = frozenset()


class Reset(NamedTuple):
    """Let the declared limit count again."""


LimitChange: TypeAlias = Override | Reset
_NOTHING_SET: Final = Override()


class LimitSetting(NamedTuple):
    """The limit of a queue or a type: as the code declares it, and what an operator has set."""

    scope: Scope
    declared: Limit = NO_LIMIT
    override: Override = _NOTHING_SET

    @property
    def in_force(self) -> Limit:
        """The limit that counts now."""
        declared, (limit, parts) = self.declared, self.override
        active = limit.active if "active" in parts else declared.active
        by_rate = limit if "rate" in parts else declared
        return Limit(active, by_rate.rate, by_rate.burst)

    def changed(self, change: LimitChange) -> LimitSetting:
        """Return the setting after a change by an operator; other parts stay as they are."""
        if isinstance(change, Reset):
            return self._replace(override=_NOTHING_SET)
        (old, had), (new, has) = self.override, change
        by_rate = new if "rate" in has else old
        active = new.active if "active" in has else old.active
        return self._replace(
            override=Override(Limit(active, by_rate.rate, by_rate.burst), had | has)
        )


class Use(NamedTuple):
    """How far a limit is used."""

    #: Claimed jobs, and ended attempts whose handlers may still run.
    running: int = 0
    #: How far the bucket of the rate is used up.
    spent: Spent = UNSPENT


def allowance(limit: Limit, use: Use, now: Instant) -> int | None:
    """Return how many more jobs may start now; None: any number.

    >>> allowance(Limit(active=5), Use(running=7), 0)
    0
    """
    bucket = limit.bucket
    allowed = [] if limit.active is None else [max(0, limit.active - use.running)]
    if bucket is not None:
        allowed.append(bucket.tokens(use.spent, now))
    return min(allowed, default=None)


def limit_to_json(limit: Limit) -> dict[str, JsonValue]:
    """Return a limit as it is stored and audited: only the parts that are set."""
    parts: dict[str, JsonValue] = {"active": limit.active, "rate": limit.rate, "burst": limit.burst}
    return {name: value for name, value in parts.items() if value is not None}


def encode_setting(setting: LimitSetting) -> tuple[str, str]:
    """Return the declared limit and the override as JSON texts."""
    limit, parts = setting.override
    stored = {**limit_to_json(limit), "parts": sorted(parts)}
    return json.dumps(limit_to_json(setting.declared)), json.dumps(stored)


def decode_setting(scope: Scope, declared: str, override: str) -> LimitSetting:
    """Read a setting from its JSON texts."""
    stored = json.loads(override)
    return LimitSetting(
        scope,
        _limit(json.loads(declared)),
        Override(_limit(stored), frozenset(stored.get("parts", ()))),
    )


def _limit(body: Mapping[str, JsonValue]) -> Limit:
    known = {name: body[name] for name in ("active", "rate", "burst") if name in body}
    return Limit(**known)  # type: ignore[arg-type] # `Limit` checks the values
