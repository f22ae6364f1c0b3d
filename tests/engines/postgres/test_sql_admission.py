"""`trellis.enqueue` checks in the order of `core.admission`: compared on random sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.postgres.steps import fresh
from tests.harness.servers.databases import Databases
from trellis.core.admission import Admit, Coalesce, Facts, Reason, Reject, admit, holds_dedupe
from trellis.core.durations import Micros, micros
from trellis.core.job import Dedupe, DedupeWhile, JobId, JobRecord, NewJob
from trellis.core.states import State
from trellis.testing.builders import SERVICE, a_job, a_record

pytestmark = pytest.mark.on_postgres(18)
Sql = psycopg.Connection[Any]
# Few values, so that requests meet each other.
types = st.sampled_from(["invoice"] * 4 + ["refund"])
queues = st.sampled_from(["invoice"] * 4 + ["other"])
marks = st.sampled_from(["a", None])
HOUR = micros("1h")


class Request(NamedTuple):
    """A call of `trellis.enqueue`."""

    type: str
    payload: str
    queue: str
    dedupe: str | None
    idempotency_key: str | None
    dedupe_while: DedupeWhile | None
    #: Hours.
    dedupe_for: int | None

    def made(self) -> NewJob:
        """Return the same request as Python makes it."""
        period = None if self.dedupe_for is None else self.dedupe_for * HOUR
        during = self.dedupe_while or ("pending" if period is None else None)
        return a_job(
            type=self.type,
            payload=self.payload,
            queue=self.queue,
            dedupe=None if self.dedupe is None else Dedupe(self.dedupe, during, period),
            idempotency_key=self.idempotency_key,
        )


class Drain(NamedTuple):
    """A queue stops accepting jobs, or accepts them again."""

    queue: str
    draining: bool


class Start(NamedTuple):
    """A worker claims a job, counted from the newest."""

    place: int


class End(NamedTuple):
    """A job ends, counted from the newest."""

    place: int


class Pass(NamedTuple):
    """Time passes."""

    hours: int


class Forget(NamedTuple):
    """Retention removes an idempotency key."""

    type: str
    mark: str | None


requests = st.builds(
    Request,
    types,
    st.sampled_from(["1", "2"]),
    queues,
    st.sampled_from(["a", "a", "a", None]),
    st.sampled_from(["a", None, None]),
    st.sampled_from([None, "pending", "unfinished"]),
    st.sampled_from([None, 2]),
).map(lambda asked: asked if asked.dedupe else asked._replace(dedupe_while=None, dedupe_for=None))
steps = st.lists(
    requests
    | requests
    | st.builds(Drain, queues, st.booleans())
    | st.builds(Start, st.integers(0, 2))
    | st.builds(End, st.integers(0, 2))
    | st.builds(Pass, st.integers(1, 2))
    | st.builds(Forget, types, marks),
    min_size=4,
    max_size=16,
)


Step: TypeAlias = Request | Drain | Start | End | Pass | Forget


class Table:
    """The facts of one sequence: kept here for `admit`, and in the database for the function."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._draining: set[str] = set()
        self._passed: Micros = 0
        #: The newest job of each dedupe key.
        self._dedupe: dict[tuple[str, str | None], JobRecord] = {}
        self._idempotency: dict[tuple[str, str | None], tuple[JobId, str]] = {}
        self._jobs: list[JobId] = []

    def do(self, step: Step) -> None:
        """Do one step on both sides; a request must get the same decision from both."""
        match step:
            case Request():
                self._request(step)
            case Drain(queue, draining):
                (self._draining.add if draining else self._draining.discard)(queue)
                self._sql.execute(
                    "insert into trellis.queue_setting (service, queue, paused, draining)"
                    " values (%s, %s, false, %s) on conflict (service, queue)"
                    " do update set draining = excluded.draining",
                    [SERVICE, queue, draining],
                )
            case Start(place):
                # As `claim` does.
                self._move(place, State.ACTIVE, {State.PENDING}, (
                    "update trellis.queue q"
                    " set dedupe = case when q.dedupe_unfinished then q.dedupe end"
                    " from trellis.job j where j.seq = q.job and j.id = %s"
                ))  # fmt: skip
            case End(place):
                self._move(place, State.COMPLETED, {State.PENDING, State.ACTIVE}, (
                    "delete from trellis.queue q using trellis.job j"
                    " where j.seq = q.job and j.id = %s"
                ))  # fmt: skip
            case Pass(hours):
                # A minute more, so that the milliseconds of the test do not matter.
                self._passed += hours * HOUR + micros("1m")
                self._sql.execute(
                    "update trellis.job set dedupe_until = dedupe_until - %s",
                    [hours * HOUR + micros("1m")],
                )
            case Forget(job_type, mark):
                self._idempotency.pop((job_type, mark), None)
                self._sql.execute(
                    "delete from trellis.idempotency where mark = %s",
                    [f"{SERVICE}/{job_type}/{mark}"],
                )

    def _move(self, place: int, to: State, sources: set[State], statement: str) -> None:
        for job in self._jobs[::-1][place : place + 1]:
            for mark, (definition, head) in self._dedupe.items():
                if definition.id == job and head.state in sources:
                    self._dedupe[mark] = JobRecord(definition, head._replace(state=to))
            self._sql.execute(statement, [job])

    def _holder(self, asked: Request) -> JobId | None:
        found = self._dedupe.get((asked.type, asked.dedupe))
        if found is None or not holds_dedupe(*found, self._passed):
            return None
        return found.definition.id

    def _request(self, asked: Request) -> None:
        new = asked.made()
        facts = Facts(
            None,
            self._idempotency.get((asked.type, asked.idempotency_key)),
            self._holder(asked),
            asked.queue in self._draining,
        )
        decision = admit(new, facts)
        answer = self._enqueue(asked)
        match decision:
            case Admit():
                assert isinstance(answer, str)
                assert answer not in self._jobs
                self._keep(asked, JobId(answer))
            case Coalesce(existing, _):
                assert answer == existing
            case _:
                assert answer == decision

    def _enqueue(self, asked: Request) -> str | Reject:
        try:
            with self._sql.transaction():
                row = self._sql.execute(
                    "select trellis.enqueue(%s, %s, %s, queue => %s, dedupe => %s,"
                    " idempotency_key => %s, dedupe_while => %s,"
                    " dedupe_for => make_interval(hours => %s))",
                    [SERVICE, *asked],
                ).fetchone()
        except psycopg.errors.UniqueViolation as error:
            return Reject(Reason.IDEMPOTENCY_MISMATCH, JobId(str(error).split()[1]))
        except psycopg.errors.ObjectNotInPrerequisiteState:
            return Reject(Reason.DRAINING, None)
        assert row is not None
        return str(row[0])

    def _keep(self, asked: Request, job: JobId) -> None:
        self._jobs.append(job)
        if asked.dedupe is not None:
            record = a_record(1, self._passed, dedupe=asked.made().dedupe)
            definition = record.definition._replace(id=job)
            self._dedupe[asked.type, asked.dedupe] = JobRecord(definition, record.head)
        if asked.idempotency_key is not None:
            self._idempotency[asked.type, asked.idempotency_key] = job, asked.payload


@pytest.fixture
def sql(postgres_server: Databases) -> Iterator[Sql]:
    url = fresh(postgres_server)
    with psycopg.connect(url) as connection:
        yield connection
    postgres_server.drop(url)


def test_enqueue_decides_as_admit_does(sql: Sql) -> None:
    @settings(max_examples=200, deadline=None)
    @given(steps)
    def compare(sequence: list[Step]) -> None:
        with sql.transaction(force_rollback=True):
            table = Table(sql)
            for step in sequence:
                table.do(step)

    compare()
