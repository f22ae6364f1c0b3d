"""`trellis migrate`: bring a database to the schema of this version."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, engine_at, resolve_url, url_option


@click.command("migrate")
@url_option
@debug_option
def command(url: str | None) -> None:
    """Create the database, or bring it up to date.

    Safe while workers run. SQLite files are also brought up to date when a program opens them.
    """
    import asyncio  # noqa: PLC0415 - loaded when asked for

    asyncio.run(_migrate(resolve_url(url)))


async def _migrate(url: str) -> None:
    engine = engine_at(url)
    try:
        before, after = await engine.migrate()
    finally:
        await engine.close()
    if before == after:
        click.echo(f"{url} is up to date (schema {after}).")
    else:
        click.echo(f"{url} went from schema {before} to {after}.")
