"""`trellis queues set` and `trellis queues limits`: limits of queues and types over all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.app import operate
from trellis.cli.options import debug_option, form_options, json_option, reason_option, url_option
from trellis.cli.output import Column, Form, complain, write_each, write_json, write_table

if TYPE_CHECKING:
    from datetime import datetime

    from trellis.insight.limits import LimitView
    from trellis.operations.operator import Operator


def limit_in_words(limit: LimitView) -> str:
    """Return a limit with its use: `5 of 5 at a time, 100 per 1m`."""
    if limit.active is None:
        return limit.text
    return f"{limit.running} of {limit.text}"


@click.command("set")
@click.argument("name", metavar="SERVICE/QUEUE")
@click.option("--type", "is_type", is_flag=True, help="Limit a type: the name is SERVICE/TYPE.")
@click.option("--per-key", is_flag=True, help="Set the rate of each key of a type: SERVICE/TYPE.")
@click.option("--concurrency", metavar="N|none", help="How many may run at a time.")
@click.option("--rate", metavar="N/TIME|none", help="How many may start per time: 100/1m.")
@click.option("--burst", metavar="N", type=int, help="How many of a rate may start at once.")
@click.option("--reset", is_flag=True, help="Let the limit that the code declares count again.")
@reason_option
@json_option
@url_option
@debug_option
def set_command(**given: Any) -> None:  # noqa: ANN401 - click's shape
    """Limit a queue, a type, or each key of a type, over all workers.

    What is set here counts at once, instead of the limit that the code declares, until --reset.
    Jobs that run are not stopped: below a lowered limit nothing starts until enough have ended.
    """
    from trellis.insight.views import as_json as document

    if given["is_type"] and given["per_key"]:
        raise click.UsageError("--type limits all jobs of a type, --per-key those of each key.")
    kind = "per_key" if given["per_key"] else "type" if given["is_type"] else "queue"
    names = {kind: given["name"]}
    reason = given["reason"]
    parts = _parts(given)
    if given["reset"] and parts:
        raise click.UsageError("--reset lifts what was set; leave the other options out.")

    async def work(jobs: Operator) -> LimitView:
        if given["reset"]:
            return await jobs.reset_limit(**names, reason=reason)
        return await jobs.set_limit(**names, **parts, reason=reason)

    limit = operate(given["url"], work)
    if given["as_json"]:
        write_json(document(limit))
    what = "Each key of" if limit.kind == "key" else limit.kind.capitalize()
    complain(f"{what} {limit.service}/{limit.name}: {limit_in_words(limit)}.")


def _parts(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of the limit that options name."""
    parts: dict[str, Any] = {}
    if given["concurrency"] is not None:
        parts["active"] = _number_or_none(given["concurrency"])
    if given["rate"] is not None:
        parts["rate"] = None if given["rate"] == "none" else given["rate"]
    if given["burst"] is not None:
        parts["burst"] = given["burst"]
    return parts


def _number_or_none(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"--concurrency is a number or none, not {text!r}.") from None


@click.command("limits")
@form_options
@url_option
@debug_option
def limits_command(*, form: Form, url: str | None) -> None:
    """List the limits of queues, types and keys, and how far they are used."""
    from trellis.core.durations import to_datetime
    from trellis.insight.views import as_json

    async def load(jobs: Operator) -> tuple[list[LimitView], datetime]:
        return await jobs.limits(), to_datetime(await jobs.engine.now())

    found, now = operate(url, load)
    write_each(
        form,
        found,
        document=as_json,
        name=lambda limit: f"{limit.service}/{limit.name}",
        table=lambda limits: _table(limits, now),
    )
    if form is Form.TABLE and not found:
        complain("There is no limit. Set one with: trellis queues set SERVICE/QUEUE")


def _table(found: list[LimitView], now: datetime) -> None:
    columns = (
        Column("LIMIT OF"),
        Column("NAME"),
        Column("LIMIT"),
        Column("RUNNING", is_number=True),
        Column("TOKENS", is_number=True),
        Column("NEXT", is_number=True),
        Column("SET BY"),
    )
    write_table(
        columns,
        (
            (
                limit.kind,
                f"{limit.service}/{limit.name}",
                limit.text,
                "" if limit.kind == "key" else f"{limit.running:,}",
                "" if limit.tokens is None else f"{limit.tokens:,}",
                "" if limit.next_at is None else f"{(limit.next_at - now).total_seconds():.1f}s",
                "operator" if limit.set_by_operator else "code",
            )
            for limit in found
        ),
    )
