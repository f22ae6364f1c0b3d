"""The words of other systems in the guide to states are those of the code."""

from __future__ import annotations

import re

from tests.harness import ROOT
from trellis.core.state_words import (
    AGENT_ORCHESTRATION,
    DOCS_PUBLISHING,
    PROVISIONING,
    TABLE_MAINTENANCE,
)
from trellis.core.states import State

GUIDE = (ROOT / "docs" / "guides" / "states.md").read_text()
PAGE = GUIDE.partition("## Words of other systems")[2].partition("\n## ")[0]


def test_every_state_is_in_the_table_with_its_words() -> None:
    shown: dict[str, list[list[str]]] = {}
    for line in PAGE.splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]]
        if cells and cells[0] and cells[0][0] in set(State):
            shown |= dict.fromkeys(cells[0], cells[1:])
    assert set(shown) == set(State)
    assert TABLE_MAINTENANCE == AGENT_ORCHESTRATION
    for state in State:
        provisioning = dict.fromkeys(
            PROVISIONING.word(state, begun=begun) for begun in (False, True)
        )
        assert shown[state] == [
            [*provisioning], [TABLE_MAINTENANCE.word(state)], [DOCS_PUBLISHING.word(state)]
        ], state  # fmt: skip
