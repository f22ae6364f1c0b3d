"""Archives for jobs that retention removes: `NdjsonArchive` writes them to files.

Give it to `@service.archive` as `service.archive(NdjsonArchive("/var/archive/shop"))`, or call it
from an archiver that does more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from trellis.errors import ConfigurationError
from trellis.insight.archived import ArchivedJob
from trellis.insight.views import as_json

__all__ = ["ArchivedJob", "NdjsonArchive"]

Rotate = Literal["day", "month", "never"]
_NAMES: Final[dict[str, str]] = {"day": "-%Y-%m-%d", "month": "-%Y-%m", "never": ""}


class NdjsonArchive:
    """Appends each job as one JSON document per line to files in a folder.

    The file of a page is that of the moment it is archived: one per service and day, month, or
    one for ever. A page is on the disk before its jobs are removed; after a crash in between, its
    jobs are written again.
    """

    def __init__(
        self,
        path: str | Path,
        rotate: Rotate = "day",
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if rotate not in _NAMES:
            raise ConfigurationError(f"rotate={rotate!r} is none of {', '.join(_NAMES)}.")
        self.path = Path(path)
        self._suffix = _NAMES[rotate]
        self._now = now

    def __call__(self, jobs: Sequence[ArchivedJob]) -> None:
        """Write these jobs, which are of one service, and wait until the disk has them."""
        if not jobs:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        name = f"{jobs[0].job.service}{self._now().strftime(self._suffix)}.ndjson"
        lines = "".join(f"{json.dumps(as_json(job), ensure_ascii=False)}\n" for job in jobs)
        _append(self.path / name, lines.encode())


def _append(file: Path, text: bytes) -> None:
    """Append lines and sync them; a line that a crash cut off is ended first."""
    is_new = not file.exists()
    with file.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                text = b"\n" + text
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    if is_new:
        _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    """Let the name of a new file survive a power cut, where the system can do that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
