"""One `trellis worker` of the demo: a guardian and its worker process, in a separate process group.

Ctrl-C at the terminal does not reach the group; the demo ends it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOG_END: Final = 1000
_END_SECONDS: Final = 5.0


class Worker:
    """A worker that runs in the folder of the demo, with its settings file."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        self.name = name
        self._log = folder / f"worker-{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "trellis", "worker", "--name", name],
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
        """The process id of the guardian, which leads the group."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the guardian has ended; its worker process ends soon after it."""
        return self._process.poll() is not None

    @property
    def log_end(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-_LOG_END:].strip()

    def terminate(self) -> None:
        """Ask it to stop gracefully, as systemd or a container does."""
        self._process.send_signal(signal.SIGTERM)  # does nothing if it has ended

    def freeze(self) -> None:
        """Stop all its processes, to be continued."""
        os.killpg(self.guardian, signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue all its processes."""
        os.killpg(self.guardian, signal.SIGCONT)

    def kill(self) -> None:
        """Kill all its processes, frozen or not, and wait until all have ended."""
        if not self.has_ended:
            # Not yet waited for, so the id of the group cannot have been reused.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.guardian, signal.SIGKILL)
        # A handler with isolation="process" is in another group and ends when it notices that its
        # worker is gone. All processes inherit stdout, so it is closed when the last one has ended.
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_END_SECONDS)


def _environment(scratch: Path) -> dict[str, str]:
    """Return the environment without settings of other workers, for another current folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")}
    if "PYTHONPATH" in kept:
        folders = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, folders))
    return {**kept, "TMPDIR": str(scratch)}
