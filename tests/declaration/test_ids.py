"""Ids of jobs are ULIDs: readable by any library, growing, never made twice."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ulid import ULID

from trellis.declaration.ids import new_job_id, new_job_ids


def test_an_id_is_a_ulid_of_this_moment() -> None:
    before = time.time()
    read = ULID.from_str(new_job_id())
    assert before - 0.001 <= read.timestamp <= time.time()
    assert str(read) == str(ULID.from_bytes(read.bytes))


def test_ids_made_later_sort_later_also_within_a_millisecond() -> None:
    made = [new_job_id() for _ in range(5_000)]
    assert made == sorted(made)
    assert len({each[:10] for each in made}) < len(made)  # some did share one


def test_the_ends_of_ids_differ_where_their_beginnings_do_not() -> None:
    made = [new_job_id() for _ in range(50)]
    assert len({each[-6:] for each in made}) == len(made)


def test_threads_never_make_the_same_id() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: new_job_id(), range(20_000)))
    assert len(set(made)) == len(made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    new_job_id()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, "".join(new_job_id() for _ in range(100)).encode())
        os._exit(0)
    os.close(writer)
    ours = {new_job_id() for _ in range(100)}
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        text = file.read()
    assert not ours & {text[i : i + 26] for i in range(0, len(text), 26)}
    # Not even in the random part: both went on from the same moment.
    assert not {each[10:] for each in ours} & {text[i + 10 : i + 26] for i in range(0, 2600, 26)}


def test_ids_made_together_sort_after_those_before_and_before_those_after() -> None:
    made = [new_job_id(), *new_job_ids(2_500), new_job_id(), *new_job_ids(3), new_job_id()]
    assert made == sorted(set(made))
    assert all(str(ULID.from_str(each)) == each for each in made)


def test_the_ends_of_ids_made_together_differ() -> None:
    made = new_job_ids(1_000)
    assert len({each[-6:] for each in made}) == len(made)


def test_no_ids_are_none() -> None:
    assert new_job_ids(0) == []
