"""Words that databases and other programs hold never change."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from trellis.core.admission import Reason
from trellis.core.events import EventKind
from trellis.core.job import Fence, SessionId
from trellis.core.states import ENDED, FINAL, LIVE, SUCCEEDED, WAITING, State

GOLDEN: Final = Path(__file__).parent / "wire_words.txt"
KINDS: Final[dict[str, type[StrEnum]]] = {"state": State, "event": EventKind, "reason": Reason}


def test_the_words_on_the_wire_are_the_golden_ones() -> None:
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    now = [f"{kind} {word.name} {word}" for kind, words in KINDS.items() for word in words]
    assert now == lines


def test_every_state_is_in_exactly_one_group() -> None:
    assert {State.PENDING, State.RETRY} == WAITING
    assert WAITING | {State.ACTIVE} == LIVE
    assert set(State) == LIVE | ENDED
    assert not LIVE & ENDED
    assert {State.COMPLETED_WITH_ERRORS, State.FAILED, State.DEAD} == ENDED - FINAL
    assert {State.COMPLETED, State.COMPLETED_WITH_ERRORS} == SUCCEEDED


def test_an_attempt_id_is_32_hex_digits_of_session_and_token() -> None:
    assert Fence(SessionId(0xAB), 0xCD).attempt_id == "00000000000000ab00000000000000cd"
    largest = Fence(SessionId(2**63 - 1), 2**63 - 1)
    assert largest.attempt_id == "7fffffffffffffff" * 2
