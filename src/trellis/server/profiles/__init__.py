"""Paths, words and shapes of other job systems, for programs that were written for them.

Each module is one profile: `provisioning.py` has workers that only speak HTTP,
`table_maintenance.py` jobs that lock a table, `docs_publishing.py` jobs with phases and items,
`agent_orchestration.py` a list by status. Their words for states are in `core/state_words.py`. A
profile decides nothing: it calls what the other routes call, with the same tokens and the same
problems. `http_worker.py` has the sessions and attempts of workers that speak HTTP, `texts.py` what
a text in a request may contain.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from trellis.server.profiles import (
    agent_orchestration,
    docs_publishing,
    provisioning,
    table_maintenance,
)

router: Final = APIRouter()
for each in (provisioning, table_maintenance, docs_publishing, agent_orchestration):
    router.include_router(each.router)
