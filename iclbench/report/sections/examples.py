"""Predictions on a few episodes: bands over a one-dimensional input, or completed images."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from iclbench.analysis.target_scores import shifts
from iclbench.core.formats import slug
from iclbench.report.blocks import Block, Section
from iclbench.report.data import Slice
from iclbench.report.drawn_episodes import (
    DrawnContestant,
    all_contestants,
    first_run_rows,
    main_contestants,
    pixel_count,
)
from iclbench.report.figures import bands, draws, images
from iclbench.report.titles import shift_title

# Processes of related datasets, by their distance from the process of the context (ICICL-TNP, appendix G.1.1).
_NEAR_TO_FAR = ("same", "near", "rbf", "far")


def section(task: Slice) -> Section | None:
    examples = first_run_rows(task.examples)
    # After an interrupted evaluation, the points of an episode may be missing.
    shifts_with_context = set(examples.loc[examples["role"] == "context", "shift"])
    names = [s for s in shifts(examples[examples["role"] == "predicted"]) if s in shifts_with_context]
    names = [s for s in names if s not in task.extrapolations]
    mismatched_shifts = [s for s in names if s in task.related_processes]
    matched_shifts = [s for s in names if s not in mismatched_shifts]
    draw = _images if pixel_count(examples) else _bands
    blocks: list[Block] = []
    for shift in matched_shifts:
        blocks += draw(task, shift, examples[examples["shift"] == shift])
    if "none" in matched_shifts:
        blocks += _joint_samples(task, examples[examples["shift"] == "none"])
    if mismatched_shifts and not pixel_count(examples):
        blocks += _mismatch_figures(task, mismatched_shifts, examples)
    return Section(f"{task.id}-examples", "Examples", tuple(blocks)) if blocks else None


def _bands(task: Slice, shift: str, examples: pd.DataFrame) -> list[Block]:
    """Figures of the predictions of the best backbones on every episode, and of all contestants on the first
    episode."""
    if examples["x2"].notna().any():
        return []  # inputs with two dimensions that are not images
    candidates, oracle = all_contestants(task, examples), _oracle(task, examples)
    best = [*main_contestants(task, candidates)] or candidates[:4]
    episodes = sorted(examples["episode"].unique())
    blocks: list[Block] = []
    if best:
        panels = {
            f"episode {e + 1}: {drawn.title}": (examples[examples["episode"] == e], drawn)
            for e in episodes
            for drawn in best
        }
        blocks.append(
            bands.figure(
                f"{task.id}-{slug('examples', shift)}",
                f"{task.task}: predictions ({shift_title(shift)})",
                f"Predictions of {_description(task, best)} on the first episodes, one per row.",
                panels,
                oracle,
                task.looks,
                len(best),
            )
        )
    # Each contestant is shown once, with its largest number of related datasets.
    contestants = list({drawn.contestant: drawn for drawn in candidates if drawn.contestant != oracle}.values())
    if shift == "none" and {drawn.contestant for drawn in contestants} > {drawn.contestant for drawn in best}:
        first_episode = examples[examples["episode"] == episodes[0]]
        blocks.append(
            bands.figure(
                f"{task.id}-examples-all",
                f"{task.task}: predictions on the first episode",
                "Predictions of all models and baselines on the first episode, best first.",
                {drawn.title: (first_episode, drawn) for drawn in contestants},
                oracle,
                task.looks,
                4,
            )
        )
    return blocks


def _description(task: Slice, best: Sequence[DrawnContestant]) -> str:
    """The contestants of a figure in words, in the order of `main_contestants`."""
    backbones = [drawn for drawn in best if task.kinds.get(drawn.contestant) == "backbone"]
    n_without_related = sum(not drawn.uses_related for drawn in backbones)
    groups: list[str] = []
    if n_without_related:
        groups.append(f"the best model{'s' if n_without_related > 1 else ''} without related datasets")
    groups += ["the best model with related datasets"] if n_without_related < len(backbones) else []
    return " and ".join(groups) or "the best baselines"


def _joint_samples(task: Slice, examples: pd.DataFrame) -> list[Block]:
    """A figure of joint samples of all contestants for the first episode, the oracle first."""
    rows = examples[examples["role"].isin(["drawn", "context"]) & examples["episode"].eq(0)]
    with_samples = set(rows.loc[rows["role"] == "drawn", "contestant"])
    names = list(
        dict.fromkeys(drawn.contestant for drawn in all_contestants(task, examples) if drawn.contestant in with_samples)
    )
    if not names:
        return []
    names.sort(key=lambda name: task.kinds.get(name) != "oracle")
    n_samples = int(rows["set"].max()) + 1
    figure = draws.figure(
        f"{task.id}-examples-drawn",
        f"{task.task}: {n_samples} samples of the joint prediction",
        "Joint samples of all outputs, with observation noise, for the first episode without related datasets. "
        "Black dots: context points.",
        rows,
        names,
        task.looks,
    )
    return [figure]


def _mismatch_figures(task: Slice, names: Sequence[str], examples: pd.DataFrame) -> list[Block]:
    """A figure of the predictions of the best backbone that uses related datasets: without related datasets, and with
    related datasets from each process."""
    rows = examples[examples["shift"].isin(names)]
    with_related = [
        drawn
        for drawn in all_contestants(task, rows)
        if drawn.uses_related and task.kinds.get(drawn.contestant) == "backbone"
    ]
    if not with_related:
        return []
    best = [drawn for drawn in with_related if drawn.contestant == with_related[0].contestant]
    fewest, most = best[0], best[-1]
    process = task.related_processes
    near_to_far = sorted(names, key=lambda shift: (*_NEAR_TO_FAR, process[shift]).index(process[shift]))
    scenarios = {"no related datasets": (near_to_far[0], fewest)}
    scenarios |= {f"related: {process[shift]}": (shift, most) for shift in near_to_far}
    panels = {
        f"episode {e + 1}: {title}": (rows[(rows["shift"] == shift) & (rows["episode"] == e)], drawn)
        for e in sorted(rows["episode"].unique())
        for title, (shift, drawn) in scenarios.items()
    }
    figure = bands.figure(
        f"{task.id}-examples-mismatch",
        f"{task.task}: mismatched related datasets",
        f"Predictions of {most.contestant} with {most.n_related} related datasets from the process of the "
        "context or from another process, one episode per row.",
        panels,
        _oracle(task, rows),
        task.looks,
        len(scenarios),
    )
    return [figure]


def _images(task: Slice, shift: str, examples: pd.DataFrame) -> list[Block]:
    """A gallery of the images of every episode, completed by all contestants."""
    candidates = all_contestants(task, examples)
    backbones = [drawn for drawn in candidates if task.kinds.get(drawn.contestant) == "backbone"]
    others = [drawn for drawn in candidates if drawn not in backbones]
    numbers = sorted(int(e) for e in examples["episode"].unique())
    episodes = {f"episode {e + 1}": examples[examples["episode"] == e] for e in numbers}
    gallery = images.gallery(
        f"{task.id}-{slug('examples', shift)}",
        f"{task.task}: completed images ({shift_title(shift)})",
        f"Images of the first episodes ({shift_title(shift)}), completed by all models and baselines, best first.",
        episodes,
        [*backbones, *others],
    )
    return [gallery]


def _oracle(task: Slice, examples: pd.DataFrame) -> str | None:
    """The best oracle among the examples."""
    return next(
        (drawn.contestant for drawn in all_contestants(task, examples) if task.kinds.get(drawn.contestant) == "oracle"),
        None,
    )
