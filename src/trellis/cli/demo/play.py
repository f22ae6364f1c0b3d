"""Playing the scenes one after another, and the check-up that follows them all."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from trellis.cli.demo.programme import BURST, JOURNALS, SCENES, Scene
from trellis.cli.demo.stage import Stage, StageFright
from trellis.cli.demo.telling import Finding, Seen, Teller
from trellis.config import WorkerSettings
from trellis.errors import ConfigurationError, TrellisError
from trellis.insight.doctor import diagnose


def perform(folder: Path, names: Sequence[str]) -> bool:
    """Play the scenes of these names, or all; return whether every promise was kept.

    Raises `KeyboardInterrupt` once nothing runs any more, however often it is asked to stop.
    """
    scenes = _choose(names)
    held = asyncio.run(_until_interrupted(_play_all(folder, Teller(), scenes)))
    if held is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing but cleaning up is left to do
        raise KeyboardInterrupt
    return held


async def _until_interrupted(work: Coroutine[Any, Any, bool]) -> bool | None:
    """Work until a signal comes; then unwind once, undisturbed by those that follow."""
    playing = asyncio.create_task(work)

    def interrupt() -> None:
        if not playing.cancelling():
            playing.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup: it stays so
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
    try:
        return await playing
    except asyncio.CancelledError:
        return None


async def _play_all(folder: Path, tell: Teller, scenes: Sequence[Scene]) -> bool:
    needed = max(scene.workers for scene in scenes)
    findings = []
    async with Stage(folder, tell) as stage:
        await _introduce(stage, needed)
        for number, scene in enumerate(scenes, 1):
            tell.title(f"{number}. {scene.title}")
            findings.append(Finding(scene.promised, await _play(scene, stage, needed)))
            tell.judge(findings[-1].seen)
        tell.title(f"{len(scenes) + 1}. What the journals say")
        tell.say("the workers are told to stop")
        await stage.dismiss()
        findings.append(Finding(JOURNALS, await _check_up(stage)))
        tell.judge(findings[-1].seen)
    tell.sum_up(findings)
    return all(finding.seen.holds for finding in findings)


def _choose(names: Sequence[str]) -> list[Scene]:
    known = [scene.name for scene in SCENES]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"The demo has no scene {name!r}. It has {', '.join(known)}.")
    return [scene for scene in SCENES if not names or scene.name in names]


async def _introduce(stage: Stage, workers: int) -> None:
    stage.tell.open(f"Workers start on a new database, {stage.database}:")
    async with stage.tell.waiting():
        await stage.staff(workers)
    for worker in stage.workers:
        process = await stage.process_of(worker)
        stage.tell.say(
            f"{worker} runs jobs in process {process}; guardian {worker.guardian} watches"
        )


async def _play(scene: Scene, stage: Stage, workers: int) -> Seen:
    try:
        await stage.staff(workers)
        if scene is BURST:  # has a bar of its own
            return await scene.play(stage)
        async with stage.tell.waiting():
            return await scene.play(stage)
    except (TrellisError, StageFright) as error:
        return Seen(str(error), holds=False)


async def _check_up(stage: Stage) -> Seen:
    stage.tell.say("the journal of every job is folded, event by event, and compared with the job")
    with stage.tell.bar("journals") as progress:
        diagnosis = await diagnose(stage.engine, WorkerSettings(), progress)
    wrong = len(diagnosis.mismatches)
    agree = "all agree with their jobs" if not wrong else f"{wrong} do NOT agree with their jobs"
    return Seen(f"{diagnosis.checked} journals folded, {agree}", diagnosis.is_sound)
