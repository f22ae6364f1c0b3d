"""`trellis worker`: the guardian in the foreground, and how it starts its worker processes.

A guardian stays small: it imports nothing that runs jobs. `worker_process.py` is the program of the
processes that it starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from trellis.cli.options import url_only_option
from trellis.config import WorkerSettings, worker_settings
from trellis.errors import ConfigurationError

if TYPE_CHECKING:
    from trellis.cli.worker_log import LogFormat
    from trellis.worker.guardian.stderr_relay import StderrRelay

_SETTINGS: Final = (
    "concurrency",
    "processes",
    "lease",
    "heartbeat",
    "sweep",
    "stall_limit",
    "grace",
    "poll",
    "max_jobs",
    "max_memory",
    "name",
    "idle",
    "contract",
    "keep_audit",
)


@click.command("worker")
@click.argument("services", metavar="[MODULE:SERVICE]...", nargs=-1)
@url_only_option
@click.option("--concurrency", type=click.IntRange(1), help="Jobs at once per process (10).")
@click.option("--processes", type=click.IntRange(1), help="Worker processes (1).")
@click.option("--types", metavar="NAME,...", help="Run only these job types.")
@click.option("--queues", metavar="NAME,...", help="Run only jobs that wait in these queues.")
@click.option("--once", is_flag=True, help="Run one job; exit 0 if it completed, else 1.")
@click.option("--idle", metavar="DURATION", help="Exit after this long without a job: 60s.")
@click.option("--max-jobs", type=click.IntRange(1), help="Replace a process after this many jobs.")
@click.option("--max-memory", metavar="SIZE", help="Replace a process above this size: 512MB.")
@click.option("--lease", metavar="DURATION", help="How long a silent worker keeps its jobs (30s).")
@click.option("--heartbeat", metavar="DURATION", help="How often to renew the lease (10s).")
@click.option("--sweep", metavar="DURATION", help="How often to look for expired leases (5s).")
@click.option("--stall-limit", metavar="DURATION", help="Kill a process that hangs so long (5m).")
@click.option(
    "--grace", metavar="DURATION", help="How long handlers may finish when stopping (25s)."
)
@click.option("--poll", metavar="DURATION", help="How often to look without a wake-up (1s).")
@click.option("--name", metavar="NAME", help="The name of this worker (host and process).")
@click.option(
    "--contract",
    type=click.Choice(("warn", "refuse", "off")),
    help="What to do about a contract change that was not accepted (warn).",
)
@click.option("--keep-audit", metavar="DURATION", help="How long to keep the audit (365d).")
@click.option(
    "--health-port", metavar="PORT", type=click.IntRange(0, 65535),
    help="Serve /healthz, /readyz and /metrics on this port; 0 takes a free one.",
)  # fmt: skip
@click.option("--health-host", metavar="ADDRESS", help="The address of that port (127.0.0.1).")
@click.option("--log-format", type=click.Choice(("text", "json")), help="Format of the log (text).")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (info).")
@click.option("--reload", is_flag=True, help="Start again when a source file changes.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def worker(services: tuple[str, ...], *, url: str | None, once: bool, **options: Any) -> int:  # noqa: ANN401 - click's options
    """Run the jobs of one or more services.

    MODULE:SERVICE names a Service in a module that can be imported from here, as in `hello:app`;
    by default TRELLIS_APP or `app` in trellis.toml or pyproject.toml names it.

    Ctrl-C or SIGTERM stops gracefully: running handlers may finish within the grace period, then
    their jobs are handed back. A second signal stops at once.
    """
    import asyncio
    import signal

    from trellis.cli import worker_log
    from trellis.config import environment
    from trellis.worker.guardian.stderr_relay import StderrRelay

    variables = environment()
    settings = _settings(variables, options)
    if once:
        settings = replace(settings, concurrency=1, processes=1, max_jobs=1)
    health = _health_address(variables, options["health_host"], options["health_port"])
    log_format = options["log_format"] or variables.get("TRELLIS_LOG_FORMAT")
    log_level = options["log_level"] or variables.get("TRELLIS_LOG_LEVEL")
    program = WorkerProgram(
        services=services,
        url=url,
        settings=settings,
        log_format=worker_log.parse_format(log_format),
        log_level=worker_log.parse_level(log_level),
        debug=options["debug"] or bool(os.environ.get("TRELLIS_DEBUG")),
        reload=options["reload"],
        metrics=health is not None,
    )
    # The parent process may have set SIGCHLD to be ignored; the guardian needs it.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    relay = StderrRelay(sys.stderr.buffer)
    worker_log.set_up(program.log_format, program.log_level, stream=relay)
    try:
        return asyncio.run(_guard(program, relay, health, once=once))
    finally:
        relay.close()


def _settings(variables: Mapping[str, str], options: Mapping[str, Any]) -> WorkerSettings:
    """Return the settings in force: the command line overrides variables and files."""
    return worker_settings(
        variables,
        **{name: options[name] for name in _SETTINGS},
        types=_names(options["types"]),
        queues=_names(options["queues"]),
    )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _health_address(
    variables: Mapping[str, str], host: str | None, port: int | None
) -> tuple[str, int] | None:
    """Return where the health port is; None: there is none."""
    text = variables.get("TRELLIS_HEALTH_PORT") if port is None else str(port)
    if text is None:
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"TRELLIS_HEALTH_PORT must be a port, not {text!r}.")
    return host or variables.get("TRELLIS_HEALTH_HOST") or "127.0.0.1", int(text)


async def _guard(
    program: WorkerProgram, relay: StderrRelay, health: tuple[str, int] | None, *, once: bool
) -> int:
    import asyncio
    import signal

    from trellis.worker.guardian.guardian import Guardian

    guardian = Guardian(program.command, program.settings, relay, once=once, health_address=health)
    loop = asyncio.get_running_loop()
    # A shell starts background jobs with SIGINT ignored; a guardian stops on it nevertheless.
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it stays ignored
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, guardian.stop)
    return await guardian.run()


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """What a worker process runs: passed as one JSON text on its command line."""

    services: Sequence[str]
    url: str | None
    settings: WorkerSettings
    log_format: LogFormat
    log_level: str
    debug: bool
    #: Whether the guardian is told which source files are loaded.
    reload: bool
    #: Whether it counts what it does, for the health port of the guardian.
    metrics: bool = False

    def command(self, files: Mapping[str, int]) -> Sequence[str]:
        """Return the command that starts the process with these open files."""
        text = json.dumps({**asdict(self), "files": dict(files)})
        return [sys.executable, "-m", "trellis.cli.worker_main", text]

    @classmethod
    def read(cls, text: str) -> tuple[WorkerProgram, dict[str, int]]:
        """Return the program on a command line, and the numbers of the open files."""
        values: dict[str, Any] = json.loads(text)
        files: dict[str, int] = values.pop("files")
        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.pop("settings").items()
        }
        return cls(**values, settings=WorkerSettings(**settings)), files
