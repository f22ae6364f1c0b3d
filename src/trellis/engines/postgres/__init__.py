"""The engine that keeps jobs in a schema of a PostgreSQL database.

Start reading at `engine.py`, then `claim.py`, `fast_create.py` and `commit.py`. The verbs
off the hot path are in `engines.sql`. Statements are sections of the files in `statements/`, with
the same names as on SQLite where they have the same meaning. May import `core`, `engines.sql` and
the modules beside this package. Needs the extra `trellis-jobs[postgres]`.
"""

from trellis.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
