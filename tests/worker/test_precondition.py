"""Jobs with `expect=` run only while the configuration is the expected one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from trellis import (
    ActiveJob,
    ConfigurationError,
    JobNotFound,
    JobRef,
    PlanUnusable,
    PreconditionFailed,
    Retry,
    Service,
    State,
    fingerprint,
)
from trellis.core.job import JobId
from trellis.engines.values import JobFilter
from trellis.testing import sandbox

VINES: dict[str, dict[str, Any]] = {}


@pytest.fixture(autouse=True)
def vines() -> None:
    VINES.clear()
    VINES["blue"] = {"region": "eu", "nodes": 3}


def config_of(vine: str) -> dict[str, Any]:
    return VINES[vine]


async def async_config() -> dict[str, Any]:
    await asyncio.sleep(0)
    return VINES["blue"]


def config_of_job(job: ActiveJob[str]) -> dict[str, Any]:
    return VINES[job.payload]


async def test_a_job_runs_only_if_the_configuration_has_not_changed(service: Service) -> None:
    ran: list[str] = []

    @service.job(config=config_of)
    async def deploy(vine: str) -> str:
        ran.append(vine)
        return "deployed"

    expected = fingerprint({"nodes": 3.0, "region": "eu"})
    async with service.worker():
        same = await deploy.create("blue", expect=expected)
        assert await same.wait("10s") == "deployed"
        VINES["blue"] = {"region": "eu", "nodes": 4}
        changed = await deploy.create("blue", expect=expected)
        with pytest.raises(PreconditionFailed) as failed:
            await changed.wait("10s")
        unchecked = await deploy.create("blue")
        assert await unchecked.wait("10s") == "deployed"
    assert expected in str(failed.value)
    assert fingerprint(VINES["blue"]) in str(failed.value)
    status = await changed.status()
    assert status.error is not None
    assert (status.state, status.attempt, status.error.code) == (
        State.FAILED,
        1,
        "precondition_failed",
    )
    assert ran == ["blue", "blue"]


@pytest.mark.parametrize("config", [config_of, config_of_job, async_config, lambda: VINES["blue"]])
@pytest.mark.parametrize("is_async", [True, False])
async def test_the_config_function_may_take_what_a_handler_may(
    config: Callable[..., Any], is_async: bool
) -> None:
    service = Service("vines", "memory://")

    async def deploy_async(job: ActiveJob[str]) -> list[Any]:
        return [job.config, job.expect]

    def deploy_plain(job: ActiveJob[str]) -> list[Any]:
        return [job.config, job.expect]

    declare = service.job(config=config, retry=Retry.never(), dead_letters=False)
    if config is async_config and not is_async:
        with pytest.raises(ConfigurationError, match="async_config must be one, too"):
            declare(deploy_plain)
        return
    deploy = declare(deploy_async if is_async else deploy_plain)
    expected = fingerprint(VINES["blue"])
    async with service, service.worker():
        ref = await deploy.create("blue", expect=expected, config=VINES["blue"])
        assert await ref.wait("10s") == [VINES["blue"], expected]
        VINES["blue"] = {}
        ref = await deploy.create("blue", expect=expected)
        with pytest.raises(PreconditionFailed):
            await ref.wait("10s")
    assert await deploy.run_inline("blue") == [None, None]
    with pytest.raises(PreconditionFailed):
        await deploy.run_inline("blue", expect=expected)
    VINES["blue"] = {"region": "eu", "nodes": 3}
    assert await deploy.run_inline("blue", config=7, expect=expected) == [7, expected]
    inline = await asyncio.to_thread(deploy.run_inline_sync, "blue", expect=expected)
    assert inline == [None, expected]


def test_a_config_function_of_another_payload_is_refused() -> None:
    service = Service("vines", "memory://")
    with pytest.raises(ConfigurationError, match="config_of takes"):

        @service.job(config=config_of)
        def deploy(vine: int) -> None: ...


async def test_a_config_function_that_raises_is_retried_like_a_handler(service: Service) -> None:
    calls: list[int] = []

    def away() -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("the registry is away")
        return VINES["blue"]

    @service.job(config=away, retry=Retry.fixed(0, attempts=2))
    def deploy() -> str:
        return "deployed"

    async with service.worker():
        ref = await deploy.create(expect=fingerprint(VINES["blue"]))
        assert await ref.wait("10s") == "deployed"
    assert (await ref.status()).attempt == 2


async def test_expect_needs_a_fingerprint_and_a_config_function(service: Service) -> None:
    @service.job
    def deploy() -> None: ...

    with pytest.raises(ConfigurationError, match=r"job\(config=\.\.\.\)"):
        await deploy.create(expect=fingerprint(1))
    with pytest.raises(ConfigurationError, match=r"expect='v1' is not a fingerprint"):
        await deploy.create(expect="v1")
    counts = await (await service.connection.engine()).count(JobFilter())
    assert counts.total == 0


async def test_a_type_whose_program_has_no_config_function_fails_the_job(service: Service) -> None:
    declared = service.declare("deploy", payload=str, result=str, retry=Retry.fixed(0, attempts=3))
    ref = await declared.create("blue", expect=fingerprint(1))

    @declared.handler
    async def deploy(vine: str) -> str:
        return vine

    async with service.worker():
        with pytest.raises(PreconditionFailed, match="has no function that returns the present"):
            await ref.wait("10s")
    assert (await ref.status()).attempt == 1


# -- plans ---------------------------------------------------------------------------------------


async def test_a_deployment_is_created_from_a_finished_plan(service: Service) -> None:
    go_on = threading.Event()

    @service.job(retry=Retry.never(), dead_letters=False)
    def plan(vine: str) -> str:
        go_on.wait(20)
        if vine == "red":
            raise ValueError("no such vine")
        return f"plan of {vine}"

    @service.job(config=config_of)
    def deploy(vine: str) -> str:
        return f"deployed {vine}"

    async def refuse(ref: JobRef[str], why: str) -> None:
        with pytest.raises(PlanUnusable, match=why) as refused:
            await deploy.create("blue", expect=ref)
        assert refused.value.existing == ref.id

    async with service.worker():
        planned = await plan.create("blue", config=VINES["blue"])
        await refuse(planned, "is (pending|active), so .* Wait for its end first")
        go_on.set()
        await planned.wait("10s")
        failed = await plan.create("red", config=VINES["blue"])
        with pytest.raises(Exception, match="no such vine"):
            await failed.wait("10s")
        await refuse(failed, "ended as failed, so .* Create a new one")
        bare = await plan.create("blue")
        await bare.wait("10s")
        await refuse(bare, r"was created without config=")
        with pytest.raises(JobNotFound):
            await deploy.create("blue", expect=plan.ref("01JC0000000000000000000000"))

        assert await planned.fingerprint() == fingerprint(VINES["blue"])
        first = await deploy.create("blue", expect=planned)
        assert (await first.status()).expect == await planned.fingerprint()
        assert await first.wait("10s") == "deployed blue"
        (many,) = await deploy.create_many(["blue"], expect=planned)
        assert await many.wait("10s") == "deployed blue"
        VINES["blue"] = {"region": "us"}
        late = await asyncio.to_thread(deploy.create_sync, "blue", expect=planned)
        with pytest.raises(PreconditionFailed, match="Plan again"):
            await late.wait("10s")
        again = await late.clone()
        with pytest.raises(PreconditionFailed):
            await again.wait("10s")


async def test_a_sandbox_compares_configurations_as_well() -> None:
    service = Service("vines", "memory://")

    @service.job(config=config_of)
    def deploy(vine: str) -> str:
        return f"deployed {vine}"

    with sandbox() as box:
        ref = await deploy.create("blue", expect=fingerprint(VINES["blue"]))
        await box.run_all()
        assert await ref.wait() == "deployed blue"
        ref = await deploy.create("blue", expect=fingerprint({}))
        await box.run_all(raise_errors=False)
        with pytest.raises(PreconditionFailed):
            await ref.wait()


def test_a_sandbox_reads_the_configuration_in_the_thread_of_the_test() -> None:
    service = Service("vines", "memory://")
    threads: list[threading.Thread] = []

    def config() -> dict[str, Any]:
        threads.append(threading.current_thread())
        return VINES["blue"]

    @service.job(config=config)
    def deploy(vine: str) -> str:
        return f"deployed {vine}"

    with sandbox() as box:
        ref = deploy.create_sync("blue", expect=fingerprint(VINES["blue"]))
        box.run_all_sync()
        assert ref.wait_sync() == "deployed blue"
    assert threads == [threading.current_thread()]


async def test_a_job_shows_its_configuration_and_what_it_expects(service: Service) -> None:
    @service.job(config=config_of)
    def deploy(vine: str) -> None: ...

    config = {"region": "eu", "password": "hunter2"}
    ref = await deploy.create("blue", config=config, expect=fingerprint(VINES["blue"]))
    status = await ref.status()
    assert status.config == {"region": "eu", "password": "**********"}
    assert status.config_fingerprint == fingerprint(config)
    assert status.expect == fingerprint(VINES["blue"])
    stored = (await (await service.connection.engine()).load([JobId(ref.id)])).records[0]
    assert stored is not None
    assert stored.definition.config == '{"region":"eu","password":"hunter2"}'
