"""`create`: facts about each request, the decision of `core`, and one batch for all of a call.

Requests without options need no fact but that their id is free, which the write itself checks. All
others are decided in one draft, in their order, so that a request sees those before it; when
something has changed since, the draft is made again.
"""

from __future__ import annotations

import asyncio
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
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.followups import Followups
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.message import StoredRemoval
from trellis.engines.jetstream.settings import Openness
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import check_id
from trellis.engines.values import Accepted, CreateResult, answer_to
from trellis.engines.wire import codec_of
from trellis.errors import CapabilityMissing, ConflictPersists, PayloadTooLarge, Unstorable

_MARK: Final = codec_of(JobId)
#: How many requests are decided in one draft, and how often a draft is made again.
_TOGETHER: Final = 200
_TRIES: Final = 50
#: From this number of plain requests on, one batch is faster than as many writes at once.
_BATCHED: Final = 8
#: About what a message takes beside its payload and configuration.
_OVERHEAD: Final = 8 * 1024


class CreateVerb:
    """The part of the engine that creates jobs."""

    _store: Store
    _followups: Followups

    async def create(self, jobs: Sequence[NewJob], by: By | None = None) -> list[CreateResult]:
        """Admit and store new jobs."""
        checked = [self._check(check_new_job(new)) for new in jobs]
        if not checked:
            return []
        openness = await Openness.read(self._store, {(new.service, new.queue) for new in checked})
        is_plain = by is None and not openness.drains
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
        if size + _OVERHEAD > self._store.link.max_payload:
            raise PayloadTooLarge(
                f"The payload and configuration have {size:,} bytes; the NATS server takes "
                f"messages of {self._store.link.max_payload:,} bytes. Nothing was stored. Store "
                "the data elsewhere and pass its name, or raise max_payload."
            )
        if new.policy.key is not None and new.policy.key.rate is not None:
            raise CapabilityMissing(
                "Rates per key are not possible on NATS JetStream. Nothing was stored. Use a rate "
                "of the type or queue, or PostgreSQL."
            )
        return new

    # -- plain requests ------------------------------------------------------------------------

    async def _create_plain(self, jobs: Sequence[NewJob]) -> list[CreateResult]:
        if len(jobs) >= _BATCHED:
            results: list[CreateResult] = []
            for start in range(0, len(jobs), _TOGETHER):
                part = jobs[start : start + _TOGETHER]
                draft = Draft(self._store)
                for new in part:
                    draft.create(new)
                is_stored = len({new.id for new in part}) == len(part) and isinstance(
                    await draft.write(), Written
                )
                results += (
                    [Accepted(new.id) for new in part]
                    if is_stored
                    else [await self._create_one(new) for new in part]
                )
            return results
        if len({new.id for new in jobs}) < len(jobs):
            return [await self._create_one(new) for new in jobs]
        return list(await asyncio.gather(*map(self._create_one, jobs)))

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
            if draft.is_empty or isinstance(await draft.write(), Written):
                return [answer_to(new, each) for new, each in pairs]
        raise _restless(jobs[0])

    async def _decide(
        self, draft: Draft, new: NewJob, openness: Openness, by: By | None
    ) -> Decision:
        """Decide about one request, and stage what it stores."""
        decision = admit(new, await self._facts(draft, new, openness))
        if isinstance(decision, CheckKey):
            state = await self._key_state(draft, new)
            state, _ = keys.hand_over(state, draft.now)
            decision = admit_key(decision.policy, state.facts)
        if isinstance(decision, Replace):
            await self._skip(draft, decision.existing, new)
        if isinstance(decision, Admit | Replace):
            await self._stage_new(draft, new)
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
        marked = await draft.value(subject, _MARK)
        return None if marked is None else await draft.job(marked)

    async def _stage_new(self, draft: Draft, new: NewJob) -> None:
        current = draft.create(new)
        for kind, text in (("i", new.idempotency_key), ("d", new.dedupe and new.dedupe.key)):
            if text is not None:
                subject = self._store.subjects.mark(new.service, new.type, kind, text)
                await draft.value(subject, _MARK)
                draft.put(subject, new.id)
        if new.key_hash is not None:
            state = await self._key_state(draft, new)
            subject = self._store.subjects.key(new.service, new.type, new.key_hash)
            order = keys.order_of(draft.sequence(subject), 0, draft.count_new())
            waiter = keys.waiter_of(*current.record, order, is_unresolved=bool(new.after))
            draft.put(subject, keys.enter(state, waiter))
        await self._followups.stage(draft, new)

    async def _create_following(self, draft: Draft, new: NewJob) -> None:
        """Stage a job that follows others: without admission, but in the line of its key."""
        await self._stage_new(draft, new)
        await self._hand_over(draft, [new], [Admit()])

    async def _key_state(self, draft: Draft, new: NewJob) -> keys.KeyState:
        subject = self._store.subjects.key(new.service, new.type, new.key_hash or "")
        return await draft.value(subject, keys.CODEC) or keys.KeyState(new.key or "")

    async def _skip(self, draft: Draft, existing: JobId, new: NewJob) -> None:
        current = await draft.job(existing)
        if current is None:
            return
        decision = decide(current.record, Skip(new.id), draft.now)
        if isinstance(decision, Transition):
            draft.transition(current, decision)
            state = await self._key_state(draft, new)
            subject = self._store.subjects.key(new.service, new.type, new.key_hash or "")
            draft.put(subject, keys.settle(state, decision, None, is_unresolved=False))
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
        for (service, job_type, key_hash), new in touched.items():
            subject = self._store.subjects.key(service, job_type, key_hash or "")
            state, handed = keys.hand_over(await self._key_state(draft, new), draft.now)
            draft.put(subject, state)
            for job_id in handed:
                current = await draft.job(job_id)
                # A new job is a hint itself.
                if current is not None and not draft.is_new(job_id):
                    draft.hint(current)


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
