"""Rates of keys in the memory engine: the buckets, and when slots of a key may be handed over."""

from __future__ import annotations

from collections.abc import Mapping

from trellis.core.durations import Instant
from trellis.core.limits import UNSPENT, LimitSetting, Rate, Scope, Spent, slot_at
from trellis.engines.limits import key_scope
from trellis.engines.memory.store import Entry, Store


class KeyRates:
    """The buckets of all keys that have a rate."""

    def __init__(self, store: Store, settings: dict[Scope, LimitSetting]) -> None:
        self._store = store
        self._settings = settings
        self._spent: dict[str, Spent] = {}
        #: When slots of a key may be handed over, which key, and when that was planned.
        self._moments: set[tuple[Instant, str, Instant]] = set()

    def rate_of(self, entry: Entry) -> Rate | None:
        """Return the rate of the key of a job."""
        setting = self._settings.get(key_scope(entry.lane))
        return None if setting is None else setting.in_force.bucket

    def spent(self, key_hash: str) -> Spent:
        """Return how far the bucket of a key is used up."""
        return self._spent.get(key_hash, UNSPENT)

    def may_hand_over(self, entry: Entry, key_hash: str, unclaimed: int) -> bool:
        """Return whether a job may get a slot; if not, remember when to look again."""
        scope, policy = key_scope(entry.lane), entry.definition.policy.key
        if scope not in self._settings and policy is not None and policy.limit:
            self._settings[scope] = LimitSetting(scope, policy.limit)
        rate = self.rate_of(entry)
        if rate is None:
            return True
        now = self._store.clock.now()
        moment = slot_at(rate, self.spent(key_hash), unclaimed, now)
        if moment is not None and moment > now:
            # Unless the key is handed over before.
            if all(key != key_hash or at > moment for at, key, _ in self._moments):
                self._moments.add((moment, key_hash, now))
            return False
        return moment is not None

    def has_tokens(self, entry: Entry, started: int) -> bool:
        """Return whether a job may start beside so many others of its key in the same claim."""
        rate, key_hash = self.rate_of(entry), entry.definition.key_hash
        if rate is None or key_hash is None:
            return True
        return rate.tokens(self.spent(key_hash), self._store.clock.now()) > started

    def charge(self, started: Mapping[str, tuple[Rate, int]]) -> None:
        """Take the tokens of the jobs that a claim has started, by key."""
        now = self._store.clock.now()
        for key_hash, (rate, number) in started.items():
            spent = self._spent[key_hash] = rate.take(self.spent(key_hash), now, number)
            if not rate.tokens(spent, now):
                self._moments.add((rate.token_at(spent, now), key_hash, now))

    def wake_type(self, scope: Scope) -> None:
        """Look at all keys of a type that have waiting jobs: their rate has changed."""
        now = self._store.clock.now()
        for entry in self._store.entries.values():
            key_hash = entry.definition.key_hash
            if (
                key_hash is not None
                and entry.availability == "waiting_for_slot"
                and key_scope(entry.lane) == scope
            ):
                self._moments.add((now, key_hash, now))

    def due(self, now: Instant, limit: int) -> list[str]:
        """Return keys whose moment has come, and forget their moments.

        A moment that was planned in the future, because the clock was set back, has come.
        """
        due = sorted(each for each in self._moments if each[0] <= now or each[2] > now)
        keys = {key_hash for _, key_hash, _ in due[:limit]}
        self._moments -= {each for each in due if each[1] in keys}
        return sorted(keys)

    def renew(self, entry: Entry, key_hash: str) -> None:
        """Let a bucket that was stored by another rate, or by a later clock, fill anew."""
        rate, now, spent = self.rate_of(entry), self._store.clock.now(), self.spent(key_hash)
        if rate is not None and rate.is_outdated(spent, now):
            self._spent[key_hash] = rate.take(spent, now, 0)

    def next_moment(self) -> Instant | None:
        """Return the next moment at which slots of a key may be handed over."""
        return min((at for at, *_ in self._moments), default=None)

    def drop_full(self, now: Instant) -> None:
        """Forget the buckets that are full."""
        for key_hash, spent in list(self._spent.items()):
            if spent.full_at <= now:
                del self._spent[key_hash]
