"""The engine of programs that reach the jobs through a server.

Its verbs are made from the port, each as one request. It keeps nothing but connections: leases,
fences and versions are judged by the engine behind the server, and every decision about a job is
made there again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache, wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn, cast

from trellis.core.job import NewJob, SessionId
from trellis.core.lifecycle import Transition
from trellis.core.schedules import Schedule, Step
from trellis.engines.audit import OPERATOR, By, Change
from trellis.engines.capabilities import Capabilities
from trellis.engines.demand import Demand
from trellis.engines.http.address import server_address
from trellis.engines.http.protocol import VERBS, Hello, Hinted, Marks, decided, wanted
from trellis.engines.http.transport import Transport
from trellis.engines.instrumented import verbs
from trellis.engines.port import Engine
from trellis.engines.schedules import SlotRecord
from trellis.engines.values import (
    Claimed,
    CommitResult,
    CreateResult,
    Migration,
    Topic,
)
from trellis.errors import EngineClosed, TransactionRefused

_UNOPENED: Final = Capabilities(
    durable=True, processes=True, boot_clock=False, caller_transactions=False
)


def http_engine(url: str) -> Engine:
    """Return an engine for the server at a URL, not yet opened."""
    return cast("Engine", HttpEngine(url))


class HttpEngine:
    """Speaks for the engine behind a server; see `port.Engine` for the verbs."""

    def __init__(self, url: str) -> None:
        self._address = server_address(url)
        self._transport: Transport | None = None
        self._ended = asyncio.Event()
        self._capabilities = _UNOPENED
        #: What was claimed last, as service/type.
        self._wanted: tuple[str, ...] = ()

    @property
    def capabilities(self) -> Capabilities:
        """What the engine behind the server can do; a caller's transaction cannot be joined."""
        return self._capabilities

    async def open(self) -> None:
        """Check that the server answers, accepts the token and speaks the same protocol."""
        if self._transport is not None:
            return
        self._ended = asyncio.Event()
        self._transport = Transport(self._address, _version())
        try:
            hello: Hello = await self._call("hello")
        except BaseException:
            await self.close()
            raise
        self._capabilities = hello.capabilities._replace(
            transactions=False, one_writer=False, caller_transactions=False
        )

    async def close(self) -> None:
        """Close the connections; calls that still wait raise `EngineClosed`."""
        transport, self._transport = self._transport, None
        self._ended.set()
        if transport is not None:
            await transport.close()

    async def _call(self, verb: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401
        transport = self._transport
        if transport is None:
            raise _closed(self._address.url)
        request = VERBS[verb]
        try:
            return await transport.call(request, request.write(*arguments, **options))
        except Exception as error:
            if self._transport is not transport:
                raise _closed(self._address.url) from error
            raise

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Claim jobs."""
        self._wanted = tuple(f"{each.service}/{name}" for each in demands for name in each.types)
        claimed: Claimed = await self._call("claim", session, demands, limit)
        return claimed

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Send the commands of these decisions; the server decides again and stores the result."""
        answers: list[CommitResult] = await self._call("commit", [decided(t) for t in transitions])
        return answers

    async def advance_schedule(
        self, step: Step, change: Change | None = None, by: By = OPERATOR
    ) -> list[SlotRecord] | None:
        """Send the schedule as it shall be; the server decides the step and stores its own."""
        action = None if change is None else change.action
        records: list[SlotRecord] | None = await self._call(
            "advance_schedule", wanted(step), action, by
        )
        return records

    async def run_schedule(self, schedule: Schedule, new: NewJob, by: By) -> CreateResult | None:
        """Send which schedule shall create a job; the server makes the job."""
        service, name, version = schedule.service, schedule.name, schedule.version
        answer: CreateResult | None = await self._call(
            "run_schedule", service, name, version, new.id, by
        )
        return answer

    async def migrate(self, *, dry_run: bool = False, by: By | None = None) -> Migration:
        """Let the server migrate its database; as with other engines, it need not be open."""
        was_open = self._transport is not None
        await self.open()
        try:
            answer: Migration = await self._call("migrate", dry_run=dry_run, by=by)
        finally:
            if not was_open:
                await self.close()
        return answer

    async def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints, by one long poll after the other."""
        ended, marks = self._ended, Marks()
        closing = asyncio.ensure_future(ended.wait())
        poll: asyncio.Future[Hinted] | None = None
        try:
            while not ended.is_set():
                poll = asyncio.ensure_future(self._call("watch", topics, marks, self._wanted))
                await asyncio.wait({poll, closing}, return_when=asyncio.FIRST_COMPLETED)
                if ended.is_set():
                    return
                found, marks = await poll
                for topic in found:
                    yield topic
        finally:
            for task in (poll, closing):
                if task is not None:
                    task.cancel()
            await asyncio.gather(
                *(task for task in (poll, closing) if task is not None), return_exceptions=True
            )

    def create_within(self, connection: object, jobs: Sequence[NewJob]) -> NoReturn:
        """Refuse: the caller's transaction is in a database that the server does not share."""
        del connection, jobs
        raise TransactionRefused(
            f"Jobs at {self._address.url} cannot be created in a transaction of yours: this "
            "program reaches them through a server. Leave out tx=, or use the URL of the database."
        )


def _closed(url: str) -> EngineClosed:
    return EngineClosed(f"The connection to {url} is closed. Open the service again.")


@cache
def _version() -> str:
    try:
        return version("trellis-jobs")
    except PackageNotFoundError:
        return "unknown"


def _remote(verb: str, declared: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @wraps(declared)
    async def method(self: HttpEngine, *arguments: object, **options: object) -> Any:  # noqa: ANN401
        return await self._call(verb, *arguments, **options)

    return method


for _name, _declared in verbs().items():
    if _name not in vars(HttpEngine):
        setattr(HttpEngine, _name, _remote(_name, _declared))
