"""What a process remembers of jobs that it has read."""

from __future__ import annotations

from trellis.engines.jetstream.store import Remembered


def test_the_jobs_that_were_used_last_are_remembered() -> None:
    remembered = Remembered[str](most=2)
    remembered.put(1, "one", 3)
    remembered.put(2, "two", 3)
    assert remembered.get(1) == "one"
    remembered.put(3, "three", 5)
    assert [remembered.get(row) for row in (1, 2, 3)] == ["one", None, "three"]
    remembered.drop(1)
    remembered.drop(1)
    assert remembered.get(1) is None


def test_large_payloads_leave_room_for_fewer_jobs() -> None:
    remembered = Remembered[str](room=100)
    for row in range(4):
        remembered.put(row, "text", 40)
    assert [row for row in range(4) if remembered.get(row)] == [2, 3]
    remembered.put(3, "other", 50)
    assert [row for row in range(4) if remembered.get(row)] == [2, 3]
    remembered.put(9, "huge", 1000)
    assert [row for row in range(10) if remembered.get(row)] == [9]
    remembered.put(1, "small", 1)
    assert [row for row in range(10) if remembered.get(row)] == [1]
