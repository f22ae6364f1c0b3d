"""Whether a new job is stored: the order of the checks and the whole table of a key."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import pytest

from trellis.core.admission import (
    Admit,
    CheckKey,
    Coalesce,
    Facts,
    KeyFacts,
    Reason,
    Reject,
    Repeat,
    Replace,
    admit,
    admit_key,
    check_new_job,
    holds_dedupe,
    revive_key,
)
from trellis.core.durations import SECOND, Instant
from trellis.core.job import Dedupe, Head, JobId, NewJob, first_head
from trellis.core.keys import hash_key
from trellis.core.policy import KeyPolicy, Policy, WhenFull
from trellis.core.states import State
from trellis.errors import ConfigurationError, InvalidName
from trellis.testing.builders import a_definition, a_job, a_keyed_job
from trellis.testing.clock import START

HOLDER: Final = JobId("holder")
NEWEST: Final = JobId("newest")
OLDEST: Final = JobId("oldest")


EARLIER: Final = JobId("earlier")
NEW: Final = a_keyed_job("user/7", KeyPolicy("user/{id}", 1, 0), payload="1")
ASKED: Final = (NEW.service, NEW.type, NEW.payload)

#: Every value of each fact with the decision it leads to, in the order of the checks; None where
#: the next check decides.
CHECKS: Final[dict[str, list[tuple[Any, object]]]] = {
    "same_id": [
        (None, None),
        (ASKED, Repeat()),
        (("other", *ASKED[1:]), Reject(Reason.JOB_ID_TAKEN, NEW.id)),
        ((ASKED[0], "other", ASKED[2]), Reject(Reason.JOB_ID_TAKEN, NEW.id)),
        ((*ASKED[:2], "2"), Reject(Reason.JOB_ID_TAKEN, NEW.id)),
    ],
    "same_idempotency": [
        (None, None),
        ((EARLIER, "1"), Coalesce(EARLIER, Reason.SAME_IDEMPOTENCY_KEY)),
        ((EARLIER, "2"), Reject(Reason.IDEMPOTENCY_MISMATCH, EARLIER)),
    ],
    "same_dedupe": [(None, None), (EARLIER, Coalesce(EARLIER, Reason.SAME_DEDUPE_KEY))],
    "draining": [(False, None), (True, Reject(Reason.DRAINING, None))],
}


@pytest.mark.parametrize("limits", [None, (1, 0, "reject"), (1, None, "reject"), (1, 0, "wait")])
def test_the_first_check_that_applies_decides(
    limits: tuple[int, int | None, WhenFull] | None,
) -> None:
    rule = None if limits is None else KeyPolicy("user/{id}", *limits)
    new = NEW._replace(policy=Policy(key=rule), key_hash=NEW.key_hash if rule else None)
    at_last: object = Admit()
    if rule is not None and limits == (1, 0, "reject"):
        at_last = CheckKey(rule, str(NEW.key_hash))
    for case in product(*CHECKS.values()):
        facts = Facts(**dict(zip(CHECKS, (value for value, _ in case), strict=True)))
        decisions = [decision for _, decision in case if decision is not None]
        assert admit(new, facts) == (decisions[0] if decisions else at_last), facts
        assert type(admit(new, facts)) is type(decisions[0] if decisions else at_last), facts


def _facts(held: int, waiting: int, replaceable: bool) -> KeyFacts:
    return KeyFacts(
        held,
        waiting,
        HOLDER if held else None,
        NEWEST if replaceable else None,
        OLDEST if replaceable else None,
    )


#: (active, queued) of a policy, (held, waiting) of a key: has it room?
ROOM: Final = [
    ((1, 0), (0, 0), True),
    ((1, 0), (1, 0), False),
    ((1, 0), (0, 1), False),
    ((1, 1), (1, 0), True),
    ((1, 1), (0, 1), True),
    ((1, 1), (1, 1), False),
    ((1, 1), (1, 2), False),
    ((2, 0), (1, 0), True),
    ((2, 0), (2, 0), False),
    ((2, 0), (1, 1), False),
    ((2, 3), (2, 2), True),
    ((2, 3), (2, 3), False),
    ((1, None), (1, 999), True),
]


@pytest.mark.parametrize("when_full", ["reject", "coalesce", "replace-oldest", "wait"])
@pytest.mark.parametrize(("limits", "taken", "has_room"), ROOM)
def test_while_there_is_room_every_policy_lets_the_job_in(
    limits: tuple[int, int | None], taken: tuple[int, int], has_room: bool, when_full: WhenFull
) -> None:
    policy = KeyPolicy("k", *limits, when_full)
    for replaceable in (True, False):
        facts = _facts(*taken, replaceable)
        let_in = has_room or when_full == "wait"
        assert isinstance(admit_key(policy, facts), Admit) == let_in
        assert isinstance(revive_key(policy, facts), Admit) == let_in


@pytest.mark.parametrize(
    ("when_full", "facts", "decision"),
    [
        ("reject", _facts(1, 0, False), Reject(Reason.KEY_BUSY, HOLDER)),
        ("reject", _facts(1, 0, True), Reject(Reason.KEY_BUSY, HOLDER)),
        ("reject", _facts(1, 1, True), Reject(Reason.QUEUE_FULL, HOLDER)),
        ("reject", _facts(0, 1, True), Reject(Reason.QUEUE_FULL, NEWEST)),
        ("reject", _facts(0, 1, False), Reject(Reason.QUEUE_FULL, None)),
        ("coalesce", _facts(1, 0, False), Coalesce(HOLDER, Reason.KEY_BUSY)),
        ("coalesce", _facts(1, 1, True), Coalesce(NEWEST, Reason.KEY_BUSY)),
        ("coalesce", _facts(1, 1, False), Coalesce(HOLDER, Reason.KEY_BUSY)),
        ("coalesce", _facts(0, 1, True), Coalesce(NEWEST, Reason.KEY_BUSY)),
        ("coalesce", _facts(0, 1, False), Reject(Reason.QUEUE_FULL, None)),
        ("replace-oldest", _facts(1, 1, True), Replace(OLDEST)),
        ("replace-oldest", _facts(1, 0, True), Replace(OLDEST)),
        ("replace-oldest", _facts(0, 1, True), Replace(OLDEST)),
        ("replace-oldest", _facts(1, 0, False), Reject(Reason.KEY_BUSY, HOLDER)),
        ("replace-oldest", _facts(1, 1, False), Reject(Reason.QUEUE_FULL, HOLDER)),
    ],
)
def test_a_full_key_answers_by_its_policy(
    when_full: WhenFull, facts: KeyFacts, decision: object
) -> None:
    assert admit_key(KeyPolicy("k", 1, 0, when_full), facts) == decision


@pytest.mark.parametrize("when_full", ["reject", "coalesce", "replace-oldest"])
def test_an_ended_job_never_pushes_another_aside_to_come_back(when_full: WhenFull) -> None:
    policy = KeyPolicy("k", 1, 0, when_full)
    for held, waiting, replaceable in product((0, 1), (0, 1), (True, False)):
        facts = _facts(held, waiting, replaceable)
        if held + waiting == 0:
            assert revive_key(policy, facts) == Admit()
            continue
        reason = Reason.QUEUE_FULL if waiting else Reason.KEY_BUSY
        existing = HOLDER if held else NEWEST if replaceable else None
        assert revive_key(policy, facts) == Reject(reason, existing)


def test_a_key_without_a_limit_to_its_line_is_never_full() -> None:
    for when_full in ("reject", "coalesce", "replace-oldest", "wait"):
        policy = KeyPolicy("k", 1, None, when_full)
        assert admit_key(policy, _facts(1, 10_000, True)) == Admit()


def test_a_new_job_gets_the_hash_of_its_key() -> None:
    new = a_keyed_job("user/7", KeyPolicy("user/{id}"))._replace(key_hash=None)
    assert check_new_job(new).key_hash == hash_key(new.service, new.type, "user/7")


def test_a_key_without_a_policy_for_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="per_key=PerKey"):
        check_new_job(a_job(key="user/7"))


def test_a_tag_given_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="given twice"):
        check_new_job(a_job(tags=(("a", "1"), ("a", "2"))))


def test_a_good_new_job_is_returned_as_it_is() -> None:
    new = a_job(priority=4, dedupe="x" * 512, idempotency_key="y")
    assert check_new_job(new) is new


@pytest.mark.parametrize(
    "new",
    [
        a_job(priority=5),
        a_job(priority=-5),
        a_job(dedupe=""),
        a_job(dedupe=Dedupe("d", "forever")),  # type: ignore[arg-type]
        a_job(dedupe=Dedupe("d", None)),
        a_job(dedupe=Dedupe("d", None, 0)),
        a_job(dedupe="x" * 513),
        a_job(idempotency_key=""),
        a_job(idempotency_key="x" * 513),
    ],
)
def test_a_request_no_engine_should_see_is_refused(new: NewJob) -> None:
    with pytest.raises(ConfigurationError):
        check_new_job(new)


@pytest.mark.parametrize("new", [a_job(service="workers"), a_job(type="a.b"), a_job(queue="")])
def test_a_bad_name_in_a_request_is_refused(new: NewJob) -> None:
    with pytest.raises(InvalidName):
        check_new_job(new)


def _in(state: State, generation: int = 0) -> Head:
    return first_head(START)._replace(state=state, generation=generation)


PERIOD: Final = 60 * SECOND
#: Where a job stands, and which dedupe keys hold then: pending, unfinished, of a period.
STANDS: Final[dict[str, tuple[Head, Instant, tuple[bool, bool, bool]]]] = {
    "waits": (first_head(START), START, (True, True, True)),
    "waits long": (first_head(START), START + PERIOD, (True, True, False)),
    "runs": (_in(State.ACTIVE), START, (False, True, True)),
    "waits for its retry": (_in(State.RETRY), START + PERIOD, (False, True, False)),
    "has ended": (_in(State.COMPLETED), START + PERIOD - 1, (False, False, True)),
    "is a dead letter": (_in(State.DEAD), START + PERIOD, (False, False, False)),
    "runs again": (_in(State.PENDING, generation=1), START, (False, False, True)),
}


@pytest.mark.parametrize("stands", STANDS)
def test_a_dedupe_key_holds_as_long_as_its_job_was_created_to_hold_it(stands: str) -> None:
    head, now, expected = STANDS[stands]
    pending, unfinished, period = (
        holds_dedupe(a_definition(dedupe=dedupe), head, now)
        for dedupe in (Dedupe("d"), Dedupe("d", "unfinished"), Dedupe("d", None, PERIOD))
    )
    assert (pending, unfinished, period) == expected
    assert not holds_dedupe(a_definition(), head, now)
