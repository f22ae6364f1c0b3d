"""The RPC `Jobs.*`: a NATS micro service for operators and their programs.

Reads come from the projection. Changes are commands on the stream, decided by the lifecycle like
all others; the answer is the job afterwards: of the projection, or of the stream if the projection
is behind. Errors have the type
`NotFoundError` or `ValidationError`, and nothing is changed then.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

from nats import micro
from nats.micro.request import Request
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from trellis import control
from trellis.admin.internal import Calls, InternalAnswers, header_text
from trellis.admin.jobs_verbs import (
    CONTRACT,
    INVALID,
    LARGEST,
    NOT_ALLOWED,
    NOT_FOUND,
    UNAVAILABLE,
    UNEXPECTED,
    VERBS,
    Refusal,
)
from trellis.admin.wire_job import iso, shortened, wire_job, wire_jobs, written
from trellis.admin.wire_key import wire_key
from trellis.admin.wire_policy import wire_policy
from trellis.core.durations import Instant, to_instant
from trellis.core.job import JobId, JobRecord
from trellis.core.states import State
from trellis.engines.audit import By, storable
from trellis.engines.jetstream.presence import FRESH
from trellis.engines.jetstream.store import Store
from trellis.engines.port import Engine
from trellis.engines.projection import Presence, Projection
from trellis.engines.values import JobFilter
from trellis.errors import CommandRejected, ConfigurationError, JobNotFound, KeyBusy, TrellisError

_ACTOR: Final = By("jobs-rpc")
#: Room for the headers of an answer.
_HEADERS: Final = 1024
#: The most characters of a text in a request.
_LONGEST: Final = 1000
_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.IGNORECASE
)
_logger = logging.getLogger(__name__)

Input: TypeAlias = Mapping[str, Any]
Change: TypeAlias = Callable[[Engine, JobId, By], Awaitable[JobRecord]]


class Invalid(Exception):
    """The input of a call is wrong; `str` says what."""


class JobsRpc:
    """Answers `Jobs.*` until closed."""

    def __init__(
        self,
        store: Store,
        *,
        tables: Engine,
        projection: Projection,
        engine: Engine,
        answers: InternalAnswers,
    ) -> None:
        self._store, self._link, self._subjects = store, store.link, store.subjects
        self._tables, self._projection, self._engine = tables, projection, engine
        self._answers = answers
        self._service: Service | None = None
        self.calls = Calls()
        self._verbs: dict[str, Callable[[Input], Awaitable[dict[str, Any]]]] = {
            "Health": self._health,
            "ListServices": self._list_services,
            "List": self._list,
            "Get": self._get,
            "GetKey": self._get_key,
            "Retry": lambda given: self._change(given, control.retry),
            "Cancel": lambda given: self._change(given, _cancel),
            "ListDLQ": self._list_dlq,
            "ReplayDLQ": lambda given: self._change(given, control.replay),
            "DismissDLQ": lambda given: self._change(given, control.dismiss),
        }

    async def listen(self) -> None:
        """Answer from now on; several runtimes share the requests."""
        config = ServiceConfig("trellis-jobs", "1.0.0", metadata={"contract": CONTRACT})
        self._service = await micro.add_service(self._link.client, config)
        for name in self._verbs:
            await self._service.add_endpoint(
                EndpointConfig(name, self._hear, subject=self._subjects.rpc(name))
            )
        await self._link.flush()

    async def close(self) -> None:
        """Take no more calls, and answer those that are under way."""
        service, self._service = self._service, None
        if service is not None:
            await self.calls.finish(service.stop)

    async def _hear(self, request: Request) -> None:
        await self.calls.begin(partial(self._answer, request))

    async def _answer(self, request: Request) -> None:
        name = request.subject.rpartition(".")[2]
        try:
            given = _read(request.data)
            _check(given, *VERBS[name].request.__annotations__)
            answer = await self._verbs[name](given)
            await request.respond(_written(answer, self._link.max_payload))
        except JobNotFound as error:
            await _refuse(request, NOT_FOUND, str(error))
        except (Invalid, ConfigurationError) as error:
            await _refuse(request, INVALID, str(error))
        except (CommandRejected, KeyBusy) as error:
            await _refuse(request, NOT_ALLOWED, str(error))
        except TrellisError as error:
            await _refuse(request, UNAVAILABLE, str(error))
        except Exception:
            _logger.exception("Jobs.%s failed", name)
            await _refuse(request, UNEXPECTED, f"Jobs.{name} failed; see the log.")

    # -- reads ---------------------------------------------------------------------------------

    async def _health(self, _: Input) -> dict[str, Any]:
        health = await self._engine.health()
        return {"status": "ok", "engine": health.engine, "durability": health.durability}

    async def _list_services(self, given: Input) -> dict[str, Any]:
        await self._answers.catch_up()
        now = await self._engine.now()
        heard = await self._projection.presences(now - FRESH)
        services: dict[str, list[Presence]] = {}
        for each in heard:
            services.setdefault(each.service, []).append(each)
        entries = [_service_info(name, each) for name, each in sorted(services.items())]
        offset, limit = _window(given)
        return _page(entries[offset : offset + limit], len(entries), offset, limit)

    async def _list(self, given: Input) -> dict[str, Any]:
        return await self._jobs(given, _states(given.get("state")))

    async def _list_dlq(self, given: Input) -> dict[str, Any]:
        return await self._jobs(given, (State.DEAD,))

    async def _jobs(self, given: Input, states: tuple[State, ...]) -> dict[str, Any]:
        where = JobFilter(
            services=_names(given, "service"),
            types=_names(given, "type"),
            states=states,
            created_from=_since(given.get("since")),
        )
        offset, limit = _window(given)
        await self._answers.catch_up()
        count = (await self._tables.count(where)).total
        found = await self._from(where, offset, limit) if offset < count else []
        return _page(await wire_jobs(self._tables, found), count, offset, limit)

    async def _from(self, where: JobFilter, offset: int, limit: int) -> list[JobRecord]:
        """Return a page by its offset; pages of the projection have cursors."""
        after, skipped = None, 0
        while skipped < offset:
            size = min(LARGEST, offset - skipped)
            page = await self._tables.find(where, after=after, limit=size)
            skipped, after = skipped + len(page.jobs), page.next_after
            if after is None:
                return []
        return list((await self._tables.find(where, after=after, limit=limit)).jobs)

    async def _get(self, given: Input) -> dict[str, Any]:
        return {"job": await self._shown(_id(given))}

    async def _shown(self, job_id: JobId) -> dict[str, Any]:
        """Return a job by the projection, or by the engine if the projection is behind."""
        sources = (self._tables, self._engine)
        for source in sources if await self._answers.catch_up() else sources[1:]:
            record = (await source.load([job_id])).records[0]
            if record is not None:
                job = await wire_job(source, record)
                return job | await wire_policy(source, self._store, record)
        raise JobNotFound(f"There is no job {job_id}.", job_id=job_id)

    async def _get_key(self, given: Input) -> dict[str, Any]:
        service, name, key = (_text(given, each) for each in ("service", "type", "key"))
        await self._answers.catch_up()
        found = await wire_key(self._tables, self._engine, self._store, (service, name, key))
        if found is not None:
            return found
        raise JobNotFound(f"No job of {service}/{name} holds the key {key!r} or waits for it.")

    # -- changes -------------------------------------------------------------------------------

    async def _change(self, given: Input, change: Change) -> dict[str, Any]:
        job_id = _id(given)
        await change(self._engine, job_id, _ACTOR)
        return {"job": await self._shown(job_id)}


async def _cancel(engine: Engine, job_id: JobId, by: By) -> JobRecord:
    return await control.cancel(engine, job_id, by.reason, actor=by.actor)


# -- input and output --------------------------------------------------------------------------


def _read(body: bytes) -> Input:
    try:
        given = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Invalid(f"The input is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise Invalid("The input must be a JSON object.")
    return given


def _check(given: Input, *known: str) -> None:
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise Invalid(f"Unknown: {', '.join(unknown)}. Known are: {', '.join(known) or 'none'}.")


def _text(given: Input, name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise Invalid(f"{name!r} must be a text.")
    if len(value) > _LONGEST or storable(value) != value:
        raise Invalid(
            f"{name!r} must have at most {_LONGEST:,} characters, without NUL and surrogates."
        )
    return value


def _id(given: Input) -> JobId:
    return JobId(_text(given, "id"))


def _names(given: Input, name: str) -> tuple[str, ...]:
    return () if given.get(name) is None else (_text(given, name),)


def _states(value: object) -> tuple[State, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Invalid("'state' must be a list of states.")
    try:
        return tuple(State(each) for each in value)
    except ValueError as error:
        raise Invalid(f"{error}. Known are: {', '.join(State)}.") from error


def _since(value: object) -> Instant | None:
    if value is None:
        return None
    moment = None
    if _RFC_3339.fullmatch(str(value)):
        with suppress(ValueError):  # such as the 31st of February
            moment = datetime.fromisoformat(str(value))
    if moment is None:
        raise Invalid(f"since={value!r} is no RFC 3339 moment, such as 2030-01-31T09:00:00Z.")
    return to_instant(moment)


def _window(given: Input) -> tuple[int, int]:
    offset, limit = given.get("offset", 0), given.get("limit")
    for name, value, least in (("offset", offset, 0), ("limit", limit, 1)):
        if type(value) is not int or value < least:
            raise Invalid(f"{name!r} must be a whole number from {least} on.")
    return int(offset), min(int(limit or 1), LARGEST)


def _page(entries: list[dict[str, Any]], count: int, offset: int, limit: int) -> dict[str, Any]:
    page: dict[str, Any] = {"entries": entries, "count": count, "offset": offset, "limit": limit}
    if offset + len(entries) < count and entries:
        page["nextOffset"] = offset + len(entries)
    return page


def _service_info(name: str, heard: list[Presence]) -> dict[str, Any]:
    workers = [
        {
            "jobType": each.type, "instanceId": each.instance, "heartbeatAt": iso(each.at),
            "concurrency": each.concurrency, "version": each.version,
        }
        for each in heard
    ]  # fmt: skip
    return {"service": name, "jobTypes": sorted({each.type for each in heard}), "workers": workers}


def _written(answer: dict[str, Any], most: int) -> bytes:
    body, room = written(answer), most - _HEADERS
    if len(body) > room and "job" in answer:  # which has changed already, perhaps
        body = written(answer | {"job": shortened(answer["job"], len(body) - room)})
    if len(body) > room:
        raise Invalid(
            f"The answer has {len(body):,} bytes, and the NATS server takes {most:,}. Ask for "
            "fewer entries with limit."
        )
    return body


async def _refuse(request: Request, refusal: Refusal, text: str) -> None:
    body = {"error": {"type": refusal.type, "message": text}}
    await request.respond_error(refusal.code, header_text(text), json.dumps(body).encode())
