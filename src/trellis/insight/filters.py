"""The words of filters: the same in Python, on the command line and in URLs.

`state:failed,dead type:shop/sync key:eu tag:tenant=acme since:1h error:timeout` means that every
part must match; where a part lists several values, one of them must. An unknown word is an error: a
filter that silently matched more than was meant would be dangerous for a bulk action. In Python
`finished-after` is written `finished_after`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal, TypedDict, Unpack, cast

from trellis.core.durations import Duration, Instant, micros, to_datetime, to_instant
from trellis.core.state_words import SYNONYMS
from trellis.core.states import GROUPS, State
from trellis.declaration import checks
from trellis.engines.values import GroupBy, JobFilter, TagGroup
from trellis.errors import ConfigurationError
from trellis.insight.time_expressions import parse_moment

Several = str | Iterable[str]
Moment = Duration | datetime


class Filters(TypedDict, total=False):
    """Which jobs: every given part must match."""

    #: One state or several: "failed", ["failed", "dead"]; or a group of them: "waiting", "running",
    #: "ended", "unsuccessful" (failed, dead, stale, expired).
    state: Several
    #: One type or several; "shop/sync" names its service too.
    type: Several
    service: Several
    queue: Several
    #: The whole key.
    key: str
    #: The tenant whose share of the queue it uses.
    tenant: str
    #: Tags that the job must have, all of them.
    tag: Mapping[str, str]
    #: Created at or after this moment; "1h" is an hour ago.
    since: Moment
    #: Created before this moment.
    until: Moment
    #: Ended at or after this moment; "1h": in the last hour.
    finished_after: Moment
    #: Ended before this moment.
    finished_before: Moment
    #: Part of the code or message of the latest error, in any case.
    error: str
    #: A worker process that has or had an attempt: its whole name, its host, or its id.
    worker: str
    #: The id of a batch of which it is a member.
    batch: str
    #: The id of the job in whose handler, or at whose end, it was created.
    parent: str
    #: The schedule that created it, in a slot or because an operator ran it; "shop/nightly" names
    #: its service too.
    schedule: str
    #: The beginning of the id.
    id: str


#: The words as people write them.
WORDS: Final = tuple(name.replace("_", "-") for name in Filters.__annotations__)
_LISTS: Final = ("state", "type", "service", "queue")


def parse_filters(words: Iterable[str]) -> Filters:
    """Read filter words as people write them: `state:failed,dead type:sync`."""
    found: dict[str, Any] = {}
    for word in words:
        name, separator, value = word.partition(":")
        if not separator or name not in WORDS or not value:
            raise _unknown_word(word, name)
        add_word(found, name.replace("-", "_"), value)
    return cast("Filters", found)


def add_word(found: dict[str, Any], name: str, value: str) -> None:
    """Add one word; a list or a tag may be given several times, anything else only once."""
    if name in _LISTS:
        found[name] = [*found.get(name, ()), *_parts(value)]
    elif name == "tag":
        label, equals, text = value.partition("=")
        if not equals or not label:
            raise ConfigurationError(f"tag:{value} has no value. Write tag:name=value.")
        found["tag"] = {**found.get("tag", {}), label: text}
    elif name in found:
        word = name.replace("_", "-")
        raise ConfigurationError(f"{word}: is given twice. A job cannot match both; give it once.")
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
    unknown = sorted(set(filters) - set(Filters.__annotations__))
    if unknown:
        raise _unknown_word(f"{unknown[0]}=", unknown[0])
    services, types = split_types(listed(filters.get("service")), listed(filters.get("type")))
    services, schedule = split_schedule(services, filters.get("schedule"))
    key, error, start = filters.get("key"), filters.get("error"), filters.get("id")
    worker, tenant = filters.get("worker"), filters.get("tenant")
    return JobFilter(
        services=services,
        types=types,
        queues=listed(filters.get("queue")),
        states=read_states(filters.get("state")),
        key=None if key is None else checks.text("key", key, "eu"),
        tenant=None if tenant is None else checks.text("tenant", tenant, "gold"),
        tags=_tags(filters.get("tag", {})),
        created_from=read_moment("since", filters.get("since"), now),
        created_before=read_moment("until", filters.get("until"), now),
        finished_from=read_moment("finished_after", filters.get("finished_after"), now),
        finished_before=read_moment("finished_before", filters.get("finished_before"), now),
        worker=None if worker is None else checks.text("worker", worker, "host-1234"),
        batch=_id("batch", filters.get("batch")),
        parent=_id("parent", filters.get("parent")),
        schedule=schedule,
        id_prefix=None if start is None else checks.text("id", start, "01JC").upper(),
        error_contains=None if error is None else checks.text("error", error, "timeout"),
    )


def _id(name: str, given: str | None) -> str | None:
    return None if given is None else checks.text(name, given, "01JC0000000000").upper()


_GROUPS: Final[dict[str, tuple[GroupBy, ...]]] = {
    "state": ("state",),
    "type": ("service", "type"),
    "queue": ("service", "queue"),
    "service": ("service",),
    "error": ("error",),
    "worker": ("worker",),
    "tenant": ("tenant",),
}


def read_groups(by: str) -> tuple[GroupBy, ...]:
    """Return by what an engine counts: `type` is counted per service, `tag:tenant` by its value."""
    name = by.removeprefix("tag:")
    if name and name != by:
        return (TagGroup(name),)
    if by not in _GROUPS:
        raise ConfigurationError(
            f"Jobs cannot be counted by {by!r}. Count by {', '.join(_GROUPS)} or tag:NAME."
        )
    return _GROUPS[by]


def listed(several: Several | None) -> tuple[str, ...]:
    """Return one value or several as a tuple."""
    if several is None:
        return ()
    return (several,) if isinstance(several, str) else tuple(several)


def _tags(tags: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(tags, Mapping):
        raise ConfigurationError(
            f"tag={tags!r} is not a mapping. Write it like tag={{'customer': 'ada'}}."
        )
    return tuple(sorted(tags.items()))


_SEVERAL: Final = SYNONYMS | GROUPS


def read_states(words: Several | None) -> tuple[State, ...]:
    """Return the states that words name, each once; a group stands for its states.

    The words of other job systems stand for the states that they mean (`queued`, `success`).
    """
    found = [
        state
        for word in listed(words)
        for state in sorted(_SEVERAL.get(word.lower()) or [_state(word)])
    ]
    return tuple(dict.fromkeys(found))


def _state(word: str) -> State:
    try:
        return State(word.lower())
    except ValueError as error:
        known = [*State, *GROUPS]
        near = get_close_matches(word.lower(), known, 1)
        meant = f"Did you mean {near[0]}?" if near else f"Known states: {', '.join(known)}."
        raise ConfigurationError(f"{word!r} is not a state of a job. {meant}") from error


def split_types(
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


def split_schedule(
    services: tuple[str, ...], given: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Split the service off a schedule."""
    if given is None:
        return services, None
    service, _, name = checks.text("schedule", given, "nightly").rpartition("/")
    if service and services and services != (service,):
        raise ConfigurationError(
            f"{given} is not of service {', '.join(services)}. Name the service once."
        )
    return ((service,) if service else services), name


def read_moment(
    word: Literal["since", "until", "finished_after", "finished_before"],
    asked: Moment | None,
    now: Instant,
) -> Instant | None:
    """Return the moment that a filter names; a duration counts back from `now`."""
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
