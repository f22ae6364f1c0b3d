"""The settings in force in this folder: what each is, in words and as a value, and who says so."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from trellis.config import WorkerSettings, environment, sources, unknown_variables, variable_of

#: What is no setting of a worker process, with its default.
_BESIDE: Final = {"app": None, "log_format": "text", "log_level": "info"}


class InForce(NamedTuple):
    """One setting."""

    name: str
    words: str
    #: For programs; None: unset.
    value: Any
    origin: str


def settings_in_force(settings: WorkerSettings) -> list[InForce]:
    """Return every setting but the URL."""
    said = environment()
    beside = {name: said.get(variable_of(name), default) for name, default in _BESIDE.items()}
    words = settings.in_words()
    return [
        *(InForce(name, text or "not set", text, origin_of(name)) for name, text in beside.items()),
        *(
            InForce(name, words[name], value, origin_of(name))
            for name, value in settings.as_json().items()
        ),
    ]


def origin_of(name: str) -> str:
    """Say where a setting comes from."""
    found = sources().get(variable_of(name))
    return "default" if found is None else found.origin


def strange_variables() -> list[str]:
    """Say which variables look like settings and are none."""
    return [
        f"{name} is set, but there is no such setting."
        + ("" if meant is None else f" Did you mean {meant}?")
        for name, meant in unknown_variables().items()
    ]
