"""What to do instead of a command that a job's state does not allow.

Only words: what is possible is decided by the lifecycle, which has refused already.
"""

from __future__ import annotations

from trellis.core.commands import Cancel, Command, Dismiss, Replay, Retry
from trellis.core.job import JobId
from trellis.core.states import LIVE, WAITING, State


def instead(command: Command, state: State, job_id: JobId) -> str:
    """Return the sentence to put after a refusal, with the command that fits."""
    match command:
        case Retry() | Replay():
            return _to_run_again(state, job_id)
        case Cancel():
            return _to_stop(state, job_id)
        case Dismiss() if state in LIVE:
            return f"Stop it with: trellis jobs cancel {job_id}"
        case _:
            return ""


def _to_run_again(state: State, job_id: JobId) -> str:
    if state in WAITING:
        return f"It waits to run anyway; see for what with: trellis jobs why {job_id}"
    match state:
        case State.ACTIVE:
            return (
                f"Wait for its end with: trellis jobs wait {job_id}, or stop it with: "
                f"trellis jobs cancel {job_id}"
            )
        case State.DEAD:
            return f"Bring it back with: trellis dlq replay {job_id}"
        case State.FAILED:
            return f"Run it again with: trellis jobs retry {job_id}"
        case _:
            return f"Run one like it with: trellis jobs clone {job_id}"


def _to_stop(state: State, job_id: JobId) -> str:
    match state:
        case State.DEAD:
            return f"Close it for good with: trellis dlq dismiss {job_id}"
        case State.ACTIVE:
            return f"End it at once with: trellis jobs cancel --force {job_id}"
        case _:
            return "It has ended already, so there is nothing to stop."
