"""What a guardian tells the worker processes it starts.

One JSON text on their command line. Kept apart from what carries it out, because a guardian stays
small: it loads nothing that runs jobs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trellis.cli.log_lines import LogFormat
from trellis.config import WorkerSettings


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker process is to do."""

    services: Sequence[str]
    url: str | None
    settings: WorkerSettings
    log_format: LogFormat
    log_level: str
    debug: bool

    def command(self, files: Mapping[str, int]) -> Sequence[str]:
        """Return the command that carries them out with these open files."""
        text = json.dumps({**asdict(self), "files": dict(files)})
        return [sys.executable, "-m", "trellis.cli.child", text]

    @classmethod
    def read(cls, text: str) -> tuple[Orders, dict[str, int]]:
        """Return the orders in a command, and the numbers of the open files."""
        told: dict[str, Any] = json.loads(text)
        files: dict[str, int] = told.pop("files")
        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in told.pop("settings").items()
        }
        return cls(**told, settings=WorkerSettings(**settings)), files
