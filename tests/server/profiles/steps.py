"""A store behind the HTTP API, and workers that speak the provisioning profile."""

from __future__ import annotations

import json
from typing import Any

import httpx
from fastapi import FastAPI

from trellis.core.job import JobId, NewJob
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.operations.operator import Operator
from trellis.testing.clock import ManualClock

BASE = "http://127.0.0.1:8321"


class Store:
    """An engine, its HTTP API and its clock."""

    def __init__(self, app: FastAPI, engine: Engine, clock: ManualClock) -> None:
        self.app, self.engine, self.clock = app, engine, clock
        self.operator = Operator(engine)

    async def token(self, *scopes: str) -> str:
        """Return a token with these scopes."""
        return (await self.operator.tokens.create(scopes, name="test")).text

    async def send(
        self,
        method: str,
        path: str,
        token: str,
        body: Any = None,  # noqa: ANN401 - JSON
        app: FastAPI | None = None,
        **options: Any,  # noqa: ANN401 - httpx's
    ) -> httpx.Response:
        """Send a request; to another server of the same store with `app`."""
        headers = {"Authorization": f"Bearer {token}"} | options.pop("headers", {})
        if body is not None:
            headers["Content-Type"] = "application/json"
            options["content"] = json.dumps(body)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app or self.app), base_url=BASE, headers=headers
        ) as client:
            return await client.request(method, path, **options)

    async def read(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Return what an operator reads."""
        answer = await self.send("GET", path, await self.token("admin.read"))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def create(self, job: NewJob) -> JobId:
        """Store a job."""
        await self.engine.create([job])
        return job.id

    async def state(self, job_id: str) -> State:
        """Return the state of a job."""
        (record,) = (await self.engine.load([JobId(job_id)])).records
        assert record is not None
        return record.head.state

    async def kinds(self, job_id: str) -> list[str]:
        """Return the kinds of the events of a job."""
        return [str(event.kind) for event in await self.engine.journal(JobId(job_id))]

    async def facts(self, job_id: str) -> object:
        """Return everything that is stored of a job."""
        job = JobId(job_id)
        return (
            (await self.engine.load([job])).records,
            await self.engine.journal(job),
            await self.engine.activity(job),
            await self.engine.logs(job),
        )

    async def worker(self, name: str = "tendril-1", *scopes: str) -> HttpWorker:
        """Return a worker with a token."""
        return HttpWorker(self, name, await self.token(*(scopes or ("worker:shop",))))


class HttpWorker:
    """A worker that speaks the provisioning profile."""

    def __init__(self, store: Store, name: str, token: str) -> None:
        self.store, self.name, self.token = store, name, token

    async def ask(self, app: FastAPI | None = None, **body: Any) -> httpx.Response:  # noqa: ANN401
        """Ask for a job."""
        body = {"worker_id": self.name, **body}
        return await self.store.send("POST", "/api/jobs/claim", self.token, body, app)

    async def claim(self, app: FastAPI | None = None, **body: Any) -> dict[str, Any]:  # noqa: ANN401
        """Claim a job; there must be one."""
        answer = await self.ask(app, **body)
        assert answer.status_code == 200, answer.text
        claimed: dict[str, Any] = answer.json()
        return claimed

    async def report(
        self,
        job: dict[str, Any],
        status: str,
        app: FastAPI | None = None,
        **body: Any,  # noqa: ANN401 - JSON
    ) -> httpx.Response:
        """Report the status of an attempt."""
        body = {
            "worker_id": self.name, "attempt_id": job["attempt_id"], "status": status, **body
        }  # fmt: skip
        return await self.store.send("PUT", f"/api/jobs/{job['id']}/status", self.token, body, app)

    async def log(
        self, job: dict[str, Any], *lines: str, app: FastAPI | None = None
    ) -> httpx.Response:
        """Add lines to the log of a job."""
        body = {
            "worker_id": self.name,
            "attempt_id": job["attempt_id"],
            "lines": [{"message": line} for line in lines],
        }
        return await self.store.send("POST", f"/api/jobs/{job['id']}/logs", self.token, body, app)

    async def beat(self, app: FastAPI | None = None) -> dict[str, Any]:
        """Send a heartbeat."""
        path = f"/api/workers/{self.name}/heartbeat"
        answer = await self.store.send("POST", path, self.token, app=app)
        assert answer.status_code == 200, answer.text
        known: dict[str, Any] = answer.json()
        return known
