"""The figures of the README, drawn from the packed results: `python -m tests.findings.figures`."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from iclbench.report import whole
from tests.findings.quantities import ROOT, nothing_but

FOLDER = ROOT / "docs" / "figures"
# Sections of the report, by the figures that are taken from them.
FIGURES = {"heat-map-grid": "heat-map"}
_NUMBER = re.compile(r'<text aria-label="contestant: ([^;"]+); row: ([^;"]+); label: [^"]+"[^>]*>([^<]+)</text>')


def draw() -> list[Path]:
    """Write the figures as SVG; which files they are."""
    with nothing_but(ROOT / "results" / "reference") as results, tempfile.TemporaryDirectory() as out:
        report = whole.build(results, Path(out), formats=["svg"], only=sorted({*FIGURES.values()}))
        if report.missing:
            raise RuntimeError("; ".join(f"{name}: {why}" for name, why in sorted(report.missing.items())))
        return [Path(shutil.copy(Path(out) / "figures" / f"{name}.svg", FOLDER)) for name in FIGURES]


def drawn(svg: str) -> dict[tuple[str, str], str]:
    """What stands in the cells of a heat map, by row and contestant."""
    return {(row, contestant): label for contestant, row, label in _NUMBER.findall(svg)}


if __name__ == "__main__":
    for path in draw():
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
