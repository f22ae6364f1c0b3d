"""Jobs on a NATS cluster of three nodes, with an admin runtime that may be killed like the nodes.

The harness reads the streams itself (`streams.py`). When all workers are gone, the projection that
the admin runtime has kept is compared with one that is made from nothing.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.harness.faults.checker.histories import ServerFault
from tests.harness.faults.plan import CLUSTER_ROUND
from tests.harness.faults.processes import Group, Place, environment
from tests.harness.faults.stores.streams import Streams
from tests.harness.faults.waiting import Impatience
from tests.harness.projections import differences, places_in
from tests.harness.servers.nats import NatsCluster, NatsServer, nats_cluster

#: Seconds for a cluster to have leaders again, for a projection to have everything, for a rebuild.
_PATIENCE: Final = 60.0
_LOOK_EVERY: Final = 0.05
_JOBS: Final = "JOBS"


class JetStreamStore:
    """The streams of one campaign, and its admin runtime."""

    server = None
    deeds = CLUSTER_ROUND

    def __init__(self, cluster: NatsCluster, folder: Path, seed: str) -> None:
        self._cluster = cluster
        hosts = (url.removeprefix("nats://") for url in cluster.urls)
        self.url = f"nats://{','.join(hosts)}"
        self._random = Random(f"{seed}/nodes")
        self.place = Place(folder, self.url)
        self._streams = Streams(cluster.urls)
        self._kept, self._rebuilt = folder / "kept.sqlite", folder / "rebuilt.sqlite"
        self._admin: Group | None = None
        self._is_admin_away = False
        self._differences: list[dict[str, str]] = []

    # -- faults --------------------------------------------------------------------------------

    def take_away(self, kind: ServerFault) -> None:
        """Kill nodes or the admin runtime, or tell a node to stop."""
        nodes = list(self._cluster.nodes)
        match kind:
            case "leader_kill":
                self._leader().kill()
            case "node_stop":
                self._random.choice(nodes).stop()
            case "quorum_kill":
                for node in self._random.sample(nodes, 2):
                    node.kill()
            case "all_kill":
                for node in nodes:
                    node.kill()
            case "admin_kill":
                self._is_admin_away = True
                if self._admin is not None:
                    self._admin.send_all(signal.SIGKILL)
            case _:
                raise ValueError(f"A cluster has no {kind}.")

    def bring_back(self) -> None:
        """Start what is away; return when every node works and the streams have leaders.

        `tend` starts the admin runtime.
        """
        self._cluster.start()
        _await(lambda: self._streams.ends() is not None, "the streams to have leaders")
        self._is_admin_away = False

    def tend(self) -> None:
        """Start the admin runtime if it is gone: it ends if no node answers when it begins."""
        if self._is_admin_away or (self._admin is not None and not self._admin.is_gone):
            return
        if self._admin is not None:
            self._admin.end()
        arguments = ["-m", "trellis", "jobs", "serve", "--projection", str(self._kept)]
        self._admin = Group(arguments, self.place, "admin.log")

    def _leader(self) -> NatsServer:
        """Return the node that leads the stream of the jobs; any node if none says that it does."""
        name = self._streams.leader(_JOBS)
        return self._cluster.node(name) if name else self._random.choice(self._cluster.nodes)

    # -- looking -------------------------------------------------------------------------------

    def sessions(self) -> dict[int, int]:
        """Return the sessions that have not ended, with their processes."""
        with self._streams as story:
            return {
                session: value["info"][2]
                for session, value in story.sessions.items()
                if value.get("ended_at") is None
            }

    def is_over(self, session: int) -> bool:
        """Tell whether a session was ended and nothing is held in its name any more."""
        with self._streams as story:
            known = story.sessions.get(session)
            is_ended = known is None or known.get("ended_at") is not None
            return is_ended and not story.held(session)

    def refusals(self, session: int) -> int:
        """Count the late results of a session that were refused."""
        with self._streams as story:
            return story.late[session]

    def jobs(self) -> int:
        """Count the jobs."""
        with self._streams as story:
            return len(story.rows) + len(story.removed)

    def ready(self) -> int:
        """Count the jobs that wait for a worker."""
        with self._streams as story:
            return story.ready()

    def unfinished(self) -> int:
        """Count the jobs that wait or run, and the slots that are taken."""
        with self._streams as story:
            found = story.unfinished()
        if found or self._streams.is_current():
            return found
        return 1  # there is more to read, or no node answers

    def latest_slot(self) -> int:
        """Return 0: the flow campaign does not run here."""
        return 0

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Refuse: there are no tables."""
        raise NotImplementedError("The flow campaign reads tables, and streams have none.")

    def writer(self) -> int | None:
        """Return nobody: no worker keeps others from writing."""
        return None

    def way(self) -> None:
        """Return none: a client that is cut off from one node finds another."""

    # -- the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Stop the admin runtime when its projection has everything; compare it with a new one."""
        self.bring_back()
        _await(self._is_projected, "the projection to have everything")
        if self._admin is not None:
            self._admin.send(signal.SIGTERM, self._admin.leader)
            _await(lambda: self._admin is None or self._admin.is_gone, "the admin runtime to stop")
        self._is_admin_away = True
        _run(self.place, "jobs", "rebuild", "--projection", str(self._rebuilt))
        self._differences = [
            {"table": table, "row": row, "kept": kept, "rebuilt": rebuilt}
            for table, row, kept, rebuilt in differences(self._kept, self._rebuilt)
        ]

    def _is_projected(self) -> bool:
        """Tell whether the projection has the last message of each stream."""
        self.tend()
        ends = self._streams.ends()
        if ends is None or not self._kept.exists():
            return False
        return places_in(self._kept) == ends

    def export(self, target: Path) -> None:
        """Write the system truth; nodes that were left away are started first."""
        self._cluster.start()
        _await(self._streams.is_current, "the streams to be read")
        with self._streams as story, target.open("w", encoding="utf-8") as file:
            lines = [*story.lines(), *({"what": "difference", **e} for e in self._differences)]
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

    def close(self) -> None:
        """End the admin runtime; the cluster, which is looked at until the end, is its owner's."""
        self._is_admin_away = True
        if self._admin is not None:
            self._admin.end()

    def leave(self) -> None:
        """Look no more."""
        self.close()
        self._streams.close()


def _await(holds: Callable[[], bool], what: str) -> None:
    """Wait for something to come true; unlike `until`, on a thread that may block."""
    end = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise Impatience(f"waited {_PATIENCE:g} s in vain for {what}")
        time.sleep(_LOOK_EVERY)


def _run(place: Place, *arguments: str) -> None:
    """Run a command of Trellis to its end."""
    with (place.folder / "commands.log").open("ab") as output:
        subprocess.run(
            [sys.executable, "-m", "trellis", *arguments], cwd=place.folder,
            env=environment(place), stdout=output, stderr=output, check=True, timeout=_PATIENCE,
        )  # fmt: skip


@contextmanager
def own_cluster(folder: Path, seed: str) -> Iterator[JetStreamStore]:
    """Have three nodes of one's own, with the streams on them."""
    with nats_cluster(folder / "nodes") as cluster:
        store = JetStreamStore(cluster, folder, seed)
        try:
            _run(store.place, "migrate")
            yield store
        finally:
            store.leave()
