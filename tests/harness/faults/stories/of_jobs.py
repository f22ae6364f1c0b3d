"""Bad histories of single jobs: lost, invented, out of order, owned twice, settled twice."""

from __future__ import annotations

from typing import Final

from tests.harness.faults.stories.language import Story

C1, C2 = "C1 conservation", "C2 state machine"
C3, C4 = "C3 single owner", "C4 settlement"

STORIES: Final = (
    Story("an acknowledged job is lost", C1, """
          ask J @0
          J created @1
          J cancelled @2
        - ask K @0
        + ask K @0 unheard
        """),
    Story("a job is there that nobody asked for", C1, """
          ask J @0
          J created @1
          J cancelled @2
        - job K unasked
        + ask K @0 unheard
          K created @1
          K cancelled @2
        """),
    Story("a repeated call made a second job", C1, """
          ask J @0
          J created @1
          J cancelled @2
        - job K payload=J
        + job K payload=K
        + ask K @2
          K created @3
          K cancelled @4
        """),
    Story("a job has another payload than was acknowledged", C1, """
          ask J K @0
          J created @1
          J cancelled @2
        - job J payload=K
        - job K payload=J
          K created @1
          K cancelled @2
        """),
    Story("an answer names fewer jobs than were asked for", C1, """
        - ask J K @0 told=J
        + ask J K @0
          J created @1
          J cancelled @2
          K created @1
          K cancelled @2
        """),
    Story("a cancelled job starts all the same", C2, """
          J created @0
        - J cancelled @1
          J started a1 @2
          J completed a1 @3
        """),
    Story("a completed job is retried", C2, """
          J created @0
          J started a1 @1
        - J completed a1 @2
        + J failed a1 @2 error=bad_input
          J retried @3
          J cancelled @4
        """),
    Story("an event is missing in the middle of a journal", C2, """
          J created @0
        + J started a1 @1
        - J started a1 @1 v=3
          J completed a1 @2
        """),
    Story("a journal begins in the middle", C2, """
        + J created @0
          J started a1 @1
          J completed a1 @2
        """),
    Story("an event leads to a state it cannot lead to", C2, """
          J created @0
          J started a1 @1
        - J retry a1 @2 error=exception state=pending
        + J retry a1 @2 error=exception
          J cancelled @3
        """),
    Story("a note is wrong about the state", C2, """
          J created @0
          J started a1 @1
          J retry a1 @2 error=lease_lost
          J started b1 @3
        - J late a1 @4 state=completed
        + J late a1 @4
          J completed b1 @5
        """),
    Story("a second attempt starts while the first has not ended", C3, """
          J created @0
          J started a1 @1
        + J retry a1 @2 error=lease_lost
          J started b1 @3
          J completed b1 @4
        """),
    Story("a fence is given out twice", C3, """
          J created @0
          J started a1 @1
          J completed a1 @2
          K created @0
        - K started a1 @1
        - K completed a1 @2
        + K started a2 @1
        + K completed a2 @2
        """),
    Story("a handler runs for an attempt that never started", C3, """
          J created @0
          J started a1 @1
          J completed a1 @3
          run J a1 1..2 in 7
        - run J b1 1..2 in 8
        """),
    Story("an attempt is run twice", C3, """
          J created @0
          J started a1 @1
          J completed a1 @9
          run J a1 2..4 in 7
        - run J a1 5..8 in 7
        """),
    Story("an attempt runs another job's handler", C3, """
          J created @0
          J started a1 @1
          J completed a1 @9
          K created @0
          K started a2 @1
          K completed a2 @9
          run K a2 2..4 in 7
        - run K a1 2..4 in 7
        """),
    Story("a job ends twice", C4, """
          J created @0
          J started a1 @1
        - J completed a1 @2
        + J retry a1 @2 error=lease_lost
          J started b1 @3
          J completed b1 @4
        """),
    Story("an attempt that lost the job settles it", C4, """
          J created @0
          J started a1 @1
          J retry a1 @2 error=lease_lost
          J started b1 @3
        - J completed a1 @4
        + J completed b1 @4
        """),
    Story("a job is completed by a handler that never returned", C4, """
          J created @0
          J started a1 @1
          J completed a1 @9
        - run J a1 2.. in 7
        + run J a1 2..8 in 7
        """),
    Story("a zombie's result is stored in the name of the owner", C4, """
          J created @0
          J started a1 @1
          J retry a1 @20 error=lease_lost
          J started b1 @21
          J completed b1 @50
          run J a1 2..49 in 7
        - run J b1 22.. in 8
        + run J b1 22..40 in 8
        - outcome J by=a1
        + outcome J by=b1
        """),
    Story("the error of one attempt is stored for another", C4, """
          J created @0
          J started a1 @1
          J retry a1 @2 error=lease_lost
          J started b1 @3
        - J failed b1 @4 error=exception/a1
        + J failed b1 @4 error=exception/b1
        """),
    Story("a job ended and nobody knows how", C4, """
          J created @0
          J started a1 @1
          J completed a1 @2
        - outcome J none
        """),
    Story("an attempt settles after it was called late", C4, """
          J created @0
          J started a1 @1
          J retry a1 @2 error=lease_lost
          J late a1 @3
        - J started a1 @4
        + J started b1 @4
        - J completed a1 @5
        + J completed b1 @5
        """),
    Story("the owner itself is called late", C4, """
          J created @0
          J started a1 @1
        - J late a1 @2
          J completed a1 @3
        """),
)  # fmt: skip
