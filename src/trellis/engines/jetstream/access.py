"""What the server denies to the user of a connection.

A NATS server does not answer a request that it denies. It drops the message and sends an error
beside, which names the subject. Here that error ends the request at once, instead of a time-out.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NamedTuple

from trellis.errors import AccessDenied

#: The client writes the whole text in lower case, the subject included.
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')
_UNAUTHORIZED: Final = "authorization violation"
#: Where answers come.
_ANSWERS: Final = "_INBOX.>"
_logger = logging.getLogger(__name__)


class Denial(NamedTuple):
    """The server denied a user to publish or subscribe to a subject, in lower case."""

    is_publish: bool
    subject: str


def denial_in(text: str) -> Denial | None:
    """Return what an error of the server denies; None: it is another error."""
    found = _VIOLATION.search(text)
    return None if found is None else Denial(found[1] == "publish", found[2])


def check_login(text: str, servers: Sequence[str]) -> None:
    """Raise `AccessDenied` if an error says that the login is wrong: the client would try again."""
    if _UNAUTHORIZED in text.lower():
        raise AccessDenied(
            f"The NATS server at {', '.join(servers)} denies access: the user, password or token "
            "of the URL is wrong, or missing. Nothing was stored. Correct the URL "
            "(nats://user:password@host:4222)."
        )


class Access:
    """The requests of one connection that wait for an answer, by the subjects they need."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Timeout]] = {}
        self._known: set[Denial] = set()
        self._collected: set[str] | None = None
        self._is_deaf = False

    def hear(self, text: str) -> None:
        """Take an error of the server: end the requests that it denies."""
        denial = denial_in(text)
        if denial is None:
            return
        now = asyncio.get_running_loop().time()
        waiting = self._waiting.get(denial.subject, ())
        if not denial.is_publish and denial.subject.endswith(".*"):
            # The inbox of all requests of the client: none of them will be answered.
            waiting = {each for several in self._waiting.values() for each in several}
            self._is_deaf = True
        for limit in tuple(waiting):
            limit.reschedule(now)
        if self._collected is not None:
            self._collected.add(denial.subject)
        elif not waiting and denial not in self._known:
            what = "publish" if denial.is_publish else "subscribe"
            _logger.warning(
                "The NATS server denies this user to %s to %s. What it was for is not done. %s",
                what, denial.subject, REMEDY,
            )  # fmt: skip
        self._known.add(denial)

    async def begin_again(self) -> None:
        """Take note that the client has subscribed again, after it was disconnected."""
        self._is_deaf = False

    @contextmanager
    def collecting(self) -> Iterator[set[str]]:
        """Collect the subjects that are denied until the end, in lower case, instead of logging."""
        found: set[str] = set()
        self._collected = found
        try:
            yield found
        finally:
            self._collected = None

    @asynccontextmanager
    async def asking(self, *subjects: str) -> AsyncIterator[None]:
        """Raise `AccessDenied` as soon as the server denies one of these subjects."""
        if self._is_deaf:
            raise denied(_ANSWERS)
        limit = asyncio.timeout(None)
        names = [subject.lower() for subject in subjects]
        try:
            async with limit:
                for name in names:
                    self._waiting.setdefault(name, set()).add(limit)
                yield
        except TimeoutError as error:
            if limit.expired():
                raise denied(*self._denied_of(subjects)) from error
            raise
        finally:
            for name in names:
                left = self._waiting.get(name, set())
                left.discard(limit)
                if not left:
                    self._waiting.pop(name, None)

    def _denied_of(self, subjects: tuple[str, ...]) -> list[str]:
        names = {denial.subject for denial in self._known}
        return [each for each in subjects if each.lower() in names] or [_ANSWERS]


REMEDY: Final = (
    "Grant it to the user in the configuration of the server: `trellis nats permissions --service "
    "NAME --type TYPE` writes what a service needs, and `--admin` what operators need."
)


def denied(*subjects: str) -> AccessDenied:
    """Return the error for subjects that a user may not use."""
    return AccessDenied(
        f"The NATS server denies this user to use {', '.join(dict.fromkeys(subjects))}. Nothing "
        f"was stored. {REMEDY}"
    )
