"""Keys that are held, blocked and released."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trellis import AmbiguousId, Operator, State
from trellis.core.commands import LoseLease
from trellis.core.job import JobRecord
from trellis.core.policy import KeyPolicy
from trellis.engines.port import Engine
from trellis.errors import (
    CommandRejected,
    KeyNotFound,
)
from trellis.testing.builders import a_keyed_job, fence_of
from trellis.testing.conformance.helpers import IN_TURN, a_session, accept, settle, start


async def _blocked(engine: Engine, key: str, name: str = "invoice") -> JobRecord:
    new = a_keyed_job(key, KeyPolicy("{id}"), type=name)
    new = new._replace(policy=replace(new.policy, on_lost="block"))
    record = await start(engine, await a_session(engine), new)
    return await settle(engine, record, LoseLease(fence_of(record)))


async def test_keys_are_listed_and_a_blocked_one_released(jobs: Operator, engine: Engine) -> None:
    record = await _blocked(engine, "eu")
    holder, _ = await accept(engine, *(a_keyed_job("us", IN_TURN, type="other") for _ in range(2)))
    eu, us = await jobs.keys()
    assert (eu.key, eu.blocked, eu.holders) == ("eu", True, (record.definition.id,))
    assert (us.key, us.waiting) == ("us", 1)
    assert await jobs.keys(service="shop", type="other") == [us]
    with pytest.raises(CommandRejected, match=f"trellis jobs cancel {holder.definition.id}"):
        await jobs.release_key("us")
    with pytest.raises(KeyNotFound, match="See them with: trellis keys"):
        await jobs.release_key("asia")
    assert (await jobs.release_key("eu")).state is State.RETRY


async def test_a_key_blocked_in_two_types_needs_the_job(jobs: Operator, engine: Engine) -> None:
    record = await _blocked(engine, "eu")
    await _blocked(engine, "eu", "other")
    with pytest.raises(AmbiguousId, match=record.definition.id):
        await jobs.release_key("eu")
    assert (await jobs.release_key(record.definition.id, "fail")).state is State.FAILED
