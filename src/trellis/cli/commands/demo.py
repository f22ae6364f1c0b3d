"""`trellis demo`: see it work, fail, recover, and keep its promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.options import debug_option

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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

    from trellis.cli.exits import CommandFailed  # noqa: PLC0415 - as above

    folder = Path(tempfile.mkdtemp(prefix="trellis-demo-"))
    try:
        kept_promises = _play(folder, scenes)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        click.echo(f"\nEverything is kept in {folder}. Look further there:")
        click.echo(f"  cd {folder}")
        for line in _LOOK_FURTHER:
            click.echo(f"  {line}")
    else:
        click.echo("\nAll of it is deleted again; trellis demo --keep keeps it to look at.")
    if not kept_promises:
        raise CommandFailed


def _play(folder: Path, scenes: Sequence[str]) -> bool:
    import asyncio  # noqa: PLC0415 - loaded when asked for
    import signal  # noqa: PLC0415 - as above

    from trellis.cli.demo.play import play  # noqa: PLC0415 - as above
    from trellis.cli.demo.telling import Teller  # noqa: PLC0415 - as above

    def interrupt(*_: object) -> None:
        # As Ctrl-C: unwinds the stage, which ends the workers.
        signal.raise_signal(signal.SIGINT)

    # SIGHUP: the terminal was closed; under nohup it is ignored, and stays so.
    heard = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heard = [number for number in heard if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, interrupt) for number in heard}
    try:
        return asyncio.run(play(folder, Teller(), scenes))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
