"""One `trellis worker` of the demo: a guardian and its worker process, in a group of their own.

Ctrl-C at the terminal does not reach them: the demo ends them itself, stopped or not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "TRELLIS_"
_LAST_WORDS: Final = 1000
_FAREWELL: Final = 5.0


class Worker:
    """A worker that was started in the folder of the demo, where its settings are."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        self.name = name
        self._log = folder / f"worker-{name}.log"
        command = [sys.executable, "-m", "trellis.cli", "worker", "--name", name]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                cwd=folder,
                env=_environment(scratch),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def __str__(self) -> str:
        return f"worker {self.name}"

    @property
    def guardian(self) -> int:
        """The process that was started, and leads the group."""
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the guardian has ended; its worker process never outlives it for long."""
        return self._process.poll() is not None

    @property
    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-_LAST_WORDS:].strip()

    def tell_to_stop(self) -> None:
        """Ask it to stop in order, as a supervisor or a container does."""
        self._process.send_signal(signal.SIGTERM)  # nothing happens if it is gone

    def freeze(self) -> None:
        """Stop all of it where it stands."""
        os.killpg(self.guardian, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all of it go on."""
        os.killpg(self.guardian, signal.SIGCONT)

    def kill(self) -> None:
        """End all of it the hard way, stopped or not, and wait until nothing of it is left."""
        if not self.is_gone:
            # Not yet waited for, so the group is still its own.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.guardian, signal.SIGKILL)
        # A handler in a process of its own is in no group of ours, and ends when it notices that
        # its worker has gone. Nobody writes to stdout, but everybody has it until the end.
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_FAREWELL)


def _environment(scratch: Path) -> dict[str, str]:
    """Return our environment for another folder, and without settings meant for other workers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}
    if "PYTHONPATH" in kept:
        places = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, places))
    return {**kept, "TMPDIR": str(scratch)}
