"""Statements that are all asked before any is answered, each with a Sync of its own."""

from __future__ import annotations

import select

from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn


def ask_at_once(line: PGconn, *statements: bytes) -> None:
    """Send statements in one go."""
    line.enter_pipeline_mode()
    for statement in statements:
        line.send_query_params(statement, None)
        line.pipeline_sync()
    line.flush()


def next_answer(line: PGconn) -> ExecStatus | None:
    """Read one answer, None between two; a connection that is gone raises.

    libpq's own wait keeps every other thread of the process from running, the proxy's too.
    """
    while line.is_busy():
        select.select([line.socket], [], [])
        line.consume_input()
    answer = line.get_result()
    return None if answer is None else ExecStatus(answer.status)
