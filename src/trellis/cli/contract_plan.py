"""`trellis queues plan` and `queues accept`: what the code would change of a deployed contract."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from trellis.cli.app import REFUSED, CommandFailed, operate
from trellis.cli.format import counted
from trellis.cli.options import debug_option, json_option, url_only_option
from trellis.cli.output import Cell, Column, complain, visible, write_json, write_line, write_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from trellis.operations.contracts import ContractPlan, Declared
    from trellis.operations.operator import Operator
    from trellis.operations.payload_checks import PayloadCheck

_WIDEST: Final = 40


def _declaring(command: Callable[..., None]) -> Callable[..., None]:
    """Add what both commands take."""
    for add in (
        debug_option,
        url_only_option,
        json_option,
        click.argument("source", metavar="[MODULE:SERVICE|FILE]", required=False),
    ):
        command = add(command)
    return command


@click.command("plan")
@_declaring
def plan_command(source: str | None, *, as_json: bool, url: str | None) -> None:
    """Compare the declared job types with the deployed contract.

    Each change is an update, which is safe at any time, or a migration, which needs acceptance.
    Waiting jobs of types whose payload changes are checked against the new schema: all of them up
    to 100,000, above that a random sample. A FILE is a contract as `trellis contract export` writes
    it. Exits with 4 if there is a migration that was not accepted.
    """
    plans = [
        operate(url or address, partial(_plan, declared))
        for declared, address in declared_by(source)
    ]
    _write(plans, as_json=as_json)
    if any(each.is_migration and not each.is_accepted for each in plans):
        raise CommandFailed(REFUSED)


@click.command("accept")
@click.option("--reason", metavar="TEXT", required=True, help="Why it may be deployed.")
@_declaring
def accept_command(source: str | None, *, reason: str, as_json: bool, url: str | None) -> None:
    """Accept the migration to the declared job types; the audit keeps the reason.

    Workers with this contract then start without a warning, also with --contract refuse. A change
    of the code after that needs another acceptance.
    """
    plans = [
        operate(url or address, partial(_accept, declared, reason))
        for declared, address in declared_by(source)
    ]
    _write(plans, as_json=as_json)
    for each in plans:
        if each.is_accepted:
            complain(f"The contract of {each.service} is accepted: {each.fingerprint}")
        else:
            complain(f"The contract of {each.service} needs no acceptance; nothing was stored.")


async def _plan(declared: Declared, jobs: Operator) -> ContractPlan:
    return await jobs.plan_contract(declared)


async def _accept(declared: Declared, reason: str, jobs: Operator) -> ContractPlan:
    return await jobs.accept_contract(declared, reason)


def declared_by(source: str | None) -> list[tuple[Declared, str | None]]:
    """Return the contract of a file, or the services that are named, with their URLs."""
    from trellis.cli.loading import load_services
    from trellis.declaration.contract import load_contract

    if source is not None and (source.endswith(".json") or Path(source).is_file()):
        return [(load_contract(source), None)]
    return [(each, each.url) for each in load_services([source] if source else None)]


# -- output --------------------------------------------------------------------------------------


def _write(plans: list[ContractPlan], *, as_json: bool) -> None:
    if as_json:
        write_json([_document(each) for each in plans])
        return
    for each in plans:
        _table(each)
        for check in each.payloads:
            _write_check(check)
        complain(_summary(each))


def _document(plan: ContractPlan) -> dict[str, Any]:
    return {
        "service": plan.service,
        "fingerprint": plan.fingerprint,
        "deployed": plan.deployed,
        "is_migration": plan.is_migration,
        "is_accepted": plan.is_accepted,
        "changes": [each._asdict() for each in plan.changes],
        "payloads": [
            {
                "type": each.type,
                "waiting": each.waiting,
                "checked": each.checked,
                "is_sample": each.is_sample,
                "invalid": each.invalid,
                "examples": [
                    {"id": job_id, "problem": problem} for job_id, problem in each.examples
                ],
            }
            for each in plan.payloads
        ],
    }


def _table(plan: ContractPlan) -> None:
    columns = (
        Column("KIND"),
        Column("PATH"),
        Column("BEFORE", shrinks=True),
        Column("AFTER", shrinks=True),
        Column("WHY", shrinks=True),
    )
    write_table(
        columns,
        (
            (
                Cell(each.kind, "bold red" if each.kind == "migration" else "green"),
                each.path.removeprefix("jobs."),
                _short(each.before),
                _short(each.after),
                each.why,
            )
            for each in plan.changes
        ),
    )


def _short(value: object) -> str:
    if value is None:
        return "-"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _write_check(check: PayloadCheck) -> None:
    some = " (a random sample)" if check.is_sample else ""
    text = (
        f"{counted(check.waiting)} of {check.type} waiting, {check.checked:,} checked{some}: "
        f"{check.invalid:,} cannot be read."
    )
    write_line(visible(text))
    for job_id, problem in check.examples:
        write_line(visible(f"  {job_id}: {problem}"))


def _summary(plan: ContractPlan) -> str:
    before = f"contract {plan.deployed}"
    if plan.deployed is None:
        before = "nothing, because it has no deployed contract yet"
    elif not plan.changes:
        return f"The code of {plan.service} is the deployed contract {plan.deployed}."
    if not plan.is_migration:
        return f"{plan.service}, compared with {before}: updates only. Deploy at any time."
    if plan.is_accepted:
        return f"{plan.service}, compared with {before}: a migration, which was accepted."
    return (
        f"{plan.service}, compared with {before}: a migration that was not accepted. If jobs and "
        "workers survive it: trellis queues accept --reason TEXT"
    )
