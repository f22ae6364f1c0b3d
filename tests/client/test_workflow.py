"""Jobs that follow others: `after=`, and workflows by name."""

from __future__ import annotations

import pytest

from trellis import (
    ConfigurationError,
    Draining,
    KeyBusy,
    PerKey,
    Service,
    State,
    UnknownPrerequisite,
    WorkflowCycle,
)
from trellis.engines.values import JobFilter, QueueSettings


class Kitchen:
    """Jobs that record in which order they ran."""

    def __init__(self, service: Service) -> None:
        self.done: list[str] = []

        @service.job
        async def cook(dish: str) -> str:
            self.done.append(dish)
            return dish

        @service.job
        async def serve(dish: str) -> str:
            self.done.append(f"serve {dish}")
            return dish

        @service.job
        async def clean() -> None:
            self.done.append("clean")

        self.cook, self.serve, self.clean = cook, serve, clean


async def test_a_diamond_of_references_runs_in_order(service: Service) -> None:
    kitchen = Kitchen(service)
    shop = await kitchen.cook.create("shop")
    left = await kitchen.cook.create("soup", after=[shop])
    right = await kitchen.cook.create("salad", after=[shop.id])
    last = await kitchen.serve.create("all", after=[left, right])
    assert (await last.status()).state is State.PENDING
    async with service.worker():
        await last.wait("10s")
    assert kitchen.done[0] == "shop"
    assert sorted(kitchen.done[1:3]) == ["salad", "soup"]
    assert kitchen.done[3:] == ["serve all"]


async def test_many_jobs_can_follow_one(service: Service) -> None:
    kitchen = Kitchen(service)
    first = await kitchen.cook.create("stock")
    refs = await kitchen.cook.create_many(["a", "b", "c"], after=[first])
    end = await kitchen.clean.create(after=refs, on="finished")
    async with service.worker():
        await end.wait("10s")
    assert (kitchen.done[0], kitchen.done[-1], len(kitchen.done)) == ("stock", "clean", 5)


async def test_an_unknown_job_cannot_be_followed(service: Service) -> None:
    kitchen = Kitchen(service)
    missing = "01J0000000AAAAAAAAAAAAAAAA"
    with pytest.raises(UnknownPrerequisite, match=f"follow job {missing}, which does not exist"):
        await kitchen.cook.create("soup", after=[missing])
    engine = await service.connection.engine()
    assert (await engine.find(JobFilter())).jobs == ()


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("01J", "is not a list of jobs"),
        (7, "is not a list of jobs"),
        ([7], "neither a reference nor an id"),
        (["01J", "01J"], "names a job twice"),
    ],
)
async def test_what_is_no_list_of_jobs_is_refused(
    service: Service, after: object, words: str
) -> None:
    kitchen = Kitchen(service)
    with pytest.raises(ConfigurationError, match=words):
        await kitchen.cook.create("soup", after=after)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="on='sometimes'"):
        await kitchen.cook.create("soup", after=["01J"], on="sometimes")  # type: ignore[arg-type]


async def test_a_workflow_runs_its_steps_by_name(service: Service) -> None:
    kitchen = Kitchen(service)
    flow = service.workflow()
    flow.step("end", kitchen.clean, after=["table", "soup"], on="finished")
    flow.step("table", kitchen.serve, payload_from="soup")
    flow.step("soup", kitchen.cook, "soup", tags={"course": "1"})
    refs = await flow.create()
    assert list(refs) == ["soup", "table", "end"]
    assert (await refs["soup"].status()).tags == {"course": "1"}
    async with service.worker():
        await refs["end"].wait("10s")
    assert kitchen.done == ["soup", "serve soup", "clean"]


def test_a_workflow_is_created_without_an_event_loop(url: str) -> None:
    with Service("shop", url) as service:
        kitchen = Kitchen(service)
        flow = service.workflow()
        flow.step("soup", kitchen.cook, "soup")
        flow.step("end", kitchen.clean, after=["soup"])
        refs = flow.create_sync()
        assert [each.status_sync().state for each in refs.values()] == [State.PENDING] * 2


async def test_steps_that_wait_for_each_other_are_refused_by_name(service: Service) -> None:
    kitchen = Kitchen(service)
    flow = service.workflow()
    flow.step("a", kitchen.clean, after=["c"])
    flow.step("b", kitchen.clean, after=["a"])
    flow.step("c", kitchen.clean, after=["b"])
    with pytest.raises(WorkflowCycle, match=r"circle: (\w) waits for \w waits for \w waits for \1"):
        await flow.create()
    engine = await service.connection.engine()
    assert (await engine.find(JobFilter())).jobs == ()


async def test_a_step_must_be_there_once_and_follow_steps(service: Service) -> None:
    kitchen = Kitchen(service)
    flow = service.workflow()
    flow.step("a", kitchen.clean, after=["b"])
    with pytest.raises(ConfigurationError, match="'b', which is no step"):
        await flow.create()
    with pytest.raises(ConfigurationError, match="already has a step 'a'"):
        flow.step("a", kitchen.clean)
    with pytest.raises(ConfigurationError, match=r"after=\['a'\]"):
        flow.step("c", kitchen.clean, after="a")


@pytest.mark.parametrize("is_linked", [True, False])
async def test_of_a_workflow_with_a_refused_step_nothing_is_stored(
    service: Service, is_linked: bool
) -> None:
    kitchen = Kitchen(service)
    engine = await service.connection.engine()
    await engine.set_queue(QueueSettings("shop", "serve", draining=True))
    flow = service.workflow()
    flow.step("soup", kitchen.cook, "soup")
    flow.step("table", kitchen.serve, "soup", after=["soup"] if is_linked else [])
    flow.step("end", kitchen.clean)
    with pytest.raises(Draining) as refused:
        await flow.create()
    assert refused.value.__notes__ == ["None of the 3 jobs of the call was stored."]
    assert (await engine.find(JobFilter())).jobs == ()
    await engine.set_queue(QueueSettings("shop", "serve"))
    async with service.worker():
        await (await flow.create())["table"].wait("10s")


async def test_a_step_is_no_other_job(service: Service) -> None:
    @service.job(per_key=PerKey("{name}", active=1, queued=0, when_full="coalesce"))
    async def alone(name: dict[str, str]) -> None: ...

    kitchen = Kitchen(service)
    existing = await alone.create({"name": "x"})
    flow = service.workflow()
    flow.step("soup", kitchen.cook, "soup")
    flow.step("last", alone, {"name": "x"}, after=["soup"])
    with pytest.raises(KeyBusy, match=f"job {existing.id} holds it"):
        await flow.create()
    engine = await service.connection.engine()
    assert (await engine.count(JobFilter())).total == 1


async def test_a_workflow_that_does_not_fit_into_one_call_is_refused(service: Service) -> None:
    kitchen = Kitchen(service)
    flow = service.workflow()
    for number in range(1000):
        flow.step(str(number), kitchen.clean, after=[str(number - 1)] if number else [])
    assert len(await flow.create()) == 1000
    flow.step("one too many", kitchen.clean)
    with pytest.raises(ConfigurationError, match=r"at most 1,000 jobs.* this one has 1,001\. Noth"):
        await flow.create()
    engine = await service.connection.engine()
    assert (await engine.count(JobFilter())).total == 1000


async def test_services_in_other_databases_cannot_be_joined(service: Service) -> None:
    elsewhere = Service("other", "sqlite:///elsewhere.db")
    kitchen, other = Kitchen(service), Kitchen(elsewhere)
    with pytest.raises(ConfigurationError, match="another database"):
        await (kitchen.cook | other.serve).create("soup")
