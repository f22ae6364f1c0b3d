"""Opening an admin runtime at a NATS URL, with a projection in a SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

from trellis.admin.runtime import AdminRuntime
from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.url import deployment_of
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.errors import ConfigurationError

#: Where the projection is unless another path is given.
DEFAULT_PATH: Final = "/var/lib/trellis/jobs.sqlite"
#: The variable with another path.
PATH_VARIABLE: Final = "TRELLIS_JOBS_DB_PATH"


def _check_folder(path: str) -> None:
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise ConfigurationError(
            f"There is no folder {folder} for the projection. Create it, or name another file with "
            f"--projection or {PATH_VARIABLE}."
        )


@asynccontextmanager
async def admin_runtime(url: str, path: str, *, changes: bool) -> AsyncIterator[AdminRuntime]:
    """Run an admin runtime; without `changes` it only projects and answers."""
    servers, prefix = deployment_of(url)
    _check_folder(path)
    engine = cast("Engine", JetStreamEngine(servers, prefix=prefix))
    tables = SqliteEngine(path)
    await engine.open()
    try:
        await tables.open()
        try:
            link, subjects = Link(servers.split(",")), Subjects(prefix)
            async with AdminRuntime(link, subjects, tables, engine if changes else None) as runtime:
                yield runtime
        finally:
            await tables.close()
    finally:
        await engine.close()
