"""Which service's handler runs a job of a sandbox.

A name may belong to several `Service` objects of one test run. The one that was used in the
sandbox last is meant; one that was not used serves only where no other has the handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from trellis.client.engine_access import living_accesses
from trellis.declaration.job_type import JobType
from trellis.service import Service

#: A service's name and a type's name.
Place: TypeAlias = tuple[str, str]


class Crew(NamedTuple):
    """The services whose jobs one run works on, and all types of theirs it can run."""

    services: tuple[Service, ...]
    types: tuple[JobType, ...]


class Services:
    """The services that a sandbox has seen."""

    def __init__(self) -> None:
        self._used: dict[Service, None] = {}

    def note(self, owner: object) -> None:
        """Remember that this service was used just now."""
        if isinstance(owner, Service):
            self._used.pop(owner, None)
            self._used[owner] = None

    def find(self, place: Place, *, handled: bool) -> tuple[Service, JobType] | None:
        """Return the service that is meant and its job type; `handled`: one with a handler."""
        name, type_name = place
        for service in self._candidates():
            for job_type in service.job_types if service.name == name else ():
                if job_type.name == type_name and (job_type.handler or not handled):
                    return service, job_type
        return None

    def crew(self, places: Iterable[Place]) -> Crew:
        """Return who can work on jobs of these types, and on what else they may create."""
        for service in tuple(self._used):
            service.load_included()
        found = [match for place in places if (match := self.find(place, handled=True))]
        services = tuple(dict.fromkeys(service for service, _ in found))
        types = [
            job_type
            for service in services
            for job_type in service.job_types
            if self.find((service.name, job_type.name), handled=True) == (service, job_type)
        ]
        return Crew(services, tuple(types))

    def _candidates(self) -> Iterator[Service]:
        yield from reversed(tuple(self._used))
        for access in reversed(living_accesses()):
            if isinstance(access.owner, Service):
                yield access.owner
