"""Jobs in PostgreSQL, in a schema of their own; the same promises as every engine.

Start at `engine.py`; the verbs off the hot path are in `engines.sql`. Statements are sections of
the files in `statements/`, named as SQLite's where they have the same meaning. Needs the extra
`trellis-jobs[postgres]`.
"""

from trellis.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
