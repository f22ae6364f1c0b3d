"""Bad histories of keys, counters, clocks and causes."""

from __future__ import annotations

from typing import Final

from tests.harness.faults.stories.language import Story

C6, C7, C8 = "C6 keys", "C7 journal folds to the row", "C8 attempts"
C9, C10 = "C9 no early start", "C10 liveness"
C13, C14 = "C13 second starts", "C14 shutdown"

STORIES: Final = (
    Story("two jobs of a key hold its one slot", C6, """
          job J key=k
          job K key=k
          J created @0
          K created @0
          J started a1 @1
        - K started b1 @2
          J completed a1 @5
        + K started b1 @6
          K completed b1 @9
        """),
    Story("three jobs of a key hold its two slots", C6, """
          job J key=k active=2
          job K key=k active=2
          job L key=k active=2
          J created @0
          K created @0
          L created @0
          J started a1 @1
          K started b1 @2
        + K completed b1 @3
          L started c1 @4
        - K completed b1 @5
          L completed c1 @6
          J completed a1 @7
        """),
    Story("three handlers of a key with two slots run and no attempt had ended", C6, """
          job J key=k active=2
          job K key=k active=2
          job L key=k active=2
          J created @0
          K created @0
          L created @0
          J started a1 @1
          K started b1 @2
          K completed b1 @30
          L started c1 @31
          L completed c1 @50
          J completed a1 @60
          run J a1 2..59 in 7
        - run K b1 3..40 in 8
        + run K b1 3..29 in 8
          run L c1 32..49 in 8
        """),
    Story("a slot of two is freed under a handler that runs on in a healthy process", C6, """
          job J key=k active=2
          job K key=k active=2
          job L key=k active=2
          J created @0
          K created @0
          L created @0
          J started a1 @1
          K started b1 @2
          K retry b1 @30 error=lease_lost
          L started c1 @31
          L completed c1 @50
          J completed a1 @60
          K cancelled @61
          run J a1 2..59 in 7
          run K b1 3..40 in 8
          run L c1 32..49 in 9
        - fault stop 9 @5..29
        + fault stop 8 @5..39
        """),
    Story("handlers of a key overlap and the first attempt had not ended", C6, """
          job J key=k
          job K key=k
          J created @0
          K created @0
          J started a1 @1
        + J retry a1 @30 error=lease_lost
          K started b1 @31
          K completed b1 @50
        + J started b2 @51
        - J completed a1 @60
        + J completed b2 @60
          run J a1 2..59 in 7
          run K b1 32..49 in 8
          fault stop 7 @5..40
        """),
    Story("the later handler began before the earlier attempt was over", C6, """
          job J key=k
          job K key=k
          J created @0
          K created @0
          J started a1 @1
        - K started b1 @2
          J retry a1 @30 error=lease_lost
        + K started b1 @31
          K completed b1 @50
          J cancelled @60
          run J a1 2..40 in 7
          run K b1 32..49 in 8
          fault stop 7 @5..39
        """),
    Story("a handler of an attempt nobody knows runs beside one of its key", C6, """
          job J key=k
          job K key=k
          J created @0
          K created @0
          J started a1 @1
          J retry a1 @30 error=lease_lost
          K started b1 @31
          K completed b1 @50
          J cancelled @60
        - run J a9 2..40 in 7
        + run J a1 2..40 in 7
          run K b1 32..49 in 8
          fault stop 7 @5..39
        """),
    Story("a key is freed under a handler that runs on in a healthy process", C6, """
          job J key=k
          job K key=k
          J created @0
          K created @0
          J started a1 @1
          J retry a1 @30 error=lease_lost
          K started b1 @31
          K completed b1 @50
          J cancelled @60
          run J a1 2..40 in 7
          run K b1 32..49 in 8
        - fault stop 8 @5..29
        + fault stop 7 @5..39
        """),
    Story("a job of a key is completed before its handler has returned", C6, """
          job J key=k
          job K key=k
          J created @0
          K created @0
          J started a1 @1
          J completed a1 @30
          K started b1 @31
          K completed b1 @50
        - run J a1 2..40 in 7
        + run J a1 2..29 in 7
          run K b1 32..49 in 8
        """),
    Story("what is done to a process afterwards excuses nothing", C6, """
          job J key=k
          job K key=k
          J created @0
          K created @0
          J started a1 @1
          J retry a1 @30 error=exception
          K started b1 @31
          K completed b1 @50
          J cancelled @60
        - run J a1 2..40 in 7
        + run J a1 2..29 in 7 raised
          run K b1 32..49 in 8
          fault kill 7 @33
        """),
    Story("a slot is never given back", C6, """
          job J key=k
          J created @0
          J started a1 @1
          J completed a1 @2
        - slot k J
        """),
    Story("the row has another state than the journal", C7, """
          J created @0
          J started a1 @1
          J failed a1 @2 error=bad_input
        - row J state=completed
        + row J state=failed version=3 attempt=1 claims=1 crashes=0 run_at=0 finished_at=2000
        """),
    Story("the row has missed an event", C7, """
          J created @0
          J started a1 @1
          J completed a1 @2
        - row J version=2
        + row J version=3
        """),
    Story("the row forgets that it runs alone next time", C7, """
          J created @0
          J started a1 @1
          J retry a1 @2 error=crash back suspect
          J cancelled @3
        - row J attempt=1
        + row J attempt=0
          fault kill 7 @2
          run J a1 1.. in 7
        """),
    Story("a job has no row", C7, """
          ask J @0 unheard
          J created @0
          J cancelled @1
        - job J gone
        """),
    Story("a lost lease costs no attempt", C8, """
          J created @0
          J started a1 @1
        - J retry a1 @2 error=lease_lost back
        + J retry a1 @2 error=lease_lost
          J started b1 @3
          J completed b1 @4
        """),
    Story("a hand-back costs an attempt", C8, """
          J created @0
          J started a1 @1
        - J retry a1 @2
        + J retry a1 @2 back
          J started b1 @3
          J completed b1 @4
        """),
    Story("a job starts more often than its budget allows", C8, """
        - job J attempts=1
        + job J attempts=2
          J created @0
          J started a1 @1
          J retry a1 @2 error=exception
          J started b1 @3
          J completed b1 @4
        """),
    Story("a job is given up too early", C8, """
        - job J attempts=2
        + job J attempts=1
          J created @0
          J started a1 @1
          J dead a1 @2 error=exception
        """),
    Story("a crash is not counted", C8, """
          J created @0
          J started a1 @1
        - J retry a1 @2 error=crash
        + J retry a1 @2 error=crash crashed=1
          J started b1 @3
          J completed b1 @4
          run J a1 1.. in 7
          fault kill 7 @2
        """),
    Story("a crash loop is called before it is one", C8, """
        - job J crashes=3
        + job J crashes=1
          J created @0
          J started a1 @1
          J dead a1 @2 error=crash_loop crashed=1
          run J a1 1.. in 7
          fault crash 7 @2
        """),
    Story("the row counts a claim that never was", C8, """
          J created @0
          J started a1 @1
          J completed a1 @2
        - row J claims=2
        """),
    Story("a delayed job starts early", C9, """
        - J created @0 run_at=10
        + J created @0 run_at=5
          J started a1 @5
          J completed a1 @6
        """),
    Story("a retry does not wait", C9, """
          J created @0
          J started a1 @1
        - J retry a1 @2 error=exception run_at=50
        + J retry a1 @2 error=exception run_at=3
          J started b1 @3
          J completed b1 @4
        """),
    Story("a handler begins before the producer's delay is over", C9, """
        - ask J @10 delay=100
        + ask J @10 delay=20
          J created @11
          J started a1 @40
          J completed a1 @50
          run J a1 41..49 in 7
        """),
    Story("a job starts after its deadline", C9, """
        - job J deadline=5
        + job J deadline=50
          J created @0
          J started a1 @9
          J completed a1 @10
        """),
    Story("a job is left running", C10, """
          J created @0
          J started a1 @1
        + J retry a1 @2 error=lease_lost
        + J started b1 @3
        + J completed b1 @4
        """),
    Story("a job is left waiting", C10, """
          J created @0
          J started a1 @1
          J retry a1 @2 error=exception
        + J started a2 @3
        + J dead a2 @4 error=lease_lost
          job J attempts=2
        """),
    Story("a crash is seen where nothing died", C13, """
          J created @0
          J started a1 @1
          J retry a1 @5 error=crash crashed=1
          J started b1 @6
          J completed b1 @7
          run J a1 2.. in 7
        + fault kill 7 @4
        """),
    Story("a crash is seen in a process that was only stopped", C13, """
          session a in 7
          J created @0
          J started a1 @1
          J retry a1 @5 error=crash crashed=1
          J started b1 @6
          J completed b1 @7
        - fault stop 7 @4..9
        + fault crash 7 @4
        """),
    Story("a running handler is handed back by a worker nobody told to stop", C13, """
          J created @0
          J started a1 @1
          J retry a1 @5 back
          J started b1 @6
          J completed b1 @7
          run J a1 2..9 in 7
        + fault term 7 @4..6 grace=1
        """),
    Story("a worker outstays its grace", C14, """
          J created @0
          J cancelled @1
        - fault term 7 @1000..3600 grace=500
        + fault term 7 @1000..3400 grace=500
        """),
    Story("a worker outstays its grace by more than it had to wait for a processor", C14, """
          J created @0
          J cancelled @1
        - fault term 7 @1000..3900 grace=500 held_up=300
        + fault term 7 @1000..3700 grace=500 held_up=300
        """),
    Story("a worker that was told to stop stays for ever", C14, """
          J created @0
          J cancelled @1
        - fault term 7 @1000 grace=500
        + fault term 7 @1000..1100 grace=500
        """),
)  # fmt: skip
