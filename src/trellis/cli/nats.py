"""`trellis nats`: what operators of NATS servers need."""

from __future__ import annotations

import rich_click as click

from trellis.cli.app import CommandGroup
from trellis.cli.options import debug_option
from trellis.cli.output import write_line
from trellis.errors import CapabilityMissing, ConfigurationError


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
@click.option("--prefix", metavar="NAME", default="trellis", show_default=True,
              help="The prefix of the subjects, as in the URL.")  # fmt: skip
@debug_option
def permissions(*, service: str | None, types: tuple[str, ...], admin: bool, prefix: str) -> None:
    """Write the permissions of a user, as a block of the server's configuration.

    A user with them cannot change jobs of other services: neither by publishing their events nor by
    a header on a subject of its own.
    """
    if (service is None) != admin:
        raise ConfigurationError("Give --service NAME with its types, or --admin.")
    try:
        from trellis.admin import permissions as written
    except ModuleNotFoundError as error:
        raise CapabilityMissing(
            f"Jobs on NATS need {error.name}, which is not installed. Run: "
            "pip install 'trellis-jobs[nats]'"
        ) from error
    subjects = written.subjects_of(prefix)
    found = (
        written.admin_permissions(subjects)
        if service is None
        else written.service_permissions(subjects, service, types)
    )
    write_line(found.config())
