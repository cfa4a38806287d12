"""Distances of a model from known solutions of a task during training, which show what solution it has found.

On Markov chains, models first predict equal probabilities, then the frequencies of the symbols, and then the
frequencies of the symbols after the last symbol (Edelman et al. 2024, arXiv 2402.11004). The distance is the
Kullback-Leibler divergence KL(solution || model) between the two predictive distributions of the next element, in nats,
averaged over the scored positions of an episode. It is 0 if the predictions of the model are those of the solution.
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
    """The predictions of known solutions (baselines or oracles) on a prompt set, computed once.

    Args:
        prompts: the prompt set.
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
        """Return the mean distance of a model from each solution per episode; NaN if no position is scored.

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
    """Return the log-probabilities of all tokens at each position, on the CPU."""
    blocks = []
    for _, answer in answered_blocks(predictor, prompts.episodes, device=device):
        if not isinstance(answer, Categorical):
            raise UsageError("solutions are compared on streams of tokens only; remove them", code="not-applicable")
        blocks.append(answer.logits.double().log_softmax(-1).cpu())
    return torch.cat(blocks)
