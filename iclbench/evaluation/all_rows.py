"""Baselines fitted on all columns of a user's table and on all of its rows except the targets.

All other contestants predict the targets of a split from its context rows only. A comparison with these baselines shows
how much the remaining rows and columns help.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import Predictor
from iclbench.core.records import cat
from iclbench.core.standard import Standardisation
from iclbench.evaluation.contestants import PredictorContestant, baselines
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.tabular.real_tables import LIMIT
from iclbench.families.tabular.user_table import UserTable
from iclbench.store.identity import all_rows_id

SUFFIX = "-all-rows"
# Only baselines whose cost grows slowly with the number of rows are also fitted on all rows.
FITTED_ON_ALL_ROWS = (
    *("ridge-cv", "forest", "xgboost-default"),
    *("logistic-regression", "forest-classifier", "xgboost-classifier"),
)


class AllRows(Predictor):
    """A baseline whose context consists of all rows of a table except the targets.

    Args:
        baseline: the baseline.
        family: the family of the user's table.
        points: number of context rows of a split; these rows determine the units of the outputs.
    """

    def __init__(self, baseline: Predictor, family: UserTable, points: int) -> None:
        self._baseline, self._family, self._points = baseline, family, points
        self._rows: Tensor | None = None

    def informed(self, truth: dict[str, Tensor]) -> AllRows:
        informed_copy = copy(self)
        informed_copy._rows = truth["rows"]
        return informed_copy

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> Prediction:
        assert self._rows is not None
        return cat([self._predict(rows, x_target) for rows in self._rows.cpu().numpy()])

    def _predict(self, rows: np.ndarray, x_target: Float[Tensor, "B Q Dx"]) -> Prediction:
        """Return the predictions for one split, padded to the number of targets in `x_target`."""
        table = self._family.table
        split_context, padded_targets = rows[: self._points], rows[self._points :]
        target_rows = padded_targets[padded_targets >= 0]
        context_rows = np.setdiff1d(np.arange(table.rows), target_rows)
        x, queries = table.encode(context_rows, target_rows)
        standard = Standardisation.of(x)
        x, queries = (standard.apply(values).clip(-LIMIT, LIMIT) for values in (x, queries))
        y = torch.from_numpy(np.asarray(self._family.outputs(split_context, context_rows)))
        labels = y.long() if self._family.classes is not None else y.float().unsqueeze(-1)
        queries = np.pad(queries, [(0, x_target.shape[1] - len(queries)), (0, 0)])
        features, query = (torch.from_numpy(values).float().unsqueeze(0) for values in (x, queries))
        return self._baseline.predict_targets(Points.full(features, labels.unsqueeze(0)), query)


def all_rows_baselines(prompts: PromptSet, names: Sequence[str]) -> list[PredictorContestant]:
    """Return a contestant fitted on all rows for each of the named baselines in `FITTED_ON_ALL_ROWS`."""
    family = prompts.family
    assert isinstance(family, UserTable)
    selected = [name for name in names if name in FITTED_ON_ALL_ROWS]
    return [
        replace(
            contestant,
            name=contestant.name + SUFFIX,
            run=contestant.run + SUFFIX,
            model_name=f"{contestant.model_name}{SUFFIX}",
            identity=all_rows_id(contestant.identity),
            predictor=AllRows(contestant.predictor, family, prompts.context_points),
        )
        for contestant in baselines(prompts, selected)
    ]
