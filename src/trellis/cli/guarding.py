"""The guardian in the foreground: from the command line to the worker processes it watches."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from trellis.cli import log_lines
from trellis.cli.orders import Orders
from trellis.config import WorkerSettings, environment, worker_settings
from trellis.worker.guardian.guardian import Guardian
from trellis.worker.guardian.stderr_relay import Relay


def run_guardian(
    services: Sequence[str], *, url: str | None, once: bool, options: Mapping[str, Any]
) -> int:
    """Run worker processes for these services until a signal comes; return the exit code."""
    said = environment()
    settings = _settings(said, options)
    if once:
        settings = replace(settings, concurrency=1, processes=1, max_jobs=1)
    orders = Orders(
        services=services, url=url, settings=settings,
        log_format=log_lines.form(options["log_format"] or said.get("TRELLIS_LOG_FORMAT")),
        log_level=log_lines.level(options["log_level"] or said.get("TRELLIS_LOG_LEVEL")),
        debug=click.get_current_context().params.get("debug", False),
    )  # fmt: skip
    # Whoever started us may ignore the end of children; we live by it.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    relay = Relay(sys.stderr.buffer)
    log_lines.set_up(orders.log_format, orders.log_level, stream=relay)
    try:
        return asyncio.run(_guard(orders, relay, once=once))
    finally:
        relay.close()


def _settings(said: Mapping[str, str], options: Mapping[str, Any]) -> WorkerSettings:
    """Return the settings in force: what the command line says before all else."""
    names = ("concurrency", "processes", "lease", "grace", "poll", "max_jobs", "max_memory", "name")
    return worker_settings(said).with_options(
        **{name: options[name] for name in names},
        types=_names(options["types"]),
        queues=_names(options["queues"]),
    )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


async def _guard(orders: Orders, relay: Relay, *, once: bool) -> int:
    guardian = Guardian(orders.command, orders.settings, relay, once=once)
    loop = asyncio.get_running_loop()
    # Background jobs of a shell start with SIGINT ignored; a guardian stops on it all the same.
    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it stays ignored
        wanted.append(signal.SIGHUP)
    for number in wanted:
        loop.add_signal_handler(number, guardian.stop)
    return await guardian.run()
