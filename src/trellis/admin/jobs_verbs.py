"""The verbs of the RPC `Jobs.*`: what a request may have, what the answer has, and refusals.

The page of the RPC is made from this file, requests are checked by it, and a test compares real
answers with it. Members are as other programs read them, so their names are not those of Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NotRequired, TypedDict

CONTRACT: Final = "trellis.jobs@v1"
#: The most entries of a page.
LARGEST: Final = 500


class Nothing(TypedDict):
    """A request without members."""


class PageRequest(TypedDict):
    """Which part of a list to return."""

    #: How many entries come before it; 0 if it is missing.
    offset: NotRequired[int]
    #: How many entries to return, from 1 on; more than 500 count as 500.
    limit: int


class DeadLettersRequest(PageRequest):
    """Which dead letters to list."""

    #: Only jobs of this service.
    service: NotRequired[str]
    #: Only jobs of this type.
    type: NotRequired[str]
    #: Only jobs that were created then or later: RFC 3339 with a time zone.
    since: NotRequired[str]


class JobsRequest(DeadLettersRequest):
    """Which jobs to list."""

    #: Only jobs in one of these states.
    state: NotRequired[list[str]]


class JobRequest(TypedDict):
    """Which job it is about."""

    #: The id of the job.
    id: str


class KeyRequest(TypedDict):
    """Which key to show."""

    #: The service of its type.
    service: str
    #: The type of its jobs.
    type: str
    #: The text of the key.
    key: str


class HealthAnswer(TypedDict):
    """The admin runtime answers, and its engine, too."""

    #: `ok`.
    status: str
    #: The engine behind the runtime.
    engine: str
    #: What a stored job survives.
    durability: str


class Page(TypedDict):
    """A part of a list; what happens between two calls may move entries."""

    #: The entries: jobs without progress, log and queue policy, or services.
    entries: list[Any]
    #: How many there are in all.
    count: int
    #: The offset of the request.
    offset: int
    #: The limit that was used.
    limit: int
    #: The offset of the next page; missing on the last one.
    nextOffset: NotRequired[int]


class WorkerInfo(TypedDict):
    """A worker process that runs a type."""

    #: The type.
    jobType: str
    #: The worker process.
    instanceId: str
    #: When it was last heard of.
    heartbeatAt: str
    #: How many handlers it may run at once.
    concurrency: int | None
    #: The version of its program.
    version: str | None


class ServiceInfo(TypedDict):
    """A service of which workers were heard of in the last 90 seconds."""

    #: Its name.
    service: str
    #: The types that its workers run.
    jobTypes: list[str]
    #: Its worker processes, once for each type.
    workers: list[WorkerInfo]


class JobConcurrency(TypedDict):
    """The key of a job."""

    #: The text of the key.
    key: str
    #: Its hash, by which the store names it.
    keyHash: str
    #: The attempt that holds a slot of the key.
    slotToken: NotRequired[str]


class QueuePolicy(TypedDict):
    """What the queue policy of its key did with a job."""

    #: `accepted`, or `replaced` if it took the place of another job.
    outcome: str
    #: The waiting job whose place it took.
    replacedJobId: NotRequired[str]
    #: `replaced` if it was skipped because another job took its place.
    reason: NotRequired[str]
    #: The job that took its place.
    replacedByJobId: NotRequired[str]


class JobProgress(TypedDict):
    """How far the latest attempt is."""

    #: The part that is done.
    current: NotRequired[float]
    #: The whole.
    total: NotRequired[float]
    #: The step that it is in.
    step: NotRequired[str]
    #: A text for readers.
    message: NotRequired[str]


class JobLine(TypedDict):
    """A line of the log."""

    #: When it was written.
    timestamp: str
    #: `info`, `warn` or `error`.
    level: str
    #: The text.
    message: str


class WireJob(TypedDict):
    """A job."""

    #: Its id, a ULID.
    id: str
    #: Its service.
    service: str
    #: Its type.
    type: str
    #: Its state.
    state: str
    #: What it was created with; secrets are masked. `null` if the answer would be too large.
    payload: Any
    #: What its handler returned; secrets are masked. Missing if the answer would be too large.
    result: NotRequired[Any]
    #: When it was created.
    createdAt: str
    #: When it last changed.
    updatedAt: str
    #: When its latest attempt began.
    startedAt: NotRequired[str]
    #: When it ended.
    completedAt: NotRequired[str]
    #: How many attempts there were.
    tries: int
    #: How many attempts there may be.
    maxTries: int
    #: The error of the last attempt that failed.
    lastError: NotRequired[str]
    #: When it expires.
    deadline: NotRequired[str]
    #: Its key, if it has one.
    concurrency: NotRequired[JobConcurrency]
    #: What the queue policy of its key did; only in answers about a single job.
    queuePolicy: NotRequired[QueuePolicy]
    #: The progress of the latest attempt; only in answers about a single job.
    progress: NotRequired[JobProgress]
    #: The last 200 lines of its log, or fewer if the answer would be too large; only in answers
    #: about a single job.
    logs: NotRequired[list[JobLine]]


class JobAnswer(TypedDict):
    """A job as it is after the call."""

    #: The job.
    job: WireJob


class KeyHolder(TypedDict):
    """A job that holds a slot; without the last five members it has not started yet."""

    #: The job.
    jobId: str
    #: How many attempts there were.
    tries: int
    #: The attempt that holds the slot.
    slotToken: NotRequired[str]
    #: The worker process.
    instanceId: NotRequired[str]
    #: When the attempt began.
    startedAt: NotRequired[str]
    #: When the worker process last renewed its lease.
    heartbeatAt: NotRequired[str]
    #: When that lease ends.
    leaseExpiresAt: NotRequired[str]


class KeyWaiter(TypedDict):
    """A job that waits for a slot."""

    #: The job.
    jobId: str
    #: When it was created.
    createdAt: str
    #: The request that created it.
    requestId: str


class KeyReplaced(TypedDict):
    """A job that was skipped because another one took its place."""

    #: The job.
    jobId: str
    #: When it was skipped.
    skippedAt: str
    #: `replaced`.
    reason: str
    #: The job that took its place.
    replacedByJobId: str


class KeyAnswer(TypedDict):
    """The state of a key that a job holds or waits for."""

    #: Of this description.
    version: int
    #: The service of its type.
    service: str
    #: The type of its jobs.
    jobType: str
    #: Its text.
    key: str
    #: Its hash, by which the store names it.
    keyHash: str
    #: How many of its jobs may run at once.
    maxActive: int
    #: How many may wait; missing: without limit.
    maxQueuedPerKey: NotRequired[int]
    #: What a request gets when that many wait: `reject`, `coalesce` or `replace-oldest`.
    whenFull: NotRequired[str]
    #: The jobs that hold its slots.
    active: list[KeyHolder]
    #: The first 100 jobs that wait, in their order.
    queued: list[KeyWaiter]
    #: How many jobs wait.
    queuedCount: int
    #: The newest 20 jobs that were replaced, the newest first.
    replaced: list[KeyReplaced]
    #: Whether it stays taken until an operator releases it.
    blocked: bool
    #: How often a slot was taken from a lost attempt.
    staleTakeoverCount: int
    #: When its slots last changed.
    updatedAt: str | None


class Verb(NamedTuple):
    """One call of the RPC."""

    #: A typed dictionary with the members of the request.
    request: type[Any]
    answer: type[Any]
    meaning: str
    #: What `entries` has, if the answer is a page.
    entry: type[Any] | None = None


VERBS: Final[Mapping[str, Verb]] = {
    "Health": Verb(Nothing, HealthAnswer, "Check the admin runtime and its engine."),
    "ListServices": Verb(PageRequest, Page, "List services and their workers.", ServiceInfo),
    "List": Verb(JobsRequest, Page, "List jobs, the newest first.", WireJob),
    "Get": Verb(JobRequest, JobAnswer, "Show one job."),
    "GetKey": Verb(KeyRequest, KeyAnswer, "Show who holds a key and who waits for it."),
    "Retry": Verb(JobRequest, JobAnswer, "Run a failed job again."),
    "Cancel": Verb(JobRequest, JobAnswer, "Cancel a job: at once if it waits."),
    "ListDLQ": Verb(DeadLettersRequest, Page, "List dead letters, the newest first.", WireJob),
    "ReplayDLQ": Verb(JobRequest, JobAnswer, "Run a dead letter again."),
    "DismissDLQ": Verb(JobRequest, JobAnswer, "Dismiss a dead letter for good."),
}


class Refusal(NamedTuple):
    """An error that a call may answer with."""

    code: str
    type: str
    meaning: str


NOT_FOUND: Final = Refusal("404", "NotFoundError", "There is no such job, or no job has the key.")
INVALID: Final = Refusal("400", "ValidationError", "The request is wrong; `message` says how.")
NOT_ALLOWED: Final = Refusal(
    "409", "ValidationError", "The state of the job does not allow it, or its key has no room."
)
UNAVAILABLE: Final = Refusal("503", "UnavailableError", "A part does not answer; call again.")
UNEXPECTED: Final = Refusal("500", "UnexpectedError", "A fault; the log of the runtime has it.")
REFUSALS: Final = (INVALID, NOT_FOUND, NOT_ALLOWED, UNEXPECTED, UNAVAILABLE)
