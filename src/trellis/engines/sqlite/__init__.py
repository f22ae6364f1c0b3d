"""The engine that keeps jobs in one SQLite file: durable, several processes, no server.

One writer thread per engine commits groups of calls in one transaction (`writer.py`); readers have
their own connection. Start at `engine.py`, then `transaction.py`, `claim.py`, `commit.py`.
The verbs off the hot path are in `engines.sql`. Every statement is a section of a file in
`statements/`. May import `core`, `engines.sql` and the modules beside this package.
"""

from trellis.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
