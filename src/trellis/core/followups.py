"""What follows the end of a job: which jobs are created then, and with what.

A job ends when it reaches a state that is neither waiting nor active; `dead` counts. The engine
stores what follows in the transaction that ends the job, so that a crash leaves both or neither.
The ids of such jobs are derived from the job, its generation and the purpose: the same end always
leads to the same jobs, and storing them again stores nothing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Final

from trellis.core.durations import Instant, to_datetime
from trellis.core.job import Definition, JobId, NewJob, Relations
from trellis.core.json_text import DEFAULT_LIMIT
from trellis.core.lifecycle import Transition
from trellis.core.policy import DEFAULT_POLICY, Hook, Policy
from trellis.core.states import ENDED, LIVE, SUCCEEDED, UNSUCCESSFUL, State

_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID_LENGTH: Final = 26
#: How many letters of a ULID are its time, and how many bits the others have.
_TIME_LENGTH, _RANDOM_BITS = 10, 80


def is_end(transition: Transition) -> bool:
    """Return whether this ends a generation of the job."""
    return transition.before.state in LIVE and transition.head.state in ENDED


def is_followed(transition: Transition) -> bool:
    """Return whether the decision itself shows that something follows.

    Other jobs and batches may wait for a job as well: its queue row is then marked as watched.
    """
    definition = transition.definition
    if not definition.policy.hooks and not is_member(definition):
        return False
    return is_end(transition)


def is_member(definition: Definition | NewJob) -> bool:
    """Return whether a job was created as a member of a batch."""
    return definition.relations is not None and definition.relations.batch is not None


def hooks_for(policy: Policy, state: State) -> tuple[Hook, ...]:
    """Return the hooks of a job that ended in this state.

    A cancelled or skipped job has neither succeeded nor failed: it only finished.
    """
    if not policy.hooks:
        return ()
    ends = {"finished"}
    if state in SUCCEEDED:
        ends.add("success")
    elif state in UNSUCCESSFUL:
        ends.add("failure")
    return tuple(hook for hook in policy.hooks if hook.on in ends)


def hook_jobs(transition: Transition) -> list[NewJob]:
    """Return the jobs that the hooks of an ended job are."""
    definition, head = transition.definition, transition.head
    hooks = hooks_for(definition.policy, head.state)
    if not hooks:
        return []
    payload = _outcome(transition)
    of_tenant = (definition.relations or Relations()).of_tenant
    return [
        NewJob(
            id=derived_id(definition.id, head.generation, f"hook/{hook.on}/{hook.type}"),
            service=definition.service,
            type=hook.type,
            queue=hook.queue,
            payload=payload,
            policy=_hook_policy(definition.policy.secrets),
            context=definition.context,
            deadline_in=hook.deadline,
            schema_version=hook.schema_version,
            relations=of_tenant._replace(parent=definition.id),
        )
        for hook in hooks
    ]


def _hook_policy(secrets: tuple[str, ...]) -> Policy:
    """Return the policy of a hook's job: a claim puts that of its declaration in force.

    What is masked in the payload and result of the job stays masked in the hook's payload.
    """
    if not secrets:
        return DEFAULT_POLICY
    return replace(DEFAULT_POLICY, secrets=tuple(f"/payload{pointer}" for pointer in secrets))


def _outcome(transition: Transition) -> str:
    """Write how a job ended as JSON: the payload of its hooks.

    A payload and result that would make it too large are left out; they can be read by the id.
    """
    definition, head = transition.definition, transition.head
    error = head.error
    parts = {
        "job_id": definition.id,
        "service": definition.service,
        "type": definition.type,
        "state": head.state.value,
        "generation": head.generation,
        "attempt": head.attempt,
        "finished_at": to_datetime(head.finished_at or 0).isoformat(),
        "error": None if error is None else error._asdict() | {"data": _parsed(error.data)},
        "tags": dict(definition.tags),
    }
    short = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))[1:-1]
    result = getattr(transition.command, "result", None) or "null"
    whole = f'{{{short},"payload":{definition.payload},"result":{result},"is_whole":true}}'
    if len(whole.encode()) <= DEFAULT_LIMIT:
        return whole
    return f'{{{short},"payload":null,"result":null,"is_whole":false}}'


def _parsed(text: str | None) -> object:
    return None if text is None else json.loads(text)


def ulid(at: Instant, bits: int) -> str:
    """Write a ULID: the milliseconds of a moment, then the last 80 of these bits.

    >>> ulid(1_700_000_000_000_000, 31)
    '01HF7YAT00000000000000000Z'
    """
    number = (at // 1000) << _RANDOM_BITS | bits & (1 << _RANDOM_BITS) - 1
    return "".join(_LETTERS[number >> shift & 31] for shift in range(125, -1, -5))


def ulid_time(text: str) -> Instant | None:
    """Return the moment that a ULID names, in whole milliseconds; None for another text.

    >>> ulid_time("01HF7YAT00000000000000000Z")
    1700000000000000
    """
    if len(text) != _ULID_LENGTH or any(letter not in _LETTERS for letter in text):
        return None
    number = 0
    for letter in text[:_TIME_LENGTH]:
        number = number << 5 | _LETTERS.index(letter)
    return number * 1000


def derived_id(source: str, generation: int, purpose: str) -> JobId:
    """Return the id of the job that follows a job or batch, for this purpose.

    It is a ULID with the time of its source, so both sort together.

    >>> derived_id("01J0000000AAAAAAAAAAAAAAAA", 0, "hook/failure/alert")
    '01J000000075TCVRMVZV3Z1TQQ'
    """
    digest = hashlib.sha256(f"{source}\0{generation}\0{purpose}".encode()).digest()
    start = source[:_TIME_LENGTH]
    if len(source) != _ULID_LENGTH or any(letter not in _LETTERS for letter in start):
        start = "0" * _TIME_LENGTH
    return JobId(start + ulid(0, int.from_bytes(digest[: _RANDOM_BITS // 8]))[_TIME_LENGTH:])
