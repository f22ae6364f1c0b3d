"""Creating a job from the command line; `operations.creation` finds the type and creates it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trellis.cli.awaiting import document, exit_code, wait_for_each
from trellis.cli.escaping import safe_json
from trellis.cli.exits import OK, complain
from trellis.cli.loading import load_services
from trellis.cli.options import engine_at, resolve_url
from trellis.cli.place import operator_at
from trellis.cli.writing import Form, write_json, write_line
from trellis.client.requests import CreateOptions
from trellis.config import environment
from trellis.core.durations import Span, micros
from trellis.core.json_text import parse_json_text
from trellis.core.states import SUCCEEDED
from trellis.declaration.imports import prepare_project
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError, PayloadInvalid
from trellis.insight.time_expressions import parse_moment
from trellis.operations.creation import Creation, KnownType, create, declared_type, stored_type


def enqueue(
    *,
    type_name: str,
    payload: str | None,
    app: Sequence[str],
    url: str | None,
    wait: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,  # noqa: ANN401 - the options of `create_options`
) -> int:
    """Create a job; return the exit code."""
    given = create_options(**options)
    text = None if payload is None else _payload_text(payload)

    async def work() -> int:
        async with _found(type_name, app, url) as (known, engine, place):
            if known.template is not None:
                complain(
                    f"Without the app, {type_name} is created as {known.template} was; its "
                    "payload is not checked."
                )
            made = await _create(engine, known, text, given)
        if not made.is_new:
            complain(f"Nothing new: job {made.job_id} already stands for this.")
        form = Form.QUIET if quiet else Form.JSON if as_json else Form.TABLE
        return await _tell(made.job_id, place, wait, form)

    return asyncio.run(work())


async def _create(
    engine: Engine, known: KnownType, payload: str | None, options: CreateOptions
) -> Creation:
    try:
        return await create(engine, known.job_type, payload, options)
    except PayloadInvalid as error:
        if payload is not None:
            raise
        raise PayloadInvalid(
            f"{error} Give it as JSON after the type, as @file, or as - for stdin."
        ) from error


def create_options(
    *,
    delay: str | None,
    at: str | None,
    priority: int,
    deadline: str | None,
    dedupe: str | None,
    idempotency_key: str | None,
    tags: Sequence[str],
) -> CreateOptions:
    """Return what is said about the job, read from what people write."""
    now = datetime.now(UTC)
    options = CreateOptions(priority=priority, tags=_tags(tags))
    if delay is not None:
        options["delay"] = delay
    if at is not None:
        options["at"] = parse_moment(at, now, "future")
    if deadline is not None:
        options["deadline"] = _deadline(deadline, now)
    if dedupe is not None:
        options["dedupe"] = dedupe
    if idempotency_key is not None:
        options["idempotency_key"] = idempotency_key
    return options


def _deadline(text: str, now: datetime) -> Span | datetime:
    """Return a span, which the engine counts, where one is written."""
    try:
        micros(text)
    except ConfigurationError:
        return parse_moment(text, now, "future")
    return text


def _tags(written: Sequence[str]) -> dict[str, str]:
    tags = {}
    for each in written:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"--tag {each} names no value. Write --tag name=value.")
        tags[name] = value
    return tags


def _payload_text(written: str) -> str:
    if written == "-":
        text = sys.stdin.read()
    elif written.startswith("@"):
        text = _file_text(Path(written[1:]))
    else:
        text = written
    try:
        parse_json_text(text)
    except PayloadInvalid as error:
        hint = f" A text needs quotes of its own: '\"{written}\"'." if written.isalpha() else ""
        raise PayloadInvalid(f"{error}{hint}") from error
    return text


def _file_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text.") from error


def _check_reach(url: str) -> None:
    if not engine_at(url).capabilities.processes:
        raise ConfigurationError(
            f"Jobs at {url} live in the process that makes them, so this one would be gone at "
            "once. Use a sqlite:/// URL."
        )


# -- the type ----------------------------------------------------------------------------------


@asynccontextmanager
async def _found(
    type_name: str, app: Sequence[str], url: str | None
) -> AsyncIterator[tuple[KnownType, Engine, str]]:
    """Find the type, and the engine of its jobs with its URL: --url, else the service's."""
    prepare_project()
    if not app and not environment().get("TRELLIS_APP"):
        place = resolve_url(url)
        _check_reach(place)
        async with operator_at(place) as jobs:
            yield await stored_type(jobs.engine, type_name), jobs.engine, place
        return
    services = load_services(app or None)
    found = declared_type(type_name, [each for one in services for each in one.job_types])
    service = next(one for one in services if found.job_type in one.job_types)
    if url is not None:
        service.connection.point_at(url)
    _check_reach(service.url)
    yield found, await service.connection.engine(), service.url


# -- the answer --------------------------------------------------------------------------------


async def _tell(job_id: str, url: str, wait: str | None, form: Form) -> int:
    if form is Form.QUIET or (form is Form.TABLE and wait is None):
        write_line(job_id)
        if wait is None:
            return OK
    async with operator_at(url) as jobs:
        if wait is None:
            write_json(await document(jobs, await jobs.get(job_id)))
            return OK
        if form is not Form.QUIET:
            complain(f"Job {job_id} was created; waiting for it.")
        ended = await wait_for_each(jobs, [job_id], wait or None)
        found = await document(jobs, ended[0] if ended else await jobs.get(job_id))
    if form is Form.JSON:
        write_json(found)
    elif form is Form.TABLE and found["state"] in SUCCEEDED:
        write_line(safe_json(found["result"], indent=2))
    return exit_code(ended, 1)
