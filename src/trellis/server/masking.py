"""Which answers to remote programs have secrets in them, and who reads these unmasked.

A program with a token of a service reads its jobs as they are: a worker runs them, and the one that
creates them waits for their results. Every other caller, an operator with `admin.read` too, reads
them masked. Hashes of tokens are for the server alone. Where a masked value comes back, as in the
clone of a job, the server puts the stored one in its place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

from trellis.core.batches import Batch
from trellis.core.events import Event
from trellis.core.job import Failure, JobId, JobRecord, NewJob
from trellis.core.policy import Policy
from trellis.core.schedules import Plan, Schedule
from trellis.declaration.secrets import MASK, mask_value, masked
from trellis.engines.audit import AuditEntry
from trellis.engines.batches import BatchStatus, Member
from trellis.engines.feed import Changes, Expired
from trellis.engines.operating import JobFacts
from trellis.engines.port import Engine
from trellis.engines.schedules import DueSchedules
from trellis.engines.tokens import TokenRecord
from trellis.engines.values import (
    CommitResult,
    Conflict,
    Due,
    Loaded,
    LogEntry,
    Outcome,
    Page,
)
from trellis.server.engine_access import Arguments, Gate

Part = Literal["payload", "result", "config"]


async def masked_answer(gate: Gate, verb: str, arguments: Arguments, answer: object) -> object:
    """Return the answer of a verb as this caller may read it."""
    mask = MASKS[verb]
    if mask is None or not gate.caller.token:
        return answer
    return await mask(Mask(gate), arguments, answer)


async def unmasked_clone(engine: Engine, new: NewJob) -> NewJob:
    """Return the request with the payload of the job that it clones, if it was read masked."""
    if new.clone_of is None or (MASK not in new.payload and MASK not in (new.config or "")):
        return new
    record = (await engine.load([new.clone_of])).records[0]
    if record is None or (record.definition.service, record.definition.type) != new[1:3]:
        return new
    old = record.definition
    shown = masked_text(old.payload, old.policy, "payload")
    config = masked_text(old.config, old.policy, "config")
    return new._replace(
        payload=old.payload if new.payload == shown else new.payload,
        config=old.config if new.config == config else new.config,
    )


def masked_text(text: str | None, policy: Policy, part: Part) -> str | None:
    """Return stored JSON text with secrets masked."""
    return None if text is None else masked(text, policy, part)


class Mask:
    """Masks values for one caller."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._readable: dict[str, bool] = {}

    def reads(self, service: str) -> bool:
        """Return whether the caller reads the jobs of a service as they are."""
        if service not in self._readable:
            self._readable[service] = self._gate.covers(service)
        return self._readable[service]

    def record(self, record: JobRecord) -> JobRecord:
        """Mask a job."""
        definition, head = record
        if self.reads(definition.service):
            return record
        policy = definition.policy
        return JobRecord(
            definition._replace(
                payload=masked(definition.payload, policy, "payload"),
                config=masked_text(definition.config, policy, "config"),
            ),
            head._replace(error=_failure(head.error)),
        )

    def batch(self, batch: Batch) -> Batch:
        """Mask the fan-in job of a batch."""
        if batch.new.then is None or self.reads(batch.new.service):
            return batch
        then = batch.new.then
        shown = then._replace(
            payload=masked(then.payload, then.policy, "payload"),
            config=masked_text(then.config, then.policy, "config"),
        )
        return batch._replace(new=batch.new._replace(then=shown))

    def schedule(self, schedule: Schedule) -> Schedule:
        """Mask the payloads of a schedule."""
        if self.reads(schedule.service):
            return schedule
        policy = schedule.template.policy
        declared: Plan = schedule.declared
        changes = dict(schedule.changes)
        if "payload" in changes:
            changes["payload"] = masked(str(changes["payload"]), policy, "payload")
        payload = masked(declared.payload, policy, "payload")
        return schedule._replace(declared=declared._replace(payload=payload), changes=changes)

    async def policies(self, ids: Sequence[JobId]) -> dict[JobId, Policy | None]:
        """Return by what these jobs are masked, None for one that the caller reads as it is.

        A job that is gone has no entry: nothing of it is returned.
        """
        records = (await self._gate.engine.load(list(ids))).records
        definitions = [each.definition for each in records if each is not None]
        return {each.id: None if self.reads(each.service) else each.policy for each in definitions}


def _failure(error: Failure | None) -> Failure | None:
    return None if error is None else error._replace(data=_by_name(error.data))


def _by_name(text: str | None) -> str | None:
    """Return JSON text in which values with secret names are masked."""
    return masked_text(text, _NO_SECRETS, "payload")


_NO_SECRETS: Final = Policy()


def _event(event: Event) -> Event:
    if event.data is None:
        return event
    data: dict[str, Any] = mask_value(dict(event.data))
    error = data.get("error")
    if error is not None:
        data["error"] = list(_failure(Failure(*error)) or ())
    return event._replace(data=data)


# -- the answers of verbs ----------------------------------------------------------------------


async def _records(mask: Mask, _: Arguments, answer: list[JobRecord]) -> list[JobRecord]:
    return list(map(mask.record, answer))


async def _loaded(mask: Mask, _: Arguments, answer: Loaded) -> Loaded:
    records = tuple(None if each is None else mask.record(each) for each in answer.records)
    return answer._replace(records=records)


async def _page(mask: Mask, _: Arguments, answer: Page) -> Page:
    return answer._replace(jobs=tuple(map(mask.record, answer.jobs)))


async def _due(mask: Mask, _: Arguments, answer: Due) -> Due:
    jobs = tuple(each._replace(record=mask.record(each.record)) for each in answer.jobs)
    return answer._replace(jobs=jobs)


async def _committed(mask: Mask, _: Arguments, answer: list[CommitResult]) -> list[CommitResult]:
    return [
        Conflict(mask.record(each.record))
        if isinstance(each, Conflict) and each.record is not None
        else each
        for each in answer
    ]


async def _outcomes(mask: Mask, arguments: Arguments, answer: list[Outcome]) -> list[Outcome]:
    for policy in (await mask.policies([arguments["job_id"]])).values():
        if policy is None:
            return answer
        return [
            each._replace(
                result=masked_text(each.result, policy, "result"), error=_failure(each.error)
            )
            for each in answer
        ]
    return []


async def _facts(
    mask: Mask, arguments: Arguments, answer: dict[JobId, JobFacts]
) -> dict[JobId, JobFacts]:
    policies = await mask.policies(arguments["ids"])
    return {
        job_id: answer[job_id]
        if policy is None
        else answer[job_id]._replace(result=masked_text(answer[job_id].result, policy, "result"))
        for job_id, policy in policies.items()
        if job_id in answer
    }


async def _members(mask: Mask, _: Arguments, answer: list[Member]) -> list[Member]:
    return [
        each
        if mask.reads(each.record.definition.service)
        else Member(
            mask.record(each.record),
            masked_text(each.result, each.record.definition.policy, "result"),
        )
        for each in answer
    ]


async def _journal(mask: Mask, arguments: Arguments, answer: list[Event]) -> list[Event]:
    for policy in (await mask.policies([arguments["job_id"]])).values():
        return answer if policy is None else list(map(_event, answer))
    return []


async def _changes(mask: Mask, _: Arguments, answer: Changes | Expired) -> Changes | Expired:
    if isinstance(answer, Expired):
        return answer
    entries = tuple(
        each if mask.reads(each.service) else each._replace(event=_event(each.event))
        for each in answer.entries
    )
    return answer._replace(entries=entries)


async def _logs(mask: Mask, arguments: Arguments, answer: list[LogEntry]) -> list[LogEntry]:
    for policy in (await mask.policies([arguments["job_id"]])).values():
        shown = [each._replace(fields=_by_name(each.fields)) for each in answer]
        return answer if policy is None else shown
    return []


async def _one_batch(mask: Mask, _: Arguments, answer: Batch | None) -> Batch | None:
    return None if answer is None else mask.batch(answer)


async def _batches(mask: Mask, _: Arguments, answer: list[Batch]) -> list[Batch]:
    return list(map(mask.batch, answer))


async def _statuses(
    mask: Mask, _: Arguments, answer: list[BatchStatus | None]
) -> list[BatchStatus | None]:
    return [
        None
        if each is None
        else each._replace(
            batch=mask.batch(each.batch), children=tuple(map(mask.batch, each.children))
        )
        for each in answer
    ]


async def _schedules(mask: Mask, _: Arguments, answer: list[Schedule]) -> list[Schedule]:
    return list(map(mask.schedule, answer))


async def _due_schedules(mask: Mask, _: Arguments, answer: DueSchedules) -> DueSchedules:
    return answer._replace(schedules=tuple(map(mask.schedule, answer.schedules)))


async def _audit(_mask: Mask, _: Arguments, answer: list[AuditEntry]) -> list[AuditEntry]:
    return [
        each._replace(
            change=each.change._replace(
                before=mask_value(each.change.before), after=mask_value(each.change.after)
            )
        )
        for each in answer
    ]


async def _token(_mask: Mask, _: Arguments, answer: TokenRecord | None) -> TokenRecord | None:
    return None if answer is None else answer._replace(hash="")


async def _tokens(_mask: Mask, _: Arguments, answer: list[TokenRecord]) -> list[TokenRecord]:
    return [each._replace(hash="") for each in answer]


#: Of every verb: what masks its answer; None: it has no secrets, or is about the attempts of the
#: caller's own session.
MASKS: Final[Mapping[str, Callable[[Mask, Arguments, Any], Awaitable[object]] | None]] = {
    # jobs
    "load": _loaded, "find": _page, "due": _due, "commit": _committed, "archivable": _records,
    "outcomes": _outcomes, "facts": _facts, "members": _members, "journal": _journal,
    "changes": _changes, "logs": _logs,
    # batches and schedules
    "batch": _one_batch, "open_batch": _one_batch, "seal_batch": _one_batch,
    "cancel_batch": _one_batch, "batches": _batches, "batch_statuses": _statuses,
    "schedules": _schedules, "due_schedules": _due_schedules,
    # access
    "audit": _audit, "token": _token, "put_token": _token, "revoke_token": _token,
    "tokens": _tokens,
    # the caller's own attempts
    "claim": None, "renew": None, "note": None, "open_session": None, "close_session": None,
    # ids, names, numbers, times and what people wrote
    **dict.fromkeys((
        "activity", "add_schedules", "advance_schedule", "aging", "ahead", "archives", "ask_drain",
        "catch_up", "change_limit", "contracts", "count", "create", "declare_archive",
        "declare_limits", "declare_types", "declared_types", "drain_changes", "finish_batches",
        "free_lock", "health", "hello", "identify", "items", "keys", "limits", "links", "locks",
        "migrate", "next_due", "note_archive", "now", "promote", "prune", "prune_audit",
        "put_contract", "queue_settings", "rates", "reap", "remove", "remove_archived",
        "run_schedule", "sessions", "set_aging", "set_archive", "set_drain", "set_queue", "slots",
        "take_lock", "watch",
    )),
}  # fmt: skip
