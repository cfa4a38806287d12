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
from iclbench.sweep.pack_cards import write_cards
from iclbench.sweep.verify import VerifiedCell, verify


def print_packed(
    grids: Sequence[str],
    cells: Sequence[GridCell],
    store: CellStore,
    folder: Path,
    json: bool = False,
    replace: bool = False,
) -> None:
    """Pack the results of the cells with the cards of the grids, and print the number and size of the files."""
    files = pack(cells, store, folder, replace)
    if not files:
        raise UsageError(
            f"nothing to pack: no cell of this grid is in {store.results}; sweep it first", code="nothing-to-do"
        )
    files += write_cards(grids, cells, store.results, folder, replace)
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
                "cell": verified_cell.cell.hash,
                "run": verified_cell.cell.run,
                "task": verified_cell.cell.task,
                "preset": verified_cell.cell.preset,
                "rows": verified_cell.rows,
                "equal": verified_cell.is_equal,
                "difference": verified_cell.difference,
                "agrees": verified_cell.agrees,
                "share_of_half_interval": verified_cell.share,
                "elsewhere": verified_cell.environment,
                "seconds": verified_cell.seconds,
            }
            for verified_cell in verified_cells
        ]
        print_json(records)
    else:
        rows = [
            [
                verified_cell.cell.run,
                verified_cell.cell.task,
                verified_cell.cell.preset,
                str(verified_cell.rows),
                _verdict(verified_cell),
                "" if verified_cell.share is None else f"{verified_cell.share:.1g}",
                "; ".join(verified_cell.environment) or "the same",
                f"{verified_cell.seconds:.0f} s",
            ]
            for verified_cell in verified_cells
        ]
        columns = ["run", "task", "preset", "rows", "verdict", "share of half-width", "first environment", "time"]
        print_table("", columns, rows, numeric=[3, 5, 7])
    if any(verified_cell.environment and not verified_cell.is_equal for verified_cell in verified_cells):
        say("other hardware, threads, libraries or later code may round differently: check the size of the differences")
    if almost_equal := sum(verified_cell.agrees and not verified_cell.is_equal for verified_cell in verified_cells):
        say(
            f"{almost_equal} of {len(verified_cells)} cells agree, but are not equal: they differ by less than a tenth "
            "of the half-width of their intervals"
        )
    return all(verified_cell.agrees for verified_cell in verified_cells)


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
