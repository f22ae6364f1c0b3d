"""Random policies, commands and lives of jobs, for properties that hold for all of them."""

from __future__ import annotations

from typing import Final, NamedTuple, get_args

from hypothesis import strategies as st

from trellis.core.commands import (
    Adjust,
    Cancel,
    Claim,
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
    Resolve,
    Retry,
    RetryItems,
    Skip,
    Snooze,
)
from trellis.core.durations import SECOND, Micros, micros
from trellis.core.job import Failure, Fence, Head, JobId, SessionId
from trellis.core.policy import Hold, KeyPolicy, OnLost, OnShutdown, Policy, Retention, WhenFull
from trellis.core.retry import Retry as RetryPolicy
from trellis.core.retry import Shape

HOUR: Final = micros("1h")
durations = st.integers(0, 48 * HOUR)

retries = st.builds(
    RetryPolicy,
    attempts=st.integers(1, 4),
    shape=st.sampled_from(get_args(Shape)),
    delays=st.lists(durations, min_size=1, max_size=4).map(tuple),
    factor=st.floats(1, 100),
    cap=durations,
    jitter=st.floats(0, 1),
    on=st.sets(st.sampled_from([OSError, "httpx.ReadTimeout"])),
    never_on=st.sets(st.sampled_from([ValueError, "shop.NoSuchOrder"])),
)
key_policies = st.builds(
    KeyPolicy,
    template=st.just("user/{id}"),
    active=st.integers(1, 3),
    queued=st.none() | st.integers(0, 3),
    when_full=st.sampled_from(get_args(WhenFull)),
    hold=st.sampled_from(get_args(Hold)),
)
policies = st.builds(
    Policy,
    retry=retries,
    timeout=st.none() | durations,
    activity_timeout=st.none() | durations,
    cancel_grace=durations,
    on_lost=st.sampled_from(get_args(OnLost)),
    on_shutdown=st.sampled_from(get_args(OnShutdown)),
    dead_letters=st.booleans(),
    max_crashes=st.integers(1, 3),
    key=key_policies,
    retention=st.builds(Retention, durations, durations, durations, durations),
)


class Step(NamedTuple):
    """One thing asked of a job, before it is known how the job stands."""

    kind: type[Command]
    #: Whether a worker's command shows the fence that holds.
    shows_fence: bool
    flags: tuple[bool, bool]
    duration: Micros
    #: How much time passes before it.
    pause: Micros
    roll: float

    def command(self, head: Head, number: int) -> Command:
        """Return the command for a job that stands like this; `number` makes its fence unique."""
        fence = head.fence if head.fence and self.shows_fence else Fence(SessionId(0), 0)
        this, that = self.flags
        error = Failure("exception", f"error {number}", "Traceback" if this else None)
        made: dict[type[Command], Command] = {
            Claim: Claim(Fence(SessionId(number), number)),
            Complete: Complete(fence, "null", int(this)),
            Fail: Fail(
                fence, error, this or that, self.duration if this else None, that, self.roll
            ),
            Snooze: Snooze(fence, self.duration),
            Release: Release(fence, this),
            LoseLease: LoseLease(fence, "silence", self.roll, that),
            Crash: Crash(fence, "exit code 139", this, that, self.roll),
            ReleaseKey: ReleaseKey("retry" if this else "fail", "ann", self.roll),
            Cancel: Cancel("reason", this, "ann"),
            Adjust: Adjust("other", -1, actor="ann"),
            Resolve: Resolve("[1]" if this else None),
            Expire: Expire(),
            Skip: Skip(JobId("01K")),
            Exhaust: Exhaust("5 deliveries"),
            Retry: Retry("ann"),
            RetryItems: RetryItems("ann"),
            Replay: Replay("ann"),
            Dismiss: Dismiss("ann"),
        }
        return made[self.kind]


_KINDS: Final[tuple[type[Command], ...]] = get_args(Command)
steps = st.builds(
    Step,
    kind=st.sampled_from((*_KINDS, *[Claim] * 8, *[Fail, LoseLease, Crash, Snooze] * 2)),
    shows_fence=st.sampled_from((True, True, True, False)),
    flags=st.tuples(st.booleans(), st.booleans()),
    duration=st.sampled_from((0, SECOND, HOUR)),
    pause=st.sampled_from((0, 1, SECOND, HOUR, 48 * HOUR)),
    roll=st.sampled_from((0.0, 0.5, 1.0)),
)
