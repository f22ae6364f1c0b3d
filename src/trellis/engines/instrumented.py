"""An engine that reports every call to one observer: the seam for traces and metrics.

The methods are made from the protocols of the port, so that a new verb is observed without a change
here. An engine that is not wrapped costs nothing.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol, cast

from trellis.engines.capabilities import Capabilities
from trellis.engines.port import Engine
from trellis.engines.values import Claimed, Due, Loaded, Page

_logger = logging.getLogger(__name__)

Method = Callable[..., Any]


class Call(NamedTuple):
    """One finished call of a verb."""

    verb: str
    #: The number of jobs, notes, rows or other things in the answer; 0 after an error.
    items: int
    #: In seconds.
    duration: float
    error: BaseException | None


class Observer(Protocol):
    """Receives every finished call, in the thread of the call; it must be quick."""

    def __call__(self, call: Call, /) -> None:
        """Receive a call."""


def verbs() -> dict[str, Method]:
    """Return the verbs of the port by name, with their declarations."""
    return {
        name: member
        for protocol in reversed(Engine.__mro__)
        if getattr(protocol, "_is_protocol", False)
        for name, member in vars(protocol).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def instrumented(engine: Engine, observer: Observer) -> Engine:
    """Return the engine, with every call reported to the observer."""
    return cast("Engine", Instrumented(engine, observer))


class Instrumented:
    """Passes every verb through to an engine; see `instrumented`.

    Methods that an engine has beside the port, such as `exporter`, are available and not observed.
    """

    def __init__(self, engine: Engine, observer: Observer) -> None:
        self.engine = engine
        self._observer = observer
        for name, _ in inspect.getmembers(type(engine), inspect.isfunction):
            if not name.startswith("_") and name not in _VERBS:
                setattr(self, name, getattr(engine, name))

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return self.engine.capabilities

    def _report(self, verb: str, began: float, answer: object, error: BaseException | None) -> None:
        items = 0 if error is not None else _size(verb, answer)
        try:
            self._observer(Call(verb, items, time.perf_counter() - began, error))
        except Exception:
            # The engine has already done its work: the caller must not see this as a failed call.
            _logger.exception("The observer of the engine failed on a call of %s", verb)


def _observed(verb: str, declared: Method) -> Method:
    """Return the method that passes a verb through and reports the call."""

    async def finish(wrapper: Instrumented, began: float, answer: Awaitable[Any]) -> Any:  # noqa: ANN401 - the answer of any verb
        result = error = None
        try:
            result = await answer
        except BaseException as raised:
            error = raised
            raise
        else:
            return result
        finally:
            wrapper._report(verb, began, result, error)  # noqa: SLF001 - it is the method's class

    @functools.wraps(declared)
    def method(self: Instrumented, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the arguments of any verb
        began = time.perf_counter()
        try:
            answer = getattr(self.engine, verb)(*arguments, **options)
        except BaseException as error:
            self._report(verb, began, None, error)
            raise
        if inspect.isawaitable(answer):
            return finish(self, began, answer)
        self._report(verb, began, answer, None)
        return answer

    return method


def _size(verb: str, answer: object) -> int:
    """Return how many things an answer has; batch verbs answer one for each that was given."""
    match answer:
        case list():
            return len(answer)
        case Claimed(jobs=jobs) | Page(jobs=jobs):
            return len(jobs)
        case Loaded(records=records):
            return len(records)
        case Due(sessions=sessions, jobs=jobs):
            return len(sessions) + len(jobs)
        case int() if verb in _COUNTING:
            return answer
        case _:
            return 1


#: Verbs that answer how many things they changed.
_COUNTING: Final = frozenset(
    {"finish_batches", "promote", "prune", "prune_audit", "remove_archived"}
)
_VERBS: Final = verbs()
for _name, _declared in _VERBS.items():
    setattr(Instrumented, _name, _observed(_name, _declared))
