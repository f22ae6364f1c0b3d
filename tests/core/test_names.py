"""Names that work on every engine, and names that are ours."""

from __future__ import annotations

import pytest

from trellis.core.names import RESERVED_SERVICES, check_queue, check_service, check_type
from trellis.errors import InvalidName

GOOD = ["a", "A", "billing", "send_invoice", "tickets-2", "x" * 63]
BAD = ["", "1a", "_a", "-a", "a.b", "a b", "a/b", "a*", "a>", "é", "a\n", "x" * 64, "a\0"]


@pytest.mark.parametrize("check", [check_service, check_type, check_queue])
@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_is_returned(check: type, name: str) -> None:
    assert check(name) == name


@pytest.mark.parametrize("check", [check_service, check_type, check_queue])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused(check: type, name: str) -> None:
    with pytest.raises(InvalidName):
        check(name)


@pytest.mark.parametrize("name", ["workers", "trellis"])
def test_a_reserved_word_is_no_service_but_may_be_a_type_or_queue(name: str) -> None:
    assert name in RESERVED_SERVICES
    with pytest.raises(InvalidName, match="reserved"):
        check_service(name)
    assert check_type(name) == check_queue(name) == name
