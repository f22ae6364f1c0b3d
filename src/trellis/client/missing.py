"""What is said about a job that is not there."""

from __future__ import annotations

from trellis.client.transactions import is_open
from trellis.errors import JobNotFound, TransactionOpen


def not_committed(job_id: str, connection: object) -> JobNotFound | TransactionOpen:
    """Return the error for a job of the caller's own transaction that nobody else can see."""
    if is_open(connection):
        return TransactionOpen(
            f"Job {job_id} is in a transaction of yours that is still open; nobody can run it "
            "before you commit. Commit first, then wait.",
            job_id=job_id,
        )
    return JobNotFound(
        f"There is no job {job_id}: the transaction it was created in was rolled back.",
        job_id=job_id,
    )
