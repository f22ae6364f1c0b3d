"""`trellis jobs graph`, and what `jobs show` and `jobs why` say about jobs that follow others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trellis import ActiveJob, Service


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")


@pytest.fixture
def diamond(service: Service) -> dict[str, str]:
    @service.job
    async def work(secret: str) -> str:
        return secret

    with service:
        top = work.create_sync("s3cret")
        left = work.create_sync("l", after=[top])
        right = work.create_sync("r", after=[top], on="finished")
        end = work.create_sync("e", after=[left, right])
    return {"top": top.id, "left": left.id, "right": right.id, "end": end.id}


def test_connected_jobs_are_a_tree(command: Run, service: Service, diamond: dict[str, str]) -> None:
    ran = command("jobs", "graph", diamond["right"], "--url", service.url)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        f"{diamond['top']}  shop/work  pending",
        f"├─ {diamond['left']}  shop/work  pending",
        f"│  └─ {diamond['end']}  shop/work  pending",
        f"└─ {diamond['right']}  shop/work  pending  ←",
        f"   └─ {diamond['end']}  shop/work  (see above)",
    ]


def test_a_graph_is_written_for_graphviz_and_as_json(
    command: Run, service: Service, diamond: dict[str, str]
) -> None:
    dot = command("jobs", "graph", diamond["top"], "--dot", "--url", service.url).out
    top, right = diamond["top"], diamond["right"]
    assert f'"{top}" -> "{right}" [style=dashed];' in dot.replace("  ", "")
    assert dot.startswith("digraph jobs {")
    assert "s3cret" not in dot
    found = json.loads(command("jobs", "graph", top[:24], "--json", "--url", service.url).out)
    assert found["job"] == top
    assert {each["id"] for each in found["jobs"]} == set(diamond.values())
    assert found["edges"][0] == {"source": top, "target": diamond["left"], "kind": "success"}


def test_a_large_graph_is_cut_and_says_so(
    command: Run, service: Service, diamond: dict[str, str]
) -> None:
    ran = command("jobs", "graph", diamond["top"], "--limit", "2", "--url", service.url)
    assert len(ran.out.splitlines()) == 2
    assert ran.err == "There are more than 2 connected jobs. Show more with --limit.\n"


def test_a_job_says_what_it_waits_for_and_what_follows_it(
    command: Run, service: Service, diamond: dict[str, str]
) -> None:
    shown = command("jobs", "show", diamond["right"], "--url", service.url).out
    assert f"Waits for   {diamond['top']}  not ended, in any way it ends" in shown
    assert f"Followed by {diamond['end']}" in shown
    why = command("jobs", "why", diamond["end"], "--url", service.url).out
    assert f"It waits for the end of 2 jobs {diamond['left']} (pending), " in why
    assert f"→ trellis --url {service.url} jobs graph {diamond['end']}" in why
    document = json.loads(
        command("jobs", "show", diamond["left"], "--json", "--url", service.url).out
    )
    assert document["links"][0] == {
        "job": diamond["left"],
        "prerequisite": diamond["top"],
        "on": "success",
        "ended": None,
    }


def test_a_job_that_a_waiting_job_needs_is_not_deleted(
    command: Run, service: Service, diamond: dict[str, str]
) -> None:
    command("jobs", "cancel", diamond["left"], "--url", service.url)
    kept = command("jobs", "delete", diamond["left"], "--yes", "--url", service.url)
    assert kept.code == 0  # the job behind it was cancelled with it
    command("jobs", "cancel", diamond["top"], "--url", service.url)
    refused = command("jobs", "delete", diamond["top"], "--yes", "--url", service.url)
    assert refused.code != 0
    assert "follows it" in refused.out + refused.err


@pytest.fixture
async def planned(service: Service) -> dict[str, str]:
    """A job whose handler has created a batch of a dozen jobs and one more job; ids by name."""
    found: dict[str, str] = {}

    @service.job
    async def write(job: ActiveJob[int]) -> None:
        if job.payload == 0:
            found["spawned"] = (await job.spawn(write, -1)).id

    @service.job
    async def bind() -> None: ...

    @service.job
    async def plan() -> None:
        async with service.batch(then=bind, name="book") as batch:
            members = await batch.create_many(write, range(12))
        found.update(batch=batch.id, first=members[0].id, last=members[-1].id)
        found["alone"] = (await write.create(99)).id

    async with service:
        found["plan"] = (await plan.create()).id
        async with service.worker():
            await plan.ref(found["plan"]).wait("20s")
            found["then"] = str((await service.batch_ref(found["batch"]).wait("20s")).fan_in)
            for name in ("alone", "then"):
                await write.ref(found[name]).wait("20s")
    return found


def test_a_graph_goes_up_to_parents_and_down_to_children_and_batches(
    command: Run, service: Service, planned: dict[str, str]
) -> None:
    lines = command("jobs", "graph", planned["plan"], "--url", service.url).out.splitlines()
    assert lines[:3] == [
        f"{planned['plan']}  shop/plan  completed  ←",
        f"├─ batch {planned['batch']}  book  finished, 13 members",
        f"│  ├─ {planned['first']}  shop/write  completed",
    ]
    assert f"│  │  └─ {planned['spawned']}  shop/write  completed" in lines
    assert lines[-3:] == [
        f"│  └─ then {planned['then']}  shop/bind  completed",
        f"├─ {planned['alone']}  shop/write  completed",
        f"└─ … more: trellis jobs list parent:{planned['plan']}",
    ]
    # From below: the batch with some other members, and the creator without its other children.
    lines = command("jobs", "graph", planned["last"], "--url", service.url).out.splitlines()
    assert lines[:2] == [
        f"{planned['plan']}  shop/plan  completed",
        f"└─ batch {planned['batch']}  book  finished, 13 members",
    ]
    assert f"   ├─ {planned['last']}  shop/write  completed  ←" in lines
    assert f"   ├─ … and 1 more: trellis jobs list batch:{planned['batch']}" in lines
    assert not any(planned["alone"] in line for line in lines)
    document = json.loads(
        command("jobs", "graph", planned["then"], "--json", "--url", service.url).out
    )
    kinds = {(edge["source"], edge["target"]): edge["kind"] for edge in document["edges"]}
    assert kinds[planned["batch"], planned["then"]] == "fan_in"
    assert kinds[planned["batch"], planned["first"]] == "member"
    assert kinds[planned["plan"], planned["batch"]] == "parent"
    assert (planned["plan"], planned["first"]) not in kinds


def test_a_job_lists_its_children_and_how_to_see_all(
    command: Run, service: Service, planned: dict[str, str]
) -> None:
    shown = command("jobs", "show", planned["first"], "--url", service.url).out
    assert f"Children    {planned['spawned']}  shop/write  completed\n" in shown
    assert f"Created by  {planned['plan']}" in shown
    assert "all of them" not in shown
    shown = command("jobs", "show", planned["plan"], "--url", service.url).out
    assert f"... all of them: trellis jobs list parent:{planned['plan']}" in shown
    listed = command("jobs", "list", f"parent:{planned['plan']}", "-q", "--url", service.url).out
    assert len(listed.split()) == 14
    document = json.loads(
        command("jobs", "show", planned["plan"], "--json", "--url", service.url).out
    )
    assert (document["children"], document["has_more_children"]) == (listed.split()[:10], True)
