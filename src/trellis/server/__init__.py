"""The HTTP API: what `trellis serve` answers.

Start reading at `app.py`, which puts the parts together. `access.py` decides who may do what,
`problems.py` turns errors into RFC 9457 answers, and the modules named after what they serve have
the routes: `jobs.py`, `store.py`, `stream.py`. A stream takes its events from `live.py`, and
`running.py` is the server process. May import `operations`, `insight` and everything below;
nothing imports it but the command line and programs that mount `create_app()`.
"""

from __future__ import annotations

from trellis.errors import ConfigurationError

try:
    from trellis.server.app import create_app
    from trellis.server.limits import Limits
except ModuleNotFoundError as error:  # pragma: no cover - needs an environment without FastAPI
    if error.name not in {"fastapi", "starlette"}:
        raise
    raise ConfigurationError(
        "The HTTP API needs FastAPI and uvicorn. Install them with: pip install "
        "'trellis-jobs[server]'"
    ) from None

__all__ = ["Limits", "create_app"]
