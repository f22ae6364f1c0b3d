"""`trellis nats`: what operators of NATS servers need."""

from __future__ import annotations

import re
from typing import Final

import rich_click as click

from trellis.cli.app import CommandGroup
from trellis.cli.options import debug_option
from trellis.cli.output import write_line
from trellis.errors import CapabilityMissing, ConfigurationError

#: The user of --capability without a name.
_CALLER: Final = "caller"


@click.command("nats", cls=CommandGroup)
def nats() -> None:
    """Set up NATS servers for jobs."""


@nats.command("permissions")
@click.option("--service", metavar="NAME", help="For the clients and workers of this service.")
@click.option(
    "--type", "types", metavar="NAME", multiple=True,
    help="A job type of the service; may be given several times.",
)  # fmt: skip
@click.option("--admin", is_flag=True, help="For `trellis jobs serve`, migrations and operators.")
@click.option(
    "--capability", "capabilities", multiple=True,
    type=click.Choice(("admin.read", "admin.mutate", "admin.stream")),
    help="For programs that call Jobs.*: read, change, or hear the live feed; may be several.",
)  # fmt: skip
@click.option("--prefix", metavar="NAME", default="trellis", show_default=True,
              help="The prefix of the subjects, as in the URL.")  # fmt: skip
@click.option("--user", metavar="NAME",
              help="Write a whole block with this user, not its permissions alone.")  # fmt: skip
@click.option("--account", metavar="NAME",
              help="Write a whole block with an account, and the user in it.")  # fmt: skip
@debug_option
def permissions(
    *,
    service: str | None,
    types: tuple[str, ...],
    admin: bool,
    capabilities: tuple[str, ...],
    prefix: str,
    user: str | None,
    account: str | None,
) -> None:
    """Write the permissions of a user, as a block of the server's configuration.

    A user with them cannot change jobs of other services: neither by publishing their events nor by
    a header on a subject of its own. It can read all jobs of the deployment. Programs of a service
    then use nats://USER:PASSWORD@HOST:4222?service=NAME.

    A user of --capability hears answers in its own inbox only: each program gets a separate user,
    and the client of the program must have the inbox prefix that is written.
    """
    if (service is not None) + admin + bool(capabilities) != 1:
        raise ConfigurationError("Give --service NAME with its types, or --admin, or --capability.")
    try:
        from trellis.engines.jetstream import permissions as written
    except ModuleNotFoundError as error:
        raise CapabilityMissing(
            f"Jobs on NATS need {error.name}, which is not installed. Run: "
            "pip install 'trellis-jobs[nats]'"
        ) from error
    for name in filter(None, (user, account)):
        if re.fullmatch(r"[\w-]+", name) is None:
            raise ConfigurationError(
                f"{name!r} cannot be a name in the server's configuration. Use letters, digits, "
                "'_' and '-'."
            )
    subjects, caller = written.subjects_of(prefix), user or service or "admin"
    if service is not None:
        found = written.service_permissions(subjects, service, types)
    elif capabilities:
        caller = user or _CALLER
        found = written.capability_permissions(subjects, capabilities, caller)
        write_line(f"# The client of this program must have the inbox prefix "
                   f"{written.inbox_of(caller)}: nats --inbox-prefix={written.inbox_of(caller)}, "
                   f'or inbox_prefix=b"{written.inbox_of(caller)}" in Python.')  # fmt: skip
    else:
        found = written.admin_permissions(subjects)
    if user is None and account is None:
        write_line(found.config())
        return
    write_line(found.whole(caller, account))
