"""Opening an admin runtime at a NATS URL, with a projection in a SQLite file or in PostgreSQL.

A projection has only what the streams have. So a file that is damaged, or that a newer version of
Trellis has made, is set aside, and the projection is made again; jobs run on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

from trellis.admin.runtime import AdminRuntime
from trellis.config import environment, worker_settings
from trellis.engines import make_engine
from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.url import deployment_of
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.errors import (
    CapabilityMissing,
    ConfigurationError,
    DatabaseDamaged,
    EngineError,
    SchemaTooNew,
)

#: Where the projection is unless another path is given.
DEFAULT_PATH: Final = "/var/lib/trellis/jobs.sqlite"
#: The variable with another path, or a URL.
PATH_VARIABLE: Final = "TRELLIS_JOBS_DB_PATH"
#: What SQLite keeps beside a file.
_COMPANIONS: Final = ("-wal", "-shm")
#: Seconds until a runtime that could not be opened is opened again.
_AGAIN: Final = 5.0
_logger = logging.getLogger(__name__)


def place_of(given: str | None) -> str:
    """Return where the projection is: as given, else by the variable, else the default."""
    return given or os.environ.get(PATH_VARIABLE) or DEFAULT_PATH


def check_place(place: str) -> None:
    """Raise `ConfigurationError` if there is no folder for the file of a projection."""
    folder = Path(place).resolve().parent
    if "://" not in place and not folder.is_dir():
        raise ConfigurationError(
            f"There is no folder {folder} for the projection. Create it, or name another file with "
            f"--projection or {PATH_VARIABLE}."
        )


@asynccontextmanager
async def _tables(place: str) -> AsyncIterator[Engine]:
    """Open the database of the projection; a file that cannot be used is set aside."""
    if "://" in place:
        tables = make_engine(place)
        if not tables.capabilities.processes:
            raise CapabilityMissing("A projection in memory ends with its program; use a file.")
        await tables.open()
    else:
        check_place(place)
        tables = await _open_file(Path(place))
    try:
        yield tables
    finally:
        with suppress(EngineError):
            await tables.close()


async def _open_file(path: Path) -> Engine:
    tables = SqliteEngine(path)
    try:
        await tables.open()
        await tables.health()
    except (DatabaseDamaged, SchemaTooNew) as error:
        await tables.close()
        set_aside(path, error)
        tables = SqliteEngine(path)
        await tables.open()
    return tables


def set_aside(path: Path, error: EngineError) -> None:
    """Rename the file of a projection that cannot be used, in place of an earlier one."""
    kept = path.with_name(f"{path.name}.aside")
    _logger.warning(
        "The projection cannot be used: %s It is kept as %s, and made again from the first "
        "message; lists are not complete until then, and jobs run on.", error, kept,
    )  # fmt: skip
    for ending in ("", *_COMPANIONS):
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).replace(kept.with_name(kept.name + ending))


@asynccontextmanager
async def admin_runtime(url: str, place: str, *, changes: bool) -> AsyncIterator[AdminRuntime]:
    """Run an admin runtime; without `changes` it only projects and answers."""
    servers, prefix, service, _ = deployment_of(url)
    if service is not None:
        raise ConfigurationError(
            f"The admin runtime works for all services. Remove service={service} from the URL, and "
            "use a user with the permissions of `trellis nats permissions --admin`."
        )
    keep = worker_settings(environment()).keep_audit
    async with _tables(place) as tables:
        engine = cast("Engine", JetStreamEngine(servers, prefix=prefix))
        await engine.open()
        try:
            link, subjects = Link(servers.split(",")), Subjects(prefix)
            changing = engine if changes else None
            async with AdminRuntime(link, subjects, tables, changing, keep_audit=keep) as runtime:
                yield runtime
        finally:
            await engine.close()


async def serve(url: str, place: str, ended: asyncio.Event, is_ready: Callable[[], None]) -> None:
    """Run admin runtimes until ended; a further one if one could not go on."""
    while not ended.is_set():
        async with admin_runtime(url, place, changes=True) as runtime:
            identity = _identity(place)
            is_ready()
            await _first(ended.wait(), runtime.failed())
            failure = runtime.failure
        if isinstance(failure, DatabaseDamaged):
            # Another program may have set it aside before: then there is a new file.
            if _identity(place) == identity is not None:
                set_aside(Path(place), failure)
        elif failure is not None and not isinstance(failure, EngineError):
            await _pause(ended)


@asynccontextmanager
async def hosted(url: str, place: str) -> AsyncIterator[None]:
    """Run admin runtimes beside a program of another kind, which does not depend on them."""
    ended, ready, entered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def keep() -> None:
        while not ended.is_set():
            try:
                await serve(url, place, ended, ready.set)
            except EngineError as error:
                _logger.warning("The admin runtime waits: %s", error)
                await _pause(ended)
            except Exception:
                if not entered.is_set():
                    raise  # what must be corrected first, such as another file
                _logger.exception("The admin runtime has failed, and is opened again")
                await _pause(ended)

    task = asyncio.create_task(keep(), name="trellis-admin")
    try:
        await _first(ready.wait(), asyncio.wait({task}), asyncio.sleep(_AGAIN))
        if task.done():
            await task
        entered.set()
        yield
    finally:
        ended.set()
        await task


async def _pause(ended: asyncio.Event) -> None:
    """Wait until it is time to open a runtime again, or all is ended."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_AGAIN):
            await ended.wait()


def _identity(place: str) -> int | None:
    try:
        return None if "://" in place else Path(place).stat().st_ino
    except FileNotFoundError:
        return None


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
