"""Evaluation while training: the family's own tests, every so many steps, on the episodes that `iclbench eval` asks.

What a model does in its context can come and go while the loss only falls (Chan et al. 2022, figure 7; transience), so
that the last step alone says little. Nothing of training is disturbed: the model is in eval mode, no random stream of
training is touched, and the weights are the same bit for bit with and without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iclbench.backbones.base import Backbone
from iclbench.config.resolution import RunConfig
from iclbench.core.errors import NonFiniteError
from iclbench.core.seeds import global_stream
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scoring import target_scores
from iclbench.families.base import Family
from iclbench.training.fit import Training

# As many as tell 0.7 from 0.5 with ease: the standard error of an accuracy is 0.03 at most.
EPISODES = 256

Rows = list[dict[str, Any]]


class Monitor:
    """A callback of training that scores the model by the tests which a run is to be watched by.

    Args:
        config: names the tests, and how often.
        family: the family that is trained on.
        watch: called with the accuracy by test whenever the model was scored.
    """

    def __init__(
        self, config: RunConfig, family: Family, watch: Callable[[dict[str, float]], object] | None = None
    ) -> None:
        self._every = config.train.evaluate_every
        evaluators = (config.train.evaluators or config.task.evaluators) if self._every else ()
        self._names = config.task.tests(family, evaluators)
        self._held_out = family.held_out() if self._names else family
        self._task, self._preset, self._watch = config.task, config.preset, watch

    def __call__(self, training: Training) -> None:
        """Add what is found to the progress.

        Raises:
            TrainingDivergedError: a score is NaN or infinite.
        """
        if not self._names or not training.is_due(self._every):
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
        """Rows of the table `values`: those of its columns that differ between them.

        Raises:
            NonFiniteError: a score is NaN or infinite.
        """
        with global_stream(0, "monitor"):
            return [row for name in self._names for row in self._score(backbone, name, step, device)]

    def _score(self, backbone: Backbone, name: str, step: int, device: str) -> Rows:
        all_prompts = self._prompts(name, self._task.episodes)
        first_prompts = self._prompts(
            name, min(EPISODES, self._task.episodes)
        )  # a larger prompt set begins with the smaller
        result_scores = target_scores(backbone, first_prompts, device)
        if result_scores.problem is not None:
            raise NonFiniteError(result_scores.problem)
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
            for metric, scores in result_scores.scores.items()
            for n, summary in zip(result_scores.n_related, summaries(scores, first_prompts.seed), strict=True)
        ]

    def _prompts(self, name: str, episodes: int) -> PromptSet:
        task = self._task.model_copy(update={"episodes": episodes})
        return PromptSet(task, self._preset, given=self._held_out, evaluator=name)


def accuracies(rows: Rows) -> dict[str, float]:
    """The accuracy by test of one time that the model was scored, of all rows the last."""
    return {row["evaluator"]: row["value"] for row in rows if row["metric"] == "accuracy_within_choices"}
