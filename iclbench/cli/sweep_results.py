"""`iclbench sweep GRID --pack DIR` and `--verify N`: the results of a grid in a few files, and recomputed."""

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
    """Pack the results of the cells, and name the files."""
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
        f"{len(files)} files in {folder}, {size}: " + ", ".join(f"{n} cells {what}" for what, n in counts.items())
    )
    if left := counts["to do"]:
        say(f"{plural(left, 'cell')} not computed yet and in no file; iclbench sweep does them")


def print_verified(
    cells: Sequence[GridCell], store: Store, n: int, seed: int, context: Context, json: bool = False
) -> bool:
    """Compute n random evaluations again and say what became of them; returns whether all are equal, or differ by less
    than matters."""
    checked = []
    for each in verify(cells, store, n, seed, context):
        checked.append(each)
        say(f"{len(checked)}/{each.of} {each.cell.task} · {each.cell.run}: {_difference(each)} ({each.seconds:.0f} s)")
    if json:
        lines = [
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
                "elsewhere": each.elsewhere,
                "seconds": each.seconds,
            }
            for each in checked
        ]
        print_json(lines)
    else:
        rows = [
            [
                each.cell.run,
                each.cell.task,
                each.cell.preset,
                str(each.rows),
                _verdict(each),
                "" if each.share is None else f"{each.share:.1g}",
                "; ".join(each.elsewhere) or "as here",
                f"{each.seconds:.0f} s",
            ]
            for each in checked
        ]
        columns = ["run", "task", "preset", "rows", "verdict", "of half an interval", "computed first", "time"]
        table("", columns, rows, numeric=[3, 5, 7])
    if any(each.elsewhere and not each.equal for each in checked):
        say("other hardware, threads, libraries or later code may round otherwise: look how large the differences are")
    if close := sum(each.agrees and not each.equal for each in checked):
        say(
            f"{close} of {len(checked)} cells differ in digits, by less than a tenth of half their interval: they agree"
        )
    return all(each.agrees for each in checked)


def _verdict(each: Verified) -> str:
    """What came of a cell that was computed again."""
    return "equal" if each.equal else "agrees" if each.agrees else "differs"


def _difference(each: Verified) -> str:
    """The same, with how far values are apart, and the first difference."""
    far = "" if each.share is None else f": at most {each.share:.1g} of half an interval apart"
    return _verdict(each) + far + (f" ({each.difference})" if each.difference else "")
