"""The shape of the verbs on queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from trellis.cli.exits import complain
from trellis.cli.place import operate
from trellis.cli.spoken import counted
from trellis.cli.writing import write_json
from trellis.insight.views import QueueView, as_json

if TYPE_CHECKING:
    from trellis.operations.operator import Operator

Change = Callable[["Operator", str], Awaitable[QueueView]]


def change_queues(
    url: str | None, names: tuple[str, ...], change: Change, effect: str, *, machine: bool
) -> None:
    """Change these queues and say what that means."""

    async def work(jobs: Operator) -> list[tuple[QueueView, bool]]:
        changed = []
        for name in names:
            queue = await change(jobs, name)
            known = await jobs.find(service=queue.service, queue=queue.queue).count()
            changed.append((queue, bool(known)))
        return changed

    changed = operate(url, work)
    if machine:
        write_json([as_json(queue) for queue, _ in changed])
    for queue, is_known in changed:
        name = f"{queue.service}/{queue.queue}"
        complain(f"Queue {name} {effect}; {counted(queue.waiting)} waiting there.")
        if not is_known:
            complain(f"  No job was ever in {name}: is that its name?")
