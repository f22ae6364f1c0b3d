"""What the ends of prerequisites mean for a job, and which requests are refused."""

from __future__ import annotations

import pytest

from trellis.core.admission import check_new_job
from trellis.core.commands import Cancel, Resolve
from trellis.core.dependencies import MAX_PREREQUISITES, Link, judge
from trellis.core.job import FollowsOn, JobId, NewJob, Prerequisite, Relations
from trellis.core.states import ENDED, SUCCEEDED, State
from trellis.errors import ConfigurationError
from trellis.testing.builders import a_job, a_job_id

A, B = JobId("01A"), JobId("01B")


def link(ended: State | None, on: FollowsOn = "success", prerequisite: JobId = A) -> Link:
    return Link(JobId("01Z"), prerequisite, on, ended)


def test_a_job_waits_while_a_prerequisite_has_not_ended() -> None:
    assert judge([link(None)]) is None
    assert judge([link(State.COMPLETED), link(None, prerequisite=B)]) is None


@pytest.mark.parametrize("state", sorted(ENDED))
def test_every_end_resolves_a_job_that_follows_the_end(state: State) -> None:
    assert judge([link(state, "finished")]) == Resolve()


@pytest.mark.parametrize("state", sorted(ENDED))
def test_only_a_success_resolves_a_job_that_follows_success(state: State) -> None:
    judgement = judge([link(state)], "[1]")
    if state in SUCCEEDED:
        assert judgement == Resolve("[1]")
    else:
        reason = f"It was to follow the success of job 01A, which is now {state}."
        assert judgement == Cancel(reason, actor="workflow")


def test_one_failure_cancels_a_job_that_still_waits_for_others() -> None:
    assert isinstance(judge([link(None, prerequisite=B), link(State.FAILED)]), Cancel)


OWN = a_job_id()


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (a_job(after=(Prerequisite(A), Prerequisite(A))), "names a job twice"),
        (a_job(id=OWN, after=(Prerequisite(OWN),)), "cannot wait for itself"),
        (a_job(after=(Prerequisite(JobId("")),)), "no id of a job"),
        (a_job(after=(Prerequisite(JobId("ä")),)), "no id of a job"),
        (a_job(after=(Prerequisite(A, "always"),)), "on='always'"),  # type: ignore[arg-type]
        (
            a_job(after=(Prerequisite(A, "finished"),), relations=Relations(payload_from=A)),
            "must wait for its success",
        ),
        (
            a_job(after=tuple(Prerequisite(JobId(str(n))) for n in range(MAX_PREREQUISITES + 1))),
            "at most 10,000",
        ),
    ],
)
def test_an_impossible_request_is_refused(new: NewJob, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_new_job(new)
    assert words in str(refused.value)
