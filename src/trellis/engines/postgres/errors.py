"""PostgreSQL's errors as errors of Trellis: what happened, whether it was stored, what to do.

If a connection is lost before a call was sent, nothing was stored. If it is lost afterwards the
outcome is unknown, and the caller must look (creates by their ids, settlements by the journal).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence

import asyncpg

from trellis.engines.postgres.blockers import Blocker, advice
from trellis.engines.postgres.url import Address, nearest_option
from trellis.engines.redaction import as_argument
from trellis.errors import (
    AccessDenied,
    AddressUnusable,
    DatabaseMissing,
    DiskFull,
    EngineBlocked,
    EngineBusy,
    EngineError,
    EngineUnavailable,
    NotATrellisDatabase,
    OutcomeUnknown,
    PayloadInvalid,
    ReadOnlyDatabase,
    Unstorable,
)

#: The server reports that it did not run the statement, and that it may do so later.
_UNAVAILABLE = (
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
)
_BUSY = (
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.SerializationError,
)
_LOST = (
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    asyncio.IncompleteReadError,
    EOFError,
)
#: Classes of errors that are about what was sent, and come again: data, constraints, limits.
_ABOUT_THE_VALUES = frozenset({"22", "23", "54"})
#: Prepared statements of another client on this connection: only a pooler causes that.
_SHARED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
#: The server refuses one of its settings in the URL.
_WRONG_OPTION = (
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidParameterValueError,
    asyncpg.CantChangeRuntimeParamError,
)
_NAMED = re.compile(r'parameter:? "?(\w+)')


def cannot_connect(error: BaseException, address: Address) -> EngineError:
    """Return why there is no connection; nothing was sent."""
    where = address.shown
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return DatabaseMissing(
            f"There is no such database: {where}. Create it (createdb), then run `trellis migrate`."
        )
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        return AccessDenied(
            f"PostgreSQL refused the login at {where}: {_text(error)} Nothing was stored. "
            "Check the user and password of the URL, and the server's pg_hba.conf."
        )
    if isinstance(error, asyncpg.ClientConfigurationError | ValueError | ssl.SSLError):
        return AddressUnusable(f"{where} cannot be used: {_text(error)}")
    if isinstance(error, _WRONG_OPTION):
        return _wrong_option(error, where)
    if isinstance(error, asyncpg.ProtocolViolationError) and "startup parameter" in str(error):
        # A pooler that the URL names gets no settings of ours.
        return (_pooler if address.pooler == "none" else _wrong_option)(error, where)
    if isinstance(error, TimeoutError):
        text = f"no answer within {address.connect_timeout:g} s."
    else:
        text = _text(error)
    return EngineUnavailable(
        f"PostgreSQL cannot be reached at {where}: {text} Nothing was stored. Check that the "
        "server runs and that the URL is right. Workers that run already go on once it answers."
    )


def _wrong_option(error: BaseException, where: str) -> AddressUnusable:
    """Return that the server refuses what the driver sent as one of its settings."""
    found = _NAMED.search(str(error))
    name = found[1] if found else ""
    near = nearest_option(name)
    hint = f"Did you mean {near}?" if near else "Remove or correct it."
    return AddressUnusable(
        f"The URL {where} has an option that the server refuses: {_text(error)} {hint} Options of "
        "Trellis and of the driver are listed in docs/operations/postgresql.md."
    )


def translate(
    error: BaseException,
    address: Address,
    *,
    sent: bool = True,
    blockers: Sequence[Blocker] = (),
) -> Exception:
    """Return the typed error for what went wrong in a call; `blockers`: what it waited for."""
    where = address.shown
    if isinstance(error, asyncpg.DiskFullError):
        return DiskFull(
            f"The disk of the server at {where} is full. Nothing of this call was stored; free "
            "some space and try again."
        )
    if isinstance(error, _UNAVAILABLE):
        return EngineUnavailable(
            f"PostgreSQL at {where} is not available now: {_text(error)} Nothing of this call was "
            "stored; work continues automatically once it is back."
        )
    if isinstance(error, _BUSY):
        return _busy(error, where, blockers)
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.InvalidSchemaNameError):
        return NotATrellisDatabase(
            f"{where} has no Trellis tables in the schema {address.schema!r} ({_text(error)}) Run: "
            f"trellis migrate --url {as_argument(address.url)}"
        )
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return AccessDenied(
            f"This user may not do that at {where}: {_text(error)} See the roles in "
            "docs/operations/postgresql.md."
        )
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return ReadOnlyDatabase(
            f"{where} is read-only: {_text(error)} It may be a standby; point the URL at the "
            "primary, or add target_session_attrs=read-write."
        )
    if isinstance(error, UnicodeEncodeError | asyncpg.UntranslatableCharacterError) or (
        isinstance(error, asyncpg.DataError)
        and ("0x00" in str(error) or isinstance(error.__cause__, UnicodeEncodeError))
    ):
        return PayloadInvalid(
            "A text to be stored contains U+0000 or a lone surrogate, which PostgreSQL cannot "
            "store. Nothing of this call was stored; remove or replace it."
        )
    if isinstance(error, (*_LOST, TimeoutError, asyncpg.PostgresConnectionError)):
        return lost(error, address, sent=sent)
    if isinstance(error, asyncpg.PostgresError):
        return _refused(error, where)
    return error if isinstance(error, Exception) else EngineError(str(error))


def _blocked(where: str, blockers: Sequence[Blocker]) -> EngineBlocked:
    who = advice(blockers) if blockers else "Look for long transactions in pg_stat_activity."
    return EngineBlocked(
        f"A statement waited too long for a lock at {where}. Nothing of this call was stored. "
        f"{who} Work continues automatically afterwards.",
        pids=tuple(each.pid for each in blockers),
    )


def _busy(error: BaseException, where: str, blockers: Sequence[Blocker]) -> EngineError:
    if isinstance(error, asyncpg.LockNotAvailableError):
        return _blocked(where, blockers)
    if isinstance(error, asyncpg.QueryCanceledError):
        return EngineBusy(
            f"PostgreSQL at {where} cancelled a statement: {_text(error)} Nothing of this call was "
            "stored; try again. If this continues, find out what keeps the server busy."
        )
    return EngineBusy(
        f"PostgreSQL at {where} could not get a lock: {_text(error)} Nothing of this call was "
        "stored; try again. If this continues, look for a long transaction in pg_stat_activity."
    )


def _refused(error: asyncpg.PostgresError, where: str) -> Exception:
    if isinstance(error, _SHARED):
        return AddressUnusable(
            f"A transaction pooler is in front of {where}, but the URL does not name it: "
            f"{_text(error)} Add pooler=transaction to the URL, and listen=postgresql://... past "
            "the pooler, so that workers are woken."
        )
    if str(error.sqlstate)[:2] in _ABOUT_THE_VALUES:
        return Unstorable(
            f"PostgreSQL at {where} cannot store this: {_text(error)} Nothing of this call was "
            "stored."
        )
    return EngineError(f"PostgreSQL at {where} refused a statement: {_text(error)}")


def _pooler(error: BaseException, where: str) -> EngineError:
    return AddressUnusable(
        f"A pooler is in front of {where}, but the URL does not name it: {_text(error)} Add "
        "pooler=transaction to the URL (and listen=postgresql://... past the pooler, so that "
        "workers are woken), or pooler=session if it keeps a connection for each client."
    )


def lost(error: BaseException, address: Address, *, sent: bool) -> EngineError:
    """Return that the connection broke, and whether the call may have been carried out."""
    where = address.shown
    if isinstance(error, TimeoutError):
        what = (
            f"PostgreSQL at {where} did not answer within {address.statement_timeout:g} s (a slow "
            "statement or a broken connection), so the connection was closed."
        )
    else:
        what = f"The connection to {where} was lost during a call ({_text(error)})"
    if sent:
        return OutcomeUnknown(
            f"{what} The call may or may not have been stored. Repeating it with the same ids is "
            "safe."
        )
    return EngineUnavailable(
        f"{what} Nothing of this call was stored; work continues automatically once it is back."
    )


def is_about_the_connection(error: BaseException) -> bool:
    """Return whether the connection cannot be used after this."""
    return isinstance(error, (*_LOST, TimeoutError, asyncpg.PostgresConnectionError, *_UNAVAILABLE))


def _text(error: BaseException) -> str:
    words = str(error).strip() or type(error).__name__
    return words if words.endswith(".") else f"{words}."
