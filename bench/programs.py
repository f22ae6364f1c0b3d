"""Worker programs as real processes: started for one measurement, ended with it.

They run with the default settings: no `TRELLIS_*` variable reaches them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_LOOK_EVERY: Final = 0.02
_LONGEST: Final = 120.0
_END_TIMEOUT: Final = 30.0


class Program:
    """A process that the benchmark started."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds that this program brings about."""
        end = time.monotonic() + _LONGEST
        while not holds():
            if self._process.poll() is not None:
                raise RuntimeError(f"The program ended before {what}:\n{self._last_lines()}")
            if time.monotonic() > end:
                raise RuntimeError(
                    f"After {_LONGEST:g} s this had not happened: {what}.\n{self._last_lines()}"
                )
            time.sleep(_LOOK_EVERY)

    def end(self, end_signal: signal.Signals) -> None:
        """End it gracefully with this signal."""
        self._process.send_signal(end_signal)
        self._process.wait(_END_TIMEOUT)

    def kill(self) -> None:
        """End it and all it has started, if anything is left."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _last_lines(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


@contextmanager
def running(
    arguments: Sequence[str], folder: Path, end_signal: signal.Signals, **variables: str
) -> Iterator[Program]:
    """Run `python <arguments>` for the length of the block; its log goes to the folder."""
    log = folder / "program.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**_environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    program = Program(process, log)
    try:
        yield program
        program.end(end_signal)
    finally:
        program.kill()


def _environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("TRELLIS_")}
