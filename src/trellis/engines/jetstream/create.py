"""`create`: facts about each request, the decision of `core`, and one batch for all of a call.

Requests without options need no fact but that their id is free, which the write itself checks. All
others are decided in one draft, in their order, so that a request sees those before it; when
something has changed since, the draft is made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trellis.core.admission import (
    Admit,
    CheckKey,
    Decision,
    Facts,
    Reject,
    Replace,
    admit,
    admit_key,
    check_new_job,
    holds_dedupe,
    withdraw,
)
from trellis.core.commands import Skip
from trellis.core.job import JobId, NewJob
from trellis.core.lifecycle import Transition, decide
from trellis.engines.audit import By, creation_of
from trellis.engines.jetstream import keys
from trellis.engines.jetstream.draft import OVERHEAD, Draft
from trellis.engines.jetstream.followups import Followups
from trellis.engines.jetstream.line import Line
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.message import StoredRemoval
from trellis.engines.jetstream.plain import TOGETHER, PlainWriter
from trellis.engines.jetstream.settings import CachedSettings, Openness
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import check_id
from trellis.engines.jetstream.writing import BATCH
from trellis.engines.values import Accepted, CreateResult, answer_to
from trellis.engines.wire import codec_of
from trellis.errors import (
    CapabilityMissing,
    ConflictPersists,
    EngineError,
    PayloadTooLarge,
    Unstorable,
)

MARK: Final = codec_of(JobId)
#: What a full key does that names another waiting job: then the whole line must be known.
_NAMING: Final = ("coalesce", "replace-oldest")
#: How many requests are decided in one draft, and how often a draft is made again.
_TOGETHER: Final = 200
_TRIES: Final = 50


class CreateVerb:
    """The part of the engine that creates jobs."""

    _store: Store
    _followups: Followups
    _openness: CachedSettings[Openness]
    _plain: PlainWriter

    async def create(self, jobs: Sequence[NewJob], by: By | None = None) -> list[CreateResult]:
        """Admit and store new jobs."""
        checked = [self._check(check_new_job(new)) for new in jobs]
        if not checked:
            return []
        await self._store.refresh_time()
        openness = await self._openness.get()
        queues = {(new.service, new.queue) for new in checked}
        is_plain = by is None and not openness.drains(queues)
        if is_plain and all(map(_is_plain, checked)):
            return await self._create_plain(checked)
        if any(new.together for new in checked):
            return await self._create_in_draft(checked, openness, by)
        results: list[CreateResult] = []
        for start in range(0, len(checked), _TOGETHER):
            part = checked[start : start + _TOGETHER]
            results += await self._create_in_draft(part, openness, by)
        return results

    def _check(self, new: NewJob) -> NewJob:
        check_id(new.id)
        try:
            size = len(new.payload.encode()) + len((new.config or "").encode())
        except UnicodeEncodeError as error:
            raise Unstorable(
                "The payload has a lone surrogate, which is no character. Nothing was stored."
            ) from error
        most = self._store.link.max_payload
        if size + OVERHEAD > most:
            raise PayloadTooLarge(
                f"The payload and configuration have {size:,} bytes. The NATS server takes "
                f"messages of {most:,} bytes (max_payload), which leaves "
                f"{most - OVERHEAD:,} for them. Nothing was stored. Store the data elsewhere and "
                "pass its name, or raise max_payload."
            )
        if new.policy.key is not None and new.policy.key.rate is not None:
            raise CapabilityMissing(
                "Rates per key are not possible on NATS JetStream. Nothing was stored. Use a rate "
                "of the type or queue, or PostgreSQL."
            )
        return new

    # -- plain requests ------------------------------------------------------------------------

    async def _create_plain(self, jobs: Sequence[NewJob]) -> list[CreateResult]:
        if len({new.id for new in jobs}) < len(jobs):
            return [await self._create_one(new) for new in jobs]
        results: list[CreateResult] = []
        for start in range(0, len(jobs), TOGETHER):
            part = jobs[start : start + TOGETHER]
            draft = Draft(self._store)
            for new in part:
                draft.create(new)
            for new, answer in zip(part, await self._plain.write(draft.messages), strict=True):
                if isinstance(answer, EngineError):
                    raise answer  # the caller repeats the call with the same ids
                is_stored = isinstance(answer, Written)
                results.append(Accepted(new.id) if is_stored else await self._create_one(new))
        return results

    async def _create_one(self, new: NewJob) -> CreateResult:
        known: Current | StoredRemoval | None = None
        for _ in range(_TRIES):
            draft = Draft(self._store)
            if isinstance(known, StoredRemoval):
                draft.know_removal(known)
            draft.create(new)
            if isinstance(await draft.write(), Written):
                return Accepted(new.id)
            known = await self._store.find(new.id)
            if isinstance(known, Current):
                decision = admit(new, Facts(same_id=_identity(known)))
                if not isinstance(decision, CheckKey):
                    return answer_to(new, decision)
        raise _restless(new)

    # -- all others ----------------------------------------------------------------------------

    async def _create_in_draft(
        self, jobs: Sequence[NewJob], openness: Openness, by: By | None
    ) -> list[CreateResult]:
        for _ in range(_TRIES):
            draft = Draft(self._store)
            decisions = [await self._decide(draft, new, openness, by) for new in jobs]
            withdrawn = withdraw(jobs, decisions)
            if withdrawn is not None:
                return [answer_to(new, each) for new, each in zip(jobs, withdrawn, strict=True)]
            pairs = list(zip(jobs, decisions, strict=True))
            linked = [
                new.id for new, each in pairs if new.after and isinstance(each, Admit | Replace)
            ]
            await self._followups.settle_new(draft, linked)
            await self._hand_over(draft, jobs, decisions)
            if draft.size > BATCH:
                return await self._divide(jobs, openness, by, draft.size)
            if draft.is_empty or isinstance(await draft.write(), Written):
                return [answer_to(new, each) for new, each in pairs]
        raise _restless(jobs[0])

    async def _divide(
        self, jobs: Sequence[NewJob], openness: Openness, by: By | None, size: int
    ) -> list[CreateResult]:
        """Store requests in two drafts that need too many messages for one."""
        half = len(jobs) // 2
        if not half or any(new.together for new in jobs):
            raise CapabilityMissing(
                f"On NATS JetStream all jobs of a chain or workflow are one write of at most "
                f"{BATCH:,} messages, and these need {size:,}: four per job of a chain, and three "
                "more for each further job that one waits for. Nothing was stored. Divide it, or "
                "put the jobs into a batch whose then= continues."
            )
        return [
            *await self._create_in_draft(jobs[:half], openness, by),
            *await self._create_in_draft(jobs[half:], openness, by),
        ]

    async def _decide(
        self, draft: Draft, new: NewJob, openness: Openness, by: By | None
    ) -> Decision:
        """Decide about one request, and stage what it stores."""
        decision = admit(new, await self._facts(draft, new, openness))
        if isinstance(decision, CheckKey):
            line = _line(draft, new)
            # Jobs of this call that come before have their slots when the next one is decided.
            state = await self._give_slots(draft, line, new.key or "")
            if decision.policy.when_full in _NAMING:
                state = await line.load(state, state.pages)
            decision = admit_key(decision.policy, state.facts)
        if isinstance(decision, Replace):
            await self._skip(draft, decision.existing, new)
        if isinstance(decision, Admit | Replace):
            replaced = decision.existing if isinstance(decision, Replace) else None
            await self._stage_new(draft, new, replaced)
            if by is not None:
                draft.record(creation_of(new), by)
        if not isinstance(decision, Reject):
            await self._followups.join(draft, new, answer_to(new, decision))
        return decision

    async def _facts(self, draft: Draft, new: NewJob, openness: Openness) -> Facts:
        same = await draft.job(new.id)
        if same is not None:
            return Facts(same_id=_identity(same))
        facts = Facts(
            draining=(new.service, new.queue) in openness.draining, all_draining=openness.all
        )
        if new.idempotency_key is not None:
            job = await self._marked(draft, new, "i", new.idempotency_key)
            if job is not None:
                payload = job.created.definition.payload
                facts = facts._replace(same_idempotency=(job.definition.id, payload))
        if new.dedupe is not None:
            job = await self._marked(draft, new, "d", new.dedupe.key)
            if job is not None and holds_dedupe(job.definition, job.head, draft.now):
                facts = facts._replace(same_dedupe=job.definition.id)
        return await self._followups.facts(draft, new, facts)

    async def _marked(self, draft: Draft, new: NewJob, kind: str, text: str) -> Current | None:
        """Return the job that has a mark; it is read through the mark, so none is ever cleared."""
        subject = self._store.subjects.mark(new.service, new.type, kind, text)
        marked = await draft.value(subject, MARK)
        return None if marked is None else await draft.job(marked)

    async def _stage_new(self, draft: Draft, new: NewJob, replaced: JobId | None = None) -> None:
        # A mark or link of a job that is not stored does no harm; a job without them would.
        for kind, text in (("i", new.idempotency_key), ("d", new.dedupe and new.dedupe.key)):
            if text is not None:
                subject = self._store.subjects.mark(new.service, new.type, kind, text)
                await draft.value(subject, MARK)
                draft.put(subject, new.id, first=True)
        await self._followups.stage(draft, new)
        if new.key_hash is None:
            draft.create(new)
            return
        line = _line(draft, new)
        state = await line.read(new.key or "")
        order = keys.next_order(state, draft.now)
        current = draft.create(new, order, replaced)
        waiter = keys.waiter_of(*current.record, order, is_unresolved=bool(new.after))
        await line.put(keys.enter(state._replace(latest=order), waiter))

    async def _create_following(self, draft: Draft, new: NewJob) -> None:
        """Stage a job that follows others: without admission, but in the line of its key."""
        await self._stage_new(draft, new)
        await self._hand_over(draft, [new], [Admit()])

    async def _skip(self, draft: Draft, existing: JobId, new: NewJob) -> None:
        current = await draft.job(existing)
        if current is None:
            return
        decision = decide(current.record, Skip(new.id), draft.now)
        if isinstance(decision, Transition):
            await self._followups.add_hooks(draft, decision)
            draft.transition(current, decision)
            line, order = _line(draft, new), current.created.request.order
            state = await line.find(await line.read(new.key or ""), current)
            await line.put(keys.settle(state, decision, order, None, is_unresolved=False))
            await self._followups.end(draft, [decision])

    async def _hand_over(
        self, draft: Draft, jobs: Sequence[NewJob], decisions: Sequence[Decision]
    ) -> None:
        """Give the free slots of keys to waiting jobs, once all of the call are in line."""
        touched = {
            (new.service, new.type, new.key_hash): new
            for new, each in zip(jobs, decisions, strict=True)
            if new.key_hash is not None and isinstance(each, Admit | Replace)
        }
        for new in touched.values():
            await self._give_slots(draft, _line(draft, new), new.key or "")

    @staticmethod
    async def _give_slots(draft: Draft, line: Line, key: str) -> keys.KeyState:
        """Stage that free slots of a key are given to waiting jobs; return its state."""
        before = await line.read(key)
        state, handed, *_ = await line.hand_over(before, draft.now)
        if state.slots != before.slots:
            await line.put(state)
        for job_id in handed:
            current = await draft.job(job_id)
            # A new job is a hint itself.
            if current is not None and not draft.is_new(job_id):
                draft.hint(current)
        return state


def _line(draft: Draft, new: NewJob) -> Line:
    return Line(draft, new.service, new.type, new.key_hash or "")


def _is_plain(new: NewJob) -> bool:
    return (
        new.key_hash is None
        and new.dedupe is None
        and new.idempotency_key is None
        and (new.relations is None or new.relations.batch is None)
        and new.spawner is None
        and not new.after
        and not new.together
    )


def _identity(current: Current) -> tuple[str, str, str]:
    definition = current.definition
    return definition.service, definition.type, definition.payload


def _restless(new: NewJob) -> ConflictPersists:
    return ConflictPersists(
        f"Job {new.id} was not stored: its key, batch or mark was changed by others "
        f"{_TRIES} times in a row. Try again.",
        job_id=new.id,
    )
