"""Programs of a system as real processes: commands that answer, workers that run until ended.

They run with the settings a user has who set none: no `TRELLIS_*` variable reaches them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.programs import ROOT

_LOOK_EVERY: Final = 0.005
_LONGEST: Final = 60.0
_FAREWELL: Final = 10.0
_ANSWER: Final = 600.0
_QUOTED: Final = 300


class PeerFailed(Exception):
    """A program did not do what it was asked; the text quotes it."""


def ask(command: Sequence[str], variables: Mapping[str, str]) -> dict[str, float]:
    """Run a command and return its answer: the last line that it writes, as JSON."""
    try:
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env={**_environment(), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER,
        )
    except OSError as error:
        raise PeerFailed(f"cannot be started: {error.strerror}") from None
    if ran.returncode != 0:
        raise PeerFailed(_last_line(ran.stderr) or f"ended with code {ran.returncode}")
    answer: dict[str, float] = json.loads(_last_line(ran.stdout) or "{}")
    return answer


class Workers:
    """Worker programs that run, each in a separate process group."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
        self._processes = processes
        self._log = log

    @property
    def pids(self) -> list[int]:
        """The programs; what they start themselves is below them."""
        return [process.pid for process in self._processes]

    def wait_until(self, holds: Callable[[], bool], what: str, longest: float = _LONGEST) -> None:
        """Wait until something holds that the workers bring about."""
        if not self.wait(holds, longest):
            raise PeerFailed(f"{what} did not happen within {longest:g} s. {self._last_words()}")

    def wait(self, holds: Callable[[], bool], longest: float) -> bool:
        """Wait until something holds or time is up; return whether it holds."""
        end = time.monotonic() + longest
        while not holds():
            ended = [process for process in self._processes if process.poll() is not None]
            if ended:
                raise PeerFailed(f"a worker ended. {self._last_words()}")
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_EVERY)
        return True

    def end(self) -> None:
        """End all gracefully, and kill those that are left after a while."""
        for process in self._processes:
            process.terminate()
        end = time.monotonic() + _FAREWELL
        for process in self._processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _last_words(self) -> str:
        return _last_line(self._log.read_text(errors="replace"))


@contextmanager
def running(
    commands: Sequence[Sequence[str]], folder: Path, variables: Mapping[str, str]
) -> Iterator[Workers]:
    """Run workers for the length of the block; their log goes to the folder."""
    log = folder / "workers.log"
    with log.open("ab") as output:
        processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**_environment(), **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            for command in commands
        ]
    workers = Workers(processes, log)
    try:
        yield workers
    finally:
        workers.end()


def _environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("TRELLIS_")}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_QUOTED] if lines else ""
