"""Distances of a model from known solutions of a task. They show which solution the model has found.

On Markov chains, models first predict equal probabilities, then the frequencies of the symbols, and then the
frequencies of the symbols after the last symbol (Edelman et al. 2024, arXiv 2402.11004). The distance is the
Kullback-Leibler divergence KL(solution || model) between the two predictive distributions of the next element, in nats,
averaged over the scored positions of an episode. For predictions of numbers, the distance is the squared distance
between the two predicted means, divided by the normaliser of the task (Raventós et al. 2023, arXiv 2306.15063, figure
2). Both distances are 0 if the model makes the same predictions as the solution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.core.metrics import DISTANCE_TO, KL_TO
from iclbench.core.predictions import Categorical, Prediction
from iclbench.core.predictor import Predictor
from iclbench.evaluation import cells
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.contestants import PredictorContestant, baselines
from iclbench.evaluation.curves import answered_blocks
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.base import KnownSolutions
from iclbench.tables.evaluators import SOLUTIONS


class Solutions:
    """The predictions of known solutions (baselines or oracles) on a prompt set, computed once.

    Args:
        prompts: the prompt set.
        names: names of the baselines and oracles.

    Raises:
        UsageError: the task consists of events. Distances are defined only for predictions of tokens and numbers.
    """

    def __init__(self, prompts: PromptSet, names: Sequence[str]) -> None:
        self._prompts = prompts
        self._answers = {
            contestant.name: _answers(contestant.predictor, prompts) for contestant in baselines(prompts, names)
        }

    @property
    def metric_prefix(self) -> str:
        """The prefix of the name of the metric, which ends with the name of the solution."""
        return KL_TO if self._prompts.task.head == "categorical" else DISTANCE_TO

    def distances(self, model: Predictor, device: str = "cpu") -> dict[str, Float[np.ndarray, " episodes"]]:
        """Return the mean distance of a model from each solution per episode; NaN if no position is scored.

        Args:
            model: a model on `device`.
            device: device of the computation.
        """
        answers, scored = _answers(model, self._prompts, device), self._prompts.episodes.scored
        if self._prompts.task.head == "categorical":
            by_position = {name: (p.exp() * (p - answers)).sum(-1) for name, p in self._answers.items()}
        else:
            normaliser = self._prompts.family.normaliser
            by_position = {name: (y - answers).square().sum(-1) / normaliser for name, y in self._answers.items()}
        return {
            name: (values.masked_fill(~scored, 0).sum(1) / scored.sum(1)).numpy()
            for name, values in by_position.items()
        }


def distance_rows(contestant: PredictorContestant, prompts: PromptSet, known: KnownSolutions) -> cells.Rows:
    """Return rows of the table `values` with the mean distance of a contestant from each known solution."""
    solutions = Solutions(prompts, known.names)
    shared = cells.shared_columns(contestant, prompts, SOLUTIONS) | {
        "axis": known.axis,
        "axis_value": known.value,
        "normaliser": prompts.family.normaliser,
    }
    rows: cells.Rows = []
    for name, values in solutions.distances(contestant.predictor, contestant.device).items():
        (summary,) = summaries(values[:, None], prompts.seed)
        rows.append(shared | summary | {"metric": f"{solutions.metric_prefix}{name}"})
    return rows


def _answers(predictor: Predictor, prompts: PromptSet, device: str = "cpu") -> Float[Tensor, "B N K"]:
    """Return the log-probabilities of all tokens, or the predicted means, at each position, on the CPU."""
    blocks = answered_blocks(predictor, prompts.episodes, device=device)
    return torch.cat([_values(answer, prompts).double().cpu() for _, answer in blocks])


def _values(answer: Prediction, prompts: PromptSet) -> Float[Tensor, "B N K"]:
    if isinstance(answer, Categorical):
        return answer.logits.double().log_softmax(-1)
    if prompts.task.head == "event":
        raise UsageError(
            "distances from solutions are defined only for tasks with numbers or tokens; remove the solutions from the "
            "task",
            code="not-applicable",
        )
    return answer.point()
