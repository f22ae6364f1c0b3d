"""What the tests of both dialects need to know about sections of statements."""

from __future__ import annotations

import re
from pathlib import Path

from trellis.core.states import State
from trellis.engines.sql import statements
from trellis.engines.sql.statements import load_sections
from trellis.engines.values import JobFilter

#: The code that runs statements of every dialect.
SHARED = Path(statements.__file__).parent
#: A filter with every condition there is.
EVERYTHING = JobFilter(
    services=("s",),
    types=("t",),
    queues=("q",),
    states=(State.PENDING,),
    tags=(("a", "b"),),
    key="k",
    created_from=1,
    created_before=2,
    finished_from=1,
    finished_before=2,
    error_contains="x",
    worker="w",
    id_prefix="0",
    id_suffix="0",
    batch="b",
    parent="p",
    tenant="t",
    blocked=True,
)


def unused_fragments(folder: Path, code: str) -> list[str]:
    """Return the fragments of an engine that no statement includes and no code names."""
    files = "".join(path.read_text() for path in folder.glob("statements/*.sql"))
    included = set(re.findall(r"^-- include: (\w+)$", files, re.MULTILINE))
    return [
        name
        for name in load_sections(f"trellis.engines.{folder.name}").fragments
        if name not in included and f'"{name}"' not in code and not name.startswith("group_")
    ]
