"""The names of streams, subjects and consumers of one deployment.

`prefix` is the first token of every subject; the names of streams begin with it unless it is the
default. A lifecycle event has six tokens, `<prefix>.jobs.<service>.<type>.<id>.<event>`. Everything
else under `<prefix>.jobs` has another number of tokens, so that neither the fence of a job
(`fence`) nor the filters of the work feed match it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from trellis.core.durations import Instant, to_datetime
from trellis.core.job import JobId
from trellis.errors import ConfigurationError

DEFAULT_PREFIX: Final = "trellis"
_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
#: One token of a subject: printable, and none of the characters that NATS gives a meaning.
_TOKEN: Final = re.compile(r"[!-~]+")
_RESERVED: Final = re.compile(r"[.*>]")
#: Of a lifecycle event; a note or hint has one more.
EVENT_TOKENS: Final = 6
#: The service under which Trellis keeps its own state beside the jobs; no service has this name.
OWN: Final = "trellis"


class JobName(NamedTuple):
    """The tokens that name a job in subjects."""

    service: str
    type: str
    id: JobId


class Subjects(NamedTuple):
    """The names of one deployment."""

    prefix: str = DEFAULT_PREFIX

    # -- streams -------------------------------------------------------------------------------

    def stream(self, name: str) -> str:
        """Return the name of one of the streams of the deployment."""
        return name if self.prefix == DEFAULT_PREFIX else f"{self.prefix}_{name}"

    @property
    def jobs(self) -> str:
        """The stream that has all truth."""
        return self.stream("JOBS")

    @property
    def work(self) -> str:
        """The work queue: which jobs to look at."""
        return self.stream("JOBS_WORK")

    @property
    def later(self) -> str:
        """Messages that the server publishes at a moment."""
        return self.stream("JOBS_LATER")

    @property
    def state(self) -> str:
        """Last values: sessions, locks, settings."""
        return self.stream("JOBS_STATE")

    # -- jobs ----------------------------------------------------------------------------------

    def event(self, job: JobName, event: str) -> str:
        """Return the subject of a lifecycle event."""
        return f"{self.prefix}.jobs.{job.service}.{job.type}.{job.id}.{event}"

    def fence(self, job: JobName) -> str:
        """Return the filter over all lifecycle events of a job."""
        return f"{self.prefix}.jobs.{job.service}.{job.type}.{job.id}.*"

    def identity(self, job_id: JobId) -> str:
        """Return the filter over all lifecycle events of jobs with this id, whatever their type."""
        return f"{self.prefix}.jobs.*.*.{job_id}.*"

    def note(self, job: JobName, note: str, claim: int) -> str:
        """Return the subject of a note of an attempt: outside of the fence."""
        return f"{self.prefix}.jobs.{job.service}.{job.type}.{job.id}.{note}.{claim}"

    def ready(self, job: JobName, version: int) -> str:
        """Return the subject of the hint that a waiting job may start."""
        return self.note(job, "ready", version)

    def whole(self, job: JobName) -> str:
        """Return the filter over everything about a job: events, notes and hints."""
        return f"{self.prefix}.jobs.{job.service}.{job.type}.{job.id}.>"

    def job_of(self, subject: str) -> JobName | None:
        """Return which job a lifecycle event, note or hint is about; None: it is about none."""
        tokens = subject.split(".")
        if len(tokens) not in {EVENT_TOKENS, EVENT_TOKENS + 1} or tokens[2] in {OWN, "workers"}:
            return None
        return JobName(tokens[2], tokens[3], JobId(tokens[4]))

    def event_of(self, subject: str) -> str | None:
        """Return the name of the lifecycle event that a subject is of; None: it is none."""
        tokens = subject.split(".")
        if len(tokens) != EVENT_TOKENS or tokens[2] in {OWN, "workers"}:
            return None
        return tokens[5]

    def note_of(self, subject: str) -> str | None:
        """Return the name of the note (or `ready`) that a subject is of; None: it is none."""
        tokens = subject.split(".")
        if len(tokens) != EVENT_TOKENS + 1 or tokens[2] in {OWN, "workers"}:
            return None
        return tokens[5]

    # -- what changes together with jobs -------------------------------------------------------

    def own(self, *tokens: str) -> str:
        """Return a subject of Trellis' own state in the stream of the jobs.

        Filters over it may have wildcards as tokens. It never has six tokens.
        """
        subject = ".".join((self.prefix, "jobs", OWN, *tokens))
        if subject.count(".") + 1 == EVENT_TOKENS:
            raise ValueError(f"{subject} has as many tokens as a lifecycle event.")
        return subject

    def key(self, service: str, job_type: str, key_hash: str) -> str:
        """Return the subject of the state of a key."""
        return self.own("keys", service, job_type, "h", key_hash)

    def mark(self, service: str, job_type: str, kind: str, text: str) -> str:
        """Return the subject of a dedupe (`d`) or idempotency (`i`) mark."""
        return self.own("marks", service, job_type, kind, digest(text))

    # -- hints ---------------------------------------------------------------------------------

    def scheduled(self, job: JobName) -> str:
        """Return the subject of the message that schedules a hint about a job."""
        return f"{self.prefix}.later.{job.service}.{job.type}.{job.id}"

    def due(self, job: JobName) -> str:
        """Return the subject of the hint that the schedule publishes."""
        return f"{self.prefix}.due.{job.service}.{job.type}.{job.id}"

    def work_of(self, service: str, job_type: str) -> str:
        """Return the subject of the work messages of a type."""
        return f"{self.prefix}.work.{service}.{job_type}"

    def presence(self, service: str, job_type: str, session: str) -> str:
        """Return the subject of the passive presence of a worker process."""
        return f"{self.prefix}.jobs.workers.{service}.{job_type}.{session}.heartbeat"

    # -- last values ---------------------------------------------------------------------------

    def value(self, *tokens: str) -> str:
        """Return the subject of a last value; filters over it may have wildcards as tokens."""
        return ".".join((self.prefix, "state", *tokens))

    # -- feed and requests ---------------------------------------------------------------------

    def feed(self, *tokens: str) -> str:
        """Return a subject of the live feed: what is stored under `<prefix>.jobs`."""
        return ".".join((self.prefix, "feed", *tokens))

    def woken(self, *tokens: str) -> str:
        """Return a subject of hints that jobs may start; no stream stores it."""
        return ".".join((self.prefix, "woken", *tokens))

    def internal(self, verb: str) -> str:
        """Return the subject of requests of an engine to the admin runtime."""
        return f"{self.prefix}.rpc.jobs.internal.{verb}"

    def rpc(self, verb: str) -> str:
        """Return the subject of a request of the public API of the admin runtime."""
        return f"{self.prefix}.rpc.jobs.v1.{verb}"


def consumer_of(service: str, job_type: str) -> str:
    """Return the name of the consumer of a type; no name of a service or type contains `=`."""
    return f"{service}={job_type}"


def digest(text: str) -> str:
    """Return a text of any characters as one token."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_token(text: str) -> bool:
    """Return whether a text can be one token of a subject."""
    return _TOKEN.fullmatch(text) is not None and _RESERVED.search(text) is None


def check_id(new_id: str, what: str = "job") -> None:
    """Raise `ConfigurationError` if the id of a new job or batch cannot be a token."""
    if not is_token(new_id):
        raise ConfigurationError(
            f"{new_id!r} cannot be the id of a {what} on NATS: an id is one token of a subject. "
            "Nothing was stored. Use printable ASCII without spaces, '.', '*' and '>'."
        )


def check_prefix(prefix: str) -> str:
    """Return the prefix of a deployment; raise `ConfigurationError` for another text."""
    if _PREFIX.fullmatch(prefix) is None:
        raise ConfigurationError(
            f"prefix={prefix!r} cannot begin subjects and names of streams. Use a letter, then "
            "letters, digits, '_' or '-', at most 32 characters."
        )
    return prefix


def schedule_time(at: Instant) -> str:
    """Return a moment as the header `Nats-Schedule` has it."""
    return "@at " + to_datetime(at).isoformat(timespec="microseconds").replace("+00:00", "Z")
