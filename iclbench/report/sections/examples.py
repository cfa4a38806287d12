"""Predictions of a few episodes: bands over one input, or completed images."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from iclbench.analysis.target_scores import shifts
from iclbench.core.formats import slug
from iclbench.report.blocks import Block, Section
from iclbench.report.data import Slice
from iclbench.report.drawn_episodes import DrawnContestant, all_contestants, main_contestants, one_run, pixels
from iclbench.report.figures import bands, draws, images
from iclbench.report.titles import shift_title

# Processes that related datasets of the same episodes come from (ICICL-TNP, appendix G.1.1).
_NEAR_TO_FAR = ("same", "near", "rbf", "far")


def section(task: Slice) -> Section | None:
    examples = one_run(task.examples)
    # Predictions alone, of an evaluation that was stopped, are not drawn: the episodes themselves are not there.
    there = set(examples.loc[examples["role"] == "context", "shift"])
    names = [s for s in shifts(examples[examples["role"] == "predicted"]) if s in there]
    names = [s for s in names if s not in task.extrapolations]
    mismatched = [s for s in names if s in task.related_from]
    plain = [s for s in names if s not in mismatched]
    draw = _images if pixels(examples) else _bands
    blocks: list[Block] = []
    for shift in plain:
        blocks += draw(task, shift, examples[examples["shift"] == shift])
    if "none" in plain:
        blocks += _draws(task, examples[examples["shift"] == "none"])
    if mismatched and not pixels(examples):
        blocks += _mismatched(task, mismatched, examples)
    return Section(f"{task.id}-examples", "Examples", tuple(blocks)) if blocks else None


def _bands(task: Slice, shift: str, examples: pd.DataFrame) -> list[Block]:
    """The best backbones on every episode, and all contestants on the first."""
    if examples["x2"].notna().any():
        return []  # inputs of two dimensions that are no images
    shown, oracle = all_contestants(task, examples), _oracle(task, examples)
    best = [*main_contestants(task, shown)] or shown[:4]
    episodes = sorted(examples["episode"].unique())
    blocks: list[Block] = []
    if best:
        panels = {
            f"episode {e + 1}: {one.title}": (examples[examples["episode"] == e], one) for e in episodes for one in best
        }
        blocks.append(
            bands.figure(
                f"{task.id}-{slug('examples', shift)}",
                f"{task.task}: predictions ({shift_title(shift)})",
                f"Predictions of {_in_words(task, best)} on the first episodes, one per row.",
                panels,
                oracle,
                task.looks,
                len(best),
            )
        )
    last = list({one.contestant: one for one in shown if one.contestant != oracle}.values())
    if shift == "none" and {one.contestant for one in last} > {one.contestant for one in best}:
        first = examples[examples["episode"] == episodes[0]]
        blocks.append(
            bands.figure(
                f"{task.id}-examples-everyone",
                f"{task.task}: predictions of the first episode",
                "Predictions of all models and baselines on the first episode, best first.",
                {one.title: (first, one) for one in last},
                oracle,
                task.looks,
                4,
            )
        )
    return blocks


def _in_words(task: Slice, best: Sequence[DrawnContestant]) -> str:
    """The contestants that are drawn, in the order of `main_contestants`."""
    backbones = [one for one in best if task.kinds.get(one.contestant) == "backbone"]
    alone = [one for one in backbones if not one.uses_related]
    said = [f"the best model{'s' if len(alone) > 1 else ''} without related datasets"] if alone else []
    said += ["the best model with related datasets"] if len(alone) < len(backbones) else []
    return " and ".join(said) or "the best baselines"


def _draws(task: Slice, examples: pd.DataFrame) -> list[Block]:
    """Joint samples of all contestants for the first episode, the oracle first."""
    drawn = examples[examples["role"].isin(["drawn", "context"]) & examples["episode"].eq(0)]
    who = set(drawn.loc[drawn["role"] == "drawn", "contestant"])
    order = list(dict.fromkeys(one.contestant for one in all_contestants(task, examples) if one.contestant in who))
    if not order:
        return []
    order.sort(key=lambda name: task.kinds.get(name) != "oracle")
    count = int(drawn["set"].max()) + 1
    figure = draws.figure(
        f"{task.id}-examples-drawn",
        f"{task.task}: {count} samples of the joint prediction",
        "Samples of all outputs together, with observation noise, for the first episode without related datasets. "
        "Black dots: context points.",
        drawn,
        order,
        task.looks,
    )
    return [figure]


def _mismatched(task: Slice, names: Sequence[str], examples: pd.DataFrame) -> list[Block]:
    """The best backbone that uses related datasets: without any, then with those of each kind."""
    own = examples[examples["shift"].isin(names)]
    users = [
        one for one in all_contestants(task, own) if one.uses_related and task.kinds.get(one.contestant) == "backbone"
    ]
    if not users:
        return []
    who = [one for one in users if one.contestant == users[0].contestant]
    process = task.related_from
    ends = sorted(names, key=lambda shift: (*_NEAR_TO_FAR, process[shift]).index(process[shift]))
    scenarios = {"no related datasets": (ends[0], who[0])}
    scenarios |= {f"related: {process[end]}": (end, who[-1]) for end in ends}
    panels = {
        f"episode {e + 1}: {title}": (own[(own["shift"] == shift) & (own["episode"] == e)], one)
        for e in sorted(own["episode"].unique())
        for title, (shift, one) in scenarios.items()
    }
    figure = bands.figure(
        f"{task.id}-examples-mismatch",
        f"{task.task}: mismatched related datasets",
        f"Predictions of {who[-1].contestant} with {who[-1].n_related} related datasets from the process of the "
        "context or from another one, an episode per row.",
        panels,
        _oracle(task, own),
        task.looks,
        len(scenarios),
    )
    return [figure]


def _images(task: Slice, shift: str, examples: pd.DataFrame) -> list[Block]:
    """All contestants on every episode."""
    shown = all_contestants(task, examples)
    backbones = [one for one in shown if task.kinds.get(one.contestant) == "backbone"]
    others = [one for one in shown if one not in backbones]
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
        (one.contestant for one in all_contestants(task, examples) if task.kinds.get(one.contestant) == "oracle"), None
    )
