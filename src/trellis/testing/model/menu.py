"""The choices of the model: job types, requests, settlements, commands of operators, notes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from trellis.core.commands import (
    Adjust,
    Cancel,
    Command,
    Complete,
    Crash,
    Dismiss,
    Exhaust,
    Expire,
    Fail,
    LoseLease,
    Release,
    ReleaseKey,
    Replay,
    Retry,
    RetryItems,
    Snooze,
)
from trellis.core.durations import SECOND, Micros
from trellis.core.job import (
    Dedupe,
    Failure,
    Fence,
    FollowsOn,
    JobId,
    NewJob,
    Prerequisite,
    Relations,
    fresh_context,
)
from trellis.core.policy import Hook, KeyPolicy, Policy, Retention
from trellis.core.retry import Retry as RetryPolicy
from trellis.engines.values import (
    Begun,
    Heartbeat,
    Item,
    LateResult,
    LogLine,
    NoteBody,
    Phase,
    Progress,
)
from trellis.testing.builders import a_job
from trellis.testing.clock import START

_TWICE: Final = RetryPolicy.fixed("5s", attempts=2, jitter=0.5)
_SHORT: Final = Retention(60 * SECOND, 120 * SECOND, 180 * SECOND, 90 * SECOND)


def _keyed(key: KeyPolicy, policy: Policy) -> Policy:
    return Policy(
        retry=policy.retry,
        activity_timeout=policy.activity_timeout,
        timeout=policy.timeout,
        on_lost=policy.on_lost,
        dead_letters=policy.dead_letters,
        key=key,
        retention=_SHORT,
    )


_PLAIN: Final = Policy(retry=_TWICE, retention=_SHORT)
_WATCHED: Final = Policy(
    retry=RetryPolicy.fixed("1s", attempts=3),
    timeout=20 * SECOND,
    activity_timeout=10 * SECOND,
    cancel_grace=5 * SECOND,
    retention=_SHORT,
)
#: Job types by name, each with a different policy.
TYPES: Final[dict[str, Policy]] = {
    "plain": _PLAIN,
    "watched": _WATCHED,
    "single": Policy(
        retry=RetryPolicy.never(), on_shutdown="fail", max_crashes=1, retention=_SHORT
    ),
    "careful": Policy(retry=_TWICE, on_lost="fail", dead_letters=False, retention=_SHORT),
    "reject": _keyed(KeyPolicy("k/{k}", 1, 0, "reject"), _PLAIN),
    "deep": _keyed(KeyPolicy("k/{k}", 1, 2, "reject"), Policy(retry=_TWICE, on_lost="stale")),
    "coalesce": _keyed(KeyPolicy("k/{k}", 1, 1, "coalesce"), _PLAIN),
    "replace": _keyed(KeyPolicy("k/{k}", 1, 1, "replace-oldest"), _PLAIN),
    "pair": _keyed(KeyPolicy("k/{k}", 2, None, "wait"), _WATCHED),
    "rated": _keyed(KeyPolicy("k/{k}", 2, None, "wait", rate="1/5s", burst=2), _PLAIN),
    "strict": _keyed(KeyPolicy("k/{k}", 1, None, "wait", "job"), _WATCHED),
    "block": _keyed(
        KeyPolicy("k/{k}", 1, None, "wait"),
        Policy(retry=_TWICE, on_lost="block", key=KeyPolicy("k/{k}")),
    ),
    "hooked": Policy(
        retry=_TWICE,
        retention=_SHORT,
        hooks=(
            Hook("success", "plain", "first"),
            Hook("failure", "watched", "second"),
            Hook("finished", "plain", "second"),
        ),
    ),
}
#: The type with a rate per key, which not every engine has.
RATED: Final = "rated"
KEYED: Final = tuple(name for name, policy in TYPES.items() if policy.key is not None)
QUEUES: Final = ("first", "second")
SERVICE: Final = "model"
_CONTEXT: Final = fresh_context("model", 1, 1)


def queue_of(job_type: str) -> str:
    """Return the queue of a type: several types share one."""
    return QUEUES[sorted(TYPES).index(job_type) % len(QUEUES)]


#: Tenants that share the queues, and their weights.
WEIGHTS: Final[dict[str, int | None]] = {"small": None, "large": 3, "other": 1}


class JobRequest(NamedTuple):
    """A request for work, before it has an id."""

    type: str
    key: int
    priority: int
    payload: str
    delay: Micros
    deadline: Micros | None
    dedupe: Dedupe | None
    idempotency_key: str | None
    tenant: str | None
    #: The jobs it follows, counted back from the newest; whether the first hands on its result.
    follows: tuple[int, ...] = ()
    on: FollowsOn = "success"
    takes_result: bool = False

    def make(self, number: int) -> NewJob:
        """Return the request with an id made from this number: the same for both engines."""
        names = dict.fromkeys(number - each for each in self.follows if each <= number)
        after = tuple(Prerequisite(model_id(each), self.on) for each in names)
        takes_result = bool(after) and self.takes_result and self.on == "success"
        return a_job(
            id=model_id(number),
            context=_CONTEXT,
            service=SERVICE,
            type=self.type,
            queue=queue_of(self.type),
            policy=TYPES[self.type],
            key=f"k/{self.key}" if self.type in KEYED else None,
            priority=self.priority,
            payload=self.payload,
            delay=self.delay,
            deadline_in=self.deadline,
            dedupe=self.dedupe,
            idempotency_key=self.idempotency_key,
            tags=(("payload", self.payload),),
            after=after,
            relations=self._relations(after[0].id if takes_result else None),
        )

    def _relations(self, payload_from: JobId | None) -> Relations | None:
        weight = None if self.tenant is None else WEIGHTS[self.tenant]
        relations = Relations(tenant=self.tenant, weight=weight, payload_from=payload_from)
        return None if relations == Relations() else relations


def a_request(dice: Random) -> JobRequest:
    """Return a request for work."""
    return JobRequest(
        type=dice.choice(tuple(TYPES)),
        key=dice.choice((1, 2)),
        priority=dice.choice((0, 0, 1, -1)),
        payload=dice.choice(("1", "2")),
        delay=dice.choice((0, 0, 0, 5 * SECOND)),
        deadline=dice.choice((None, None, None, None, 4 * SECOND, 40 * SECOND)),
        dedupe=dice.choice((None, None, None, dice.choice(DEDUPES))),
        idempotency_key=dice.choice((None, None, None, None, "i")),
        tenant=dice.choice((None, None, *WEIGHTS)),
        follows=dice.choice(((), (), (), tuple(dice.sample(range(1, 9), dice.randint(1, 3))))),
        on=dice.choice(("success", "success", "finished")),
        takes_result=dice.random() < 1 / 2,
    )


def model_id(number: int) -> JobId:
    """Return the id of the job with this number."""
    return JobId(f"01MODEL{number:019d}")


#: How long the dedupe keys of requests hold.
DEDUPES: Final = (
    Dedupe("d"),
    Dedupe("d", "unfinished"),
    Dedupe("d", None, 20 * SECOND),
    Dedupe("d", "unfinished", 100 * SECOND),
)
_BOOM: Final = Failure("exception", "boom", "Traceback")
#: How an attempt may settle.
SETTLEMENTS: Final[dict[str, Callable[[Fence], Command]]] = {
    "complete": lambda fence: Complete(fence, '{"done":true}', 0, 5),
    "fail": lambda fence: Fail(fence, _BOOM, roll=0.5, started_at=7),
    "partly": lambda fence: Complete(fence, "[1]", 2),
    "fail for good": lambda fence: Fail(fence, _BOOM, retryable=False),
    "fail, own delay": lambda fence: Fail(fence, _BOOM, delay=7 * SECOND),
    "gave up": lambda fence: Fail(fence, _BOOM, cancelled=True),
    "timeout": lambda fence: Fail(fence, _BOOM, stopped=False),
    "snooze": lambda fence: Snooze(fence, 3 * SECOND),
    "release": Release,
    "release, still running": lambda fence: Release(fence, stopped=False),
    "release unbegun": lambda fence: Release(fence, begun=False),
    "lose": LoseLease,
    "lose, still running": lambda fence: LoseLease(fence, stopped=False),
    "crash": lambda fence: Crash(fence, "signal 9"),
    "crash unbegun": lambda fence: Crash(fence, "signal 9", begun=False),
    "crash among others": lambda fence: Crash(fence, "signal 9", alone=False),
}


#: An hour after the clock of the model starts.
_POSTPONED: Final = START + 3600 * SECOND

#: What an operator, or the clock, may command.
OPERATIONS: Final[dict[str, Command]] = {
    "cancel": Cancel("no", actor="ann"),
    "force": Cancel("now", force=True),
    "move to another queue": Adjust("elsewhere", actor="ann"),
    "raise the priority": Adjust(priority=3),
    "postpone": Adjust(run_at=_POSTPONED),
    "give more attempts": Adjust(attempts=7, reason="flaky"),
    "expire": Expire(),
    "exhaust": Exhaust("The store gave it up."),
    "retry": Retry("ann"),
    "retry items": RetryItems("ann"),
    "replay": Replay(),
    "dismiss": Dismiss(),
    "release key, retry": ReleaseKey("retry"),
    "release key, fail": ReleaseKey("fail"),
}

#: What an attempt may note.
NOTE_BODIES: Final[tuple[NoteBody, ...]] = (
    Begun(11),
    Heartbeat(),
    Progress(1, 2.5, "step", "message"),
    Phase("one"),
    Phase("two"),
    Item("a", "in_progress"),
    Item("a", "failed", "detail"),
    Item("b", "completed"),
    Item("b", "skipped", None, "one"),
    LogLine("info", "line", '{"n":1}'),
    LateResult("Complete", "late"),
)
