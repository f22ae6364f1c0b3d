"""The services of a sandbox: which handler runs a job.

One test run may have several `Service` objects with the same name. The one used last in the sandbox
is taken; one that was not used is taken only if no other has the handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from trellis.client.engine_access import living_accesses
from trellis.declaration.job_type import JobType
from trellis.service import Service

#: The names of a service and of a job type.
TypeName: TypeAlias = tuple[str, str]


class Selection(NamedTuple):
    """The services whose jobs a run executes, and all their types with a handler."""

    services: tuple[Service, ...]
    types: tuple[JobType, ...]


class Services:
    """The services that were used in a sandbox."""

    def __init__(self) -> None:
        self._used: dict[Service, None] = {}

    def note(self, owner: object) -> None:
        """Record that this service was used now."""
        if isinstance(owner, Service):
            self._used.pop(owner, None)
            self._used[owner] = None

    def find(self, name: TypeName, *, handled: bool) -> tuple[Service, JobType] | None:
        """Return the service and its job type; with `handled`, one that has a handler."""
        service_name, type_name = name
        for service in self._candidates():
            for job_type in service.job_types if service.name == service_name else ():
                if job_type.name == type_name and (job_type.handler or not handled):
                    return service, job_type
        return None

    def names(self) -> set[str]:
        """Return every type of the program, as `service/type`."""
        return {
            f"{service.name}/{job_type.name}"
            for service in self._candidates()
            for job_type in service.job_types
        }

    def select(self, names: Iterable[TypeName]) -> Selection:
        """Return the services of these types, with all types that their jobs may create."""
        for service in tuple(self._used):
            service.load_included()
        found = [match for name in names if (match := self.find(name, handled=True))]
        services = tuple(dict.fromkeys(service for service, _ in found))
        types = [
            job_type
            for service in services
            for job_type in service.job_types
            if self.find((service.name, job_type.name), handled=True) == (service, job_type)
        ]
        return Selection(services, tuple(types))

    def _candidates(self) -> Iterator[Service]:
        yield from reversed(tuple(self._used))
        for access in reversed(living_accesses()):
            if isinstance(access.owner, Service):
                yield access.owner
