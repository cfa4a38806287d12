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
from iclbench.core.predictions import Categorical, Prediction
from iclbench.core.predictor import Predictor
from iclbench.evaluation.contestants import baselines
from iclbench.evaluation.prompts import PromptSet

# The evaluator of the rows, and the beginning of the names of their metrics.
EVALUATOR, METRIC = "solutions", "kl_to_"
# Number of positions per forward pass, over all its episodes.
_POSITIONS = 64 * 41


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
            contestant.name: torch.cat(
                [_log_probabilities(answer) for answer in _answers(contestant.predictor, prompts)]
            )
            for contestant in baselines(prompts, names)
        }

    def distances(self, model: Predictor, device: str = "cpu") -> dict[str, Float[np.ndarray, " episodes"]]:
        """The mean distance of a model from each solution in every episode, NaN for episodes without scored positions.

        Args:
            model: a model on `device`.
            device: device of the computation.
        """
        answers = [_log_probabilities(answer).cpu() for answer in _answers(model, self._prompts, device)]
        model_log, scored = torch.cat(answers), self._prompts.episodes.scored
        return {
            name: (
                (expected.exp() * (expected - model_log)).sum(-1).masked_fill(~scored, 0).sum(1) / scored.sum(1)
            ).numpy()
            for name, expected in self._log_probabilities.items()
        }


def _answers(predictor: Predictor, prompts: PromptSet, device: str = "cpu") -> list[Prediction]:
    """The predictions of all positions, in blocks of episodes."""
    episodes = prompts.episodes
    size = max(1, _POSITIONS // episodes.context.count)
    answers = []
    for start in range(0, len(episodes), size):
        block = episodes[start : start + size].to(device)
        with torch.inference_mode():
            answers.append(predictor.informed(block.truth).ask(block.without_truth(), "next"))
    return answers


def _log_probabilities(answer: Prediction) -> Float[Tensor, "B N classes"]:
    if not isinstance(answer, Categorical):
        raise UsageError("solutions are compared on streams of tokens only; remove them", code="not-applicable")
    return answer.logits.double().log_softmax(-1)
