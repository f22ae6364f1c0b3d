"""Producers and what they are told to create: enough that workers are never idle, and no more.

Producers are killed now and then, just after they were given something to do, so that some of
their calls never hear an answer. The moments are drawn from the seed.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from random import Random
from typing import Final

from tests.harness.faults.processes import Group, Place
from tests.harness.faults.stores.store import Store
from tests.harness.faults.waiting import Impatience, until

#: More work is handed out when fewer jobs than this wait.
_LOW: Final = 200
_PORTION: Final = 60
_LOOK_EVERY: Final = 0.1
#: What was handed out must be there before more is; after so many seconds it counts as lost.
_LOST_AFTER: Final = 2.0
#: Seconds in which the rest of the jobs is made when the faults are over.
_CALM_LIMIT: Final = 240.0
#: So many times the wanted number is the end of it, however long the faults go on.
_MOST: Final = 5


class Feeding:
    """The jobs of one campaign."""

    def __init__(self, seed: str, folder: Path, store: Store, wanted: int) -> None:
        self._seed = seed
        self._place = Place(folder, store.url)
        self._store = store
        self._wanted = wanted
        self._random = Random(f"{seed}/producers")
        self._producers: list[Group] = []
        self._started = 0
        #: How many jobs there are when nearly all that was handed out is there, or when to give up.
        self._expected, self._given_up_at = 0, 0.0

    async def feed(self, is_calm: asyncio.Event) -> None:
        """Keep a few jobs waiting, until there were enough and the faults are over."""
        for _ in range(2):
            self._producers.append(self._new_producer())
        killing = asyncio.create_task(self._kill_now_and_then())
        try:
            while not is_calm.is_set():
                await self._look()
            end = time.monotonic() + _CALM_LIMIT
            while self._store.jobs() < self._wanted:
                if time.monotonic() > end:
                    raise Impatience(f"waited {_CALM_LIMIT:g} s in vain for all jobs to be made")
                await self._look()
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        await self._finish()

    def end(self) -> None:
        """End every producer at once."""
        for producer in self._producers:
            producer.end()

    async def _look(self) -> None:
        if self._is_hungry():
            self._give_all()
        await asyncio.sleep(_LOOK_EVERY)

    def _is_hungry(self) -> bool:
        made = self._store.jobs()
        if made < self._expected and time.monotonic() < self._given_up_at:
            return False  # the store is slow: more would only wait in the producers
        return self._store.ready() < _LOW and made < self._wanted * _MOST

    def _give_all(self) -> None:
        for number, producer in enumerate(self._producers):
            if producer.exit_code is not None:  # it came up while the server was away
                producer.end()
                self._producers[number] = self._new_producer()
            self._producers[number].feed(f"{_PORTION}\n")
        self._expected = self._store.jobs() + _PORTION * len(self._producers) * 3 // 4
        self._given_up_at = time.monotonic() + _LOST_AFTER

    def _new_producer(self) -> Group:
        name = f"producer-{self._started}"
        self._started += 1
        arguments = ["-m", f"{__package__}.producer", name, self._seed]
        return Group(arguments, self._place, "producers.log", fed=True)

    async def _kill_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(8, 16))
            place = self._random.randrange(len(self._producers))
            producer = self._producers[place]
            producer.feed(f"{_PORTION}\n")
            await asyncio.sleep(self._random.uniform(0, 0.06))
            producer.send(signal.SIGKILL, producer.leader)
            producer.end()
            self._producers[place] = self._new_producer()

    async def _finish(self) -> None:
        for producer in self._producers:
            producer.hang_up()
        await until(
            lambda: all(producer.exit_code is not None for producer in self._producers),
            "the producers to finish", 30,
        )  # fmt: skip
