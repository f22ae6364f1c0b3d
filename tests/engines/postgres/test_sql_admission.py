"""`trellis.enqueue` checks in the order of `core.admission`: compared on random sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.postgres.steps import fresh
from tests.harness.servers.databases import Databases
from trellis.core.admission import Admit, Coalesce, Facts, Reason, Reject, admit
from trellis.core.job import JobId
from trellis.testing.builders import SERVICE, a_job

pytestmark = pytest.mark.on_postgres(18)
Sql = psycopg.Connection[Any]
# Few values, so that requests meet each other.
types = st.sampled_from(["invoice"] * 4 + ["refund"])
queues = st.sampled_from(["invoice"] * 4 + ["other"])
marks = st.sampled_from(["a", None])


class Request(NamedTuple):
    """A call of `trellis.enqueue`."""

    type: str
    payload: str
    queue: str
    dedupe: str | None
    idempotency_key: str | None


class Drain(NamedTuple):
    """A queue stops accepting jobs, or accepts them again."""

    queue: str
    draining: bool


class Start(NamedTuple):
    """A worker claims a job, so its dedupe key is free again; counted from the newest job."""

    place: int


class Forget(NamedTuple):
    """Retention removes an idempotency key."""

    type: str
    mark: str | None


requests = st.builds(Request, types, st.sampled_from(["1", "2"]), queues, marks, marks)
steps = st.lists(
    requests
    | requests
    | st.builds(Drain, queues, st.booleans())
    | st.builds(Start, st.integers(0, 2))
    | st.builds(Forget, types, marks),
    min_size=4,
    max_size=16,
)


class Table:
    """The facts of one sequence: kept here for `admit`, and in the database for the function."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._draining: set[str] = set()
        self._dedupe: dict[tuple[str, str | None], JobId] = {}
        self._idempotency: dict[tuple[str, str | None], tuple[JobId, str]] = {}
        self._jobs: list[JobId] = []

    def do(self, step: Request | Drain | Start | Forget) -> None:
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
                for job in self._jobs[::-1][place : place + 1]:
                    self._dedupe = {m: j for m, j in self._dedupe.items() if j != job}
                    self._sql.execute(
                        "update trellis.queue q set dedupe = null from trellis.job j"
                        " where j.seq = q.job and j.id = %s",
                        [job],
                    )
            case Forget(job_type, mark):
                self._idempotency.pop((job_type, mark), None)
                self._sql.execute(
                    "delete from trellis.idempotency where mark = %s",
                    [f"{SERVICE}/{job_type}/{mark}"],
                )

    def _request(self, asked: Request) -> None:
        facts = Facts(
            None,
            self._idempotency.get((asked.type, asked.idempotency_key)),
            self._dedupe.get((asked.type, asked.dedupe)),
            asked.queue in self._draining,
        )
        decision = admit(
            a_job(**asked._asdict()),
            facts,
        )
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
                    " idempotency_key => %s)",
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
            self._dedupe[asked.type, asked.dedupe] = job
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
    def compare(sequence: list[Request | Drain | Start | Forget]) -> None:
        with sql.transaction(force_rollback=True):
            table = Table(sql)
            for step in sequence:
                table.do(step)

    compare()
