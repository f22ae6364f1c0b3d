"""`trellis queues aging`: let waiting jobs count higher with time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.app import operate
from trellis.cli.options import debug_option, json_option, reason_option, url_option
from trellis.cli.output import complain, write_json

if TYPE_CHECKING:
    from trellis.core.durations import Micros
    from trellis.operations.operator import Operator


@click.command("aging")
@click.argument("span", metavar="[SPAN|off]", required=False)
@reason_option
@json_option
@url_option
@debug_option
def aging(*, span: str | None, reason: str, as_json: bool, url: str | None) -> None:
    """Let a waiting job count one priority higher for each SPAN since it was due.

    It is one setting of all queues, such as `10m`, and `off` by default: then a job of a low
    priority waits as long as there are jobs of a higher one. Without SPAN it is shown.
    """

    async def work(jobs: Operator) -> Micros | None:
        if span is not None:
            await jobs.set_aging(None if span == "off" else span, reason=reason)
        return await jobs.engine.aging()

    found = operate(url, work)
    if as_json:
        write_json({"aging": None if found is None else found / 1_000_000})
    complain(_in_words(found))


def _in_words(found: Micros | None) -> str:
    from trellis.core.durations import in_words

    if found is None:
        return "Waiting jobs do not age: jobs of a lower priority wait while there are higher ones."
    return f"A waiting job counts one priority higher for each {in_words(found)} since it was due."
