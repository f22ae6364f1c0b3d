"""Which of a program's job types a worker runs: all, or those of the types and queues it names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from trellis.contract.declaration import JobType
from trellis.errors import ConfigurationError


def choose(
    job_types: Sequence[JobType], types: Sequence[str], queues: Sequence[str]
) -> list[JobType]:
    """Return the types to work on; refuse a name that nothing here has."""
    for wanted in types:
        if not any(_is_named(each, wanted) for each in job_types):
            raise _unknown("type", wanted, {each.name for each in job_types})
    for wanted in queues:
        if all(each.queue != wanted for each in job_types):
            raise _unknown("queue", wanted, {each.queue for each in job_types})
    chosen = [
        each
        for each in job_types
        if (not types or any(_is_named(each, wanted) for wanted in types))
        and (not queues or each.queue in queues)
    ]
    if job_types and not chosen:
        raise ConfigurationError(
            f"No job type is both one of {', '.join(types)} and in one of {', '.join(queues)}: "
            "this worker would run nothing. Leave out --types or --queues."
        )
    return chosen


def _is_named(job_type: JobType, wanted: str) -> bool:
    """Tell whether this is the type meant: `send`, or `billing/send` among several services."""
    return wanted in {job_type.name, f"{job_type.service}/{job_type.name}"}


def _unknown(what: str, wanted: str, known: Iterable[str]) -> ConfigurationError:
    names = sorted(known)
    close = get_close_matches(wanted, names, 1)
    hint = f"Did you mean {close[0]}?" if close else f"It has {', '.join(names) or 'none'}."
    return ConfigurationError(f"This worker has no handler for the {what} {wanted!r}. {hint}")
