"""Telling people what they see, scene by scene, and at the end what was promised."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from trellis.cli.demo import scenes
from trellis.cli.demo.scenes import Seen
from trellis.cli.demo.stage import LEASE, Stage, StageFright
from trellis.cli.terminal import output, progress_bar, waiting
from trellis.contract.settings import WorkerSettings
from trellis.errors import TrellisError
from trellis.insight.doctor import diagnose

_TITLES: tuple[tuple[str, Callable[[Stage], Awaitable[Seen]]], ...] = (
    ("A handler fails twice", scenes.retry),
    ("A worker process is killed in the middle of a job", scenes.sudden_death),
    ("A worker process freezes, and wakes up too late", scenes.zombie),
    ("Many deposits to three accounts", scenes.one_at_a_time),
    ("An order that cannot be shipped", scenes.dead_letter),
)


async def play(folder: Path) -> bool:
    """Play every scene; return whether every promise was kept."""
    console = output()

    def say(text: str) -> None:
        console.print(f"  {text}")

    async with Stage(folder, say) as stage:
        console.print(f"A database in {stage.database}, two worker processes, leases of {LEASE}.")
        for _ in range(2):
            say(f"worker {await stage.start_worker()} works")
        console.print("A burst of jobs", style="bold")
        findings = [await _burst(stage, console)]
        say(findings[-1].seen)
        for title, scene in _TITLES:
            console.print(title, style="bold")
            async with waiting(console):
                findings.append(await _scene(scene, stage))
            say(findings[-1].seen)
        console.print("Folding every journal", style="bold")
        findings.append(await _check_up(stage, console))
        say(findings[-1].seen)
    _show(findings, console)
    return all(finding.holds for finding in findings)


async def _burst(stage: Stage, console: Console) -> Seen:
    with progress_bar("  thumbnails", console, stays=True) as progress:

        async def scene(on: Stage) -> Seen:
            return await scenes.burst(on, progress)

        return await _scene(scene, stage)


async def _scene(scene: Callable[[Stage], Awaitable[Seen]], stage: Stage) -> Seen:
    try:
        return await scene(stage)
    except (TrellisError, StageFright) as error:
        return Seen((scene.__doc__ or "A scene").strip(), str(error), holds=False)


async def _check_up(stage: Stage, console: Console) -> Seen:
    with progress_bar("  journals", console) as progress:
        diagnosis = await diagnose(stage.engine, WorkerSettings(), progress)
    wrong = len(diagnosis.mismatches)
    seen = f"{diagnosis.checked} journals folded, {wrong} disagree"
    return Seen("every journal tells what happened", seen, diagnosis.is_sound)


def _show(findings: list[Seen], console: Console) -> None:
    console.print()
    if not sys.stdout.isatty():
        for finding in findings:
            word = "held  " if finding.holds else "BROKEN"
            console.print(f"{word}  {finding.promised}: {finding.seen}")
        return
    table = Table("", "promised", "seen")
    for finding in findings:
        mark = "[green]held[/]" if finding.holds else "[bold red]BROKEN[/]"
        table.add_row(mark, finding.promised, finding.seen)
    console.print(table)
