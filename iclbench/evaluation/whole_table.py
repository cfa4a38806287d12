"""What a table holds beyond an episode's few rows: XGBoost, fitted as one fits it, on all rows but the targets.

Contestants see the n rows before a target, so XGBoost among them is judged by a handful of rows. Here it has nine
tenths of the table and all features, and predicts the last tenth: no row is predicted by a fit that has seen it.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from iclbench.config.cards import load_baseline
from iclbench.core.settings import validate
from iclbench.core.standard import Standard
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.curves import Curve
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.tabular.table_file import Table
from iclbench.families.tabular.tabular import Tabular
from iclbench.registry import ESTIMATORS

FOLDS = 10
# What was predicted for a table, by seed: several runs may be evaluated on one.
_PREDICTED: WeakKeyDictionary[Table, dict[int, np.ndarray]] = WeakKeyDictionary()


def remarks(prompts: PromptSet) -> list[str]:
    """What must be known to read scores on real tables, and XGBoost fitted on all rows beside them; nothing for other
    families, and for shifts."""
    family = prompts.family
    if not isinstance(family, Tabular) or prompts.shift != "none":
        return []
    result = all_rows_but_the_targets(prompts)
    half = (float(str(result["high"])) - float(str(result["low"]))) / 2
    spread = f" ±{half:.3f}" if np.isfinite(half) else ""  # none of a single episode
    return [
        *family.remarks(prompts.context_points),
        f"beside it, XGBoost (the same settings) fitted on nine tenths of all rows, those predicted never among them, "
        f"with all features: area {float(str(result['value'])):.3f}{spread}",
    ]


def all_rows_but_the_targets(prompts: PromptSet) -> dict[str, object]:
    """Mean, interval and number of episodes of the squared error, as `area` has them, of XGBoost fitted on the whole
    table but for the tenth of it that it predicts."""
    family, episodes = prompts.family, prompts.episodes
    assert isinstance(family, Tabular)
    table_index, rows = (episodes.truth[name].numpy() for name in ("table", "rows"))
    predicted = np.zeros(rows.shape)
    for index, table in enumerate(family.tables):
        is_table = table_index == index
        predicted[is_table] = out_of_fold(table, prompts.seed)[rows[is_table]]
    errors = (
        family.in_episodes(predicted, table_index, rows) - episodes.context.y[..., 0].numpy()
    ) ** 2 / family.normaliser
    scored = episodes.scored.numpy()
    curve = Curve(tuple(range(rows.shape[1])), {"squared_error": errors}, family.normaliser, scored)
    return summaries(curve.area("squared_error")[:, None], prompts.seed)[0]


def out_of_fold(table: Table, seed: int = 0) -> np.ndarray:
    """Every row's target as predicted by XGBoost fitted on the rows of all other folds, in the units of the file,
    `(rows,)`. Fitted once per table and seed."""
    by_seed = _PREDICTED.setdefault(table, {})
    if seed not in by_seed:
        by_seed[seed] = _fitted(table, seed)
    return by_seed[seed]


def _fitted(table: Table, seed: int) -> np.ndarray:
    _, card = load_baseline("xgboost")
    cls = ESTIMATORS.get(card.estimator)
    estimator = cls(validate(cls.Settings, card.settings, "baseline 'xgboost'"))
    fold = np.random.default_rng(seed).permutation(table.rows) % min(FOLDS, table.rows)
    predicted = np.zeros(table.rows)
    # XGBoost computes in single precision, which huge and tiny units would overflow or vanish in.
    standard = Standard.of(table.y[:, None])
    x, y = Standard.of(table.x).apply(table.x), standard.apply(table.y[:, None])[:, 0]
    for held_out in np.unique(fold):
        fitted = estimator.model().fit(x[fold != held_out], y[fold != held_out])
        predicted[fold == held_out] = fitted.predict(x[fold == held_out])
    restored: np.ndarray = standard.undo(predicted[:, None])[:, 0]
    return restored
