"""Bad histories of servers that go away and come back."""

from __future__ import annotations

from typing import Final

from tests.harness.faults.stories.language import Story

C6, C13, C15, C16 = "C6 keys", "C13 second starts", "C15 outages", "C16 projection"

STORIES: Final = (
    Story("a worker to which nothing was done loses its job to an outage", C15, """
          session a in 7 lease=30 heard=9
          J created @0
          J started a1 @1
        - J retry a1 @60 error=lease_lost
        - J started b1 @61
        - J completed b1 @62
        + J completed a1 @62
          fault server_kill @10..50
        """),
    Story("a job is lost in an outage and its worker is stopped only later", C15, """
          session a in 7 lease=30 heard=9
          J created @0
          J started a1 @1
          J retry a1 @60 error=lease_lost
          J started b1 @61
          J completed b1 @62
          run J a1 2..90 in 7
          fault server_stop @10..50
        - fault stop 7 @70..80
        + fault stop 7 @20..80
        """),
    Story("a keyed job is lost to an outage although its worker was not heard since", C15, """
          job J key=k
        - session a in 7 lease=30 heard=9
        + session a in 7 lease=30 heard=55
          J created @0
          J started a1 @1
          J retry a1 @60 error=lease_lost
          J started b1 @61
          J completed b1 @62
          fault server_kill @10..50
        """),
    Story("a running handler is handed back in an outage, long before anybody was told", C13, """
          session a in 7 lease=30 heard=55
          J created @0
          J started a1 @1
          J retry a1 @60 back
          J started b1 @61
          J completed b1 @62
          run J a1 2..59 in 7
          fault server_kill @10..50
        - fault term 7 @70..71 grace=1
        + fault term 7 @58..71 grace=20
        """),
    Story("a keyed handler runs on in a worker that was cut off until its lease was over", C6, """
          job J key=k
          J created @0
          J started a1 @1
          J retry a1 @40 error=lease_lost
          J started b1 @41
          J completed b1 @60
        - run J a1 2..50 in 7
        + run J a1 2..35 in 7
          run J b1 42..59 in 8
          fault cut_off 7 @5..55
        """),
    Story("a worker to which nothing was done loses its job while a cluster has no leader", C15, """
          session a in 7 lease=30 heard=9
          J created @0
          J started a1 @1
        - J retry a1 @60 error=lease_lost
        - J started b1 @61
        - J completed b1 @62
        + J completed a1 @62
          fault leader_kill @10..50
        """),
    Story("a runtime that was killed has an event that the stream does not have", C16, """
          J created @0
          J started a1 @1
          J completed a1 @9
          fault admin_kill @5..8
        - differs event J/3 completed nothing
        """),
    Story("a runtime that was killed has left out a job", C16, """
          J created @0
          J started a1 @1
          J completed a1 @9
          fault admin_kill @5..8
        - differs job J nothing quick
        """),
)  # fmt: skip
