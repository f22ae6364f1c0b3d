"""Verbs that need an index over all jobs: they are asked of the admin runtime.

The runtime keeps a projection of the stream in a SQL engine and answers the same verbs from it. A
request names the last sequence that this process has written, and is answered once the projection
has come so far. Without a runtime, jobs are created, run and settled all the same.
"""

from __future__ import annotations

from typing import Any, Final

from nats import errors as nats_errors

from trellis.engines.calls import port_verbs
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.errors import EngineError, EngineUnavailable

_ANSWER: Final = 30.0
_VERBS: Final = port_verbs("commit", "watch")
_ERROR: Final = "Nats-Service-Error"


class Projection:
    """The admin runtime, as the engine asks it."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link, self._subjects = link, subjects

    async def ask(self, name: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401
        """Call a verb of the port on the projection."""
        verb = _VERBS[name]
        try:
            answer = await self._link.ask(
                self._subjects.internal(name), verb.write(*arguments, **options), _ANSWER
            )
        except (nats_errors.NoRespondersError, nats_errors.TimeoutError) as error:
            raise EngineUnavailable(
                f"{name} needs the projection of the jobs, and no program answers for it. Nothing "
                "was changed; jobs run on without it. Start `trellis jobs serve`."
            ) from error
        refused = (answer.headers or {}).get(_ERROR)
        if refused is not None:
            raise EngineError(f"The admin runtime refused {name}: {refused}")
        return verb.read_answer(answer.data)
