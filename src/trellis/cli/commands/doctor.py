"""`trellis doctor`: check every journal and say what the engine is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.options import debug_option, engine_at, resolve_url, url_option

if TYPE_CHECKING:
    from trellis.insight.doctor import Diagnosis


@click.command("doctor")
@url_option
@click.option("--json", "as_json", is_flag=True, help="Write the findings as JSON.")
@debug_option
def command(*, url: str | None, as_json: bool) -> None:
    """Check that everything recorded is true, and show the settings in force.

    Folds the journal of every job and compares it with the job's state. Changes nothing; ends
    with 1 if something does not fit.
    """
    import asyncio  # noqa: PLC0415 - loaded when asked for

    from trellis.cli.exits import CommandFailed  # noqa: PLC0415 - as above

    url = resolve_url(url)
    diagnosis = asyncio.run(_examine(url))
    if as_json:
        click.echo(json.dumps(_as_json(url, diagnosis), indent=2))
    else:
        for line in _as_lines(url, diagnosis):
            click.echo(line)
    if not diagnosis.is_sound:
        raise CommandFailed


async def _examine(url: str) -> Diagnosis:
    import os  # noqa: PLC0415 - loaded when asked for

    from trellis.cli.terminal import progress_bar  # noqa: PLC0415 - as above
    from trellis.contract.settings import worker_settings  # noqa: PLC0415 - as above
    from trellis.insight.doctor import diagnose  # noqa: PLC0415 - as above

    engine = engine_at(url, create=False)
    try:
        await engine.open()
        with progress_bar("Folding journals") as progress:
            return await diagnose(engine, worker_settings(os.environ), progress)
    finally:
        await engine.close()


def _as_json(url: str, diagnosis: Diagnosis) -> dict[str, Any]:
    health = diagnosis.health
    return {
        "url": url,
        "sound": diagnosis.is_sound,
        "engine": health.engine,
        "durability": health.durability,
        "facts": dict(health.facts),
        "warnings": list(health.warnings),
        "jobs": dict(diagnosis.states),
        "journals_checked": diagnosis.checked,
        "mismatches": [mismatch._asdict() for mismatch in diagnosis.mismatches],
        "settings": dict(diagnosis.settings),
    }


def _as_lines(url: str, diagnosis: Diagnosis) -> list[str]:
    health = diagnosis.health
    jobs = ", ".join(f"{count:,} {state}" for state, count in sorted(diagnosis.states.items()))
    lines = [
        f"Engine      {health.engine} at {url}",
        f"Durability  {health.durability}",
        *(f"            {name}: {value}" for name, value in health.facts.items()),
        f"Jobs        {jobs or 'none'}",
        "Settings    " + ", ".join(f"{name} {text}" for name, text in diagnosis.settings.items()),
        *(f"Warning     {warning}" for warning in health.warnings),
    ]
    if diagnosis.is_sound:
        return [*lines, f"Journals    {diagnosis.checked:,} folded, all agree with their jobs"]
    count = len(diagnosis.mismatches)
    wrong = (f"            {each.job_id}: {each.problem}" for each in diagnosis.mismatches[:20])
    return [*lines, f"Journals    {diagnosis.checked:,} folded, {count:,} DO NOT FIT", *wrong]
