"""`trellis contract`: the stored contracts of services, and contracts as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import rich_click as click

from trellis.cli.app import CommandGroup, operate
from trellis.cli.options import debug_option, form_options, json_option, url_option
from trellis.cli.output import Column, Form, complain, write_each, write_json, write_table

if TYPE_CHECKING:
    from trellis.core.contracts import Contract
    from trellis.operations.contracts import ContractView

_FINGERPRINT: Final = 15


@click.command("contract", cls=CommandGroup, default="list")
def contract() -> None:
    """List and show the contracts of services; write and read them as files."""


@contract.command("list")
@click.option("--service", metavar="NAME", help="Only contracts of this service.")
@form_options
@url_option
@debug_option
def list_command(*, service: str | None, form: Form, url: str | None) -> None:
    """List the contracts that workers deployed and operators accepted, the latest first."""
    from trellis.insight.views import as_json

    found = operate(url, lambda jobs: jobs.contracts(service))
    write_each(
        form,
        found,
        document=as_json,
        name=lambda each: f"{each.service}/{each.number}",
        table=_table,
    )
    for each in found if form is Form.TABLE else ():
        _complain_about(each)
    if form is Form.TABLE and not found:
        complain("No contract is stored. A worker stores it when it starts.")


def _table(found: list[ContractView]) -> None:
    columns = (
        Column("SERVICE"),
        Column("NUMBER", is_number=True),
        Column("STATUS"),
        Column("TYPES", is_number=True),
        Column("FINGERPRINT"),
        Column("SINCE"),
        Column("BY", shrinks=True),
        Column("REASON", shrinks=True),
    )
    write_table(
        columns,
        (
            (
                each.service,
                str(each.number),
                each.status,
                str(len(each.document.get("jobs", ()))),
                each.fingerprint[:_FINGERPRINT],
                f"{each.at:%Y-%m-%d %H:%M:%S}",
                each.actor,
                each.reason,
            )
            for each in found
        ),
    )


@contract.command("show")
@click.argument("service", metavar="SERVICE")
@click.argument("number", type=int, required=False)
@json_option
@url_option
@debug_option
def show_command(service: str, number: int | None, *, as_json: bool, url: str | None) -> None:
    """Write the deployed contract of a service as JSON, or the one of this NUMBER."""
    from trellis.insight.views import as_json as document

    found = operate(url, lambda jobs: jobs.contract(service, number))
    if as_json:
        write_json(document(found))
        return
    complain(f"Contract {found.number} of {found.service}, {found.status} by {found.actor}.")
    _complain_about(found)
    write_json(found.document)


def _complain_about(found: ContractView) -> None:
    if found.problem is not None:
        complain(f"Contract {found.number} of {found.service} is not compared: {found.problem}")


@contract.command("export")
@click.argument("services", metavar="[MODULE:SERVICE]", required=False)
@click.option("--output", metavar="FILE", help="Write to this file; by default to stdout.")
@debug_option
def export_command(services: str | None, *, output: str | None) -> None:
    """Write the contract of a service's code as JSON."""
    from trellis.cli.loading import load_services

    found = load_services([services] if services else None)
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise click.UsageError(f"The settings name several services: {names}. Write one of them.")
    _write(found[0].contract, output)


@contract.command("import")
@click.argument("file", metavar="FILE")
@click.option("--service", metavar="NAME", help="The service, if the file names none.")
@click.option("--output", metavar="FILE", help="Write to this file; by default to stdout.")
@debug_option
def import_command(file: str, *, service: str | None, output: str | None) -> None:
    """Check a contract and write it with every default filled in.

    Compare it with what is deployed by `trellis queues plan FILE`; declare its job types in a
    program that creates jobs by `service.declare_all(FILE)`. Changes nothing that is stored.
    """
    from trellis.core.contracts import unknown_fields
    from trellis.declaration.contract import load_contract

    found = load_contract(Path(file), service)
    _write(found, output)
    unknown = unknown_fields(found)
    if unknown:
        complain(
            "Kept, but not known to this version of Trellis (written by a newer one, or by another "
            f"program): {', '.join(unknown)}"
        )


def _write(found: Contract, output: str | None) -> None:
    import json

    text = json.dumps(found.document(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        Path(output).write_text(text, encoding="utf-8")
    complain(f"Contract of {found.service} with {len(found.jobs)} job types.")
