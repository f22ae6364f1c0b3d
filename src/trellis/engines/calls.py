"""Calls of the engine port as messages: how arguments and answers are written and read.

Both sides of a call are made from the annotations of the port. The arguments are an object by name;
the answer is the value that the verb returns. An engine that passes calls on sends with it, and the
other side reads with it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_type_hints

from trellis.engines.instrumented import verbs
from trellis.engines.wire import Codec, Field, dump, read_fields, write_fields
from trellis.engines.wire_table import message_codec

#: Verbs that no message stands for: they are about the engine object of a process.
LOCAL: Final = frozenset({"open", "close", "create_within"})


class Verb(NamedTuple):
    """One kind of call."""

    name: str
    fields: tuple[Field, ...]
    #: Whether the last field takes all further positional arguments.
    is_variadic: bool
    answer: Codec
    bind: Callable[..., Sequence[Any]]

    def write(self, *arguments: object, **options: object) -> bytes:
        """Return the arguments as a message."""
        return dump(write_fields(self.fields, self.bind(*arguments, **options)))

    def read(self, body: bytes) -> dict[str, Any]:
        """Return the arguments by name; raise `ValueError` if they are wrong."""
        values = read_fields(self.fields, json.loads(body), self.name)
        return {field.name: value for field, value in zip(self.fields, values, strict=True)}

    def positional(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return how the verb is called with these arguments."""
        if not self.is_variadic:
            return [], dict(arguments)
        return [*(v for f in self.fields[:-1] for v in [arguments[f.name]]),
                *arguments[self.fields[-1].name]], {}  # fmt: skip

    def write_answer(self, answer: object) -> bytes:
        """Return an answer as a message."""
        return dump(self.answer.write(answer))

    def read_answer(self, body: bytes) -> Any:  # noqa: ANN401 - the answer of any verb
        """Return the answer; raise `ValueError` if it is none."""
        return self.answer.decode(json.loads(body))


def build_verb(name: str, declared: Callable[..., object], *, is_method: bool = True) -> Verb:
    """Return how a verb that is declared by this function is called."""
    hints = get_type_hints(declared)
    signature = inspect.signature(declared)
    parameters = list(signature.parameters.values())[1 if is_method else 0 :]
    fields, is_variadic = [], False
    for each in parameters:
        kind, default = hints[each.name], each.default
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            is_variadic, kind, default = True, Sequence[kind], ()  # type: ignore[valid-type]
        codec = message_codec(kind)
        has_default = default is not inspect.Parameter.empty
        fields.append(Field(each.name, codec, default) if has_default else Field(each.name, codec))
    binding = signature.replace(parameters=parameters)

    def bind(*arguments: object, **options: object) -> Sequence[Any]:
        given = binding.bind(*arguments, **options)
        given.apply_defaults()
        return list(given.arguments.values())

    return Verb(name, tuple(fields), is_variadic, message_codec(hints["return"]), bind)


def port_verbs(*apart: str) -> dict[str, Verb]:
    """Return the verbs of the port, by name, without the local ones and those named."""
    return {
        name: build_verb(name, declared)
        for name, declared in verbs().items()
        if name not in LOCAL and name not in apart
    }
