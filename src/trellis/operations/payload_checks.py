"""Whether waiting jobs can still be read by a contract that changes their payloads."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from trellis.core.contract_plan import Plan
from trellis.core.job import JobRecord
from trellis.core.states import WAITING
from trellis.declaration.secrets import MASK
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter
from trellis.errors import PayloadInvalid

_EXAMPLES: Final = 3
_PAGE: Final = 500
#: Reads the payload of a job of this schema version; raises `PayloadInvalid`.
ReadPayload: TypeAlias = Callable[[str, int], object]


@dataclass(frozen=True, slots=True)
class PayloadCheck:
    """Whether the waiting jobs of a type whose payload changes can still be read."""

    type: str
    waiting: int
    checked: int
    #: Whether only some were checked, chosen at random.
    is_sample: bool
    invalid: int
    #: The first few of them: the id of the job, and what does not fit.
    examples: tuple[tuple[str, str], ...]


class Extent(NamedTuple):
    """How many of the waiting jobs of a type are checked."""

    #: All of them up to this number, above it a sample.
    check_all: int
    sample: int


async def check_payloads(
    engine: Engine,
    service: str,
    found: Plan,
    readers: Mapping[str, ReadPayload],
    extent: Extent,
) -> tuple[PayloadCheck, ...]:
    """Check the waiting jobs of the types whose payloads a plan changes."""
    checks = []
    for name in sorted(_with_other_payloads(found) & readers.keys()):
        where = JobFilter(services=(service,), types=(name,), states=tuple(sorted(WAITING)))
        checks.append(await _check_type(engine, where, readers[name], extent))
    return tuple(each for each in checks if each.waiting)


async def _check_type(
    engine: Engine, where: JobFilter, read: ReadPayload, extent: Extent
) -> PayloadCheck:
    waiting = sum((await engine.count(where)).combinations.values())
    is_sample = waiting > extent.check_all
    jobs = _some(engine, where, extent.sample) if is_sample else _all(engine, where)
    checked = invalid = 0
    examples: list[tuple[str, str]] = []
    async for record in jobs:
        checked += 1
        if _has_no_payload(record):
            continue
        try:
            read(record.definition.payload, record.definition.schema_version)
        except PayloadInvalid as error:
            if f'"{MASK}"' in record.definition.payload:  # by a server, for an operator
                checked -= 1
                continue
            invalid += 1
            if len(examples) < _EXAMPLES:
                examples.append((record.definition.id, str(error)))
    return PayloadCheck(where.types[0], waiting, checked, is_sample, invalid, tuple(examples))


def _has_no_payload(record: JobRecord) -> bool:
    """Return whether the job takes the result of another, which has not ended."""
    relations = record.definition.relations
    return bool(relations and relations.payload_from) and record.definition.payload == "null"


async def _all(engine: Engine, where: JobFilter) -> AsyncIterator[JobRecord]:
    after: int | None = None
    while True:
        page = await engine.find(where, after=after, limit=_PAGE)
        for record in page.jobs:
            yield record
        after = page.next_after
        if after is None:
            return


async def _some(engine: Engine, where: JobFilter, size: int) -> AsyncIterator[JobRecord]:
    """Yield jobs from random places of the queue, each once."""
    page = await engine.find(where, limit=_PAGE)
    lowest, highest = 0, page.jobs[0].definition.row + 1 if page.jobs else 1
    seen: set[int] = set()
    for _ in range(size):  # most places have jobs; this ends where few have
        if len(seen) >= size:
            return
        place = random.randint(lowest + 1, highest)  # noqa: S311 - a sample, not a secret
        page = await engine.find(where, after=place, limit=_PAGE // 5)
        if not page.jobs:
            lowest = min(place, highest - 1)
        for record in page.jobs:
            if record.definition.row not in seen:
                seen.add(record.definition.row)
                yield record


def _with_other_payloads(found: Plan) -> set[str]:
    fields = (".payload", ".schemaVersion", ".upgradesFrom")
    return {each.path.split(".")[1] for each in found.changes if each.path.endswith(fields)}
