"""Where the jobs of a campaign are: what the harness may ask of any store.

It is looked into with plain SQL, or as plain JSON messages, read only. Waiting for what is seen
there to become true is how the harness is synchronised, so that nothing rests on a sleep being long
enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.harness.faults.checker.histories import ServerFault
from tests.harness.faults.plan import ServerDeed
from tests.harness.servers.postgres import Server
from tests.harness.servers.proxy import Proxy


class Store(Protocol):
    """The database under test."""

    @property
    def url(self) -> str:
        """What workers and producers are given."""

    @property
    def server(self) -> Server | None:
        """The PostgreSQL server, if the store is on one."""

    @property
    def deeds(self) -> Sequence[ServerDeed]:
        """What one round of a campaign does to the servers of the store; none without servers."""

    def take_away(self, kind: ServerFault) -> None:
        """Kill or stop servers, or cut their connections; return when that is done."""

    def bring_back(self) -> None:
        """Start what was taken away; return when it works again."""

    def tend(self) -> None:
        """Start processes of the store again that are gone although nothing took them away."""

    def finish(self) -> None:
        """End the processes of the store when all workers are gone, and check what they kept."""

    def sessions(self) -> dict[int, int]:
        """Return the sessions that have not ended, with their processes."""

    def is_over(self, session: int) -> bool:
        """Tell whether a session was ended and nothing is held in its name any more."""

    def refusals(self, session: int) -> int:
        """Count the late results of a session that were refused."""

    def jobs(self) -> int:
        """Count the jobs."""

    def ready(self) -> int:
        """Count the jobs that wait for a worker."""

    def unfinished(self) -> int:
        """Count the jobs that wait or run, and the slots that are taken."""

    def latest_slot(self) -> int:
        """Return the last slot of a schedule that was decided; 0 if none was."""

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return all rows that the flow campaign judges, by table."""

    def writer(self) -> int | None:
        """Return the process that keeps all others from writing, if one does."""

    def way(self) -> Proxy | None:
        """Return a way to the store that can be cut without cutting others, if there is any."""

    def export(self, target: Path) -> None:
        """Write the system truth as JSON lines."""

    def close(self) -> None:
        """Look no more; end every process of the store."""
