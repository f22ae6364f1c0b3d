"""What the messages say: a claimed job on its way down, notes and the verdict on their way up."""

from __future__ import annotations

from typing import Any, Final

from trellis.core import commands
from trellis.core.commands import FencedCommand
from trellis.core.context import Context
from trellis.core.job import Definition, Failure, Fence, Head, JobRecord
from trellis.core.policy import decode_policy, encode_policy
from trellis.core.states import State
from trellis.engines.values import Heartbeat, Item, LogLine, NoteBody, Phase, Progress
from trellis.worker.attempt import Attempt
from trellis.worker.isolation.frames import BadMessage, Message

#: What a handler may say about its job.
_NOTES: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Heartbeat, Item, LogLine, Phase, Progress)
}


def write_record(record: JobRecord) -> list[Any]:
    """Return a job as plain data."""
    definition, head = record
    return [[*definition._replace(policy=encode_policy(definition.policy))], [*head]]  # type: ignore[arg-type] # text instead


def read_record(written: Any) -> JobRecord:  # noqa: ANN401 - JSON
    """Return the job that was written."""
    definition = Definition(*written[0])
    head = Head(*written[1])
    fence: Any = head.fence
    error: Any = head.error
    return JobRecord(
        definition._replace(
            policy=decode_policy(str(definition.policy)),
            context=Context(*definition.context),
            tags=tuple((name, value) for name, value in definition.tags),
        ),
        head._replace(
            state=State(head.state),
            fence=None if fence is None else Fence(*fence),
            error=None if error is None else Failure(*error),
        ),
    )


def write_note(body: NoteBody) -> dict[str, Any]:
    """Return a note as plain data."""
    return {"kind": type(body).__name__, "fields": list(body)}


def read_note(message: Message) -> NoteBody:
    """Return the note that was written."""
    try:
        body: NoteBody = _NOTES[message["kind"]](*message["fields"])
    except (KeyError, TypeError) as error:
        raise BadMessage(f"no note: {error}") from error
    return body


def write_verdict(command: FencedCommand | None) -> dict[str, Any]:
    """Return what a verdict consists of; the worker adds the fence and the time.

    None: the handler was stopped, and how the attempt ends is not decided in this process.
    """
    match command:
        case None:
            return {"kind": "stopped"}
        case commands.Complete():
            return {"kind": "complete", "result": command.result, "errors": command.item_errors}
        case commands.Fail():
            return {
                "kind": "fail",
                "error": list(command.error),
                "retryable": command.retryable,
                "delay": command.delay,
                "cancelled": command.cancelled,
                "roll": command.roll,
            }
        case commands.Snooze():
            return {"kind": "snooze", "delay": command.delay}
        case _:
            raise TypeError(f"No handler settles its job by {command!r}.")


def read_verdict(message: Message, attempt: Attempt) -> FencedCommand | None:
    """Return the command that settles this attempt as the verdict says; None if it was stopped."""
    fence, started_at = attempt.fence, attempt.started_at
    match message:
        case {"kind": "stopped"}:
            return None
        case {"kind": "complete", "result": result, "errors": errors}:
            return commands.Complete(fence, result, errors, started_at)
        case {"kind": "snooze", "delay": delay}:
            return commands.Snooze(fence, delay, started_at)
        case {
            "kind": "fail",
            "error": [code, text, detail],
            "retryable": retryable,
            "delay": delay,
            "cancelled": cancelled,
            "roll": roll,
        }:
            failure = Failure(code, text, detail)
            return commands.Fail(fence, failure, retryable, delay, cancelled, roll, started_at)
        case _:
            raise BadMessage("no verdict")
