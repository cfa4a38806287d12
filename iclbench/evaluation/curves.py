"""Learning curves: the score of every episode at every context size, and what is summed up from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scoring import scores_of
from iclbench.predictor import Predictor

# Query positions per forward pass, over all its episodes: bounds memory, and is a function of the sizes alone so that
# results do not depend on the machine. A single episode may be longer; what that needs is the predictor's own business
# (sequence models walk through it in segments).
_POSITIONS = 64 * 41


@dataclass(frozen=True)
class Curve:
    """Scores of one contestant on one prompt set.

    Attributes:
        prefixes: context sizes, ascending.
        scores: per metric `(episodes, prefixes)`, divided by the normaliser where it is an error; NaN where not scored.
        normaliser: what squared errors were divided by.
    """

    prefixes: tuple[int, ...]
    scores: dict[str, np.ndarray]
    normaliser: float

    def area(self, metric: str) -> np.ndarray:
        """Area under each episode's curve over its scored context sizes, per unit of context: the mean height,
        `(episodes,)`."""
        values = self.scores[metric]
        keep = np.isfinite(values).all(0)
        if keep.sum() < 2:
            return values[:, keep].mean(1) if keep.any() else np.full(len(values), np.nan)
        n = np.asarray(self.prefixes, dtype=np.float64)[keep]
        return np.trapezoid(values[:, keep], n, axis=1) / (n[-1] - n[0])


def learning_curve(
    predictor: Predictor, prompts: PromptSet, prefixes: Sequence[int] | None = None, device: str = "cpu"
) -> Curve:
    """Score a predictor on a prompt set by the question `next`.

    Args:
        predictor: anything that fulfils the contract; backbones must already be on `device`.
        prompts: the frozen episodes.
        prefixes: context sizes to ask; None: all.
        device: where the episodes are sent.
    """
    episodes = prompts.episodes
    positions = episodes.context.count
    asked = tuple(range(positions)) if prefixes is None else tuple(prefixes)
    chunk = max(1, _POSITIONS // positions)
    normaliser = prompts.family.normaliser
    parts: dict[str, list[np.ndarray]] = {}
    for start in range(0, len(episodes), chunk):
        block = episodes[start : start + chunk].to(device)
        informed = predictor.informed(block.truth)
        with torch.inference_mode():
            prediction = informed.ask(block.without_truth(), "next", None if prefixes is None else asked)
        y, scored = block.asked.y[:, list(asked)], block.scored[:, list(asked)]
        for metric, values in scores_of(prediction, y, block.choices).items():
            values = values.double().masked_fill(~scored, torch.nan)
            scale = normaliser if metric == "squared_error" else 1.0
            parts.setdefault(metric, []).append((values / scale).cpu().numpy())
    return Curve(asked, {metric: np.concatenate(blocks) for metric, blocks in parts.items()}, normaliser)
