"""The rows of `iclbench list` for each kind of entry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from iclbench.config.cards import card_names, load_baseline, load_task
from iclbench.core.errors import UsageError
from iclbench.core.formats import printable
from iclbench.registry import BACKBONES, FAMILIES, Registry
from iclbench.store import inventory
from iclbench.store.runs import all_runs
from iclbench.sweep.grids import load_grid
from iclbench.sweep.language_grids import is_language_grid, load_language_grid

log = logging.getLogger("iclbench")


def sections_of(results: Path) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Return the kinds of entries that can be listed, each with a function that returns its rows."""
    return {
        "tasks": _tasks,
        "backbones": _backbones,
        "baselines": _baselines,
        "families": _families,
        "grids": _grids,
        "runs": lambda: _runs(results),
    }


def _tasks() -> list[dict[str, str]]:
    cards = [load_task(name) for name in card_names("tasks")]
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


def _backbones() -> list[dict[str, str]]:
    return _entries("backbone", BACKBONES)


def _baselines() -> list[dict[str, str]]:
    cards = [load_baseline(name) for name in card_names("baselines")]
    # For an estimator given as module:Class, show only the name of the class.
    return [
        {"baseline": name, "estimator": card.estimator.rpartition(":")[2], "summary": card.summary}
        for name, card in cards
    ]


def _families() -> list[dict[str, str]]:
    return _entries("family", FAMILIES)


def _grids() -> list[dict[str, str]]:
    rows = []
    for name in card_names("grids"):
        if is_language_grid(name):
            language_card = load_language_grid(name)[1]
            contestants = [model.rpartition("/")[2] for model in language_card.models]
            tasks, presets, summary = language_card.tasks, "language", language_card.summary
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


def _runs(results: Path) -> list[dict[str, Any]]:
    rows, runs = [], all_runs(results)
    scores = inventory.scores(results) if runs else {}
    for run in runs:
        row: dict[str, Any] = {"run": run.name, "task": None, "backbone": None, "preset": None, "seed": None}
        try:
            config = run.config
            state = "finished" if run.is_finished else f"step {run.checkpoint_step}/{config.train.steps}"
            row |= {
                "task": config.task.name,
                "backbone": config.backbone.name,
                "preset": config.preset,
                "seed": str(config.seed),
                "state": state if run.recorded_divergence is None else "diverged",
            }
        except UsageError as error:
            row["state"] = "unreadable"
            log.warning("%s", printable(str(error)))
        row |= {"size": inventory.size(run), "date": inventory.date(run)}
        rows.append(row | {"score": scores.get((run.name, str(row["task"])))})
    return rows


def _entries(kind: str, registry: Registry) -> list[dict[str, str]]:
    return [
        {kind: name, "from": entry.package, "available": entry.availability(), "summary": entry.summary}
        for name, entry in sorted(registry.entries.items())
    ]
