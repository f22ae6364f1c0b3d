"""`trellis tokens`: who may use the HTTP API, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from trellis.cli.app import CommandGroup, current_actor, operate
from trellis.cli.options import (
    debug_option,
    form_options,
    json_option,
    reason_option,
    url_option,
)
from trellis.cli.output import (
    Cell,
    Column,
    Form,
    complain,
    write_each,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from trellis.operations.tokens import TokenView

_COLUMNS: Final = (
    Column("ID"),
    Column("STATE"),
    Column("EXPIRES"),
    Column("CREATED BY"),
    Column("SCOPES", shrinks=True),
    Column("NAME", shrinks=True),
)
_STYLES: Final = {"valid": "green", "expired": "yellow", "revoked": "red"}


@click.command("tokens", cls=CommandGroup, default="list")
def tokens() -> None:
    """Create tokens for the HTTP API, list and revoke them.

    Scopes: admin.read, admin.mutate, admin.stream, worker:SERVICE and submit:SERVICE; the service *
    means every service. Of a token only a hash is stored.
    """


@tokens.command("create")
@click.argument("scopes", metavar="SCOPE...", nargs=-1, required=True)
@click.option("--name", metavar="TEXT", default="", help="What it is for.")
@click.option(
    "--lifetime", metavar="DURATION", default="90d", show_default=True, help="How long it is valid."
)
@reason_option
@json_option
@url_option
@debug_option
def create_command(
    scopes: tuple[str, ...],
    *,
    name: str,
    lifetime: str,
    reason: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Create a token and write it; it is not shown again."""
    from trellis.insight.views import as_json as document

    made = operate(
        url,
        lambda jobs: jobs.tokens.create(scopes, name=name, lifetime=lifetime, reason=reason),
    )
    if as_json:
        write_json(document(made))
        return
    write_line(made.text)
    complain(
        f"Keep it now: only its hash is stored. It is valid until "
        f"{made.token.expires_at.astimezone():%Y-%m-%d %H:%M}. "
        f"Revoke it with: trellis tokens revoke {made.token.id}"
    )


@tokens.command("login")
@click.option(
    "--server", metavar="URL", default="http://127.0.0.1:8321", show_default=True,
    help="Where `trellis serve` is reached.",
)  # fmt: skip
@url_option
@debug_option
def login_command(*, server: str, url: str | None) -> None:
    """Write an address with which a browser logs in, once, within ten minutes."""
    from trellis.operations.logins import create_code

    code = operate(url, lambda jobs: create_code(jobs.engine, current_actor()))
    write_line(f"{server.rstrip('/')}/login?code={code}")


@tokens.command("list")
@form_options
@url_option
@debug_option
def list_command(*, form: Form, url: str | None) -> None:
    """List tokens, the newest first."""
    from trellis.insight.views import as_json

    found = operate(url, lambda jobs: jobs.tokens.find())
    write_each(form, found, document=as_json, name=lambda each: each.id, table=_table)
    if form is Form.TABLE and not found:
        complain("There is no token. Create one with: trellis tokens create admin.read")


def _table(found: list[TokenView]) -> None:
    write_table(
        _COLUMNS,
        (
            (
                each.id,
                Cell(each.state, _STYLES[each.state]),
                f"{each.expires_at.astimezone():%Y-%m-%d %H:%M}",
                each.created_by,
                " ".join(each.scopes),
                each.name,
            )
            for each in found
        ),
    )


@tokens.command("revoke")
@click.argument("token_id", metavar="ID")
@reason_option
@json_option
@url_option
@debug_option
def revoke_command(token_id: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """End a token at once, by its id or its text."""
    from trellis.insight.views import as_json as document

    view = operate(url, lambda jobs: jobs.tokens.revoke(token_id, reason=reason))
    if as_json:
        write_json(document(view))
    complain(f"Token {view.id} gives no access any more.")
