"""What creating a job in the caller's transaction has in common on all SQL engines."""

from __future__ import annotations

from typing import Any, Final

from trellis.errors import TransactionRefused

_SQLALCHEMY: Final = frozenset(
    {
        "AsyncConnection", "AsyncSession", "Connection", "Session", "async_scoped_session",
        "scoped_session",
    }
)  # fmt: skip


def is_django(connection: Any, vendor: str) -> bool:  # noqa: ANN401 - any object may be given
    """Return whether this is Django's connection to a database of this vendor."""
    is_of_vendor = getattr(connection, "vendor", None) == vendor
    return is_of_vendor and hasattr(connection, "in_atomic_block")


def sqlalchemy_class(connection: object) -> str | None:
    """Return which connection or session of SQLAlchemy this is."""
    for cls in type(connection).__mro__:
        if cls.__module__.startswith("sqlalchemy.") and cls.__name__ in _SQLALCHEMY:
            return cls.__name__
    return None


def other_dialect(name: str, jobs: str) -> TransactionRefused:
    """Return the error for a connection of SQLAlchemy to a database of another kind."""
    return TransactionRefused(
        f"This connection of SQLAlchemy is to a {name} database, but the jobs are kept in {jobs}: "
        "they cannot be committed together. Nothing was stored. Connect to that database, or "
        "point the service's URL at yours."
    )


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
