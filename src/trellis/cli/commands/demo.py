"""`trellis demo`: see it work, fail, recover, and keep its promises."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option

_LOOK_FURTHER = ("trellis jobs list", "trellis dlq list", "trellis workers list", "trellis doctor")


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep the database to look at it afterwards.")
@click.option("--scene", "scenes", multiple=True, metavar="NAME", hidden=True)
@debug_option
def command(*, keep: bool, scenes: tuple[str, ...]) -> None:
    """Watch jobs run, fail, retry and survive accidents, in about half a minute.

    Starts workers on a database of its own in a temporary folder, kills one, freezes another, and
    checks what was promised. Ends with 1 if a promise did not hold.
    """
    import shutil  # noqa: PLC0415 - loaded when asked for
    import tempfile  # noqa: PLC0415 - as above
    from pathlib import Path  # noqa: PLC0415 - as above

    from trellis.cli.demo.play import perform  # noqa: PLC0415 - as above
    from trellis.cli.exits import CommandFailed  # noqa: PLC0415 - as above

    folder = Path(tempfile.mkdtemp(prefix="trellis-demo-"))
    try:
        kept_promises = perform(folder, scenes)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        click.echo(f"\nEverything is kept in {folder}. Look further there:")
        click.echo(f"  cd {folder}")
        for line in _LOOK_FURTHER:
            click.echo(f"  {line}")
    else:
        click.echo(
            "\nDeleted again. To keep it and look: trellis demo --keep, or make demo ARGS=--keep"
        )
    if not kept_promises:
        raise CommandFailed
