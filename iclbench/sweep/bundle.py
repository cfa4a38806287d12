"""Bundles: cells that one job of a cluster works on, one after the other, as a JSON file says.

A file is all that a job is given, so that whoever starts it, and how often, and whether its parent is still there, does
not matter. What became of every cell is in the results folder, as ever, and in a second JSON file beside the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError, one_line
from iclbench.core.files import write_text
from iclbench.core.version import provenance
from iclbench.registry import imported
from iclbench.store import identity
from iclbench.store.outcome import Outcome
from iclbench.store.runs import codes_then_and_now
from iclbench.sweep.cells import GridCell
from iclbench.tables.schema import SCHEMA

Work = Callable[[GridCell, Context], Outcome]


@dataclass(frozen=True)
class Bundle:
    """Cells in an order in which each stands behind what it needs of the others.

    Attributes:
        cells: at least one.
        context: where and with what they are worked on.
    """

    cells: tuple[GridCell, ...]
    context: Context

    @property
    def name(self) -> str:
        """From its cells alone."""
        return identity.bundle_id([cell.hash for cell in self.cells])

    def write(self, path: Path) -> None:
        """As JSON."""
        about: dict[str, Any] = {"code": provenance(), "schema": SCHEMA}
        about |= {"context": asdict(self.context), "cells": [*map(_plain, self.cells)]}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(about, default=str))

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Of a file that `write` has written.

        Raises:
            IclbenchError: a cell is other code here, or tables have another schema: two would meet in one table. Or
                the file is damaged.
        """
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            if about["schema"] != SCHEMA:
                raise _otherwise(f"tables have schema {SCHEMA} here and {about['schema']} where", about["code"])
            context = about["context"]
            folder = context["data_dir"]
            place = Context(Path(context["results"]), folder and Path(folder), context["device"], context["threads"])
            cells = []
            for plain in about["cells"]:
                known = plain.pop("hash")
                cells.append(_cell(plain))
                if (name := _other_code(cells[-1], known)) is not None:
                    raise _otherwise(f"'{name}' is other code here than where", about["code"])
            return cls(tuple(cells), place)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise IclbenchError(f"{path} is damaged ({one_line(error)}): remove it") from error


def other_commit(path: Path) -> str | None:
    """That the bundle in a file was written by another version or commit than this one; None: it was not."""
    then, now = json.loads(path.read_text(encoding="utf-8"))["code"], provenance()
    return None if then == now else f"submitted by {_named(then)}, computed by {_named(now)}"


def _other_code(cell: GridCell, known: str) -> str | None:
    """The name of a component of a cell, or of the cell, for which other code answers here; None: the same does.

    Args:
        cell: as it is read here.
        known: its hash where it was submitted.
    """
    for name, then, now in codes_then_and_now(cell.config) if cell.config else ():
        if then != now:
            return name
    return None if cell.hash == known else f"{cell.kind} {cell.run}"


def _otherwise(what: str, code: dict[str, Any]) -> IclbenchError:
    return IclbenchError(
        f"{what} the job was submitted ({_named(code)}, here {_named(provenance())}): install the same on all "
        "machines, and submit it again"
    )


def _named(code: dict[str, Any]) -> str:
    commit = f" of commit {code['commit'][:12]}" if code["commit"] else ""
    return f"iclbench {code['version']}{commit}"


def work_through(bundle: Bundle, work: Work, kept: Path | None = None) -> dict[str, Outcome]:
    """What became of the cells, by hash; a cell is left out where another one that it needs came to no good end.

    Args:
        bundle: what is to do.
        work: on one cell.
        kept: a file of what became of them so far, from which a bundle that was interrupted goes on.

    Raises:
        Interrupted: a signal came; a checkpoint was written.
    """
    outcomes = read_outcomes(kept) if kept is not None and kept.is_file() else {}
    own = {cell.hash for cell in bundle.cells}
    for cell in bundle.cells:
        sound = (need not in own or (need in outcomes and outcomes[need].status == "done") for need in cell.needs)
        if cell.hash in outcomes or not all(sound):
            continue
        outcomes[cell.hash] = work(cell, bundle.context)
        if kept is not None:
            write_outcomes(kept, outcomes)
    return outcomes


def plain_outcomes(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Any]]:
    """As plain values, for `outcomes_of`."""
    return {cell: asdict(each) for cell, each in outcomes.items()}


def write_outcomes(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    """As JSON, whole or not at all."""
    write_text(path, json.dumps(plain_outcomes(outcomes)))


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Of a file that `write_outcomes` has written."""
    return outcomes_of(json.loads(path.read_text(encoding="utf-8")))


def outcomes_of(found: Mapping[str, dict[str, Any]]) -> dict[str, Outcome]:
    """From plain values; raises `ValueError` where they are something else."""
    try:
        return {
            cell: Outcome(**each | {key: tuple(each[key]) for key in ("files", "warnings")})
            for cell, each in found.items()
        }
    except (AttributeError, TypeError, KeyError) as error:
        raise ValueError("no outcomes of cells") from error


def _plain(cell: GridCell) -> dict[str, Any]:
    plain = {field.name: getattr(cell, field.name) for field in fields(cell) if field.init}
    of_class = {"frozen": cell.frozen, "config": cell.config}
    plain |= {
        name: TypeAdapter(type(each)).dump_python(each, mode="json", exclude_unset=True)
        for name, each in of_class.items()
        if each
    }
    return {"class": f"{type(cell).__module__}:{type(cell).__qualname__}", "hash": cell.hash} | plain


def _cell(plain: dict[str, Any]) -> GridCell:
    kind: type[GridCell] = imported(plain.pop("class"))
    hints = get_type_hints(kind)
    plain["needs"] = tuple(plain["needs"])
    for name in ("frozen", "config"):
        if plain[name] is not None:
            plain[name] = TypeAdapter(hints[name]).validate_python(plain[name])
    return kind(**plain)
