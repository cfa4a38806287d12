"""`iclbench sweep GRID --pack DIR` and `--verify N`: pack or verify the results of a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from iclbench.cli.terminal import out, print_json, print_table, say
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.formats import nbytes, plural
from iclbench.store.cells import CellStore
from iclbench.store.state import state_label
from iclbench.sweep.cells import GridCell
from iclbench.sweep.pack import pack
from iclbench.sweep.verify import VerifiedCell, verify


def print_packed(
    cells: Sequence[GridCell], store: CellStore, folder: Path, json: bool = False, replace: bool = False
) -> None:
    """Pack the results of the cells, and print the number and size of the files."""
    files = pack(cells, store, folder, replace)
    if not files:
        raise UsageError(
            f"nothing to pack: no cell of this grid is in {store.results}; sweep it first", code="nothing-to-do"
        )
    counts = Counter(state_label(store.state(cell)) for cell in cells)
    if json:
        sizes = {str(path): path.stat().st_size for path in files}
        print_json({"files": sizes, "cells": dict(counts)})
        return
    size = nbytes(sum(path.stat().st_size for path in files))
    out.print(
        f"{len(files)} files in {folder}, {size}: " + ", ".join(f"{n} cells {state}" for state, n in counts.items())
    )
    if todo := counts["to do"]:
        say(f"{plural(todo, 'cell')} not computed yet and not packed; iclbench sweep computes them")


def print_verified(
    cells: Sequence[GridCell], store: CellStore, n: int, seed: int, context: Context, json: bool = False
) -> bool:
    """Recompute n random evaluations and print the comparison. Return whether all values are equal or agree."""
    verified_cells = []
    for verified in verify(cells, store, n, seed, context):
        verified_cells.append(verified)
        say(
            f"{len(verified_cells)}/{verified.total} {verified.cell.task} · {verified.cell.run}: "
            f"{_difference(verified)} ({verified.seconds:.0f} s)"
        )
    if json:
        records = [
            {
                "cell": each.cell.hash,
                "run": each.cell.run,
                "task": each.cell.task,
                "preset": each.cell.preset,
                "rows": each.rows,
                "equal": each.is_equal,
                "difference": each.difference,
                "agrees": each.agrees,
                "share_of_half_interval": each.share,
                "elsewhere": each.environment,
                "seconds": each.seconds,
            }
            for each in verified_cells
        ]
        print_json(records)
    else:
        rows = [
            [
                each.cell.run,
                each.cell.task,
                each.cell.preset,
                str(each.rows),
                _verdict(each),
                "" if each.share is None else f"{each.share:.1g}",
                "; ".join(each.environment) or "the same",
                f"{each.seconds:.0f} s",
            ]
            for each in verified_cells
        ]
        columns = ["run", "task", "preset", "rows", "verdict", "share of half-width", "first environment", "time"]
        print_table("", columns, rows, numeric=[3, 5, 7])
    if any(each.environment and not each.is_equal for each in verified_cells):
        say("other hardware, threads, libraries or later code may round differently: check the size of the differences")
    if almost_equal := sum(each.agrees and not each.is_equal for each in verified_cells):
        say(
            f"{almost_equal} of {len(verified_cells)} cells agree, but are not equal: they differ by less than a tenth "
            "of the half-width of their intervals"
        )
    return all(each.agrees for each in verified_cells)


def _verdict(verified: VerifiedCell) -> str:
    """Return the verdict on a recomputed cell."""
    return "equal" if verified.is_equal else "agrees" if verified.agrees else "differs"


def _difference(verified: VerifiedCell) -> str:
    """Return the verdict with the largest difference and the first difference."""
    distance = (
        ""
        if verified.share is None
        else f": the largest difference is {verified.share:.1g} of an interval's half-width"
    )
    return _verdict(verified) + distance + (f" ({verified.difference})" if verified.difference else "")
