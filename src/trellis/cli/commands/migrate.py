"""`trellis migrate`: bring a database to the schema of this version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.options import debug_option, engine_at, resolve_url, url_option
from trellis.engines.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    Migrations = Sequence[tuple[int, str]]


@click.command("migrate")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if it is behind.")
@click.option("--sql", is_flag=True, help="Change nothing; print what would be run.")
@url_option
@debug_option
def command(url: str | None, *, check: bool, sql: bool) -> None:
    """Create the database, or bring it up to date.

    Safe while workers run. SQLite files are also brought up to date when a program opens them.
    """
    import asyncio  # noqa: PLC0415 - loaded when asked for

    if check and sql:
        raise click.UsageError("Say only one of --check and --sql.")
    place = resolve_url(url)
    if check:
        _tell(place, asyncio.run(_missing(place)))
    elif sql:
        _print(asyncio.run(_missing(place)))
    else:
        asyncio.run(_migrate(place))


async def _missing(url: str) -> Migrations:
    engine = engine_at(url)
    try:
        return await engine.missing_migrations()
    finally:
        await engine.close()


def _tell(url: str, missing: Migrations) -> None:
    from trellis.cli.exits import CommandFailed  # noqa: PLC0415 - loaded when asked for

    if not missing:
        click.echo(f"{shown(url)} is up to date.")
        return
    numbers = ", ".join(str(number) for number, _ in missing)
    click.echo(
        f"{shown(url)} is behind: migrations {numbers} are missing. Run them with: trellis migrate"
    )
    raise CommandFailed


def _print(missing: Migrations) -> None:
    if not missing:
        return
    click.echo("begin;")
    for number, script in missing:
        click.echo(f"-- migration {number}\n{script.rstrip()}")
    click.echo("commit;")


async def _migrate(url: str) -> None:
    engine = engine_at(url)
    try:
        before, after = await engine.migrate()
    finally:
        await engine.close()
    if before == after:
        click.echo(f"{shown(url)} is up to date (schema {after}).")
    else:
        click.echo(f"{shown(url)} went from schema {before} to {after}.")
