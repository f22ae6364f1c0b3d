"""The signature of a handler: its payload, its result, and how it must be called.

Mistakes are reported when the handler is declared, before any job is created.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from trellis.errors import ConfigurationError

P_co = TypeVar("P_co", covariant=True)
Takes = Literal["job", "payload", "nothing"]


class NoPayload(Enum):
    """Stands for a payload that was not given; None is a payload."""

    NO_PAYLOAD = "no payload"


NO_PAYLOAD: Final = NoPayload.NO_PAYLOAD


class JobArgument(Generic[P_co]):
    """Base of the class a handler may take instead of the payload: the worker's `ActiveJob`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Handler:
    """The function that runs the jobs of one type."""

    function: Callable[..., Any]
    takes: Takes
    is_async: bool
    payload: Any
    result: Any
    #: The payload of jobs that are created without one.
    default: Any = NO_PAYLOAD

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.function, "__name__", "handler"))


def read_handler(function: Callable[..., Any]) -> Handler:
    """Return the handler of a function; raise `ConfigurationError` if it cannot be one."""
    if not callable(function):
        raise ConfigurationError(f"{function!r} is not a function, so it cannot handle jobs.")
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigurationError(
            f"{name} yields, but a job has one result. Return it, and report with job.progress()."
        )
    hints = _hints(function, name)
    parameter = _only_parameter(function, name)
    takes, payload = _payload(parameter, hints, name)
    is_async = inspect.iscoroutinefunction(_unwrapped(function))
    default: Any = NO_PAYLOAD
    if takes == "payload" and parameter is not None and parameter.default is not parameter.empty:
        default = parameter.default
    return Handler(function, takes, is_async, payload, hints.get("return", Any), default)


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        return type(function).__call__
    return function


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(_unwrapped(function), include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"The annotations of {name} use {error.name!r}, which is not defined in its module. "
            "Define or import it above the handler."
        ) from error


def _only_parameter(function: Callable[..., Any], name: str) -> inspect.Parameter | None:
    payloads = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(
                f"{name} takes {parameter}, but a job has exactly one payload. "
                "Name it and annotate it."
            )
        if parameter.kind is not parameter.KEYWORD_ONLY:
            payloads.append(parameter)
        elif parameter.default is parameter.empty:
            raise ConfigurationError(
                f"{name} needs the keyword {parameter.name!r}, which workers do not pass. "
                "Put it into the payload, or give it a default."
            )
    if len(payloads) > 1:
        names = ", ".join(parameter.name for parameter in payloads)
        raise ConfigurationError(
            f"{name} takes {len(payloads)} arguments ({names}), but a job has one payload. "
            "Put them into one model or dataclass."
        )
    return payloads[0] if payloads else None


def _payload(
    parameter: inspect.Parameter | None, hints: dict[str, Any], name: str
) -> tuple[Takes, Any]:
    if parameter is None:
        return "nothing", None
    if parameter.name not in hints:
        raise ConfigurationError(
            f"{name} has no annotation for its payload {parameter.name!r}. Annotate it, like "
            f"{parameter.name}: str or {parameter.name}: ActiveJob[Order]."
        )
    annotation = hints[parameter.name]
    if isinstance(annotation, type) and issubclass(annotation, JobArgument):
        raise ConfigurationError(
            f"{name} takes an ActiveJob without a payload type. "
            f"Write {parameter.name}: ActiveJob[Order], or ActiveJob[None] if it has none."
        )
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, JobArgument):
        return "job", get_args(annotation)[0]
    return "payload", annotation
