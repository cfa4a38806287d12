"""Evaluation during training: the family's own tests, and distances from known solutions of the task.

The episodes are the same as in `iclbench eval`.

In-context learning can emerge and disappear while the loss keeps falling (transience; Chan et al. 2022, figure 7), so
evaluating only the last step is not enough. The evaluation does not affect training: the model is in eval mode, the
random streams of training are not used, and the weights are bitwise identical with and without the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from iclbench.backbones.base import Backbone
from iclbench.config.resolution import RunConfig
from iclbench.core.errors import NonFiniteError
from iclbench.core.predictor import eval_mode
from iclbench.core.seeds import global_stream
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scoring import target_scores
from iclbench.evaluation.solutions import Solutions
from iclbench.families.base import Family
from iclbench.tables.evaluators import SOLUTIONS
from iclbench.training.fit import Training

# The standard error of an accuracy over this many episodes is at most 1/32, so 0.7 is significantly above 0.5.
EPISODES = 256

Rows = list[dict[str, Any]]


class Monitor:
    """A training callback that evaluates the model on the family's own tests and measures its distances from the
    solutions in the task card.

    Args:
        config: configuration of the run, with the tests, the solutions and the interval between evaluations.
        family: the family of the training data.
        watch: called after each evaluation with the accuracy on each test.
    """

    def __init__(
        self, config: RunConfig, family: Family, watch: Callable[[dict[str, float]], object] | None = None
    ) -> None:
        self._every = config.train.evaluate_every
        evaluators = (config.train.evaluators or config.task.evaluators) if self._every else ()
        self._names = config.task.evaluator_names(family, evaluators)
        self._has_solutions = bool(self._every and config.task.solutions)
        self._held_out = family.held_out() if self._names or self._has_solutions else family
        self._task, self._preset, self._watch = config.task, config.preset, watch

    def __call__(self, training: Training) -> None:
        """Evaluate the model if an evaluation is due, and add the resulting rows to the training progress.

        Raises:
            TrainingDivergedError: a score is NaN or infinite.
        """
        if not (self._names or self._has_solutions) or not training.is_due(self._every):
            return
        with training.paused():
            try:
                rows = self.score(training.backbone, training.progress.step, training.device)
            except NonFiniteError as error:
                raise training.diverged(str(error)) from error
            training.progress.scored += rows
            if self._watch is not None:
                self._watch(accuracies(rows))

    def score(self, backbone: Backbone, step: int, device: str = "cpu") -> Rows:
        """Evaluate the model and return rows of the table `values`, without the columns that are the same in all rows.

        Raises:
            NonFiniteError: a score is NaN or infinite.
        """
        with global_stream(0, "monitor"):
            rows = [row for name in self._names for row in self._score(backbone, name, step, device)]
            return rows + (self._distances(backbone, step, device) if self._has_solutions else [])

    def _score(self, backbone: Backbone, name: str, step: int, device: str) -> Rows:
        all_prompts = self._prompts(name, self._task.episodes)
        # The first episodes of a prompt set do not depend on its size, so the rows have the id of the complete set.
        first_prompts = self._prompts(name, min(EPISODES, self._task.episodes))
        result = target_scores(backbone, first_prompts, device)
        if result.failure is not None:
            raise NonFiniteError(result.failure)
        return [
            {
                "evaluator": name,
                "axis": "train_step",
                "axis_value": float(step),
                "n_related": n,
                "metric": metric,
                "prompt_set": all_prompts.id,
                **summary,
            }
            for metric, scores in result.scores.items()
            for n, summary in zip(result.n_related, summaries(scores, first_prompts.seed), strict=True)
        ]

    @cached_property
    def _solutions(self) -> Solutions:
        return Solutions(self._prompts("", min(EPISODES, self._task.episodes)), self._task.solutions)

    def _distances(self, backbone: Backbone, step: int, device: str) -> Rows:
        """Return rows with the distance of the model from each solution."""
        with eval_mode(backbone):
            distances = self._solutions.distances(backbone, device)
        prompts = self._prompts("", self._task.episodes)
        shared = {"evaluator": SOLUTIONS, "axis": "train_step", "axis_value": float(step), "n_related": 0}
        rows = []
        for name, values in distances.items():
            if not np.isfinite(values).all():
                raise NonFiniteError(f"the distance from {name} is not finite")
            (summary,) = summaries(values[:, None], prompts.seed)
            rows.append(
                {**shared, "metric": f"{self._solutions.metric_prefix}{name}", "prompt_set": prompts.id, **summary}
            )
        return rows

    def _prompts(self, name: str, episodes: int) -> PromptSet:
        task = self._task.model_copy(update={"episodes": episodes})
        return PromptSet(task, self._preset, built_family=self._held_out, evaluator=name)


def accuracies(rows: Rows) -> dict[str, float]:
    """Return the last accuracy on each test."""
    return {row["evaluator"]: row["value"] for row in rows if row["metric"] == "accuracy_within_choices"}
