"""Evaluation while training: the family's own tests, every so many steps, on the episodes that `iclbench eval` asks.

What a model does in its context can come and go while the loss only falls (Chan et al. 2022, figure 7; transience), so
that the last step alone says little. Nothing of training is disturbed: the model is in eval mode, no random stream of
training is touched, and the weights are the same bit for bit with and without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iclbench.backbones.base import Backbone
from iclbench.config.runs import Run
from iclbench.core.errors import NonFiniteError
from iclbench.core.seeds import global_stream
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scoring import target_scores
from iclbench.families.base import Family

# As many as tell 0.7 from 0.5 with ease: the standard error of an accuracy is 0.03 at most.
EPISODES = 256

Rows = list[dict[str, Any]]


class Monitor:
    """Scores a model by the tests that the run's training is to be watched by.

    Args:
        run: its configuration names the tests, and how often.
        family: the family that is trained on.
        device: where the model is.
        data_dir: where families find their data sets.
    """

    def __init__(self, run: Run, family: Family, device: str = "cpu", data_dir: Path | None = None) -> None:
        config = run.config
        self.every, self.steps, self.device = config.train.evaluate_every, config.train.steps, device
        asked = (config.train.evaluators or config.task.evaluators) if self.every else ()
        self.names = config.task.tests(family, asked)
        self._held_out = family.held_out() if self.names else family
        self._task, self._preset, self._data_dir = config.task, config.preset, data_dir

    def due(self, step: int) -> bool:
        """Whether the model is to be scored after so many steps."""
        return bool(self.names) and (step % self.every == 0 or step == self.steps)

    def score(self, backbone: Backbone, step: int) -> Rows:
        """Rows of the table `values`: those of its columns that differ between them.

        Raises:
            NonFiniteError: a score is NaN or infinite.
        """
        rows: Rows = []
        backbone.eval()
        with global_stream(0, "monitor"):
            for name in self.names:
                rows += self._score(backbone, name, step)
        backbone.train()
        return rows

    def _score(self, backbone: Backbone, name: str, step: int) -> Rows:
        whole = self._prompts(name, self._task.episodes)
        first = self._prompts(name, min(EPISODES, self._task.episodes))  # a larger prompt set begins with the smaller
        found = target_scores(backbone, first, self.device)
        if found.problem is not None:
            raise NonFiniteError(found.problem)
        return [
            {
                "evaluator": name,
                "axis": "train_step",
                "axis_value": float(step),
                "n_related": n,
                "metric": metric,
                "prompt_set": whole.id,
                **summary,
            }
            for metric, scores in found.scores.items()
            for n, summary in zip(found.n_related, summaries(scores, first.seed), strict=True)
        ]

    def _prompts(self, name: str, episodes: int) -> PromptSet:
        task = self._task.model_copy(update={"episodes": episodes})
        return PromptSet(task, self._preset, data_dir=self._data_dir, given=self._held_out, evaluator=name)


def accuracies(rows: Rows) -> dict[str, float]:
    """The accuracy by test of one time that the model was scored, of all rows the last."""
    return {row["evaluator"]: row["value"] for row in rows if row["metric"] == "accuracy_within_choices"}
