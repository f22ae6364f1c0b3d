"""The log of a job on stdout, line by line as it comes."""

from __future__ import annotations

import sys
from typing import Final

from rich.text import Text

from trellis.cli.escaping import safe_json, visible
from trellis.cli.exits import complain
from trellis.cli.place import operate
from trellis.cli.terminal import output
from trellis.cli.writing import Form, write_json, write_line
from trellis.insight.views import JobLogLine, as_json
from trellis.operations.operator import Operator

_STYLES: Final = {
    "debug": "dim",
    "warning": "yellow",
    "error": "red",
    "critical": "bold red",
}


def write_logs(url: str | None, job_id: str, form: Form, *, follow: bool) -> None:
    """Write the log of a job; with `follow`, until the job has ended."""
    console = output()

    async def work(jobs: Operator) -> None:
        lines = []
        is_empty = True
        async for line in jobs.logs(job_id, follow=follow):
            is_empty = False
            match form:
                case Form.JSON:
                    lines.append(as_json(line))  # one document is whole or nothing
                case Form.JSONL:
                    write_line(safe_json(as_json(line)))
                case _:
                    console.print(_shown(line))
            sys.stdout.flush()
        if form is Form.JSON:
            write_json(lines)
        if is_empty:
            complain("The job has logged nothing.")
        if follow:
            complain(f"The job is {(await jobs.get(job_id)).state}.")

    operate(url, work)


def _shown(line: JobLogLine) -> Text:
    moment = line.at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    fields = "".join(f" {name}={_plain(value)}" for name, value in line.fields.items())
    text = Text(f"{moment} ", "dim")
    text.append(f"{line.level:<8}", _STYLES.get(line.level, ""))
    return text.append(visible(line.message)).append(visible(fields), "dim")


def _plain(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else safe_json(value)
