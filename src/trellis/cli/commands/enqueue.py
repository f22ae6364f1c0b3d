"""`trellis enqueue`: create a job."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option


@click.command("enqueue")
@click.argument("type_name", metavar="TYPE")
@click.argument("payload", metavar="[PAYLOAD]", required=False)
@click.option("--app", metavar="MODULE:SERVICE", multiple=True, help="The service of the type.")
@click.option("--delay", metavar="SPAN", help="Start so long after creation: 10m.")
@click.option("--at", metavar="WHEN", help="Start not before: 'tomorrow 09:00', 2030-01-31T09:00.")
@click.option(
    "--priority", type=click.IntRange(-4, 4), metavar="N", default=0, help="-4 last, 4 first (0)."
)
@click.option("--deadline", metavar="WHEN", help="Give up if it has not ended by then: 1h.")
@click.option("--dedupe", metavar="KEY", help="Nothing new while a job with this key waits.")
@click.option("--idempotency-key", metavar="KEY", help="The same job for every call with it.")
@click.option("--tag", "tags", metavar="NAME=VALUE", multiple=True, help="A label; repeatable.")
@click.option(
    "--wait",
    metavar="[SPAN]",
    is_flag=False,
    flag_value="",
    help="Wait for the result (at most so long); exit by the job's outcome.",
)
@click.option("-q", "--quiet", is_flag=True, help="Write only the id.")
@json_option
@url_option
@debug_option
def command(**given: Any) -> int:  # noqa: ANN401 - click's options
    """Create a job of TYPE and write its id.

    TYPE is a type of the app (`greet`, or `shop/greet` where several services have it). PAYLOAD is
    JSON, `@file` to read it from a file, or `-` for stdin; it is checked by the type. The app comes
    from --app, TRELLIS_APP or `app` in trellis.toml or pyproject.toml. Without any, TYPE must be
    service/type, and the job gets the policies of the newest job of that type.
    """
    from trellis.cli.enqueueing import enqueue  # noqa: PLC0415 - loaded when asked for

    if given["quiet"] and given["as_json"]:
        raise click.UsageError("Say only one of --json and --quiet.")
    return enqueue(**given)
