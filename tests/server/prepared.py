"""A store with jobs in every state, and values with which each operation of the API succeeds."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

from trellis import Fail, Retry, Service, connect
from trellis.core.commands import LoseLease
from trellis.core.durations import micros
from trellis.core.policy import KeyPolicy
from trellis.engines.port import Engine
from trellis.operations.logins import create_code
from trellis.portal import call
from trellis.testing.builders import a_keyed_job, a_worker, fence_of
from trellis.testing.conformance.helpers import a_session, settle, start


class Prepared:
    """What a caller can name; most things can be used once, so there are several of each."""

    def __init__(self, url: str, number: int) -> None:
        self.url = url
        self.number = number
        self.token = ""
        self.pools: dict[str, Any] = {}

    async def fill(self) -> None:
        """Fill the store."""
        service = Service("shop", self.url)

        @service.job
        async def invoice(order: int) -> int:
            return order

        @service.job(retry=Retry(attempts=1), dead_letters=False)
        async def failing(order: int) -> int:
            raise Fail(f"order {order}")

        @service.job(retry=Retry(attempts=1), dead_letters=True)
        async def dying(order: int) -> int:
            raise ValueError(order)

        service.schedule(invoice, every="1d", payload=1, name="daily")
        orders = range(self.number)
        async with service, connect(self.url) as jobs:
            async with service.worker(concurrency=20):
                for job in (failing, dying):
                    refs = await job.create_many(list(orders))
                    self.pools[job.name] = iter([each.id for each in refs])
                    for ref in refs:
                        await jobs.wait(ref.id, "60s")
                done = await invoice.create(1)
                await done.wait("20s")
            for name in ("cancel", "adjust", "delete", "clone"):
                refs = await invoice.create_many(list(orders), delay="1d")
                self.pools[name] = iter([each.id for each in refs])
                if name == "delete":
                    for ref in refs:
                        await jobs.cancel(ref.id)
            for name in ("seal", "cancel batch"):
                found = [await self._batch(service, invoice) for _ in orders]
                self.pools[name] = iter(found)
            self.pools["blocked"] = iter([await self._blocked(jobs.engine, n) for n in orders])
            await jobs.engine.open_session(a_worker("drained"), micros("1d"))
            self.pools["read"] = cycle([done.id])
            scopes = ["admin.read", "admin.mutate", "admin.stream"]
            self.token = (await jobs.tokens.create(scopes)).text

    async def _batch(self, service: Service, job: Any) -> str:  # noqa: ANN401 - a job type
        async with service.batch() as batch:
            await batch.create(job, 1, delay="1d")
        return str(batch.ref.id)

    async def _blocked(self, engine: Engine, number: int) -> str:
        new = a_keyed_job(f"key {number}", KeyPolicy("{id}"), type="keyed")
        new = new._replace(policy=replace(new.policy, on_lost="block"))
        record = await start(engine, await a_session(engine), new)
        return (await settle(engine, record, LoseLease(fence_of(record)))).definition.id

    def take(self, pool: str) -> str:
        """Return one that was not used yet, else one that was."""
        return str(next(self.pools[pool], None) or next(self.pools["read"]))

    def fitting(self, method: str, path: str) -> dict[str, Any]:
        """Return path parameters, query and body with which an operation succeeds."""
        verbs = {
            "cancel": "cancel", "retry": "failing", "replay": "dying", "dismiss": "dying",
            "clone": "clone",
        }  # fmt: skip
        last = path.rpartition("/")[2]
        match method, path:
            case "POST", "/api/v1/jobs":
                return {"body": {"type": "shop/invoice", "payload": 7}, "query": {}}
            case "POST", "/api/v1/jobs/actions":
                return {"body": {"verb": "cancel", "filter": {"state": "dead"}, "dry_run": True}}
            case "POST", "/api/v1/keys/release":
                return {"body": {"held": self.take("blocked"), "then": "fail"}}
            case "PATCH", _:
                job = {"job_id": self.take("adjust")}
                return {"path_parameters": job, "body": {"priority": 2}}
            case "DELETE", _:
                return {"path_parameters": {"job_id": self.take("delete")}, "query": {}}
            case "POST", _ if last in verbs:
                return {"path_parameters": {"job_id": self.take(verbs[last])}, "body": {}}
            case _, "/login":
                return {"query": {"code": self.code()}}
            case _:
                return {"query": {}, "path_parameters": self._named(path), "body": {}}

    def _named(self, path: str) -> dict[str, str]:
        names = {
            "job_id": "read", "batch_id": "seal" if "verb" in path else "cancel batch",
        }  # fmt: skip
        found = {name: self.take(pool) for name, pool in names.items() if f"{{{name}}}" in path}
        given = {"service": "shop", "queue": "invoice", "name": "daily", "worker": "drained"}
        given |= {"switch": "off", "verb": "seal" if "batches" in path else "resume"}
        return found | {name: each for name, each in given.items() if f"{{{name}}}" in path}

    def code(self) -> str:
        """Return a new login code."""

        async def make() -> str:
            async with connect(self.url) as jobs:
                return await create_code(jobs.engine, "ann")

        return call(make)
