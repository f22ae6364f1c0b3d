"""`trellis migrate`: bring a database to the schema of this version."""

from __future__ import annotations

from collections.abc import Sequence

import rich_click as click

from trellis.cli.app import CommandFailed, current_actor, engine_at, resolve_url
from trellis.cli.options import debug_option, reason_option, url_option
from trellis.engines import is_nats
from trellis.engines.audit import By
from trellis.engines.redaction import shown


@click.command("migrate")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if it is out of date.")
@click.option("--sql", is_flag=True,
              help="Change nothing; write the SQL, or on NATS the streams.")  # fmt: skip
@reason_option
@url_option
@debug_option
def migrate(url: str | None, *, check: bool, sql: bool, reason: str) -> None:
    """Create the database, or bring it up to date.

    Safe while workers run. SQLite files are also brought up to date when a program opens them.
    """
    import asyncio

    if check and sql:
        raise click.UsageError("Use only one of --check and --sql.")
    url = resolve_url(url)
    if not (check or sql):
        asyncio.run(_migrate(url, By(current_actor(), reason)))
        return
    missing = asyncio.run(_missing(url))
    if check:
        _check(url, missing)
    elif missing and missing[0][1].startswith("{"):
        for _, config in missing:  # of streams and consumers, on NATS
            click.echo(config)
    elif missing:
        click.echo("begin;")
        for number, script in missing:
            click.echo(f"-- migration {number}\n{script.rstrip()}")
        click.echo("commit;")


async def _migrate(url: str, by: By) -> None:
    engine = engine_at(url)
    try:
        before, after, scripts = await engine.migrate(by=by)
        kept = ""
        if is_nats(url):
            kept = f" Replicas of each stream: {(await engine.health()).facts['replicas']}."
    finally:
        await engine.close()
    if before == after and scripts:
        click.echo(
            f"{shown(url)} was put in order (schema {after}): {len(scripts)} streams or consumers "
            f"were missing or changed.{kept}"
        )
    elif before == after:
        click.echo(f"{shown(url)} is up to date (schema {after}).{kept}")
    else:
        click.echo(f"{shown(url)} was migrated from schema {before} to {after}.{kept}")


async def _missing(url: str) -> Sequence[tuple[int, str]]:
    engine = engine_at(url)
    try:
        return (await engine.migrate(dry_run=True)).scripts
    finally:
        await engine.close()


def _check(url: str, missing: Sequence[tuple[int, str]]) -> None:
    if not missing:
        click.echo(f"{shown(url)} is up to date.")
        return
    numbers = ", ".join(dict.fromkeys(str(number) for number, _ in missing))
    what = f"migrations {numbers} are missing"
    if is_nats(url):
        what = f"{len(missing)} streams and consumers are missing or changed (see --sql)"
    click.echo(f"{shown(url)} is out of date: {what}. Run: trellis migrate")
    raise CommandFailed
