"""`trellis demo`: see it work, fail, recover, and keep its promises."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option

_QUERY = "select type, state, count(*) from trellis_record group by type, state"


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep the database to look at it afterwards.")
@debug_option
def command(*, keep: bool) -> None:
    """Watch jobs run, fail, retry and survive a crash, in about 20 seconds.

    Starts worker processes on a database of its own in a temporary folder, kills one, freezes
    another, and checks what was promised. Ends with 1 if a promise did not hold.
    """
    import shutil  # noqa: PLC0415 - loaded when asked for
    import tempfile  # noqa: PLC0415 - as above
    from pathlib import Path  # noqa: PLC0415 - as above

    from trellis.cli.exits import CommandFailed  # noqa: PLC0415 - as above

    folder = Path(tempfile.mkdtemp(prefix="trellis-demo-"))
    try:
        kept_promises = _play(folder)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        database = folder / "demo.db"
        click.echo(f"\nThe database is {database}. Look further:")
        click.echo(f"  trellis doctor --url sqlite:///{database}")
        click.echo(f"  sqlite3 {database} '{_QUERY}'")
        click.echo(f"  trellis worker trellis.cli.demo.jobs:app --url sqlite:///{database}")
    else:
        click.echo(
            "\nThe database is deleted again; "
            "keep it with: trellis demo --keep (make demo ARGS=--keep)"
        )
    if not kept_promises:
        raise CommandFailed


def _play(folder: object) -> bool:
    import asyncio  # noqa: PLC0415 - loaded when asked for
    import signal  # noqa: PLC0415 - as above
    from pathlib import Path  # noqa: PLC0415 - as above

    from trellis.cli.demo.playbill import play  # noqa: PLC0415 - as above

    def interrupt(*_: object) -> None:
        # As Ctrl-C: unwinds the stage, which ends the worker processes.
        signal.raise_signal(signal.SIGINT)

    # SIGHUP: the terminal was closed; under nohup it is ignored, and stays so.
    heard = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heard = [number for number in heard if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, interrupt) for number in heard}
    try:
        return asyncio.run(play(Path(str(folder))))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
