"""`trellis enqueue`: create a job through the type that the app declares.

Without the app the type is unknown. The job then gets the queue and policies of the newest job of
the type, so that its key and retries work as usual. A type without any job is refused, because a
job of a misspelt type would wait forever.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from trellis.cli.app import OK, engine_at, operator_at, resolve_url
from trellis.cli.options import debug_option, json_option, url_only_option
from trellis.cli.output import Form, complain, safe_json, write_json, write_line
from trellis.core.json_text import parse_json_text
from trellis.core.states import SUCCEEDED
from trellis.errors import ConfigurationError, PayloadInvalid

if TYPE_CHECKING:
    from trellis.client.requests import CreateOptions
    from trellis.core.durations import Duration
    from trellis.engines.port import Engine
    from trellis.operations.creation import Creation, KnownType

#: A pod of a CronJob: the name of the CronJob, the scheduled minute, five letters.
_CRON_POD: Final = re.compile(r"(?P<name>.+)-(?P<minute>\d{8,9})-[a-z0-9]{5}")
#: A number that is no minute of these days belongs to another kind of pod.
_CRON_POD_AGE: Final = timedelta(days=7)
#: Letters of the digest of a payload in the key of a slot.
_DIGEST_LENGTH: Final = 16


@click.command("enqueue")
@click.argument("type_name", metavar="TYPE")
@click.argument("payload", metavar="[PAYLOAD]", required=False)
@click.option("--app", metavar="MODULE:SERVICE", multiple=True, help="The service of the type.")
@click.option("--delay", metavar="DURATION", help="Start this long after creation: 10m.")
@click.option("--at", metavar="WHEN", help="Start not before: 'tomorrow 09:00', 2030-01-31T09:00.")
@click.option(
    "--priority", type=click.IntRange(-4, 4), metavar="N", default=0, help="-4 last, 4 first (0)."
)
@click.option("--queue", metavar="NAME", help="The queue it waits in (that of its type).")
@click.option("--tenant", metavar="NAME", help="Whose share of the queue it uses.")
@click.option("--attempts", type=click.IntRange(1), metavar="N", help="Instead of its type's.")
@click.option("--timeout", metavar="DURATION", help="Of one attempt, instead of its type's.")
@click.option("--deadline", metavar="WHEN", help="Expire if it has not ended by then: 1h.")
@click.option(
    "--dedupe", metavar="KEY", help="Create nothing while a job with this key is pending."
)
@click.option(
    "--dedupe-while",
    type=click.Choice(["pending", "unfinished"]),
    help="Until its first start (pending), or until it has ended.",
)
@click.option("--dedupe-for", metavar="DURATION", help="So long after its creation: 1h.")
@click.option("--idempotency-key", metavar="KEY", help="Every call with it returns the same job.")
@click.option(
    "--slot",
    metavar="auto|TEXT",
    help="For cron: every call for the same slot returns the same job. auto: this minute.",
)
@click.option("--tag", "tags", metavar="NAME=VALUE", multiple=True, help="A label; repeatable.")
@click.option("--config", metavar="JSON", help="The configuration it is about; or @file, or -.")
@click.option(
    "--expect", metavar="FINGERPRINT|ID", help="The configuration that its handler must find."
)
@click.option(
    "--wait",
    metavar="[DURATION]",
    is_flag=False,
    flag_value="",
    help="Wait for the result, at most this long; the exit code is that of `jobs wait`.",
)
@click.option("-q", "--quiet", is_flag=True, help="Write only the id.")
@json_option
@url_only_option
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
    service/type: the contract that workers of the service have stored stands for it, else the
    newest job of that type.
    """
    import asyncio

    if quiet and as_json:
        raise click.UsageError("Use only one of --json and --quiet.")
    form = Form.QUIET if quiet else Form.JSON if as_json else Form.TABLE
    text = None if payload is None else payload_text(payload)
    created_with = _create_options(text, **options)

    async def work() -> int:
        async with _find_type(type_name, app, url) as (known, engine, jobs_url):
            if known.template is not None:
                complain(
                    f"No app is given: {type_name} gets the queue and policies of job "
                    f"{known.template}, and its payload is not checked."
                )
            created = await _create(engine, known, text, created_with)
        if not created.is_new:
            complain(
                f"No new job was created: job {created.job_id} already exists for this request."
            )
        return await _write_result(created.job_id, jobs_url, wait, form)

    return asyncio.run(work())


# -- options and payload -------------------------------------------------------------------------


def _create_options(
    payload: str | None,
    *,
    at: str | None,
    deadline: str | None,
    tags: Sequence[str],
    config: str | None,
    slot: str | None,
    **others: Any,  # noqa: ANN401 - the options that `create` takes as they are written
) -> CreateOptions:
    """Return the options of `create` for the options of the command line."""
    from trellis.client.requests import CreateOptions
    from trellis.insight.time_expressions import parse_moment

    now = datetime.now(UTC)
    options = CreateOptions(tags=_tags(tags))
    given: Any = {name: value for name, value in others.items() if value is not None}
    options.update(given)
    if slot is not None:
        if "idempotency_key" in options:
            raise click.UsageError("--slot makes the idempotency key; leave --idempotency-key out.")
        options["idempotency_key"] = slot_key(slot, os.environ.get("HOSTNAME", ""), now, payload)
    if at is not None:
        moment = _moment(at, now)
        if isinstance(moment, datetime) or "delay" in options:
            options["at"] = parse_moment(at, now, "future")
        else:
            options["delay"] = moment
    if deadline is not None:
        options["deadline"] = _moment(deadline, now)
    if config is not None:
        options["config"] = parse_json_text(payload_text(config), "config")
    return options


def slot_key(slot: str, hostname: str, now: datetime, payload: str | None = None) -> str:
    """Return the idempotency key of one start by an external cron.

    The name of the Job of a Kubernetes CronJob, and so the name of its pods, ends in the scheduled
    minute, counted from the Unix epoch: a pod that is started again means the same slot. Elsewhere
    `auto` is the present minute and the payload: two lines of one crontab may create jobs of one
    type with different payloads in the same minute.

    >>> slot_key("auto", "report-29000000-x7x2k", datetime(2025, 2, 20, 22, tzinfo=UTC))
    'slot/report/2025-02-19T21:20Z'
    """
    if slot != "auto":
        return f"slot/{slot}"
    pod = _CRON_POD.fullmatch(hostname)
    if pod is not None:
        scheduled = datetime.fromtimestamp(int(pod["minute"]) * 60, UTC)
        if abs(scheduled - now) < _CRON_POD_AGE:
            return f"slot/{pod['name']}/{scheduled:%Y-%m-%dT%H:%MZ}"
    minute = f"slot/{now:%Y-%m-%dT%H:%MZ}"
    if payload is None:
        return minute
    text = json.dumps(parse_json_text(payload), sort_keys=True)
    return f"{minute}/{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def _moment(text: str, now: datetime) -> Duration | datetime:
    """Return a duration unchanged, because the engine's clock counts it; else the moment."""
    from trellis.core.durations import micros
    from trellis.insight.time_expressions import parse_moment

    if text.strip().lower() == "now":
        return "0s"
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


def payload_text(written: str) -> str:
    """Return the JSON text that an argument names: itself, `@file` or `-` for stdin."""
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


# -- the job type --------------------------------------------------------------------------------


@asynccontextmanager
async def _find_type(
    type_name: str, app: Sequence[str], url: str | None
) -> AsyncIterator[tuple[KnownType, Engine, str]]:
    """Find the type, and the engine of its jobs with its URL: `--url`, else that of its service."""
    from trellis.cli.loading import load_services
    from trellis.config import environment
    from trellis.declaration.imports import prepare_project
    from trellis.operations.creation import declared_type, known_type

    prepare_project()
    if not app and not environment().get("TRELLIS_APP"):
        url = resolve_url(url)
        _refuse_in_process(url)
        async with operator_at(url) as jobs:
            yield await known_type(jobs.engine, type_name), jobs.engine, url
        return
    services = load_services(app or None)
    found = declared_type(type_name, [each for one in services for each in one.job_types])
    service = next(one for one in services if found.job_type in one.job_types)
    if url is not None:
        service.connection.point_at(url)
    _refuse_in_process(service.url)
    yield found, await service.connection.engine(), service.url


def _refuse_in_process(url: str) -> None:
    if not engine_at(url).capabilities.processes:
        raise ConfigurationError(
            f"Jobs at {url} exist only in the process that creates them, so this one would be lost "
            "when the command ends. Use a sqlite:/// URL."
        )


async def _create(
    engine: Engine, known: KnownType, payload: str | None, options: CreateOptions
) -> Creation:
    from trellis.operations.creation import create

    try:
        return await create(engine, known.job_type, payload, options)
    except PayloadInvalid as error:
        if payload is not None:
            raise
        raise PayloadInvalid(
            f"{error} Give it as JSON after the type, as @file, or as - for stdin."
        ) from error


# -- the result ----------------------------------------------------------------------------------


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
