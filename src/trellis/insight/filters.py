"""The words of filters: the same in Python, on the command line and in URLs.

`state:failed,dead type:shop/sync key:eu tag:tenant=acme since:1h error:timeout` means that every
part must match; where a part lists several values, one of them must. An unknown word is an error: a
filter that silently matched more than was meant would be dangerous for a bulk action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal, TypedDict, Unpack, cast

from trellis.core.durations import Duration, Instant, micros, to_datetime, to_instant
from trellis.core.states import State
from trellis.declaration import checks
from trellis.engines.values import JobFilter
from trellis.errors import ConfigurationError
from trellis.insight.time_expressions import parse_moment

Several = str | Iterable[str]
Moment = Duration | datetime


class Filters(TypedDict, total=False):
    """Which jobs: every given part must match."""

    #: One state or several: "failed", ["failed", "dead"].
    state: Several
    #: One type or several; "shop/sync" names its service too.
    type: Several
    service: Several
    queue: Several
    #: The whole key.
    key: str
    #: Tags that the job must have, all of them.
    tag: Mapping[str, str]
    #: Created at or after this moment; "1h" is an hour ago.
    since: Moment
    #: Created before this moment.
    until: Moment
    #: Part of the code or message of the latest error, in any case.
    error: str
    #: The beginning of the id.
    id: str


WORDS: Final = tuple(Filters.__annotations__)
_LISTS: Final = ("state", "type", "service", "queue")


def parse_filters(words: Iterable[str]) -> Filters:
    """Read filter words as people write them: `state:failed,dead type:sync`."""
    found: dict[str, Any] = {}
    for word in words:
        name, separator, value = word.partition(":")
        if not separator or name not in WORDS or not value:
            raise _unknown_word(word, name)
        add_word(found, name, value)
    return cast("Filters", found)


def add_word(found: dict[str, Any], name: str, value: str) -> None:
    """Add one word; a list or a tag may be given several times, anything else only once."""
    if name in _LISTS:
        found[name] = [*found.get(name, ()), *_parts(value)]
    elif name == "tag":
        label, equals, text = value.partition("=")
        if not equals or not label:
            raise ConfigurationError(f"tag:{value} names no value. Write tag:name=value.")
        found["tag"] = {**found.get("tag", {}), label: text}
    elif name in found:
        raise ConfigurationError(f"{name}: is given twice. A job cannot match both; give it once.")
    else:
        found[name] = value


def _parts(value: str) -> list[str]:
    return [part for part in (each.strip() for each in value.split(",")) if part]


def _unknown_word(word: str, name: str) -> ConfigurationError:
    near = get_close_matches(name, WORDS, 1, 0.5)
    meant = f"Did you mean {near[0]}:...?" if near else f"Known filters: {', '.join(WORDS)}."
    return ConfigurationError(
        f"{word!r} is not a filter. Write it like state:failed or since:1h. {meant}"
    )


def make_filter(now: Instant, **filters: Unpack[Filters]) -> JobFilter:
    """Return the engine's filter; `now` is the engine's time, for durations."""
    unknown = sorted(set(filters) - set(WORDS))
    if unknown:
        raise _unknown_word(f"{unknown[0]}=", unknown[0])
    services, types = _types(_listed(filters.get("service")), _listed(filters.get("type")))
    key, error, start = filters.get("key"), filters.get("error"), filters.get("id")
    return JobFilter(
        services=services,
        types=types,
        queues=_listed(filters.get("queue")),
        states=tuple(_state(word) for word in _listed(filters.get("state"))),
        key=None if key is None else checks.text("key", key, "eu"),
        tags=tuple(sorted(filters.get("tag", {}).items())),
        created_from=_moment("since", filters.get("since"), now),
        created_before=_moment("until", filters.get("until"), now),
        id_prefix=None if start is None else checks.text("id", start, "01JC").upper(),
        error_contains=None if error is None else checks.text("error", error, "timeout"),
    )


def _listed(several: Several | None) -> tuple[str, ...]:
    if several is None:
        return ()
    return (several,) if isinstance(several, str) else tuple(several)


def _state(word: str) -> State:
    try:
        return State(word.lower())
    except ValueError as error:
        near = get_close_matches(word.lower(), list(State), 1)
        meant = f"Did you mean {near[0]}?" if near else f"Known states: {', '.join(State)}."
        raise ConfigurationError(f"{word!r} is not a state of a job. {meant}") from error


def _types(
    services: tuple[str, ...], types: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the service off a type; a filter that would match other pairs too is refused."""
    pairs = [name.rpartition("/") for name in types]
    named = tuple(dict.fromkeys(service for service, _, _ in pairs if service))
    if not named:
        return services, types
    if len(named) > 1 or len(pairs) != sum(bool(service) for service, _, _ in pairs):
        raise ConfigurationError(
            f"{', '.join(types)} are of several services. Choose the types of one service at a "
            "time, or leave the service out of all of them."
        )
    if services and services != named:
        raise ConfigurationError(
            f"{', '.join(types)} is not of service {', '.join(services)}. Name the service once."
        )
    return named, tuple(name for _, _, name in pairs)


def _moment(word: Literal["since", "until"], asked: Moment | None, now: Instant) -> Instant | None:
    match asked:
        case None:
            return None
        case datetime():
            return checks.instant(word, asked)
        case str():
            return to_instant(parse_moment(asked, to_datetime(now), "past"))
        case int() | float() | timedelta():
            return now - micros(asked)
    raise ConfigurationError(
        f"{word}={asked!r} is not a time. Write a duration like '1h' or an aware datetime."
    )
