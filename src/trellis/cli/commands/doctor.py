"""`trellis doctor`: check every journal and say what the engine is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.options import debug_option, engine_at, json_option, resolve_url, url_option
from trellis.engines.redaction import shown

if TYPE_CHECKING:
    from trellis.insight.doctor import Diagnosis


@click.command("doctor")
@click.option("--quick", is_flag=True, help="Leave out the journals: look at the engine only.")
@json_option
@url_option
@debug_option
def command(*, url: str | None, as_json: bool, quick: bool) -> None:
    """Check that everything recorded is true, and show the settings in force.

    Warns of what is wrong with the engine and says what to do. Folds the journal of every job and
    compares it with the job's state. Changes nothing; ends with 1 if something does not fit.
    """
    import asyncio  # noqa: PLC0415 - loaded when asked for

    from trellis.cli.escaping import visible  # noqa: PLC0415 - as above
    from trellis.cli.exits import CommandFailed  # noqa: PLC0415 - as above
    from trellis.cli.settings_view import origin_of  # noqa: PLC0415 - as above
    from trellis.cli.writing import write_json, write_line  # noqa: PLC0415 - as above

    place = resolve_url(url)
    origin = origin_of("url") if url is None else "--url"
    diagnosis = asyncio.run(_examine(place, journals=not quick))
    if as_json:
        write_json(_as_json(place, origin, diagnosis))
    else:
        for line in _as_lines(place, origin, diagnosis):
            write_line(visible(line))
    if not diagnosis.is_sound:
        raise CommandFailed


async def _examine(url: str, *, journals: bool) -> Diagnosis:
    from trellis.cli.terminal import progress_bar  # noqa: PLC0415 - loaded when asked for
    from trellis.config import environment, worker_settings  # noqa: PLC0415 - as above
    from trellis.insight.doctor import diagnose  # noqa: PLC0415 - as above

    engine = engine_at(url, create=False)
    settings = worker_settings(environment())
    try:
        await engine.open()
        with progress_bar("Folding journals") as progress:
            return await diagnose(engine, settings, progress, journals=journals)
    finally:
        await engine.close()


def _as_json(url: str, origin: str, diagnosis: Diagnosis) -> dict[str, Any]:
    from trellis.cli.settings_view import settings_in_force  # noqa: PLC0415 - loaded when asked for

    health = diagnosis.health
    settings = settings_in_force(diagnosis.settings)
    return {
        "url": shown(url),
        "sound": diagnosis.is_sound,
        "engine": health.engine,
        "durability": health.durability,
        "facts": dict(health.facts),
        "warnings": _warnings(diagnosis),
        "jobs": dict(diagnosis.states),
        "journals_checked": diagnosis.checked,
        "mismatches": [mismatch._asdict() for mismatch in diagnosis.mismatches],
        "settings": {each.name: each.value for each in settings},
        "origins": {"url": origin, **{each.name: each.origin for each in settings}},
    }


def _as_lines(url: str, origin: str, diagnosis: Diagnosis) -> list[str]:
    health = diagnosis.health
    jobs = ", ".join(f"{count:,} {state}" for state, count in sorted(diagnosis.states.items()))
    lines = [
        f"Engine      {health.engine} at {shown(url)} ({origin})",
        f"Durability  {health.durability}",
        *(f"            {name}: {value}" for name, value in health.facts.items()),
        f"Jobs        {jobs or 'none'}",
        *_settings_lines(diagnosis),
        *(f"Warning     {warning}" for warning in _warnings(diagnosis)),
    ]
    if diagnosis.is_sound and not diagnosis.checked and diagnosis.states:
        return [*lines, "Journals    not looked at"]
    if diagnosis.is_sound:
        return [*lines, f"Journals    {diagnosis.checked:,} folded, all agree with their jobs"]
    count = len(diagnosis.mismatches)
    wrong = (f"            {each.job_id}: {each.problem}" for each in diagnosis.mismatches[:20])
    return [*lines, f"Journals    {diagnosis.checked:,} folded, {count:,} DO NOT FIT", *wrong]


def _settings_lines(diagnosis: Diagnosis) -> list[str]:
    """Return every setting in force and where it comes from."""
    from trellis.cli.settings_view import settings_in_force  # noqa: PLC0415 - loaded when asked for

    settings = settings_in_force(diagnosis.settings)
    longest = max(len(each.words) for each in settings)
    return [
        f"{'' if number else 'Settings':<12}{each.name:<13}{each.words:<{longest}}  {each.origin}"
        for number, each in enumerate(settings)
    ]


def _warnings(diagnosis: Diagnosis) -> list[str]:
    from trellis.cli.settings_view import strange_variables  # noqa: PLC0415 - loaded when asked for

    return [*diagnosis.health.warnings, *strange_variables()]
