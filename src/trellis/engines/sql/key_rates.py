"""Rates of keys on the SQL engines: how often jobs of a key start.

A key has a bucket (`key_bucket`), which the claim charges in its own transaction. A waiting job
gets a slot while there are more tokens than jobs that have a slot and have not started. Where that
was true by an earlier rate or an earlier clock, a claim finds too few tokens: it takes nothing, the
slots are taken back, and it starts over.

`key_wake` has the moments at which slots of a key may be handed over: rows are only added and
removed. So claims and hand-overs, which lock other rows in other orders, never wait for each other;
only claims wait for buckets, in the order of their keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from trellis.core.durations import Instant, Micros
from trellis.core.limits import Limit, Rate, Scope, Spent, decode_setting, slot_at
from trellis.engines.sql import limits
from trellis.engines.sql.transaction import Transaction

#: How often a claim starts over because it took back slots. Then it answers that it found nothing,
#: to be asked again at once.
MOST_WITHDRAWALS: Final = 20
_ANY: Final = Scope("key", "", "")


class Waiter(NamedTuple):
    """The next job of a key that waits for a slot, as `key_next` returns it."""

    job: int
    #: It has a slot already, and waits for a token.
    has_slot: bool
    #: The policy of the job: as JSON text, or its number.
    policy: str | int
    service: str
    type: str
    #: The stored rate of the keys of its type.
    declared: str | None
    override: str | None


async def may_hand_over(tx: Transaction, key_hash: str, waiter: Waiter, of_job: Limit) -> bool:
    """Return whether a job may get a slot by the rate of its key; if not, plan when to look again.

    `of_job` is the rate that the job was created with: it counts if none is stored.
    """
    scope = Scope("key", waiter.service, waiter.type)
    limit = of_job
    if waiter.declared is not None and waiter.override is not None:
        limit = decode_setting(scope, waiter.declared, waiter.override).in_force
    elif of_job:
        await limits.declare_key_rate(tx, scope, of_job)
    rate = limit.bucket
    if rate is None:
        return True
    if not tx.now:
        await tx.read_clock()
    ((*spent, unclaimed),) = await tx.rows("key_tokens", key_hash)
    moment = slot_at(rate, Spent(*spent), unclaimed, tx.now)
    if moment is not None and moment > tx.now:
        await tx.run("key_wake_plan", key_hash, moment, tx.now)
    return moment is not None and moment <= tx.now


async def charge(tx: Transaction, started: Sequence[tuple[str, Rate]], now: Instant) -> set[str]:
    """Take a token for each job that a claim starts now (its key, and the rate of that).

    Return the keys that have too few; then nothing is taken.
    """
    if not started:
        return set()
    rates, numbers = dict(started), Counter(key_hash for key_hash, _ in started)
    buckets: list[tuple[str, Instant, Micros, int]] = []
    moments: list[tuple[str, Instant, Instant]] = []
    overdrawn: set[str] = set()
    found = await tx.rows("key_bucket_lock", tx.array(sorted(rates)))
    for key_hash, *stored, locked_at in found:
        rate, number = rates[key_hash], numbers[key_hash]
        # On PostgreSQL a claim that began later may have got the lock, and taken tokens, before.
        clock, spent = now if locked_at is None else locked_at, Spent(*stored)
        if rate.is_outdated(spent, clock):
            spent = rate.take(spent, clock, 0)
        if rate.tokens(spent, now) < number:
            overdrawn.add(key_hash)
        spent = rate.take(spent, clock, number)
        buckets.append((key_hash, *spent))
        # Jobs may wait that found as many unclaimed slots as the bucket has tokens when it is full:
        # now it is not. While tokens are left, the jobs with unclaimed slots take them.
        if not rate.tokens(spent, clock):
            moments.append((key_hash, rate.token_at(spent, clock), clock))
    if not overdrawn:
        await tx.run_many("key_bucket_put", buckets)
        await tx.run_many("key_wake_add", moments)
    return overdrawn


async def renew(tx: Transaction, keys: Sequence[str]) -> None:
    """Let buckets that were stored by another rate, or before the clock was set back, fill anew."""
    changed: list[tuple[str, Instant, Instant, Micros, int]] = []
    found = await tx.rows("key_bucket_rates", tx.array(keys))
    for key_hash, full_at, span, burst, read_at, *texts in found:
        rate, spent = decode_setting(_ANY, *texts).in_force.bucket, Spent(full_at, span, burst)
        now = tx.now if read_at is None else read_at
        if rate is not None and rate.is_outdated(spent, now):
            changed.append((key_hash, full_at, *rate.take(spent, now, 0)))
    await tx.run_many("key_bucket_renew", changed)
