"""Contracts and declared types as an engine stores them: values of the port, as in `values.py`.

The records of a service are numbered. The latest `deployed` one is the contract of the worker that
started last with another contract than the one before. An `accepted` one after it allows a worker
with this contract to start although the change is a migration.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from trellis.core.durations import Instant, Micros
from trellis.core.events import JsonValue
from trellis.core.policy import Policy
from trellis.engines.audit import By, Change

Status = Literal["deployed", "accepted"]
#: How many of the latest records of a service are kept. The deployed one is kept even if more
#: acceptances came after it.
KEEP_CONTRACTS: Final = 100
KEPT_CONTRACTS: Final = KEEP_CONTRACTS + 1


class NewContract(NamedTuple):
    """A contract to store."""

    service: str
    #: The number of the service's latest record, as the caller knows it; 0: there is none.
    after: int
    #: The document as JSON text.
    body: str
    fingerprint: str
    status: Status


class ContractRecord(NamedTuple):
    """A stored contract."""

    service: str
    number: int
    body: str
    fingerprint: str
    status: Status
    by: By
    at: Instant

    def answers(self, new: NewContract) -> bool:
        """Return whether this is what an earlier call, whose reply was lost, has stored."""
        return (self.number, self.fingerprint, self.status) == (
            new.after + 1,
            new.fingerprint,
            new.status,
        )


class DeclaredType(NamedTuple):
    """A job type as workers declare it, for jobs that no worker has claimed yet."""

    service: str
    type: str
    queue: str
    policy: Policy
    schema_version: int = 1
    #: The deadline of jobs that are created without one.
    deadline: Micros | None = None


def acceptance(new: NewContract) -> Change:
    """Return the entry of the audit for an accepted contract."""
    after: JsonValue = {"number": new.after + 1, "fingerprint": new.fingerprint}
    return Change("contract.accept", new.service, None, after)
