"""`trellis doctor`: check the engine and every journal, and show the settings in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import rich_click as click

from trellis.cli.app import CommandFailed, engine_at, find_url, naming_services
from trellis.cli.options import debug_option, json_option, url_option
from trellis.cli.output import as_typed, progress_bar, visible, write_json, write_line
from trellis.engines.redaction import shown

if TYPE_CHECKING:
    from trellis.config import WorkerSettings
    from trellis.insight.doctor import Diagnosis

#: Settings that are not those of a worker process, with their defaults.
_OTHER_SETTINGS: Final = {
    "app": None,
    "log_format": "text",
    "log_level": "info",
    "actor": "user@host",
    "require_reason": "false",
    "telemetry": "off",
    "health_port": None,
    "health_host": "127.0.0.1",
}
_MISMATCHES_SHOWN: Final = 20


@click.command("doctor")
@click.option("--quick", is_flag=True, help="Check the engine only; do not read the journals.")
@json_option
@url_option
@debug_option
def doctor(*, url: str | None, as_json: bool, quick: bool) -> None:
    """Check the engine and the journal of every job, and show the settings in force.

    Warns of problems of the engine and says what to do. Computes every job again from its journal
    and compares the two. Changes nothing; exits with 1 if a journal does not match its job, or if
    the jobs cannot be read.
    """
    import asyncio

    address = find_url(url)
    with naming_services(address):
        diagnosis = asyncio.run(_diagnose(address.url, journals=not quick))
    if as_json:
        write_json(_document(*address, diagnosis))
    else:
        for line in _lines(*address, diagnosis):
            write_line(visible(as_typed(line)))
    if not diagnosis.is_sound:
        raise CommandFailed


async def _diagnose(url: str, *, journals: bool) -> Diagnosis:
    from trellis.config import environment, worker_settings
    from trellis.insight.doctor import diagnose

    engine = engine_at(url, create=False)
    settings = worker_settings(environment())
    try:
        await engine.open()
        with progress_bar("Checking journals") as progress:
            return await diagnose(engine, settings, progress, journals=journals)
    finally:
        await engine.close()


def _document(url: str, origin: str, diagnosis: Diagnosis) -> dict[str, Any]:
    health = diagnosis.health
    settings = _settings_in_force(diagnosis.settings)
    return {
        "url": shown(url),
        "healthy": diagnosis.is_sound,
        "engine": health.engine,
        "durability": health.durability,
        "facts": dict(health.facts),
        "warnings": [as_typed(each) for each in _warnings(diagnosis)],
        "states": dict(diagnosis.states),
        "journals_checked": diagnosis.checked,
        "mismatches": [mismatch._asdict() for mismatch in diagnosis.mismatches],
        "settings": {each.name: each.value for each in settings},
        "origins": {"url": origin, **{each.name: each.origin for each in settings}},
    }


def _lines(url: str, origin: str, diagnosis: Diagnosis) -> list[str]:
    health = diagnosis.health
    jobs = ", ".join(f"{count:,} {state}" for state, count in sorted(diagnosis.states.items()))
    settings = _settings_in_force(diagnosis.settings)
    widest = max(len(each.text) for each in settings)
    names = max(len(each.name) for each in settings) + 1
    return [
        f"Engine      {health.engine} at {shown(url)} ({origin})",
        f"Durability  {health.durability}",
        *(f"            {name}: {value}" for name, value in health.facts.items()),
        f"Jobs        {jobs or ('none' if diagnosis.unread is None else 'not read')}",
        *(
            f"{'' if number else 'Settings':<12}{each.name:<{names}}{each.text:<{widest}}  "
            f"{each.origin}"
            for number, each in enumerate(settings)
        ),
        *(f"Warning     {warning}" for warning in _warnings(diagnosis)),
        *_journal_lines(diagnosis),
    ]


def _journal_lines(diagnosis: Diagnosis) -> list[str]:
    is_skipped = diagnosis.is_sound and not diagnosis.checked and diagnosis.states
    if is_skipped or diagnosis.unread is not None:
        return ["Journals    not checked"]
    if diagnosis.is_sound:
        return [f"Journals    {diagnosis.checked:,} checked, all match their jobs"]
    count = len(diagnosis.mismatches)
    shown_first = diagnosis.mismatches[:_MISMATCHES_SHOWN]
    return [
        f"Journals    {diagnosis.checked:,} checked, {count:,} DO NOT MATCH",
        *(f"            {each.job_id}: {each.problem}" for each in shown_first),
    ]


# -- settings ------------------------------------------------------------------------------------


class SettingInForce(NamedTuple):
    """One setting and where it comes from."""

    name: str
    text: str
    #: For programs; None: unset.
    value: Any
    origin: str


def _settings_in_force(settings: WorkerSettings) -> list[SettingInForce]:
    """Return every setting but the URL."""
    from trellis.config import environment, variable_of

    variables = environment()
    texts = settings.in_words()
    found = []
    for name, default in _OTHER_SETTINGS.items():
        text = variables.get(variable_of(name), default)
        found.append(SettingInForce(name, text or "not set", text, _origin(name)))
    for name, value in settings.as_json().items():
        found.append(SettingInForce(name, texts[name], value, _origin(name)))
    return found


def _origin(name: str) -> str:
    """Return where a setting comes from."""
    from trellis.config import sources, variable_of

    found = sources().get(variable_of(name))
    return "default" if found is None else found.origin


def _warnings(diagnosis: Diagnosis) -> list[str]:
    """Return all warnings, with one per variable that looks like a setting."""
    from trellis.config import unknown_variables

    warnings = diagnosis.warnings
    for name, meant in unknown_variables().items():
        hint = "" if meant is None else f" Did you mean {meant}?"
        warnings.append(f"{name} is set, but there is no such setting.{hint}")
    return warnings
