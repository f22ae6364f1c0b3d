"""What `service.schedule` takes: when jobs of a type are created, and with which payload."""

from __future__ import annotations

from typing import TypedDict, Unpack

from trellis.core.durations import Duration
from trellis.core.schedules import Declared, Missed, Overlap, Plan, Template, check_declared
from trellis.core.timing import write_interval
from trellis.declaration import checks
from trellis.declaration.job_type import JobType
from trellis.declaration.options import check_options
from trellis.errors import ConfigurationError, PayloadInvalid


class ScheduleOptions(TypedDict, total=False):
    """When a schedule is due and what it does then; operators can change all but the name."""

    #: A cron expression of five fields, `@daily` and the like, or `@every 15m`.
    cron: str
    #: The interval between two slots, counted from the Unix epoch: `15m` is due at every full
    #: quarter of an hour.
    every: Duration
    #: The time zone of the cron expression, such as `Europe/Vienna`; by default UTC.
    tz: str
    #: The payload of its jobs; by default that of the handler, or none.
    payload: object
    #: The name of the schedule within its service; by default that of the type.
    name: str
    #: A job starts up to this long after its slot; how long depends on the slot alone.
    jitter: Duration
    #: What slots lead to that are more than a minute late, because no worker ran: nothing (`skip`),
    #: one job for the latest slot (`last`, the default), or one job each (`all`).
    missed: Missed
    #: What a slot does while an earlier job of the schedule has not ended: create its job all the
    #: same (`allow`, the default), skip the slot (`skip`), or create a job that waits (`queue`).
    overlap: Overlap
    #: Whether the slots are skipped until an operator resumes the schedule.
    paused: bool


class DeclaredSchedules:
    """The schedules that the code of one service declares."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._schedules: dict[str, tuple[JobType, Declared]] = {}

    def add(self, job_type: JobType, when: str | None, options: ScheduleOptions) -> None:
        """Add the schedule of a type; raise `ConfigurationError` or `PayloadInvalid`."""
        declared = declare_schedule(job_type, when, **options)
        if declared.service != self._service:
            raise ConfigurationError(
                f"{declared.service}/{declared.template.type} belongs to another service than "
                f"{self._service!r}. Declare its schedule there."
            )
        if declared.name in self._schedules:
            raise ConfigurationError(
                f"Service {self._service!r} already has a schedule {declared.name!r}. "
                "Give one of them another name=."
            )
        self._schedules[declared.name] = job_type, declared

    def declared(self) -> tuple[Declared, ...]:
        """Return all, with the policies of their types as they are now.

        A hook that stands below a schedule in the code changes the policy of its type.
        """
        return tuple(
            declared._replace(template=template_of(job_type))
            for job_type, declared in self._schedules.values()
        )


def declare_schedule(
    job_type: JobType, when: str | None, /, **options: Unpack[ScheduleOptions]
) -> Declared:
    """Return the schedule of a type; raise `ConfigurationError` or `PayloadInvalid`."""
    check_options(options, ScheduleOptions, "A schedule has")
    plan = Plan(
        when=_when(when, options),
        tz=checks.text("tz", options.get("tz", "UTC"), "Europe/Vienna"),
        jitter=checks.duration("jitter", options.get("jitter", 0)),
        missed=checks.one_of(Missed, "missed", options.get("missed", "last")),
        overlap=checks.one_of(Overlap, "overlap", options.get("overlap", "allow")),
        paused=checks.flag("paused", options.get("paused", False)),
        payload=payload_text(job_type, options),
    )
    name = checks.text("name", options.get("name", job_type.name), "nightly")
    return check_declared(Declared(job_type.service, name, plan, template_of(job_type)))


def template_of(job_type: JobType) -> Template:
    """Return how jobs of a type are created."""
    fair = job_type.fair
    return Template(
        job_type.name,
        job_type.queue,
        job_type.policy,
        job_type.deadline,
        job_type.schema_version,
        None if fair is None else fair.template,
        {} if fair is None else fair.weights,
    )


def payload_text(job_type: JobType, options: ScheduleOptions) -> str:
    """Return the payload of a schedule as its type writes it; raise `PayloadInvalid`."""
    payload = options.get("payload", job_type.default_payload)
    try:
        return job_type.payload.encode(payload)
    except PayloadInvalid as error:
        name = f"{job_type.service}/{job_type.name}"
        if payload is None:
            raise PayloadInvalid(
                f"{name} takes a payload, so its schedule needs one: "
                f"service.schedule({job_type.name}, ..., payload=...)."
            ) from error
        raise type(error)(f"The schedule of {name}: {error}") from error.__cause__


def _when(when: str | None, options: ScheduleOptions) -> str:
    given = [when, options.get("cron"), options.get("every")]
    if sum(each is not None for each in given) != 1:
        raise ConfigurationError(
            "A schedule needs either a cron expression or an interval. Write "
            "service.schedule('0 3 * * *'), cron='0 3 * * *' or every='15m'."
        )
    every = options.get("every")
    if every is None:
        return when or options.get("cron") or ""
    checks.positive_duration("every", every)
    return write_interval(every)
