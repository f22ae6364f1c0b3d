"""`trellis enqueue`: create a job through the type that the app declares.

Without the app the type is unknown. The job then gets the queue and policies of the newest job of
the type, so that its key and retries work as usual. A type without any job is refused, because a
job of a misspelt type would wait forever.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.app import OK, engine_at, operator_at, resolve_url
from trellis.cli.filters import debug_option, json_option, url_option
from trellis.cli.output import Form, complain, safe_json, write_json, write_line
from trellis.core.json_text import parse_json_text
from trellis.core.states import SUCCEEDED
from trellis.errors import ConfigurationError, PayloadInvalid, UnknownJobType

if TYPE_CHECKING:
    from trellis.client.answers import Answer
    from trellis.client.job import Job
    from trellis.client.options import CreateOptions
    from trellis.core.durations import Span
    from trellis.declaration.job_type import JobType
    from trellis.service import Service


@click.command("enqueue")
@click.argument("type_name", metavar="TYPE")
@click.argument("payload", metavar="[PAYLOAD]", required=False)
@click.option("--app", metavar="MODULE:SERVICE", multiple=True, help="The service of the type.")
@click.option("--delay", metavar="DURATION", help="Start this long after creation: 10m.")
@click.option("--at", metavar="WHEN", help="Start not before: 'tomorrow 09:00', 2030-01-31T09:00.")
@click.option(
    "--priority", type=click.IntRange(-4, 4), metavar="N", default=0, help="-4 last, 4 first (0)."
)
@click.option("--deadline", metavar="WHEN", help="Expire if it has not ended by then: 1h.")
@click.option("--dedupe", metavar="KEY", help="Create nothing while a job with this key waits.")
@click.option("--idempotency-key", metavar="KEY", help="Every call with it returns the same job.")
@click.option("--tag", "tags", metavar="NAME=VALUE", multiple=True, help="A label; repeatable.")
@click.option(
    "--wait",
    metavar="[DURATION]",
    is_flag=False,
    flag_value="",
    help="Wait for the result, at most this long; the exit code is that of `jobs wait`.",
)
@click.option("-q", "--quiet", is_flag=True, help="Write only the id.")
@json_option
@url_option
@debug_option
def enqueue(
    *,
    type_name: str,
    payload: str | None,
    app: Sequence[str],
    url: str | None,
    wait: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,  # noqa: ANN401 - the options of `_create_options`
) -> int:
    """Create a job of TYPE and write its id.

    TYPE is a type of the app (`greet`, or `shop/greet` where several services have it). PAYLOAD is
    JSON, `@file` to read it from a file, or `-` for stdin; it is checked by the type. The app comes
    from --app, TRELLIS_APP or `app` in trellis.toml or pyproject.toml. Without any, TYPE must be
    service/type, and the job gets the policies of the newest job of that type.
    """
    import asyncio

    if quiet and as_json:
        raise click.UsageError("Use only one of --json and --quiet.")
    form = Form.QUIET if quiet else Form.JSON if as_json else Form.TABLE
    created_with = _create_options(**options)
    text = "null" if payload is None else _payload_text(payload)

    async def work() -> int:
        job, jobs_url = await _find_job(type_name, app, url)
        value = _decode(job.job_type, text, is_given=payload is not None)
        answer = await job.submit(value, **created_with)
        return await _write_result(_accepted_id(answer), jobs_url, wait, form)

    return asyncio.run(work())


# -- options and payload -------------------------------------------------------------------------


def _create_options(
    *,
    delay: str | None,
    at: str | None,
    priority: int,
    deadline: str | None,
    dedupe: str | None,
    idempotency_key: str | None,
    tags: Sequence[str],
) -> CreateOptions:
    """Return the options of `create` for the options of the command line."""
    from trellis.client.options import CreateOptions
    from trellis.insight.moments import parse_moment

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
    """Return a duration unchanged, because the engine's clock counts it; else the moment."""
    from trellis.core.durations import micros
    from trellis.insight.moments import parse_moment

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
            raise ConfigurationError(f"--tag {each} has no value. Write --tag name=value.")
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
        hint = f" A JSON string needs double quotes: '\"{written}\"'." if written.isalpha() else ""
        raise PayloadInvalid(f"{error}{hint}") from error
    return text


def _file_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text.") from error


def _decode(job_type: JobType, text: str, *, is_given: bool) -> object:
    """Return the payload as a value of the type."""
    if job_type.takes_nothing:
        return parse_json_text(text)  # anything but null is refused when the job is created
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


# -- the job type --------------------------------------------------------------------------------


async def _find_job(
    type_name: str, app: Sequence[str], url: str | None
) -> tuple[Job[Any, Any], str]:
    """Return the type and the URL of its jobs: `--url`, else that of its service."""
    from trellis.cli.loading import load_services
    from trellis.config import environment
    from trellis.declaration.imports import prepare_project

    prepare_project()
    if not app and not environment().get("TRELLIS_APP"):
        url = resolve_url(url)
        _refuse_in_process(url)
        return await _newest_as_type(type_name, url), url
    service, name = _declaring_service(type_name, load_services(app or None))
    if url is not None:
        service.connection.point_at(url)
    _refuse_in_process(service.url)
    return service.find(name), service.url


def _refuse_in_process(url: str) -> None:
    if not engine_at(url).capabilities.processes:
        raise ConfigurationError(
            f"Jobs at {url} exist only in the process that creates them, so this one would be lost "
            "when the command ends. Use a sqlite:/// URL."
        )


def _declaring_service(type_name: str, services: Sequence[Service]) -> tuple[Service, str]:
    """Return the one service that declares the type, and the type's name without its service."""
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
            f"Several services have the type {type_name!r}. Write one of: {names}."
        )
    if not fitting:
        known = sorted(f"{each.service}/{each.name}" for one in services for each in one.job_types)
        raise UnknownJobType(
            f"There is no job type {type_name!r}. Known types: {', '.join(known) or 'none'}."
        )
    return fitting[0], name


async def _newest_as_type(type_name: str, url: str) -> Job[Any, Any]:
    """Return a type with the queue and policies of its newest job."""
    from trellis.client.connection import Connection
    from trellis.client.job import Job
    from trellis.core.job import JobId
    from trellis.declaration.job_type import JobType
    from trellis.worker.handler_call import run_inline

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
            f"There is no job of {type_name} here, so its queue and policies are unknown. "
            "Name its service with --app module:service."
        )
    newest = record.definition
    job_type = JobType(service, object, object, name=name, queue=newest.queue)
    job_type.policy = newest.policy
    complain(
        f"No app is given: {type_name} gets the queue and policies of job {newest.id}, and its "
        "payload is not checked."
    )
    return Job(job_type, Connection(url), run_inline)


# -- the result ----------------------------------------------------------------------------------


def _accepted_id(answer: Answer[Any]) -> str:
    from trellis.client.answers import Coalesced, Rejected

    if isinstance(answer, Rejected):
        raise answer.error
    if isinstance(answer, Coalesced):
        complain(f"No new job was created: job {answer.ref.id} already exists for this request.")
    return answer.ref.id


async def _write_result(job_id: str, url: str, wait: str | None, form: Form) -> int:
    """Write the id, or wait for the job and write its result; return the exit code."""
    from trellis.cli.jobs import exit_code, job_document, wait_for_each

    if form is Form.QUIET or (form is Form.TABLE and wait is None):
        write_line(job_id)
        if wait is None:
            return OK
    async with operator_at(url) as jobs:
        if wait is None:
            write_json(await job_document(jobs, await jobs.get(job_id)))
            return OK
        if form is not Form.QUIET:
            complain(f"Job {job_id} was created; waiting for it.")
        ended = await wait_for_each(jobs, [job_id], wait or None)
        found = await job_document(jobs, ended[0] if ended else await jobs.get(job_id))
    if form is Form.JSON:
        write_json(found)
    elif form is Form.TABLE and found["state"] in SUCCEEDED:
        write_line(safe_json(found["result"], indent=2))
    return exit_code(ended, 1)
