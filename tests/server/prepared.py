"""A store with jobs in every state, and values with which each operation of the API succeeds."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from itertools import count, cycle
from typing import Any

import requests

from trellis import Fail, Retry, Service, connect
from trellis.core.commands import LoseLease
from trellis.core.durations import micros
from trellis.core.policy import KeyPolicy
from trellis.engines.port import Engine
from trellis.operations.logins import create_code
from trellis.operations.operator import Operator
from trellis.portal import call
from trellis.testing.builders import a_keyed_job, a_worker, fence_of
from trellis.testing.conformance.helpers import a_session, settle, start


class Prepared:
    """What a caller can name; most things can be used once, so there are several of each."""

    def __init__(self, url: str, number: int) -> None:
        self.url = url
        self.number = number
        self.token = ""
        #: Where the server listens.
        self.port = 0
        self._workers = count(1)
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

        @service.job
        async def errand(order: int) -> None: ...

        service.schedule(invoice, every="1d", payload=1, name="daily")
        orders = range(self.number)
        async with service, connect(self.url) as jobs:
            async with service.worker(concurrency=20):
                for job in (failing, dying):
                    self.pools[job.name] = iter(await self._ended(jobs, job))
                done = await invoice.create(1)
                await done.wait("20s")
            await errand.create_many(list(range(3 * self.number)))
            self.pools["table"] = cycle([await self._table_job()])
            for name in ("cancel", "adjust", "delete", "clone"):
                refs = await invoice.create_many(list(orders), delay="1d")
                self.pools[name] = iter([each.id for each in refs])
                if name == "delete":
                    for ref in refs:
                        await jobs.cancel(ref.id)
            for name in ("seal", "cancel batch"):
                self.pools[name] = iter(await self._batches(service, invoice))
            self.pools["blocked"] = iter([await self._blocked(jobs.engine, n) for n in orders])
            await jobs.engine.open_session(a_worker("drained"), micros("1d"))
            self.pools["read"] = cycle([done.id])
            scopes = ["admin.read", "admin.mutate", "admin.stream", "worker:shop"]
            self.token = (await jobs.tokens.create(scopes)).text

    async def _ended(self, jobs: Operator, job: Any) -> list[str]:  # noqa: ANN401 - a type
        refs = await job.create_many(list(range(self.number)))
        for ref in refs:
            await jobs.wait(ref.id, "60s")
        return [each.id for each in refs]

    async def _table_job(self) -> str:
        tables = Service("table_maintenance", self.url)

        @tables.job
        async def maintenance(table: dict[str, Any]) -> None: ...

        async with tables:
            created = await maintenance.create({"db": "lake", "table": "events", "actions": []})
        return str(created.id)

    async def _batches(self, service: Service, job: Any) -> list[str]:  # noqa: ANN401 - a type
        found = []
        for _ in range(self.number):
            async with service.batch() as batch:
                await batch.create(job, 1, delay="1d")
            found.append(str(batch.ref.id))
        return found

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
        if path.startswith(("/api/jobs", "/api/workers", "/tables")):
            return self._fitting_profile(method, path)
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

    def _fitting_profile(self, method: str, path: str) -> dict[str, Any]:
        """Return the same for the paths of other systems."""
        worker = f"worker-{next(self._workers)}"
        match method, path:
            case "POST", "/api/jobs/claim":
                return {"body": {"worker_id": worker, "types": ["shop/errand"]}}
            case "PUT", "/api/jobs/{job_id}/status":
                job, report = self._claim(worker)
                return {"path_parameters": job, "body": {**report, "status": "SUCCESS"}}
            case "POST", "/api/jobs/{job_id}/logs":
                job, report = self._claim(worker)
                return {"path_parameters": job, "body": {**report, "lines": [{"message": "m"}]}}
            case _, "/api/workers/{worker_id}/heartbeat" | "/api/workers/{worker_id}":
                self._claim(worker)
                return {"path_parameters": {"worker_id": worker}, "body": {}}
            case "POST", "/tables/{db}/{table}/maintenance":
                table = {"db": "lake", "table": "events"}
                return {"path_parameters": table, "body": {"actions": ["vacuum"]}, "query": {}}
            case "GET", "/tables/{db}/{table}/maintenance/{job_id}":
                job = {"db": "lake", "table": "events", "job_id": self.take("table")}
                return {"path_parameters": job}
            case "PUT", "/tables/drain":
                return {"body": {"drain_mode": False}}
            case _:
                return {"query": {}, "path_parameters": self._named(path)}

    def _claim(self, worker: str) -> tuple[dict[str, str], dict[str, str]]:
        """Claim a job as this worker; return the job and what its reports carry."""
        answer = requests.post(
            f"http://127.0.0.1:{self.port}/api/jobs/claim",
            json={"worker_id": worker, "types": ["shop/errand"]},
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=30,
        )
        if answer.status_code != HTTPStatus.OK:
            return {"job_id": "none"}, {"worker_id": worker, "attempt_id": "none"}
        job = answer.json()
        return {"job_id": job["id"]}, {"worker_id": worker, "attempt_id": job["attempt_id"]}

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
