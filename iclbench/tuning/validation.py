"""The objective for choosing learning rates: the metric that ranks models on a family, on separate validation episodes.

The validation episodes of `tabular` differ from the episodes in its prompt sets, but consist of the same table rows,
because the family has no held-out rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import pandas as pd

from iclbench.analysis.evaluators import meaning
from iclbench.config.resolution import TaskConfig
from iclbench.core.errors import NonFiniteError
from iclbench.core.heads import HEADS
from iclbench.core.metrics import metric
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.base import Family
from iclbench.store import identity
from iclbench.tables.evaluators import MAIN_ACCURACY


@dataclass(frozen=True)
class ValidationSet(PromptSet):
    """Validation episodes.

    They are sampled like a prompt set, but from a separate random stream, and from separate validation data if the
    family has such data.
    """

    stream: ClassVar[str] = "validation"

    @cached_property
    def family(self) -> Family:
        return self.built_family or self.task.build(self.data_dir).validation()

    @cached_property
    def id(self) -> str:
        """The identifier of the episodes: a readable name with a content hash."""
        sizes = {"question": self.task.question, "points": self.context_points, "episodes": self.task.episodes}
        digest = identity.prompts_id(self, **sizes, stream=self.stream)
        return f"{self.task.name}-{self.preset}-{self.stream}-{self.evaluation}-{digest}"


@dataclass(frozen=True)
class Objective:
    """The quality of a training run as one number, in the metric of the task's score (`iclbench.evaluation.scores`).

    - Question `next`: the area under the learning curve of the normalised squared error, of the negative log-likelihood
      for events, or of the cross-entropy for tokens.
    - A family with its own tests: the mean accuracy over its main tests.
    - Question `targets` for other families: the log-likelihood if the head predicts distributions and the task has an
      oracle, otherwise the squared error or the accuracy, with all related datasets.

    Attributes:
        metric: name of the metric.
        sets: the validation episodes, with one set per test.
    """

    metric: str
    sets: tuple[ValidationSet, ...]

    @classmethod
    def of(cls, task: TaskConfig, preset: str, data_dir: Path | None = None) -> Objective:
        """Return the objective of a task, and read the data of the task.

        Raises:
            DataError: the data are missing.
        """
        family = task.build(data_dir).validation()
        tests = [name for name in task.evaluator_names(family, task.evaluators) if not meaning(name).finer]
        sets = tuple(ValidationSet(task, preset, built_family=family, evaluator=name) for name in tests or [""])
        area = metric(sets[0].headline).area if task.question == "next" else ""
        has_likelihood = bool(task.oracles) and "log_likelihood" in HEADS[task.head].metrics
        return cls(MAIN_ACCURACY if tests else area or ("log_likelihood" if has_likelihood else sets[0].headline), sets)

    @property
    def id(self) -> str:
        """The name of the validation episodes in the table `trials`."""
        if len(self.sets) == 1:
            return self.sets[0].id
        digest = identity.validation_id([validation_set.id for validation_set in self.sets])
        return f"{self.sets[0].task.name}-{self.sets[0].preset}-{ValidationSet.stream}-{digest}"

    @property
    def evaluators(self) -> str:
        """The names of the tests if there are any, otherwise the question."""
        return ", ".join(validation_set.question for validation_set in self.sets)

    @property
    def sign(self) -> int:
        """1 if lower is better, otherwise -1."""
        return 1 if metric(self.metric).lower_is_better else -1

    @property
    def description(self) -> str:
        """A description of the objective, for a table of learning rates."""
        tests = [meaning(validation_set.evaluator).title for validation_set in self.sets if validation_set.evaluator]
        mean = f"mean {metric(self.metric).label} of {', '.join(tests)}" if tests else metric(self.metric).label
        related = self.sets[0].family.related_sets if not tests and self.sets[0].task.question == "targets" else 0
        return mean + (" with all related datasets" if related else "") + " on validation episodes"

    def value(self, rows: Sequence[pd.DataFrame]) -> float:
        """Compute the objective from one contestant's rows of the table `values` on each set.

        Raises:
            NonFiniteError: a score could not be computed; the message is the `reason` in its row.
        """
        means = []
        for set_rows in rows:
            scores = set_rows[set_rows["metric"].eq(self.metric) & set_rows["axis"].isna()]
            scores = scores[scores["kind"].eq("backbone")]
            if (failures := set_rows[set_rows["status"].eq("failed")]).size:
                raise NonFiniteError(str(failures["reason"].iloc[0]))
            max_related = scores["n_related"].max()
            scores = scores if pd.isna(max_related) else scores[scores["n_related"].eq(max_related)]
            # If the metric has no area under the curve, this is a mean over context sizes.
            means.append(float(scores["value"].mean()))
        return sum(means) / len(means)
