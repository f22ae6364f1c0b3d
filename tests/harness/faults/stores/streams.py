"""What the streams of JetStream say about jobs, read by the harness itself as plain JSON.

`Streams` follows JOBS and JOBS_STATE by sequence on a thread of its own; any replica may answer,
and while none does, what was last read counts. `Story` is what the messages have told so far: it
knows the shape of messages from their description, and imports nothing of Trellis.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from tests.harness.faults.checker.settling import ENDED
from tests.harness.faults.recorder import payload_hash
from tests.harness.servers.loops import LoopThread

_PAGE: Final = 500
#: Seconds until a request counts as unanswered, and between two looks.
_ANSWER: Final = 2.0
_PAUSE: Final = 0.02
_NO_MESSAGE: Final = 10037
_LIFECYCLE_TOKENS: Final = 6
_HEAD: Final = (
    "state", "version", "generation", "attempt", "claims", "crashes", "run_at", "fence",
    "claimed_at", "asked_at", "blocked", "suspect", "error", "finished_at",
)  # fmt: skip
#: Where these are in a definition.
_ID, _TYPE, _POLICY, _DEADLINE, _KEY = 1, 3, 6, 10, 11
_LATE: Final = "staleCompletionIgnored"
_OPEN: Final = frozenset({"pending", "retry"})
Line = dict[str, Any]


class Stored(NamedTuple):
    """A message of a stream."""

    subject: str
    sequence: int
    headers: dict[str, str]
    body: bytes


def _fence(pair: list[int] | None) -> str | None:
    return None if pair is None else f"{pair[0]:016x}{pair[1]:016x}"


class Story:
    """Jobs, keys and sessions as the messages have told them so far."""

    def __init__(self) -> None:
        self.rows: dict[str, Line] = {}
        self.events: list[Line] = []
        self.outcomes: dict[tuple[str, int], Line] = {}
        self.removed: set[str] = set()
        #: The slots of each key that has any.
        self.slots: dict[str, list[Any]] = {}
        self.sessions: dict[int, Line] = {}
        #: How many late results of each session were refused.
        self.late: Counter[int] = Counter()
        #: The jobs that run in the name of each session, and the session of each of them.
        self._holds: dict[int, set[str]] = defaultdict(set)
        self._holders: dict[str, int] = {}

    # -- questions -----------------------------------------------------------------------------

    def held(self, session: int) -> int:
        """Count the jobs that run in the name of a session."""
        return len(self._holds[session])

    def unfinished(self) -> int:
        """Count the jobs that wait or run, and the slots that are taken."""
        states = (row["head"]["state"] for row in self.rows.values())
        return sum(state not in ENDED for state in states) + sum(map(len, self.slots.values()))

    def ready(self) -> int:
        """Count the jobs that wait for a worker and for no key."""
        now = time.time_ns() // 1000
        return sum(
            row["head"]["state"] in _OPEN and row["head"]["run_at"] <= now
            for row in self.rows.values()
            if row["key"] is None
        )

    def lines(self) -> Iterator[Line]:
        """Return the system truth."""
        yield from ({"what": "row", **row} for row in self.rows.values())
        yield from ({"what": "event", **event} for event in self.events)
        yield from ({"what": "outcome", **outcome} for outcome in self.outcomes.values())
        for key, slots in self.slots.items():
            for job, _, fence, *_ in slots:
                yield {"what": "slot", "key_hash": key, "job": job, "fence": _fence(fence)}
        for session, value in self.sessions.items():
            facts = {name: value[name] for name in ("lease", "renewed_at")}
            yield {"what": "session", "id": f"{session:016x}", "pid": value["info"][2], **facts}
        yield from ({"what": "removed", "id": job} for job in self.removed)

    # -- messages ------------------------------------------------------------------------------

    def hear(self, message: Stored) -> None:
        """Take in the next message of a stream."""
        _, family, *names = message.subject.split(".")
        if family == "state":
            self._hear_state(names, message)
        elif names[0] == "trellis":
            self._hear_own(names[1:], message)
        elif len(names) + 2 == _LIFECYCLE_TOKENS:
            self._hear_event(names[2], message)
        elif names[3] == _LATE:
            own = json.loads(message.body)["trellis"]
            self.late[own["fence"][0]] += 1
            self._note_event(names[2], message.sequence, own["event"])

    def _hear_state(self, names: list[str], message: Stored) -> None:
        if names[0] == "session" and message.body:
            self.sessions[int(names[1], 16)] = json.loads(message.body)

    def _hear_own(self, names: list[str], message: Stored) -> None:
        if names[0] != "keys" or names[3] != "h":
            return
        slots = json.loads(message.body)["trellis"][1] if message.body else []
        if slots:
            self.slots[names[4]] = slots
        else:
            self.slots.pop(names[4], None)

    def _hear_event(self, job: str, message: Stored) -> None:
        body = json.loads(message.body)
        own, kind = body["trellis"], body["eventType"]
        if kind == "removed":
            self.removed.add(job)
            self.rows.pop(job, None)
            return
        if kind == "created":
            self.rows[job] = _row(own, body["payload"])
        head = dict(zip(_HEAD, own["head"], strict=True))
        self._hold(job, head["fence"])
        self.rows[job]["head"] = head | {"fence": _fence(head["fence"])}
        if kind == "watched":
            return
        self._note_event(job, message.sequence, own["event"])
        if head["state"] in ENDED:
            self._end(job, head, body.get("result"))

    def _hold(self, job: str, fence: list[int] | None) -> None:
        before = self._holders.pop(job, None)
        if before is not None:
            self._holds[before].discard(job)
        if fence is not None:
            self._holds[fence[0]].add(job)
            self._holders[job] = fence[0]

    def _end(self, job: str, head: Line, result: object) -> None:
        before = self.outcomes.get((job, head["generation"]))
        if before is not None:  # a dead letter was dismissed: what it returned stays
            result = before["result"]
        facts = {"generation": head["generation"], "state": head["state"], "result": result}
        self.outcomes[job, head["generation"]] = {"job": job, **facts}

    def _note_event(self, job: str, sequence: int, event: Line) -> None:
        names = ("version", "kind", "state", "at", "attempt")
        facts = {name: event[name] for name in names}
        data = dict(event["data"] or ())
        line = {"seq": sequence, "job": job, **facts, "fence": _fence(event["fence"]), "data": data}
        self.events.append(line)


def _row(own: Line, payload: object) -> Line:
    definition = own["definition"]
    # The policy that the creator knew is told only if another one is in force.
    policy = json.loads(own["request"][0] or definition[_POLICY])
    key = definition[_KEY]
    return {
        "id": definition[_ID],
        "hash": payload_hash(payload),
        "head": {},
        "key": None if key is None else f"{definition[_TYPE]}/{key}",
        "max_active": policy["key"]["active"] if policy["key"] else 1,
        "max_attempts": policy["retry"]["attempts"],
        "max_crashes": policy["max_crashes"],
        "deadline_at": definition[_DEADLINE],
    }


async def _connect(servers: list[str]) -> Client:
    async def ignore(_: Exception) -> None:
        """A node is away; the client looks for another one."""

    return await nats.connect(
        servers, name="the harness", error_cb=ignore, connect_timeout=1,
        max_reconnect_attempts=-1, reconnect_time_wait=0.1, ping_interval=2,
    )  # fmt: skip


class Streams:
    """Follows the streams until it is closed; any thread may ask."""

    def __init__(self, servers: list[str]) -> None:
        self._guard = threading.Lock()
        self._story = Story()
        #: Stream → the filter over all its subjects.
        self._filters = {"JOBS": "trellis.jobs.>", "JOBS_STATE": "trellis.state.>"}
        self._places = dict.fromkeys(self._filters, 0)
        self._thread = LoopThread("streams")
        self._client = self._thread.run(_connect(servers))
        self._following = [self._thread.start(self._follow(name)) for name in self._filters]

    def close(self) -> None:
        """Follow no longer."""
        self._thread.run(self._client.close())
        self._thread.stop()
        with warnings.catch_warnings():  # the client forgets connections to nodes that were killed
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def __enter__(self) -> Story:
        """Have what was told so far; it does not change meanwhile."""
        for each in self._following:
            if each.done():
                each.result()  # a message that the harness cannot read
        self._guard.acquire()
        return self._story

    def __exit__(self, *_: object) -> None:
        self._guard.release()

    def leader(self, stream: str) -> str | None:
        """Return the node that leads a stream; None if no node answers, or none leads."""
        info = self._thread.run(self._info(stream))
        return None if info is None else (info.get("cluster") or {}).get("leader")

    def ends(self) -> dict[str, int] | None:
        """Return the last sequence of each stream; None if no node answers."""
        infos = {name: self._thread.run(self._info(name)) for name in self._filters}
        found = {name: info["state"]["last_seq"] for name, info in infos.items() if info}
        return found if len(found) == len(infos) else None

    def is_current(self) -> bool:
        """Tell whether everything was read that the streams have now."""
        return all(self._thread.run(self._is_read(name)) for name in self._filters)

    # -- on the thread -------------------------------------------------------------------------

    async def _ask(self, verb: str, body: bytes = b"") -> dict[str, Any]:
        """Ask the leader of a stream; nothing if no node answers."""
        with suppress(NatsError, OSError, TimeoutError):
            reply = await self._client.request(f"$JS.API.{verb}", body, _ANSWER)
            answer: dict[str, Any] = json.loads(reply.data)
            return answer
        return {}

    async def _info(self, stream: str) -> dict[str, Any] | None:
        info = await self._ask(f"STREAM.INFO.{stream}")
        return info if "state" in info else None

    async def _is_read(self, stream: str) -> bool:
        """Tell whether the leader has no further message; the last one may have been deleted."""
        wanted = {"next_by_subj": self._filters[stream], "seq": self._places[stream] + 1}
        answer = await self._ask(f"STREAM.MSG.GET.{stream}", json.dumps(wanted).encode())
        return bool(answer.get("error", {}).get("err_code") == _NO_MESSAGE)

    async def _follow(self, stream: str) -> None:
        while True:
            with suppress(NatsError, OSError, TimeoutError):
                async for message in self._page(stream):
                    with self._guard:
                        self._story.hear(message)
                    self._places[stream] = message.sequence
            await asyncio.sleep(_PAUSE)

    async def _page(self, stream: str) -> Any:  # noqa: ANN401 - an iterator of `Stored`
        """Yield the next messages of a stream, as any replica has them."""
        client = self._client
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        wanted = {"seq": self._places[stream] + 1, "batch": _PAGE,
                  "next_by_subj": self._filters[stream]}  # fmt: skip
        try:
            body = json.dumps(wanted).encode()
            await client.publish(f"$JS.API.DIRECT.GET.{stream}", body, reply=inbox)
            while True:
                reply = await replies.next_msg(_ANSWER)
                headers = reply.headers or {}
                if "Status" in headers:  # 204: the end; others: no replica answers
                    return
                yield Stored(
                    headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, reply.data
                )
        finally:
            await replies.unsubscribe()
