"""XGBoost fitted on nearly all rows of a table, as a reference for contestants that see only a few context rows.

Contestants, including the baseline `xgboost`, predict a target from the n rows before it. The reference is XGBoost in
ten-fold cross-validation: it is fitted on all features of nine tenths of the table and predicts the other tenth.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from iclbench.config.cards import load_baseline
from iclbench.core.settings import validate
from iclbench.core.standard import Standardisation
from iclbench.evaluation.all_rows import SUFFIX
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.curves import Curve
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.tabular.real_tables import RealTables
from iclbench.families.tabular.table_file import Table
from iclbench.families.tabular.tabular import Tabular
from iclbench.families.tabular.user_table import UserTable
from iclbench.registry import ESTIMATORS

FOLDS = 10
# Predictions by table and seed, cached because several runs may be evaluated on the same table.
_PREDICTIONS: WeakKeyDictionary[Table, dict[int, np.ndarray]] = WeakKeyDictionary()


def remarks(prompts: PromptSet) -> list[str]:
    """Return remarks for the interpretation of scores on real tables; empty for other families.

    For `Tabular` without a shift, they include the error of XGBoost fitted on nine tenths of the table.
    """
    family = prompts.family
    if isinstance(family, UserTable):
        return [
            *family.remarks(prompts.context_points, len(prompts.episodes)),
            f"methods with {SUFFIX} are fitted on all rows except the targets, with all columns; all others read the "
            "rows and columns of the model",
        ]
    if isinstance(family, RealTables):
        return family.remarks(prompts.context_points, len(prompts.episodes))
    if not isinstance(family, Tabular) or prompts.shift != "none":
        return []
    summary = full_table_error(prompts)
    half_width = (float(str(summary["high"])) - float(str(summary["low"]))) / 2
    spread = f" ±{half_width:.3f}" if np.isfinite(half_width) else ""  # a single episode has no interval
    return [
        *family.remarks(prompts.context_points),
        f"for comparison, area under the curve of XGBoost (same settings) fitted on the other nine tenths of all rows, "
        f"with all features: {float(str(summary['value'])):.3f}{spread}",
    ]


def full_table_error(prompts: PromptSet) -> dict[str, object]:
    """Return the metric `auc` of XGBoost fitted on nine tenths of the table, in the format of `summaries`."""
    family, episodes = prompts.family, prompts.episodes
    assert isinstance(family, Tabular)
    table_index, rows = (episodes.truth[name].numpy() for name in ("table", "rows"))
    predictions = np.zeros(rows.shape)
    for index, table in enumerate(family.tables):
        is_table = table_index == index
        predictions[is_table] = out_of_fold_predictions(table, prompts.seed)[rows[is_table]]
    errors = (
        family.to_labels(predictions, table_index, rows) - episodes.context.y[..., 0].numpy()
    ) ** 2 / family.normaliser
    scored = episodes.scored.numpy()
    curve = Curve(tuple(range(rows.shape[1])), {"squared_error": errors}, family.normaliser, scored)
    return summaries(curve.area("squared_error")[:, None], prompts.seed)[0]


def out_of_fold_predictions(table: Table, seed: int = 0) -> np.ndarray:
    """Return out-of-fold predictions of XGBoost for the targets of all rows, in the units of the file, `(rows,)`.

    Predictions are computed once per table and seed.
    """
    predictions_by_seed = _PREDICTIONS.setdefault(table, {})
    if seed not in predictions_by_seed:
        predictions_by_seed[seed] = _cross_validate(table, seed)
    return predictions_by_seed[seed]


def _cross_validate(table: Table, seed: int) -> np.ndarray:
    _, card = load_baseline("xgboost")
    cls = ESTIMATORS.get(card.estimator)
    estimator = cls(validate(cls.Settings, card.settings, "baseline 'xgboost'"))
    fold = np.random.default_rng(seed).permutation(table.rows) % min(FOLDS, table.rows)
    predictions = np.zeros(table.rows)
    # XGBoost computes in single precision, where very large values overflow and very small values underflow.
    standard = Standardisation.of(table.y[:, None])
    x, y = Standardisation.of(table.x).apply(table.x), standard.apply(table.y[:, None])[:, 0]
    for held_out in np.unique(fold):
        model = estimator.model().fit(x[fold != held_out], y[fold != held_out])
        predictions[fold == held_out] = model.predict(x[fold == held_out])
    in_file_units: np.ndarray = standard.undo(predictions[:, None])[:, 0]
    return in_file_units
