"""Lists of values as tables: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from trellis.core.commands import Complete, Fail
from trellis.core.job import Failure, Fence, JobId, JobRecord, SessionId
from trellis.engines.http.protocol import VERBS, Decided
from trellis.engines.values import Claimed, CommitResult, Committed, Conflict
from trellis.engines.wire import Codec, WireError, dump
from trellis.engines.wire_table import message_codec
from trellis.testing.builders import a_record

RECORDS = message_codec(Sequence[JobRecord | None])
DECIDED = message_codec(Sequence[Decided])
FENCE = Fence(SessionId(2**62), 7)


def some_jobs(count: int) -> list[JobRecord]:
    """Return claimed jobs, half of them with tags and a key."""
    records = [a_record() for _ in range(count)]
    return [
        JobRecord(
            record.definition._replace(
                id=JobId(f"job-{number}"),
                row=number,
                tags=(("place", "é"),) if number % 2 else (),
                key=f"key-{number}" if number % 2 else None,
            ),
            record.head._replace(fence=FENCE),
        )
        for number, record in enumerate(records)
    ]


def sent(codec: Codec, value: object) -> Any:  # noqa: ANN401 - a value of any type
    """Return a value after its way as JSON."""
    return codec.decode(json.loads(dump(codec.write(value))))


@pytest.mark.parametrize("count", [0, 1, 2, 30, 10_001])
def test_jobs_are_the_same_after_their_way(count: int) -> None:
    records = some_jobs(count)
    assert sent(RECORDS, records) == tuple(records)
    assert sent(VERBS["claim"].answer, Claimed(5, tuple(records), 7)) == Claimed(
        5, tuple(records), 7
    )


@pytest.mark.parametrize("missing", [(1,), (0, 1, 2)])
def test_jobs_that_are_missing_stay_missing(missing: tuple[int, ...]) -> None:
    found: list[JobRecord | None] = [*some_jobs(3)]
    for place in missing:
        found[place] = None
    assert sent(RECORDS, found) == tuple(found)


def test_commands_of_one_kind_and_of_several_are_the_same_after_their_way() -> None:
    complete = Complete(FENCE, '"done"', 0, 12)
    decided = [Decided(JobId(f"{each}"), each, FENCE, 99, complete) for each in range(3)]
    failed = decided[0]._replace(command=Fail(FENCE, Failure("timeout", "Too slow."), roll=0.5))
    for wanted in (decided, [*decided, failed], [failed, failed]):
        assert sent(DECIDED, wanted) == tuple(wanted)


def test_answers_of_one_kind_and_of_several_are_the_same_after_their_way() -> None:
    codec = VERBS["commit"].answer
    for answers in ([Committed()] * 3, [Committed(), Conflict(None), Conflict(some_jobs(1)[0])]):
        found: list[CommitResult] = sent(codec, answers)
        assert found == answers
        assert [type(each) for each in found] == [type(each) for each in answers]


def test_a_text_that_is_long_is_written_with_each_row() -> None:
    records = [
        JobRecord(each.definition._replace(payload=json.dumps("x" * 2000)), each.head)
        for each in some_jobs(3)
    ]
    text = dump(RECORDS.write(records))
    assert text.count(b"x" * 2000) == 3
    assert RECORDS.decode(json.loads(text)) == tuple(records)


def test_columns_at_the_end_that_have_defaults_may_be_left_out() -> None:
    command = {"Complete": [[{"=": 1}, [5, 6]]]}
    columns = [["a", "b"], {"=": 1}, {"=": None}, {"=": 9}, command]
    found = DECIDED.decode({"count": 2, "columns": columns})
    assert [each.command for each in found] == [
        Complete(Fence(SessionId(1), 5)),
        Complete(Fence(SessionId(1), 6)),
    ]


@pytest.mark.parametrize(
    ("place", "column", "words"),
    [
        (0, ["a"], "job_id: a column of 2"),
        (0, ["a", 1], "job_id: str expected, not int"),
        (0, {"=": "x" * 1001}, "job_id: a column of 2, or one short value"),
        (0, {"=": "a", "b": 1}, "job_id: a column of 2, or one short value"),
        (1, [True, 1], "version: int expected, not bool"),
        (2, {"all": [{"=": 1}, [1, "2"]]}, "fence.token: int expected, not str"),
        (2, {"=": 1}, "fence: a column of 2, or all"),
        (4, {"Explode": []}, "command: a column of 2, or Complete"),
        (4, {"Complete": []}, "command: Complete as 1 to 4 columns"),
    ],
)
def test_a_column_that_is_wrong_is_refused_with_its_place(
    place: int, column: object, words: str
) -> None:
    columns = json.loads(dump(DECIDED.write(_two())))["columns"]
    columns[place] = column
    with pytest.raises(WireError, match=words):
        DECIDED.decode({"count": 2, "columns": columns})


@pytest.mark.parametrize("count", [-1, 10_001, 10**12, True, "2", None])
def test_a_table_with_more_rows_than_are_allowed_is_refused(count: object) -> None:
    columns = json.loads(dump(DECIDED.write(_two())))["columns"]
    with pytest.raises(WireError, match="at most 10000 rows"):
        DECIDED.decode({"count": count, "columns": columns})


def _two() -> list[Decided]:
    return [
        Decided(JobId("a"), 1, FENCE, 9, Complete(FENCE)),
        Decided(JobId("b"), 2, FENCE, 9, Complete(FENCE)),
    ]
