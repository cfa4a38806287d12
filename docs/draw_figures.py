"""The figures of the README and of the guide, drawn from the packed results: `python -m docs.draw_figures`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from docs.quantities import ROOT, packed_folder
from iclbench.config.cards import load_task
from iclbench.report.blocks import Figure, Section
from iclbench.report.data import Results, load_results
from iclbench.report.drawing import Drawer
from iclbench.report.figures import curves, learning
from iclbench.report.sections import extrapolation, heat_map, shifts, solutions
from iclbench.report.style import vega_lite

FOLDER = ROOT / "docs" / "figures"
# The name of each file, and the name of its figure in the report.
FIGURES = {
    "heat-map-grid": "heat-map-grid",
    "classes": "classes",
    "extrapolation-small": "skewed-linear-small-points-80-next-squared-error",
    "solutions-markov": "markov-grid-solutions",
    "filters": "linear-system-grid-points-252-next-squared-error",
    "coqe-3-shifts": "linear-10-paper-shifts-next-squared-error",
}
# The tests in the figure of classes, and the titles of their panels.
TESTS = {"icl": "in context", "iwl": "in weights"}
# The contestants in the figure of filters. With all models, their lines overlap.
FILTERS = ("gpt2", "gpt2-learned", "s4d", "mamba2", "gated-deltanet", "ar-4", "oracle-bayes-kalman")
_NUMBER = re.compile(r'<text aria-label="contestant: ([^;"]+); row: ([^;"]+); label: [^"]+"[^>]*>([^<]+)</text>')
_LINE = re.compile(r'<path aria-label="[^"]*contestant: ([^;"]+); series: [^"]*"[^>]* d="([^"]+)"')


def figures(folder: Path) -> dict[str, Figure]:
    """Return the figures of the report on a results folder and the figure of classes, by the names of their files."""
    results = load_results(folder)
    blocks = {
        block.name: block for each in _sections(results, folder) for block in each.walk() if isinstance(block, Figure)
    }
    blocks["classes"] = _classes(results)
    return {file: blocks[name] for file, name in FIGURES.items()}


def _classes(results: Results) -> Figure:
    """Accuracies of the core on `bursty-vectors` against the number of training classes, in context and in weights."""
    frames = []
    for task in results.slices:
        if task.task.startswith("bursty-vectors") and task.preset == "grid":
            classes = load_task(task.task)[1].presets["grid"].parameters["classes"]
            rows = task.accuracies_by_run
            is_final = rows["axis"].isna() & rows["kind"].eq("backbone") & rows["evaluator"].isin(list(TESTS))
            frames.append(rows[is_final].assign(classes=float(classes)))
    runs = pd.concat(frames, ignore_index=True).astype({"value": float})
    runs = runs.assign(
        panel=runs["evaluator"].map(TESTS),
        series=[f"{run} {test}" for run, test in zip(runs["run"], runs["evaluator"], strict=True)],
    )
    looks = results.backbone_looks(runs["contestant"].unique())
    means = runs.groupby(["contestant", "panel", "classes"], as_index=False)[["value"]].mean()
    data = learning.means_and_points(means, runs, looks)
    data = data.assign(label=data["run"])
    ticks = tuple(sorted(runs["classes"].unique()))
    axes = curves.Axes(
        "training classes",
        "accuracy",
        (ticks[0] / 1.2, ticks[-1] * 1.2),
        (0.0, 1.0),
        field="classes",
        x_name="classes",
        log_x=True,
        ticks=ticks,
    )
    looks = learning.sorted_by_line_ends(looks, data, "classes")
    data = data.sort_values(["panel", "contestant", "sparse", "classes"], ignore_index=True)
    return learning.panel_figure(
        data[[*curves.COLUMNS, "run", "classes", "panel"]],
        list(TESTS.values()),
        axes,
        looks,
        name="classes",
        title="Accuracy in context and in weights by number of training classes",
        caption="Lines: means over seeds; points: seeds.",
        alt=f"Accuracy of {learning.name_list(looks)} against the number of training classes",
    )


def _sections(results: Results, folder: Path) -> Iterator[Section]:
    slices = {each.id: each for each in results.slices}
    (filters,) = load_results(folder, ["linear-system"], FILTERS).slices
    sections = (
        heat_map.section(results),
        extrapolation.section(slices["skewed-linear-small"]),
        solutions.section(slices["markov-grid"]),
        extrapolation.section(filters),
        shifts.section(slices["linear-10-paper"]),
    )
    for section in sections:
        if section is not None:
            yield section


def draw(figures: dict[str, Figure], folder: Path) -> list[Path]:
    """Write figures as SVG, and return the files."""
    with closing(Drawer(vega_lite())) as drawer:
        for file, figure in figures.items():
            if (reason := drawer.draw(first_panel(figure.static), folder / file, ["svg"])) is not None:
                raise RuntimeError(f"{file}: {reason}")
    return [folder / f"{file}.svg" for file in figures]


def first_panel(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the first of several panels. In a heat map, it contains the models with the most tasks."""
    panels = spec.get("hconcat")
    return (
        {key: value for key, value in spec.items() if key not in ("hconcat", "spacing")} | panels[0] if panels else spec
    )


def numbers(svg: str) -> dict[tuple[str, str], str]:
    """Return the labels in the cells of a heat map, by row and contestant."""
    return {(row, contestant): label for contestant, row, label in _NUMBER.findall(svg)}


def lines(svg: str) -> dict[str, str]:
    """Return the SVG paths of the lines in a figure of learning curves, by contestant."""
    return dict(_LINE.findall(svg))


if __name__ == "__main__":
    with packed_folder(ROOT / "results" / "reference") as folder:
        for path in draw(figures(folder), FOLDER):
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
