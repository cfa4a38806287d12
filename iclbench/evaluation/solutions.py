"""Distances of a model from known solutions of a task during training: which of them has the model found?

On Markov chains, models first predict with equal probabilities, then with the frequencies of symbols, and then with
those after the last symbol (Edelman et al. 2024, arXiv 2402.11004). The distance is the Kullback-Leibler divergence of
the model's distribution of the next element from that of the solution, KL(solution || model), in nats, averaged over
the scored positions of an episode. It is 0 for a model that has found the solution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.core.predictions import Categorical
from iclbench.core.predictor import Predictor
from iclbench.evaluation.contestants import baselines
from iclbench.evaluation.curves import answered_blocks
from iclbench.evaluation.prompts import PromptSet


class Solutions:
    """The predictions of some baselines and oracles on a prompt set, which are computed once.

    Args:
        prompts: the episodes.
        names: names of the baselines and oracles.

    Raises:
        UsageError: the predictions are not distributions of tokens.
    """

    def __init__(self, prompts: PromptSet, names: Sequence[str]) -> None:
        self._prompts = prompts
        self._log_probabilities = {
            contestant.name: _log_probabilities(contestant.predictor, prompts)
            for contestant in baselines(prompts, names)
        }

    def distances(self, model: Predictor, device: str = "cpu") -> dict[str, Float[np.ndarray, " episodes"]]:
        """The mean distance of a model from each solution in every episode, NaN for episodes without scored positions.

        Args:
            model: a model on `device`.
            device: device of the computation.
        """
        model_log, scored = _log_probabilities(model, self._prompts, device), self._prompts.episodes.scored
        return {
            name: (
                (expected.exp() * (expected - model_log)).sum(-1).masked_fill(~scored, 0).sum(1) / scored.sum(1)
            ).numpy()
            for name, expected in self._log_probabilities.items()
        }


def _log_probabilities(predictor: Predictor, prompts: PromptSet, device: str = "cpu") -> Float[Tensor, "B N classes"]:
    """The log-probabilities of all tokens at every position, on the CPU."""
    blocks = []
    for _, answer in answered_blocks(predictor, prompts.episodes, device=device):
        if not isinstance(answer, Categorical):
            raise UsageError("solutions are compared on streams of tokens only; remove them", code="not-applicable")
        blocks.append(answer.logits.double().log_softmax(-1).cpu())
    return torch.cat(blocks)
