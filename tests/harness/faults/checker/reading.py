"""From the JSON lines in a campaign's folder to the values the rules look at.

    clients/*.jsonl   what each producer asked for and was told
    effects/*.jsonl   what each worker process's handlers did
    nemesis.jsonl     what was done to whom
    system.jsonl      rows, journals, outcomes, slots and sessions, exported from the store;
                      in what its projection differs from one made from nothing

A last line that a killed process did not finish is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.harness.faults.checker.histories import (
    Difference,
    Event,
    Fault,
    Histories,
    Json,
    Op,
    Outcome,
    Row,
    Run,
    Session,
    Slot,
)


def read_folder(folder: Path) -> Histories:
    """Read everything a campaign left behind."""
    histories = Histories()
    _read_clients(_lines(folder.glob("clients/*.jsonl")), histories)
    _read_effects(_lines(folder.glob("effects/*.jsonl")), histories)
    _read_nemesis(_lines([folder / "nemesis.jsonl"]), histories)
    _read_system(_lines([folder / "system.jsonl"]), histories)
    return histories


def _lines(paths: Iterable[Path]) -> Iterator[Json]:
    for path in sorted(paths):
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)


def _read_clients(lines: Iterable[Json], histories: Histories) -> None:
    asked: dict[str, Op] = {}
    for line in lines:
        name = line["op"]
        match line["event"]:
            case "invoke":
                asked[name] = Op(name, line["t"], tuple(line["hashes"]), line["delay"])
            case "ok":
                asked[name] = replace(asked[name], ids=tuple(line["ids"]))
            case "unknown":
                pass
            case _:
                raise _unreadable(line)
    histories.ops.extend(asked.values())


def _read_effects(lines: Iterable[Json], histories: Histories) -> None:
    begun: dict[tuple[int, int], Run] = {}
    for line in lines:
        # The number of a run in its process, so that two runs of one attempt stay two.
        place = line["pid"], line["run"]
        match line["event"]:
            case "begin":
                begun[place] = Run(
                    line["job"], line["fence"], line["attempt"], line["pid"], line["kind"],
                    line["key"], line["t"],
                )  # fmt: skip
            case "end":
                begun[place] = replace(begun[place], ended=line["t"], how=line["how"])
            case "crash":
                pids = (line["pid"],)
                histories.faults.append(Fault("crash", line["t"], pids, "its own handler"))
            case _:
                raise _unreadable(line)
    histories.runs.extend(begun.values())


def _read_nemesis(lines: Iterable[Json], histories: Histories) -> None:
    faults: dict[int, Fault] = {}
    for line in lines:
        match line["event"]:
            case "fault":
                faults[line["number"]] = Fault(
                    line["kind"], line["at"], tuple(line["pids"]), line["target"],
                    grace=line["grace"], began_at=line.get("began_at"),
                )  # fmt: skip
            case "over":
                fault = faults[line["number"]]
                faults[line["number"]] = replace(
                    fault, until=line["t"], held_up=line["held_up"], ended_at=line.get("ended_at")
                )
            case _:
                raise _unreadable(line)
    histories.faults.extend(faults.values())


def _read_system(lines: Iterable[Json], histories: Histories) -> None:
    for line in lines:
        match line.pop("what"):
            case "row":
                histories.rows[line["id"]] = Row(**line)
            case "event":
                histories.events.append(Event(**line))
            case "outcome":
                histories.outcomes.append(Outcome(**line))
            case "slot":
                histories.slots.append(Slot(**line))
            case "session":
                histories.sessions[line["id"]] = Session(**line)
            case "removed":
                histories.removed.add(line["id"])
            case "difference":
                histories.differences.append(Difference(**line))
            case _:
                raise _unreadable(line)


def _unreadable(line: Json) -> ValueError:
    return ValueError(f"No history has lines like {line}.")
