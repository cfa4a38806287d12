"""`iclbench sweep GRID --pack DIR` and `--verify N`: pack the results of a grid, and recompute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from iclbench.cli.terminal import out, print_json, say, table
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.formats import nbytes, plural
from iclbench.store.cells import Store
from iclbench.store.state import state_label
from iclbench.sweep.cells import GridCell
from iclbench.sweep.pack import pack
from iclbench.sweep.verify import Verified, verify


def print_packed(
    cells: Sequence[GridCell], store: Store, folder: Path, json: bool = False, replace: bool = False
) -> None:
    """Pack the results of the cells, and print the files."""
    files = pack(cells, store, folder, replace)
    if not files:
        raise UsageError(f"nothing to pack: no cell of this grid is in {store.results}; sweep it first")
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
    cells: Sequence[GridCell], store: Store, n: int, seed: int, context: Context, json: bool = False
) -> bool:
    """Compute n random evaluations again and print the results; returns whether all are equal or differ negligibly."""
    verified = []
    for each in verify(cells, store, n, seed, context):
        verified.append(each)
        say(
            f"{len(verified)}/{each.total} {each.cell.task} · {each.cell.run}: "
            f"{_difference(each)} ({each.seconds:.0f} s)"
        )
    if json:
        records = [
            {
                "cell": each.cell.hash,
                "run": each.cell.run,
                "task": each.cell.task,
                "preset": each.cell.preset,
                "rows": each.rows,
                "equal": each.equal,
                "difference": each.difference,
                "agrees": each.agrees,
                "share_of_half_interval": each.share,
                "elsewhere": each.environment,
                "seconds": each.seconds,
            }
            for each in verified
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
                "; ".join(each.environment) or "as here",
                f"{each.seconds:.0f} s",
            ]
            for each in verified
        ]
        columns = ["run", "task", "preset", "rows", "verdict", "of half an interval", "computed first", "time"]
        table("", columns, rows, numeric=[3, 5, 7])
    if any(each.environment and not each.equal for each in verified):
        say("other hardware, threads, libraries or later code may round differently: check the size of the differences")
    if close := sum(each.agrees and not each.equal for each in verified):
        say(
            f"{close} of {len(verified)} cells agree, but are not equal: they differ by less than a tenth of half "
            "their interval"
        )
    return all(each.agrees for each in verified)


def _verdict(each: Verified) -> str:
    """The verdict on a cell that was computed again."""
    return "equal" if each.equal else "agrees" if each.agrees else "differs"


def _difference(each: Verified) -> str:
    """The verdict, with the largest and the first difference."""
    distance = "" if each.share is None else f": at most {each.share:.1g} of half an interval apart"
    return _verdict(each) + distance + (f" ({each.difference})" if each.difference else "")
