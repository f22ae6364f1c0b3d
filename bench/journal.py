"""The journal of a drained Trellis database, read from outside with little load.

The rate is computed from the times in the journal. There is no rate unless every job was completed
exactly once.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

_MICROSECONDS: Final = 1_000_000


class Journal:
    """Reads the file with a separate, read-only connection."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None
        )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def workers(self) -> int:
        """Return how many worker processes have opened their session."""
        return self._number("select count(*) from trellis_session where ended_at is null")

    def is_drained(self) -> bool:
        """Return whether no job waits or runs; the cost does not depend on their number."""
        return not self._number("select exists (select 1 from trellis_queue)")

    def drain_rate(self, jobs: int) -> float:
        """Return jobs per second from the first claim to the last settlement, in engine time."""
        completed = self._number("select count(*) from trellis_event where kind = 'completed'")
        different = self._number(
            "select count(distinct job) from trellis_event where kind = 'completed'"
        )
        if not jobs == completed == different:
            raise RuntimeError(
                f"{different} of {jobs} jobs were completed, with {completed} events for it: "
                "there is no rate."
            )
        first = self._number("select min(at) from trellis_event where kind = 'started'")
        last = self._number("select max(at) from trellis_event where kind = 'completed'")
        return jobs * _MICROSECONDS / (last - first)

    def _number(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0])
