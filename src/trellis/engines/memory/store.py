"""The data of the memory engine: entries of jobs with their journals, sessions and queues.

Rows are numbered in creation order. `Store` has the dictionaries and answers the questions that
several verbs ask about them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trellis.core.admission import Facts, holds_dedupe
from trellis.core.commands import Claim
from trellis.core.durations import Instant
from trellis.core.events import Event, late_result
from trellis.core.fairness import tenant_of
from trellis.core.job import Definition, Fence, Head, JobId, JobRecord, NewJob, SessionId, define
from trellis.core.lifecycle import Transition, creation, decide, first_run_at
from trellis.core.policy import Policy, before_claim, in_force
from trellis.core.schedules import Schedule
from trellis.core.states import ENDED, State
from trellis.core.timers import keep_until, look_at
from trellis.engines.audit import AuditEntry, By, Change, storable, storable_by
from trellis.engines.clock import Clock
from trellis.engines.contracts import ContractRecord, DeclaredType
from trellis.engines.demand import Demand, demanded
from trellis.engines.memory.archive import Archives
from trellis.engines.memory.dependencies import DependencyTable
from trellis.engines.memory.fairness import Line, Place, ReadyJobs
from trellis.engines.memory.feed import Feed
from trellis.engines.memory.sessions import SessionState
from trellis.engines.operating import DrainChange, JobFacts, WorkerName
from trellis.engines.schedules import SlotRecord
from trellis.engines.tokens import TokenRecord
from trellis.engines.values import (
    Activity,
    Begun,
    Heartbeat,
    Item,
    ItemEntry,
    LateResult,
    LogEntry,
    LogLine,
    Note,
    NoteResult,
    Outcome,
    Phase,
    Progress,
    QueueSettings,
    SessionRecord,
)

#: Whether a live job can be claimed: yes, not before its run time, not without a slot, not before
#: others have ended, or no more.
Availability = Literal["ready", "scheduled", "waiting_for_slot", "waiting_for_jobs", "claimed"]
#: Service, queue and type: what a demand names.
Lane = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class Entry:
    """One job with its journal, outcomes, activity and log lines."""

    definition: Definition
    head: Head
    journal: list[Event]
    availability: Availability | None
    dedupe: tuple[str, str, str] | None
    idempotency: tuple[str, str, str] | None
    #: The policy of its type when it was created.
    created_with: Policy
    #: Its rank in the order of claims, if it has a tenant and was due; otherwise the due time.
    rank: Instant | None = None
    seen_at: Instant | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    activity: Activity | None = None
    #: By claim, phase and name.
    items: dict[tuple[int, str, str], Item] = field(default_factory=dict)
    logs: list[LogEntry] = field(default_factory=list)
    #: Waits for other jobs: has links, and was not resolved yet.
    is_unresolved: bool = False
    #: The batches of which it is a member.
    batches: set[str] = field(default_factory=set)
    #: Expired, and kept by a batch: when retention looks again.
    postponed_until: Instant | None = None
    #: Created in a transaction of the caller that is still open: no other code sees the job.
    is_held: bool = False
    #: The numbers of its events in the feed.
    numbers: list[int] = field(default_factory=list)

    @property
    def record(self) -> JobRecord:
        """The job as a value."""
        return JobRecord(self.definition, self.head)

    @property
    def lane(self) -> Lane:
        """The lane the job waits in."""
        definition = self.definition
        return definition.service, definition.queue, definition.type

    @property
    def line(self) -> Line:
        """The line in which its tenant takes turns with others."""
        definition = self.definition
        return definition.service, definition.queue, definition.priority

    @property
    def place(self) -> Place:
        """The place of the job in its lane."""
        rank = self.head.run_at if self.rank is None else self.rank
        return Place(self.lane, self.definition.priority, rank, self.definition.row)

    @property
    def needs_rank(self) -> bool:
        """Whether the job has a tenant and waits for its promotion, which gives it a rank."""
        return self.rank is None and tenant_of(self.definition.relations) is not None

    def redefine(self, definition: Definition) -> None:
        """Store what an operator changed; in another line its tenant takes another turn."""
        line = self.line
        self.definition = definition
        if self.line != line:
            self.rank = None

    def is_ready_at(self, place: Place) -> bool:
        """Return whether the job still waits there: it may be claimed, or moved, since."""
        return self.availability == "ready" and self.place == place

    def decide_claim(self, session: SessionId, now: Instant) -> Transition | None:
        """Decide on a claim of the job, which has been found due; None if it expires instead.

        It stays due when the wall clock is set back afterwards: otherwise a correction of the clock
        would stop every waiting job.
        """
        head = self.head
        due = head._replace(run_at=min(head.run_at, now))
        fence = Fence(session, secrets.randbits(62) + 1)
        decision = decide(JobRecord(self.definition, due), Claim(fence), now)
        if not isinstance(decision, Transition):
            return None
        return decision._replace(before=head, head=decision.head._replace(run_at=head.run_at))

    def put_in_force(self, declared: Policy | None, *, is_claim: bool = True) -> None:
        """Let what workers declare decide about the job; before its first claim only the hooks."""
        if self.head.claims and (declared is None or not is_claim):
            return
        created, was = self.created_with, self.definition
        if not is_claim:
            created, declared = before_claim(created, declared), None
        policy = in_force(created, declared, was.attempts, was.timeout)
        self.definition = was._replace(policy=policy)

    @property
    def look_at(self) -> Instant | None:
        """When the clock may change this job."""
        if self.head.state in ENDED:
            return None
        return look_at(self.definition, self.head, self.seen_at)

    @property
    def keep_until(self) -> Instant | None:
        """When retention may remove this job, or look at it again."""
        return self.postponed_until or keep_until(self.definition, self.head)

    def note(self, note: Note, now: Instant, log_number: int) -> NoteResult:
        """Store a note if its fence holds; journal a late result if it does not."""
        is_held = self.head.fence == note.fence
        if isinstance(note.body, LateResult):
            if is_held:
                return NoteResult.STALE
            data = {"command": note.body.command, "detail": note.body.detail}
            self.journal.append(late_result(self.head, now, note.fence, data))
            return NoteResult.NOTED
        if not is_held:
            return NoteResult.STALE
        if self.definition.policy.activity_timeout is not None:
            self.seen_at = now
        if isinstance(note.body, LogLine):
            self.logs.append(LogEntry(log_number, now, note.claim, *note.body))
        if isinstance(note.body, Item):
            self.items[note.claim, note.body.phase, note.body.name] = note.body
        self.activity = _updated(self.activity, note, now)
        return NoteResult.NOTED

    @property
    def latest_activity(self) -> Activity | None:
        """What the latest attempt reported."""
        if self.activity is None or self.activity.claim != self.head.claims:
            return None
        items = (each.item for each in self.item_entries if each.claim == self.head.claims)
        return self.activity._replace(items=tuple(items))

    @property
    def item_entries(self) -> list[ItemEntry]:
        """The items of all attempts, in order of claim, phase and name."""
        return [ItemEntry(at[0], item) for at, item in sorted(self.items.items())]

    def record_outcome(self, transition: Transition) -> None:
        """Store how this generation ended."""
        head, command = transition.head, transition.command
        if head.finished_at is None:
            return
        if head.state is State.DISMISSED:
            last = self.outcomes[-1]
            self.outcomes[-1] = last._replace(state=head.state, finished_at=head.finished_at)
            return
        self.outcomes.append(
            Outcome(
                head.generation,
                head.state,
                head.attempt,
                getattr(command, "started_at", None),
                head.finished_at,
                getattr(command, "result", None),
                head.error,
            )
        )


def _updated(activity: Activity | None, note: Note, now: Instant) -> Activity:
    """Return the activity of the note's attempt with the note in it."""
    if activity is None or activity.claim != note.claim:
        activity = Activity(note.claim, None, None, None, None, ())
    activity = activity._replace(seen_at=now)
    match note.body:
        case Begun(at):
            return activity._replace(began_at=at)
        case Progress() as progress:
            return activity._replace(progress=progress)
        case Phase(name):
            return activity._replace(phase=name, progress=None)
        case Item() | Heartbeat() | LogLine() | LateResult():
            return activity


class Store:
    """All data of the engine except slots and locks."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.entries: dict[int, Entry] = {}
        self.rows: dict[JobId, int] = {}
        self.dedupe: dict[tuple[str, str, str], int] = {}
        self.idempotency: dict[tuple[str, str, str], int] = {}
        self.sessions: dict[SessionId, SessionState] = {}
        #: Of removed sessions: when they ended, and whose they were.
        self.past_sessions: dict[SessionId, tuple[Instant, WorkerName]] = {}
        self.queues: dict[tuple[str, str], QueueSettings] = {}
        self.drain_changes: list[DrainChange] = []
        #: By service and name; the ledger of each by slot.
        self.schedules: dict[tuple[str, str], Schedule] = {}
        self.slots: dict[tuple[str, str], dict[Instant, SlotRecord]] = {}
        #: When each job was removed, the earliest first.
        self.removed: dict[JobId, Instant] = {}
        self.audit: list[AuditEntry] = []
        self.contracts: dict[str, list[ContractRecord]] = {}
        self.tokens: dict[str, TokenRecord] = {}
        #: What workers declare, by service and type.
        self.types: dict[tuple[str, str], DeclaredType] = {}
        self._last_entry = 0
        self.feed = Feed()
        self.archives = Archives()
        self.dependencies = DependencyTable(self)
        #: Rows of jobs before their run time, and rows of all jobs of a key: saves scanning all.
        self.scheduled: set[int] = set()
        self.keyed: dict[str, set[int]] = {}
        self.last_log = 0
        self._last_row = 0
        self.ready = ReadyJobs(self.entries)
        #: Every lane that a job has ever waited in.
        self.lane_names: set[Lane] = set()

    # -- jobs ----------------------------------------------------------------------------------

    def by_id(self, job_id: JobId) -> Entry | None:
        """Return the entry of a public id."""
        row = self.rows.get(job_id)
        return None if row is None else self.entries[row]

    def facts(self, new: NewJob) -> Facts:
        """Gather what admission must know about a new job, except its key."""
        scope = (new.service, new.type)
        same_id = same_idempotency = same_dedupe = None
        if (same := self.by_id(new.id)) is not None:
            stored = same.definition
            same_id = (stored.service, stored.type, stored.payload)
        if new.idempotency_key is not None:
            row = self.idempotency.get((*scope, new.idempotency_key))
            if row is not None:
                stored = self.entries[row].definition
                same_idempotency = (stored.id, stored.payload)
        if new.dedupe is not None:
            row = self.dedupe.get((*scope, new.dedupe.key))
            same = None if row is None else self.entries[row]
            if same is not None and holds_dedupe(*same.record, self.clock.now()):
                same_dedupe = same.definition.id
        draining = self.queue(new.service, new.queue).draining
        missing = self.dependencies.missing(new) if new.after else None
        return Facts(same_id, same_idempotency, same_dedupe, draining, self.is_draining, missing)

    def insert(self, new: NewJob, now: Instant) -> Entry:
        """Store an admitted job."""
        self._last_row += 1
        definition = define(new, self._last_row, now)
        event, head = creation(now, first_run_at(new, now))
        scope = (new.service, new.type)
        entry = Entry(
            definition,
            head,
            [event],
            None,
            None if new.dedupe is None else (*scope, new.dedupe.key),
            None if new.idempotency_key is None else (*scope, new.idempotency_key),
            new.policy,
        )
        self.entries[definition.row] = entry
        self.feed.update(entry)
        self.lane_names.add(entry.lane)
        self.rows[new.id] = definition.row
        if new.key_hash is not None:
            self.keyed.setdefault(new.key_hash, set()).add(definition.row)
        if entry.dedupe is not None:
            self.dedupe[entry.dedupe] = definition.row
        if entry.idempotency is not None:
            self.idempotency[entry.idempotency] = definition.row
        if new.after:
            self.dependencies.add(entry, new)
        if scope in self.types:
            entry.put_in_force(self.types[scope].policy, is_claim=False)
        return entry

    def drop(self, entry: Entry) -> None:
        """Remove an ended job and record its removal."""
        definition = entry.definition
        self.dependencies.drop(entry)
        del self.entries[definition.row], self.rows[definition.id]
        if entry.dedupe is not None and self.dedupe.get(entry.dedupe) == definition.row:
            del self.dedupe[entry.dedupe]
        if entry.idempotency is not None:
            self.idempotency.pop(entry.idempotency, None)
        if definition.key_hash is not None:
            self.keyed[definition.key_hash].discard(definition.row)
        self.removed.pop(definition.id, None)
        self.removed[definition.id] = self.clock.now()
        self.feed.drop(entry)
        self.archives.waiting.pop(definition.row, None)

    # -- sessions and queues -------------------------------------------------------------------

    def is_past(self, until: int, boot_id: str) -> bool:
        """Return whether a moment of the lease clock, in the named boot, has passed."""
        return boot_id != self.clock.boot_id() or until <= self.clock.lease_now()

    def is_lapsed(self, state: SessionState) -> bool:
        """Return whether the lease of an open session has lapsed."""
        return self.is_past(state.lease_until, state.boot_id)

    def is_over(self, session: SessionId) -> bool:
        """Return whether a session has ended."""
        state = self.sessions.get(session)
        return state is None or state.ended_at is not None

    def linger_until(self, fence: Fence | None) -> int | None:
        """Return until when slots and locks of this attempt linger; None if its session ended."""
        state = self.sessions.get(fence.session) if fence else None
        if state is None or state.ended_at is not None:
            return None
        return self.clock.lease_now() + state.lease

    def held_by(self, session: SessionId) -> list[Entry]:
        """Return the entries this session has claimed, in creation order."""
        return [
            entry
            for _, entry in sorted(self.entries.items())
            if entry.head.fence is not None and entry.head.fence.session == session
        ]

    def session_record(self, session: SessionId, state: SessionState) -> SessionRecord:
        """Return a session as operators see it."""
        is_lapsed = state.ended_at is None and self.is_lapsed(state)
        return state.record(session, len(self.held_by(session)), is_lapsed=is_lapsed)

    def drop_sessions(self, ended: Instant, limit: int) -> int:
        """Remove sessions that ended at or before this moment, the earliest first."""
        over = [
            (state.ended_at, session)
            for session, state in self.sessions.items()
            if state.ended_at is not None and state.ended_at <= ended
        ]
        # Sessions are in the order they were opened, which a stable sort keeps.
        oldest = sorted(over, key=lambda each: each[0])[:limit]
        for moment, session in oldest:
            self.past_sessions[session] = moment, WorkerName(*self.sessions.pop(session).info[:3])
        first = next(iter(self.entries.values()), None)
        for session, (moment, _) in list(self.past_sessions.items()):
            if first is None or moment < first.definition.created_at:
                del self.past_sessions[session]
        return len(oldest)

    def worker_name(self, session: SessionId) -> WorkerName | None:
        """Return which worker process a session belongs or belonged to, if that is kept."""
        state = self.sessions.get(session)
        if state is not None:
            return WorkerName(*state.info[:3])
        return self.past_sessions.get(session, (None, None))[1]

    def facts_of(self, entry: Entry) -> JobFacts:
        """Return what people want to know of a job beside its record."""
        changes = [event for event in entry.journal if event.version]
        session = next((event.fence.session for event in reversed(changes) if event.fence), None)
        outcome = entry.outcomes[-1] if entry.head.state in ENDED else None
        activity = entry.activity
        if activity is not None and activity.claim != entry.head.claims:
            activity = None
        return JobFacts(
            (outcome and outcome.started_at) or (activity and activity.began_at),
            changes[-1].at,
            session,
            None if session is None else self.worker_name(session),
            outcome and outcome.result,
        )

    @property
    def is_draining(self) -> bool:
        """Whether all queues drain."""
        return bool(self.drain_changes) and self.drain_changes[-1].drain.on

    def queue(self, service: str, queue: str) -> QueueSettings:
        """Return the settings of a queue."""
        return self.queues.get((service, queue)) or QueueSettings(service, queue)

    def open_lanes(self, demands: Sequence[Demand]) -> dict[Lane, int]:
        """Return the demanded lanes of queues that are not paused, with the index of the demand."""
        wanted = demanded(demands, self.lane_names)
        return {lane: index for lane, index in wanted.items() if not self.queue(*lane[:2]).paused}

    # -- audit ---------------------------------------------------------------------------------

    def record(self, change: Change, by: By) -> None:
        """Store a change that an operator makes."""
        self.record_at(self.clock.now(), change, by)

    def record_at(self, at: Instant, change: Change, by: By) -> None:
        """Store a change that an operator decided at this moment."""
        self._last_entry += 1
        change = change._replace(target=storable(change.target))
        self.audit.append(AuditEntry(self._last_entry, at, change, storable_by(by)))

    # -- due -----------------------------------------------------------------------------------

    def lapsed_sessions(self) -> list[SessionId]:
        """Return the open sessions whose lease has lapsed."""
        return [
            session
            for session, state in self.sessions.items()
            if state.ended_at is None and self.is_lapsed(state)
        ]

    def lost(self) -> list[Entry]:
        """Return the claimed jobs whose session has ended."""
        return [
            entry
            for _, entry in sorted(self.entries.items())
            if entry.head.fence is not None
            and not entry.head.blocked
            and self.is_over(entry.head.fence.session)
        ]

    def overdue(self, now: Instant) -> list[Entry]:
        """Return the jobs that the clock may change, the longest overdue first."""
        moments = ((entry.look_at, row, entry) for row, entry in self.entries.items())
        due = [(moment, row, entry) for moment, row, entry in moments if moment and moment <= now]
        return [entry for _, _, entry in sorted(due, key=lambda each: each[:2])]

    def past_retention(self, now: Instant) -> list[Entry]:
        """Return the jobs whose retention is over, the oldest first."""
        moments = ((entry.keep_until, row) for row, entry in self.entries.items())
        due = sorted((until, row) for until, row in moments if until and until <= now)
        return [self.entries[row] for _, row in due]

    def startable(self, now: Instant) -> list[Entry]:
        """Return the jobs whose run time has come, the longest due first."""
        moments = ((self.entries[row].head.run_at, row) for row in self.scheduled)
        return [self.entries[row] for run_at, row in sorted(moments) if run_at <= now]

    def startable_of(self, lanes: Container[Lane], now: Instant, each: int) -> list[Entry]:
        """Return the same of these lanes, at most this number of each priority."""
        counts: Counter[tuple[Lane, int]] = Counter()
        due = []
        for entry in self.startable(now):
            lane = (entry.lane, entry.definition.priority)
            if entry.lane in lanes and counts[lane] < each:
                counts[lane] += 1
                due.append(entry)
        return due
