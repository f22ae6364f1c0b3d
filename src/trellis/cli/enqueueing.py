"""Creating a job from the command line: through the type of the app, as the program itself would.

Without the app nobody here knows the type. Then the newest job of the type stands for it: its
queue and policies are used again, so that keys and retries hold as everywhere; a type of which no
job was ever seen is refused, because a misspelt one would wait for ever.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
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
from trellis.client.engine_access import EngineAccess
from trellis.client.job import Job
from trellis.client.requests import CreateOptions
from trellis.client.results import Answer, Coalesced, Rejected
from trellis.contract.declaration import JobType
from trellis.contract.project import prepare_project
from trellis.contract.settings_file import environment
from trellis.core.job import JobId
from trellis.core.jsontext import parse_json_text
from trellis.core.spans import Span, micros
from trellis.core.states import SUCCEEDED
from trellis.errors import ConfigurationError, PayloadInvalid, UnknownJobType
from trellis.insight.moments import parse_moment
from trellis.service import Service
from trellis.worker.inline import run_inline


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
    text = "null" if payload is None else _payload_text(payload)

    async def work() -> int:
        job, place = await _find_job(type_name, app, url)
        value = _value(job.job_type, text, is_given=payload is not None)
        answer = await job.submit(value, **given)
        form = Form.QUIET if quiet else Form.JSON if as_json else Form.TABLE
        return await _tell(_accepted(answer), place, wait, form)

    return asyncio.run(work())


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


def _value(job_type: JobType, text: str, *, is_given: bool) -> object:
    """Return the payload as the type has it."""
    if job_type.takes_nothing:
        return parse_json_text(text)  # anything but null is refused when it is written
    try:
        value: object = job_type.payload.decode(text)
    except PayloadInvalid as error:
        name = f"{job_type.service}/{job_type.name}"
        if is_given:
            raise type(error)(f"{name}: {error}") from error.__cause__
        raise PayloadInvalid(
            f"{name} takes a payload. Give it as JSON after the type, as @file, or as - for stdin."
        ) from error
    return value


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


async def _find_job(
    type_name: str, app: Sequence[str], url: str | None
) -> tuple[Job[Any, Any], str]:
    """Return the type and where its jobs are kept: by --url, else as its service says."""
    prepare_project()
    if not app and not environment().get("TRELLIS_APP"):
        place = resolve_url(url)
        _check_reach(place)
        return await _as_before(type_name, place), place
    service, name = _declaring(type_name, load_services(app or None))
    if url is not None:
        service.connection.point_at(url)
    _check_reach(service.url)
    return service.find(name), service.url


def _declaring(type_name: str, services: Sequence[Service]) -> tuple[Service, str]:
    """Return the one service that has the type, and the type's own name."""
    owner, _, name = type_name.rpartition("/")
    fitting = [
        service
        for service in services
        if not owner or service.name == owner
        if name in {each.name for each in service.job_types}
    ]
    if len(fitting) > 1:
        names = ", ".join(f"{service.name}/{name}" for service in fitting)
        raise ConfigurationError(
            f"{type_name!r} is a type of several services: {names}. Say which."
        )
    if not fitting:
        known = sorted(f"{each.service}/{each.name}" for one in services for each in one.job_types)
        raise UnknownJobType(
            f"There is no job type {type_name!r}, but: {', '.join(known) or 'none'}."
        )
    return fitting[0], name


async def _as_before(type_name: str, url: str) -> Job[Any, Any]:
    """Return the type as the newest job of it knows it."""
    service, _, name = type_name.rpartition("/")
    if not service:
        raise ConfigurationError(
            f"Which service has the type {type_name!r}? Name it with --app module:service, "
            "TRELLIS_APP or app in trellis.toml, or write service/type."
        )
    async with operator_at(url) as jobs:
        page = await jobs.find(service=service, type=name).page(limit=1)
        loaded = await jobs.engine.load([JobId(job.id) for job in page.jobs])
    record = next(iter(loaded.records), None)
    if record is None:
        raise UnknownJobType(
            f"No job of {type_name} was ever created here, so nothing is known about the type. "
            "Name its service with --app module:service."
        )
    newest = record.definition
    job_type = JobType(service, object, object, name=name, queue=newest.queue)
    job_type.policy = newest.policy
    complain(
        f"Without the app, {type_name} is created as {newest.id} was; its payload is not checked."
    )
    return Job(job_type, EngineAccess(url), run_inline)


# -- the answer --------------------------------------------------------------------------------


def _accepted(answer: Answer[Any]) -> str:
    if isinstance(answer, Rejected):
        raise answer.error
    if isinstance(answer, Coalesced):
        complain(f"Nothing new: job {answer.ref.id} already stands for this.")
    return answer.ref.id


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
