"""What the handlers in flight are, from the logs they write themselves."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path


class Effects:
    """The handlers in flight, from the logs they write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[int, int] = defaultdict(int)
        self._open: dict[int, dict[int, str]] = defaultdict(dict)

    def in_flight(self, pid: int) -> list[str]:
        """Return the kinds of the handlers that run in a process now."""
        try:
            with open(f"{self._folder}/{pid}.jsonl", "rb") as file:  # noqa: PTH123 - asked very often
                file.seek(self._read[pid])
                fresh = file.read()
        except FileNotFoundError:
            return []
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read[pid] += len(whole)
        for line in whole.splitlines():
            self._note(pid, json.loads(line))
        return list(self._open[pid].values())

    def _note(self, pid: int, line: dict[str, object]) -> None:
        number = int(str(line["run"]))
        if line["event"] == "begin":
            self._open[pid][number] = str(line["kind"])
        else:
            self._open[pid].pop(number, None)
