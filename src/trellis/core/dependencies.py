"""Dependencies: jobs that wait for the end of others, and what that end means for them.

A link joins a job to one prerequisite. It is decided once, by the first end of the prerequisite
after the link was made; `dead` is an end too. A retry of the prerequisite changes nothing later. As
soon as one link is decided against the job, the job is cancelled; when all links are decided for
it, it is resolved and may start.

A job can name only jobs that exist when it is created, so links never form a circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from trellis.core.commands import Cancel, Resolve
from trellis.core.job import FollowsOn, JobId, NewJob, is_possible_id
from trellis.core.policy import check_word
from trellis.core.states import SUCCEEDED, State
from trellis.errors import ConfigurationError

#: How many jobs one job may wait for.
MAX_PREREQUISITES: Final = 10_000
#: The actor that journals name for the cancel of a job whose prerequisite did not succeed.
WORKFLOW: Final = "workflow"


class Link(NamedTuple):
    """One job waits, or has waited, for another."""

    job: JobId
    prerequisite: JobId
    on: FollowsOn
    #: The state in which the prerequisite ended; None: it has not ended yet.
    ended: State | None


Judgement: TypeAlias = Cancel | Resolve | None


def is_met(on: FollowsOn, ended: State) -> bool:
    """Return whether a prerequisite that ended in this state lets its dependents start."""
    return on == "finished" or ended in SUCCEEDED


def judge(links: Iterable[Link], payload: str | None = None) -> Judgement:
    """Return the command for a job with these links; None: it waits on.

    The payload is the result that is handed on to it, if one is.
    """
    waits = False
    for link in links:
        if link.ended is None:
            waits = True
        elif not is_met(link.on, link.ended):
            reason = f"It was to follow the success of job {link.prerequisite}, which is now"
            return Cancel(f"{reason} {link.ended}.", actor=WORKFLOW)
    return None if waits else Resolve(payload)


def check_prerequisites(new: NewJob) -> None:
    """Raise `ConfigurationError` if a request names the jobs it waits for in an impossible way."""
    names = [each.id for each in new.after]
    if len(names) > MAX_PREREQUISITES:
        raise ConfigurationError(
            f"A job can wait for at most {MAX_PREREQUISITES:,} others, not {len(names):,}. Nothing "
            "was stored. Put them into a batch and let the job be its then=."
        )
    if len(set(names)) != len(names):
        raise ConfigurationError(
            "after= names a job twice. Nothing was stored. Name each job once."
        )
    if new.id in names:
        raise ConfigurationError("A job cannot wait for itself. Nothing was stored.")
    for each in new.after:
        check_word("on", each.on, FollowsOn)
        if not each.id or not is_possible_id(each.id):
            raise ConfigurationError(
                f"after= has {each.id!r}, which is no id of a job. Nothing was stored."
            )
    source = new.relations and new.relations.payload_from
    if source is not None and (source, "success") not in new.after:
        raise ConfigurationError(
            f"The payload is to be the result of job {source}, so the job must wait for its "
            'success: add it to after= with on="success". Nothing was stored.'
        )
