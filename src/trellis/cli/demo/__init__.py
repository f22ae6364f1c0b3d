"""`trellis demo`: real processes, a real database, real failures, and a check of every promise.

`jobs.py` is the service that the workers run; `worker.py` starts, kills and freezes one worker;
`scenes.py` has the scenes and their promises; `runner.py` runs them and reports. Start reading at
`scenes.py`. May import what the rest of `cli` may.
"""

from __future__ import annotations

from typing import Final

import rich_click as click

from trellis.cli.app import CommandFailed
from trellis.cli.options import debug_option

_NEXT_COMMANDS: Final = (
    "trellis jobs list",
    "trellis dlq list",
    "trellis workers list",
    "trellis doctor",
)


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep the database to look at it afterwards.")
@click.option("--scene", "scenes", multiple=True, metavar="NAME", hidden=True)
@debug_option
def demo(*, keep: bool, scenes: tuple[str, ...]) -> None:
    """Watch jobs run, fail, retry and survive failures, in about half a minute.

    Starts workers on a new database in a temporary folder, kills one, freezes another, and checks
    every promise. Exits with 1 if a promise did not hold.
    """
    import shutil
    import tempfile
    from pathlib import Path

    from trellis.cli.demo.runner import run_demo

    folder = Path(tempfile.mkdtemp(prefix="trellis-demo-"))
    try:
        all_held = run_demo(folder, scenes)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        click.echo(f"\nEverything is kept in {folder}. To look at it:")
        for line in (f"cd {folder}", *_NEXT_COMMANDS):
            click.echo(f"  {line}")
    else:
        click.echo(
            "\nThe database was deleted. To keep it: trellis demo --keep, or make demo ARGS=--keep"
        )
    if not all_held:
        raise CommandFailed
