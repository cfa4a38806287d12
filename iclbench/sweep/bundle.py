"""Bundles of cells, stored as JSON files. A job on a cluster computes the cells of one bundle, one after the other.

The file is the only input of a job, so a job can be restarted and can outlive the sweep. The job writes the outcomes of
its cells to the results folder and to a second JSON file next to the bundle.
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
from iclbench.registry import import_object
from iclbench.store import identity
from iclbench.store.outcome import Outcome
from iclbench.store.runs import trained_and_current_codes
from iclbench.sweep.cells import GridCell
from iclbench.tables.schema import SCHEMA_VERSION

Work = Callable[[GridCell, Context], Outcome]


@dataclass(frozen=True)
class Bundle:
    """Cells, ordered so that each cell comes after the cells that it needs.

    Attributes:
        cells: at least one cell.
        context: results folder, data, device and threads of the job.
    """

    cells: tuple[GridCell, ...]
    context: Context

    @property
    def name(self) -> str:
        """A name that depends only on the cells."""
        return identity.bundle_id([cell.hash for cell in self.cells])

    def write(self, path: Path) -> None:
        """Write the bundle to a JSON file."""
        content: dict[str, Any] = {"code": provenance(), "schema": SCHEMA_VERSION}
        content |= {"context": asdict(self.context), "cells": [*map(_cell_fields, self.cells)]}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content, default=str))

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Read a bundle written by `write`.

        Raises:
            IclbenchError: the file is damaged, or the code of a cell or the table schema has another version on this
                machine than on the machine that wrote the file. Tables would then mix rows of two versions.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA_VERSION:
                raise _mismatch(
                    f"the table schema is {SCHEMA_VERSION} on this machine and {content['schema']} where",
                    content["code"],
                )
            context = content["context"]
            folder = context["data_dir"]
            job_context = Context(
                Path(context["results"]), folder and Path(folder), context["device"], context["threads"]
            )
            cells = []
            for cell_fields in content["cells"]:
                submitted_hash = cell_fields.pop("hash")
                cells.append(_cell(cell_fields))
                if (name := _changed_component(cells[-1], submitted_hash)) is not None:
                    raise _mismatch(
                        f"the code of '{name}' on this machine differs from the code where", content["code"]
                    )
            return cls(tuple(cells), job_context)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise IclbenchError(f"{path} is damaged ({one_line(error)}): remove it", code="unreadable-file") from error


def commit_mismatch(path: Path) -> str | None:
    """Return a warning if another version or commit of iclbench wrote the bundle; otherwise None."""
    submitted, current = json.loads(path.read_text(encoding="utf-8"))["code"], provenance()
    if submitted == current:
        return None
    return f"submitted by {_version_name(submitted)}, computed by {_version_name(current)}"


def _changed_component(cell: GridCell, submitted_hash: str) -> str | None:
    """Return the name of the component whose code differs between this machine and the one that submitted the cell: a
    family, a backbone or the cell itself. Return None if all code is the same.

    Args:
        cell: the cell as read on this machine.
        submitted_hash: its hash on the machine that submitted it.
    """
    for name, trained_code, current_code in trained_and_current_codes(cell.config) if cell.config else ():
        if trained_code != current_code:
            return name
    return None if cell.hash == submitted_hash else f"{cell.kind} {cell.run}"


def _mismatch(difference: str, code: dict[str, Any]) -> IclbenchError:
    return IclbenchError(
        f"{difference} the job was submitted ({_version_name(code)}, here {_version_name(provenance())}): install the "
        "same version on all machines, and submit the job again",
        code="code-changed",
    )


def _version_name(code: dict[str, Any]) -> str:
    commit = f" of commit {code['commit'][:12]}" if code["commit"] else ""
    return f"iclbench {code['version']}{commit}"


def work_through(bundle: Bundle, work: Work, outcomes_path: Path | None = None) -> dict[str, Outcome]:
    """Compute the cells of a bundle and return their outcomes by hash. Cells that need an unfinished cell are left out.

    Args:
        bundle: the bundle.
        work: function that computes one cell.
        outcomes_path: file to which the outcomes are written. If it exists, cells with an outcome are not recomputed.

    Raises:
        Interrupted: on a signal, after writing a checkpoint.
    """
    outcomes = read_outcomes(outcomes_path) if outcomes_path is not None and outcomes_path.is_file() else {}
    hashes = {cell.hash for cell in bundle.cells}
    for cell in bundle.cells:
        needs_done = (
            need not in hashes or (need in outcomes and outcomes[need].status == "done") for need in cell.needs
        )
        if cell.hash in outcomes or not all(needs_done):
            continue
        outcomes[cell.hash] = work(cell, bundle.context)
        if outcomes_path is not None:
            write_outcomes(outcomes_path, outcomes)
    return outcomes


def plain_outcomes(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Any]]:
    """Convert outcomes to plain values, which `outcomes_of` converts back."""
    return {cell: asdict(outcome) for cell, outcome in outcomes.items()}


def write_outcomes(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Write outcomes as JSON, atomically."""
    write_text(path, json.dumps(plain_outcomes(outcomes)))


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Read outcomes written by `write_outcomes`."""
    return outcomes_of(json.loads(path.read_text(encoding="utf-8")))


def outcomes_of(plain_values: Mapping[str, dict[str, Any]]) -> dict[str, Outcome]:
    """Convert plain values to outcomes. Raise `ValueError` if the values do not describe outcomes."""
    try:
        return {
            cell: Outcome(**plain | {key: tuple(plain[key]) for key in ("files", "warnings")})
            for cell, plain in plain_values.items()
        }
    except (AttributeError, TypeError, KeyError) as error:
        raise ValueError("not the outcomes of cells") from error


def _cell_fields(cell: GridCell) -> dict[str, Any]:
    plain = {field.name: getattr(cell, field.name) for field in fields(cell) if field.init}
    models = {"task_config": cell.task_config, "config": cell.config}
    plain |= {
        name: TypeAdapter(type(model)).dump_python(model, mode="json", exclude_unset=True)
        for name, model in models.items()
        if model
    }
    return {"class": f"{type(cell).__module__}:{type(cell).__qualname__}", "hash": cell.hash} | plain


def _cell(plain: dict[str, Any]) -> GridCell:
    """Create a cell from the values that `_cell_fields` returns."""
    cell_class: type[GridCell] = import_object(plain.pop("class"))
    hints = get_type_hints(cell_class)
    plain["needs"] = tuple(plain["needs"])
    for name in ("task_config", "config"):
        if plain[name] is not None:
            plain[name] = TypeAdapter(hints[name]).validate_python(plain[name])
    return cell_class(**plain)
