"""What learning rates are chosen by: episodes that no result is about, and the metric that a family is ranked by.

Of `tabular` the episodes are others than those of its prompts, the rows that they are made of are not: it keeps none
from training.
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
from iclbench.tables.evaluators import HEADLINE


@dataclass(frozen=True)
class ValidationSet(PromptSet):
    """Episodes to choose by: drawn like a prompt set, from a random stream and, where the family keeps such, from data
    of their own."""

    stream: ClassVar[str] = "validation"

    @cached_property
    def family(self) -> Family:
        return self.given or self.task.build(self.data_dir).validation()

    @cached_property
    def id(self) -> str:
        """Readable name and content hash."""
        sizes = {"question": self.task.question, "points": self.context_points, "episodes": self.task.episodes}
        digest = identity.prompts_id(self, **sizes, stream=self.stream)
        return f"{self.task.name}-{self.preset}-{self.stream}-{self.evaluation}-{digest}"


@dataclass(frozen=True)
class Objective:
    """How good a training is, in one number.

    - Question `next`: the area under the learning curve of the normalised squared error, of events of the negative
      log-likelihood.
    - A family with tests of its own: the mean accuracy over those that tables over several tasks show.
    - Question `targets` otherwise: the log-likelihood of a head that predicts distributions, else its squared error or
      accuracy, with all related datasets.

    Attributes:
        metric: what is measured.
        sets: the validation episodes, one set for every test.
    """

    metric: str
    sets: tuple[ValidationSet, ...]

    @classmethod
    def of(cls, task: TaskConfig, preset: str, data_dir: Path | None = None) -> Objective:
        """That of a task, whose data are read if it has any.

        Raises:
            DataError: they are not there.
        """
        family = task.build(data_dir).validation()
        tests = [name for name in task.tests(family, task.evaluators) if not meaning(name).finer]
        sets = tuple(ValidationSet(task, preset, given=family, evaluator=name) for name in tests or [""])
        area = metric(HEADS[task.head].headline).area if task.question == "next" else ""
        likelihood = "log_likelihood" if "log_likelihood" in HEADS[task.head].metrics else sets[0].headline
        return cls(HEADLINE if tests else area or likelihood, sets)

    @property
    def id(self) -> str:
        """The validation episodes, as the table `trials` names them."""
        if len(self.sets) == 1:
            return self.sets[0].id
        digest = identity.validation_id([each.id for each in self.sets])
        return f"{self.sets[0].task.name}-{self.sets[0].preset}-{ValidationSet.stream}-{digest}"

    @property
    def evaluators(self) -> str:
        """The question, or the tests."""
        return ", ".join(each.question for each in self.sets)

    @property
    def sign(self) -> int:
        """1 where less is better, else -1."""
        return 1 if metric(self.metric).lower_is_better else -1

    @property
    def words(self) -> str:
        """What is measured, for a table of rates."""
        tests = [meaning(each.evaluator).title for each in self.sets if each.evaluator]
        mean = f"mean {metric(self.metric).label} of {', '.join(tests)}" if tests else metric(self.metric).label
        related = self.sets[0].family.related_sets if not tests and self.sets[0].task.question == "targets" else 0
        return mean + (" with all related datasets" if related else "") + " on validation episodes"

    def value(self, rows: Sequence[pd.DataFrame]) -> float:
        """The number, from the rows of `values` of one contestant on each set.

        Raises:
            NonFiniteError: some scores failed, in the words of their row.
        """
        found = []
        for own in rows:
            asked = own[own["metric"].eq(self.metric) & own["axis"].isna() & own["kind"].eq("backbone")]
            if (failed := own[own["status"].eq("failed")]).size:
                raise NonFiniteError(str(failed["reason"].iloc[0]))
            most = asked["n_related"].max()
            asked = asked if pd.isna(most) else asked[asked["n_related"].eq(most)]
            found.append(float(asked["value"].mean()))  # of a metric without an area: over all context sizes
        return sum(found) / len(found)
