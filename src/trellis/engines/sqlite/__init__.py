"""Jobs in one SQLite file: durable, several processes, no server.

One writer thread per engine commits groups of calls in one transaction (`writer.py`); readers have
their own connection. Start at `engine.py`, then `transaction.py`, `claiming.py`, `committing.py`;
every statement is a file in `sql/`.
"""

from trellis.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
