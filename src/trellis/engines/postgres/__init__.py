"""Jobs in PostgreSQL, in a schema of their own; the same promises as every engine.

Start at `engine.py`. Statements are in `sql/`, one file each, named as SQLite's where they do the
same. Needs the extra `trellis-jobs[postgres]`.
"""

from trellis.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
