"""What creating a job in the caller's transaction has in common on all SQL engines."""

from __future__ import annotations

from typing import Any

from trellis.errors import TransactionRefused


def is_django(connection: Any, vendor: str) -> bool:  # noqa: ANN401 - any object may be given
    """Return whether this is Django's connection to a database of this vendor."""
    is_of_vendor = getattr(connection, "vendor", None) == vendor
    return is_of_vendor and hasattr(connection, "in_atomic_block")


def no_transaction(advice: str) -> TransactionRefused:
    """Return the error for a connection on which no transaction is open."""
    return TransactionRefused(
        "This connection has no open transaction, so the job would be stored at once, even if "
        f"your rows are never committed. {advice}"
    )


def failed_transaction(advice: str) -> TransactionRefused:
    """Return the error for a transaction that can only be rolled back."""
    return TransactionRefused(
        f"Your transaction has failed before, so nothing can join it. {advice}"
    )
