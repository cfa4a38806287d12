"""`iclbench list`: what there is."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer

from iclbench.cli.terminal import out, table
from iclbench.config import inventory
from iclbench.config.cards import load_baseline, load_task, names
from iclbench.config.registry import BACKBONES, FAMILIES
from iclbench.config.runs import all_runs
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import fixed, nbytes, number
from iclbench.sweep.grids import load_grid
from iclbench.sweep.language_grids import is_language_grid, load_language_grid

# Too wide for a terminal; `iclbench show` has them too.
_FOR_SCRIPTS = {
    "tasks": {"family", "evaluators"},
    "grids": {"tasks", "backbones"},
    "runs": {"task", "backbone", "preset", "seed"},
}
_NUMERIC = ("size", "loss", "score")


def list_things(what: str, json: bool, results: Path) -> None:
    """List tasks, backbones, baselines, families, grids and runs."""
    sections = {
        "tasks": _tasks,
        "backbones": _backbones,
        "baselines": _baselines,
        "families": _families,
        "grids": _grids,
        "runs": lambda: _runs(results),
    }
    if what != "all" and what not in sections:
        raise UnknownNameError("list", what, [*sections, "all"])
    chosen = sections if what == "all" else {what: sections[what]}
    found = {name: rows() for name, rows in chosen.items()}
    if json:
        typer.echo(json_module.dumps(found if what == "all" else found[what], indent=2))
        return

    for name, rows in found.items():
        if not rows:
            out.print(f"no {name}" + (f" in {results}" if name == "runs" else ""))
            continue
        columns = [column for column in rows[0] if column not in _FOR_SCRIPTS.get(name, ())]
        cells = [[_shown(column, row[column]) for column in columns] for row in rows]
        table(name if what == "all" else "", columns, cells, [columns.index(c) for c in _NUMERIC if c in columns])
        if name == "tasks":
            out.print("tasks for language models: iclbench lm tasks")
        if name == "grids":
            out.print("tasks and backbones of a grid: iclbench show GRID")
        if name == "runs":
            out.print("task, backbone and settings of a run: iclbench show RUN")
        if what == "all":
            out.print()


def _tasks() -> list[dict[str, str]]:
    cards = [load_task(name) for name in names("tasks")]
    return [
        {
            "task": name,
            "family": card.family,
            "presets": " ".join(card.presets),
            "evaluators": " ".join(card.evaluators),
            "summary": card.summary,
        }
        for name, card in cards
    ]


def _baselines() -> list[dict[str, str]]:
    cards = [load_baseline(name) for name in names("baselines")]
    return [{"baseline": name, "estimator": card.estimator, "summary": card.summary} for name, card in cards]


def _backbones() -> list[dict[str, str]]:
    return _entries("backbone", BACKBONES)


def _families() -> list[dict[str, str]]:
    return _entries("family", FAMILIES)


def _grids() -> list[dict[str, str]]:
    rows = []
    for name in names("grids"):
        if is_language_grid(name):
            of_models = load_language_grid(name)[1]
            contestants = [model.rpartition("/")[2] for model in of_models.models]
            tasks, presets, summary = of_models.tasks, "language", of_models.summary
        else:
            card = load_grid(name)[1]
            tasks, contestants, presets, summary = card.tasks, card.backbones, " ".join(card.presets), card.summary
        rows.append(
            {
                "grid": name,
                "tasks": " ".join(tasks),
                "backbones": " ".join(contestants),
                "presets": presets,
                "summary": summary,
            }
        )
    return rows


def _entries(kind: str, registry) -> list[dict[str, str]]:  # type: ignore[no-untyped-def]
    return [
        {kind: name, "from": entry.package, "available": entry.availability(), "summary": entry.summary}
        for name, entry in sorted(registry.entries.items())
    ]


def _runs(results: Path) -> list[dict[str, Any]]:
    rows, runs = [], all_runs(results)
    scores = inventory.scores(results) if runs else {}
    for run in runs:
        row: dict[str, Any] = {"run": run.name, "task": None, "backbone": None, "preset": None, "seed": None}
        try:
            config = run.config
            state = "finished" if run.finished else f"step {run.reached}/{config.train.steps}"
            row |= {
                "task": config.task.name,
                "backbone": config.backbone.name,
                "preset": config.preset,
                "seed": str(config.seed),
                "state": state if run.diverged is None else "diverged",
            }
        except UsageError as error:
            row["state"] = str(error)
        row |= {"size": inventory.size(run), "date": inventory.date(run), "loss": inventory.loss(run)}
        rows.append(row | {"score": scores.get(run.name)})
    return rows


def _shown(column: str, value: Any) -> str:
    """A value as a table has it."""
    if value is None:
        return "-"
    numbers: dict[str, Callable[[Any], str]] = {"size": nbytes, "loss": number, "score": partial(fixed, decimals=2)}
    return numbers.get(column, str)(value)
