"""A throw-away PostgreSQL server that may be stopped, killed and started again on its data.

It ends with the process that asked for it and leaves no file, whatever happens. The calls block;
from a coroutine use `asyncio.to_thread`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from tests.harness.servers.address import Address
from tests.harness.servers.databases import Databases
from tests.harness.servers.kept import Line


class Server(Databases):
    """A server of our own, so that everything may be done to it."""

    def __init__(
        self,
        line: Line,
        version: int,
        *,
        durable: bool = False,
        tcp: bool = False,
        settings: dict[str, str] | None = None,
    ) -> None:
        wanted = {"version": version, "durable": durable, "tcp": tcp, "settings": settings}
        told = line.ask("open", wanted=wanted)
        super().__init__(socket_address(told).url)
        self._line = line
        self._name = told["name"]
        self._tcp = tcp

    def tcp_url(self, database: str = "postgres") -> str:
        """Return the URL on loopback, of a server that was asked to listen there."""
        if not self._tcp:
            raise ValueError("This server has no TCP port: ask for it with tcp=True.")
        address = Address.of(self.url(database))
        return address.at("127.0.0.1", address.port).url

    def start(self) -> None:
        """Start again on the same data and port; nothing happens if it runs."""
        self._line.ask("start", name=self._name)

    def stop(self, how: Literal["fast", "immediate"] = "fast") -> None:
        """Stop: connections are cut, and `fast` writes a checkpoint where `immediate` does not."""
        self._line.ask("stop", name=self._name, how=how)

    def restart(self, how: Literal["fast", "immediate"] = "fast") -> None:
        """Stop and start."""
        self.stop(how)
        self.start()

    def kill_postmaster(self) -> None:
        """End it as `kill -9` and the kernel do, backends included; `start` recovers."""
        self._line.ask("kill", name=self._name)

    def end(self) -> None:
        """End it for good and remove its files."""
        self._line.ask("close", name=self._name)


def shared(line: Line, version: int) -> Databases:
    """Return the databases of the server that everybody in a test run uses."""
    return Databases(socket_address(line.ask("share", version=version)).url)


def socket_address(told: dict[str, Any]) -> Address:
    """Return where a server is reached through its Unix socket."""
    return Address("postgres", told["password"], told["folder"], told["port"], "postgres")


@contextmanager
def postgres(version: int = 18, **options: Any) -> Iterator[Server]:  # noqa: ANN401 - Server's
    """Run a server without pytest: for a campaign, a benchmark, or a look by hand."""
    line = Line.of_own()
    try:
        yield Server(line, version, **options)
    finally:
        line.end_keeper()
