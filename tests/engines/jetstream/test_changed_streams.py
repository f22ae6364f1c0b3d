"""Streams that another program changed: `doctor` names each change, and `migrate` puts it right.

What the server never takes back is named with what to do instead.
"""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from tests.engines.jetstream.manual import ManualEngine
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.errors import EngineError
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept_one, the

JOBS, LATER, STATE = "JOBS", "JOBS_LATER", "JOBS_STATE"
WORK, ADVISORIES, KEYS = "JOBS_WORK", "JOBS_ADVISORIES", "JOBS_KEYS"
STREAMS = (JOBS, LATER, STATE, WORK, ADVISORIES, KEYS)
ONE_SECOND = 1_000_000_000
#: What the server lets be changed, and changed back, in streams of any kind.
LIMITS: dict[str, Any] = {
    "no_ack": True, "max_msg_size": 4096, "max_msgs": 5, "max_bytes": 100_000,
    "max_age": 1000 * ONE_SECOND, "max_consumers": 9,
    "subject_transform": {"src": "a", "dest": "b"},
}  # fmt: skip
CHANGES = [
    *((name, setting, value) for name in STREAMS for setting, value in LIMITS.items()),
    *((name, "subjects", ["added.>"]) for name in STREAMS),
    *((name, "allow_rollup_hdrs", True) for name in STREAMS if name != LATER),
    *((name, "discard", "new") for name in STREAMS if name != LATER),
    *((name, "max_msgs_per_subject", 1) for name in (JOBS, LATER, WORK, ADVISORIES)),
    *((name, "max_msgs_per_subject", 7) for name in (STATE, KEYS)),
    *((name, "allow_direct", False) for name in (JOBS, LATER, STATE, WORK, KEYS)),
    *((name, "allow_atomic", False) for name in (JOBS, STATE)),
    *((name, "allow_atomic", True) for name in (LATER, WORK, ADVISORIES, KEYS)),
    (JOBS, "retention", "interest"),
    (JOBS, "republish", None),
    (JOBS, "republish", {"src": "{prefix}.jobs.>", "dest": "{prefix}.feed.>",
                         "headers_only": True}),
    (STATE, "republish", {"src": "{prefix}.state.>", "dest": "{prefix}.leak.>"}),
    (JOBS, "subject_delete_marker_ttl", ONE_SECOND),
    (LATER, "subject_delete_marker_ttl", ONE_SECOND),
    (WORK, "sources", []),
    (KEYS, "sources", []),
    (STATE, "sources", [{"name": "{prefix}_JOBS_ADVISORIES"}]),
]  # fmt: skip
#: What the server never takes back.
LASTING = [
    *((name, "sealed") for name in STREAMS),
    *((name, "deny_delete") for name in STREAMS),
    *((name, "deny_purge") for name in STREAMS if name != LATER),
    *((name, "allow_msg_schedules") for name in (JOBS, STATE, ADVISORIES)),
    *((name, "allow_msg_ttl") for name in (STATE, WORK, ADVISORIES, KEYS)),
]
FEEDS: dict[str, Any] = {
    "headers_only": True, "rate_limit_bps": 1000, "inactive_threshold": 1000 * ONE_SECOND,
    "filter_subjects": ["{prefix}.none"], "deliver_subject": "elsewhere", "deliver_group": "some",
}  # fmt: skip


def _stream(subjects: Subjects, name: str) -> str:
    return ("KV_" if name == KEYS else "") + subjects.stream(name)


def _in(prefix: str, value: object) -> object:
    """Return a value with the prefix of the deployment."""
    return json.loads(json.dumps(value).replace("{prefix}", prefix))


async def _config(link: Link, stream: str) -> dict[str, Any]:
    config: dict[str, Any] = (await link.api(f"STREAM.INFO.{stream}"))["config"]
    # The server writes its default into a stream without sources.
    return config | {"duplicate_window": 0}


async def _change(link: Link, stream: str, **changes: Any) -> None:  # noqa: ANN401
    config = (await link.api(f"STREAM.INFO.{stream}"))["config"]
    for name, value in changes.items():
        added = value if name != "subjects" else [*config.get(name, ()), f"{stream}.{value[0]}"]
        config[name] = added
    await link.api(f"STREAM.UPDATE.{stream}", config)


async def _warning(engine: ManualEngine) -> str:
    """Return the only warning about a stream."""
    (found,) = (await engine.health()).warnings
    return found


@pytest.mark.parametrize(("name", "setting", "value"), CHANGES)
async def test_a_changed_setting_of_a_stream_is_named_and_put_right(
    engine: ManualEngine, name: str, setting: str, value: object
) -> None:
    link, deployed = engine._link, engine._subjects
    stream = _stream(deployed, name)
    before = await _config(link, stream)
    await _change(link, stream, **{setting: _in(deployed.prefix, value)})
    found = (await engine.health()).warnings
    assert any(f"stream {stream} was changed by another program (" in each for each in found)
    assert any(setting in each for each in found)
    assert await topology.differences(link, deployed, 1)
    await engine.migrate()
    assert await _config(link, stream) == before
    assert await topology.differences(link, deployed, 1) == []


@pytest.mark.parametrize(("name", "setting"), LASTING)
async def test_what_the_server_never_turns_off_again_is_named_with_what_to_do(
    engine: ManualEngine, link: Link, deployed: Subjects, name: str, setting: str
) -> None:
    stream = _stream(deployed, name)
    await _change(link, stream, **{setting: True})
    found = " ".join((await engine.health()).warnings)
    assert f"of the stream {stream}, and the server never turns that off again" in found
    with pytest.raises(EngineError, match=setting) as refused:
        await engine.migrate()
    assert str(refused.value).removesuffix(" Everything else was put in place.") in found
    if name == JOBS:
        assert "`trellis move`" in found
        return
    assert f"`nats stream rm {stream}`" in found
    await link.api(f"STREAM.DELETE.{stream}")
    await engine.migrate()
    assert await topology.differences(link, deployed, 1) == []


async def test_a_stream_that_keeps_a_change_for_good_loses_all_others(
    engine: ManualEngine, link: Link, deployed: Subjects
) -> None:
    await _change(link, deployed.jobs, allow_msg_schedules=True, max_msgs=5)
    await _change(link, deployed.state, no_ack=True)
    with pytest.raises(EngineError, match=r"allow_msg_schedules.*Everything else"):
        await engine.migrate()
    (left,) = await topology.differences(link, deployed, 1)
    assert left.part.stream == deployed.jobs
    assert set(left.names) == {"allow_msg_schedules", "allow_rollup_hdrs"}
    assert "allow_msg_schedules, allow_rollup_hdrs" in await _warning(engine)


@pytest.mark.parametrize(("feed", "name"), [("work_feed", JOBS), ("later_feed", LATER)])
@pytest.mark.parametrize("setting", FEEDS)
async def test_a_changed_feed_is_named_and_put_right(
    engine: ManualEngine, feed: str, name: str, setting: str
) -> None:
    link, deployed = engine._link, engine._subjects
    stream = _stream(deployed, name)
    before = (await link.api(f"CONSUMER.INFO.{stream}.{feed}"))["config"]
    config = before | {setting: _in(deployed.prefix, FEEDS[setting])}
    wanted = {"stream_name": stream, "config": config, "action": "update"}
    await link.api(f"CONSUMER.CREATE.{stream}.{feed}", wanted)
    assert f"{stream} > {feed} was changed by another program ({setting})" in await _warning(engine)
    await engine.migrate()
    assert (await link.api(f"CONSUMER.INFO.{stream}.{feed}"))["config"] == before


async def test_a_paused_feed_is_named_and_goes_on_after_a_migration(
    engine: ManualEngine, link: Link, deployed: Subjects
) -> None:
    until = {"pause_until": "2100-01-01T00:00:00Z"}
    await link.api(f"CONSUMER.PAUSE.{deployed.jobs}.work_feed", until)
    assert "(pause_until)" in await _warning(engine)
    await engine.migrate()
    assert (await engine.health()).warnings == ()
    await accept_one(cast("Engine", engine), a_job())
    await engine.catch_up()


async def test_what_operators_chose_for_a_stream_is_kept(
    engine: ManualEngine, link: Link, deployed: Subjects
) -> None:
    await _change(link, deployed.jobs, compression="s2", description="of the shop")
    assert (await engine.health()).warnings == ()
    await _change(link, deployed.jobs, no_ack=True)
    await engine.migrate()
    config = (await link.api(f"STREAM.INFO.{deployed.jobs}"))["config"]
    assert (config["compression"], config["description"]) == ("s2", "of the shop")
    assert await topology.differences(link, deployed, 1) == []


async def test_jobs_outlast_a_change_and_its_repair(
    engine: ManualEngine, link: Link, deployed: Subjects
) -> None:
    record = await accept_one(cast("Engine", engine), a_job())
    await _change(link, deployed.jobs, allow_rollup_hdrs=True, max_msgs=500)
    await engine.migrate()
    assert await the(cast("Engine", engine), record.definition.id) == record
