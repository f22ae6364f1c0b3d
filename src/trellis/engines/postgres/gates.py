"""Gates: locks by name that keep creators of jobs apart, so that what one has read stays true.

A job with a dedupe or idempotency key, or with a bounded key, passes a gate for each of them. The
gate is held until the transaction ends. In a caller's transaction it is only tried: the transaction
that holds it may take long to commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trellis.core.admission import limited_key
from trellis.core.job import NewJob
from trellis.engines.audit import By
from trellis.engines.postgres.storage import PostgresStorage
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import create
from trellis.engines.sql.rows import dedupe_mark_of, mark_of
from trellis.engines.values import CreateResult
from trellis.errors import EngineBusy


async def create_jobs(
    tx: Transaction, jobs: Sequence[NewJob], by: By | None = None
) -> list[CreateResult]:
    """Admit and store new jobs that were checked and whose numbers are in the registry."""
    await pass_gates(tx, jobs)
    return await create.create(tx, PostgresStorage(tx), jobs, by)


def has_gates(new: NewJob) -> bool:
    """Return whether a job must pass a gate."""
    return any(True for _ in _gates(new))


async def pass_gates(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    """Wait until no other transaction creates jobs that could keep these out."""
    names = sorted({name for new in jobs for name in _gates(new)})
    if not names:
        return
    if not tx.is_callers:
        await tx.lock("gate", names)
    elif not await tx.value("gate_try", names):
        raise EngineBusy(
            "Another transaction is creating a job with the same key, dedupe key or idempotency "
            "key and has not ended yet. Nothing was stored and your transaction is still usable; "
            "try again, or roll back and repeat it."
        )


def _gates(new: NewJob) -> Iterable[str]:
    if new.dedupe is not None:
        yield f"dedupe/{dedupe_mark_of(new)}"
    if new.idempotency_key is not None:
        yield f"idempotency/{mark_of(new, new.idempotency_key)}"
    if limited_key(new) is not None:
        yield f"key/{new.key_hash}"
