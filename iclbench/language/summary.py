"""Summaries over demonstration seeds: how much an accuracy depends on which demonstrations were drawn, and what a
method gains over plain ICL on the same questions.

A mean over several seeds has Student's interval of that mean: it speaks of other demonstrations for these questions.
That of a single seed has its own interval, which speaks of other questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from iclbench import tables
from iclbench.cards import content_hash
from iclbench.evaluation.bootstrap import LEVEL, summaries
from iclbench.evaluation.cells import cell_path
from iclbench.language.cards import PRESET
from iclbench.language.cell import shared_columns
from iclbench.language.contestants import Contestant
from iclbench.language.prompts import LanguagePrompts
from iclbench.runs import writing

# Metrics whose distribution over seeds is reported besides their mean.
_SPREAD = {"accuracy": "accuracy_sd"}


def write_summary(
    results: Path, contestant: Contestant, sets: Sequence[LanguagePrompts], plain: Contestant | None = None
) -> None:
    """One file with the means over prompt sets that differ in nothing but their demonstrations; it takes the place of
    summaries of other episodes. None where every cell failed.

    Args:
        results: results folder.
        contestant: whose cells they are.
        sets: the prompt sets, one for each demonstration seed.
        plain: plain ICL of the same model; None: no gain is reported.
    """
    first = sets[0]
    path = summary_path(results, contestant.run, first)
    for older in (results / "tables").glob(f"{_stem(first)}-{'[0-9a-f]' * 8}/summary/{path.name}"):
        older.unlink()
    shared = shared_columns(contestant, first) | {"prompt_set": None}
    rows = list(_means(shared, [_values(results, contestant, prompts) for prompts in sets]))
    if rows and plain is not None:
        rows += _gain(shared, results, contestant, plain, sets)
    if rows:
        with writing(results):
            tables.write("values", rows, path, {})


def summary_path(results: Path, run: str, prompts: LanguagePrompts) -> Path:
    """Where the means are of prompt sets that differ from this one in nothing but their demonstrations."""
    drawn_from = {"data": prompts.pool.fingerprint, "episodes": prompts.episodes, "seed": prompts.seed}
    folder = results / "tables" / f"{_stem(prompts)}-{content_hash(drawn_from, 8)}"
    return folder / "summary" / f"{run}.values.parquet"


def _stem(prompts: LanguagePrompts) -> str:
    return f"{prompts.task.name}-{PRESET}-{prompts.shots}shot-{prompts.shift}"


def _means(shared: dict[str, object], cells: Sequence[pd.DataFrame]) -> Iterator[dict[str, object]]:
    """A row for every metric, and for every metric after every number of passes."""
    together = pd.concat(cells, ignore_index=True)
    together["passes"] = together["axis_value"].where(together["axis"] == "passes").astype(float).fillna(0.0)
    for (evaluator, passes, metric), of_seeds in together.groupby(["evaluator", "passes", "metric"], sort=False):
        at = {"axis": "passes", "axis_value": passes} if passes else {}
        reasons = list(dict.fromkeys(of_seeds["reason"].dropna()))
        row = (
            shared
            | at
            | {"evaluator": evaluator, "metric": metric}
            | ({"reason": "; ".join(reasons)} if reasons else {})
        )
        asked = int(of_seeds["n_episodes"].sum())
        if len(of_seeds) == 1:
            one = of_seeds.iloc[0]
            yield row | {"value": one["value"], "low": one["low"], "high": one["high"], "n_episodes": asked}
            continue
        values = of_seeds["value"].to_numpy(float)
        yield row | student(values) | {"n_episodes": asked}
        if metric in _SPREAD and not passes:
            yield row | {"metric": _SPREAD[metric], "value": float(np.std(values, ddof=1)), "n_episodes": asked}


def _gain(
    shared: dict[str, object],
    results: Path,
    contestant: Contestant,
    plain: Contestant,
    sets: Sequence[LanguagePrompts],
) -> list[dict[str, object]]:
    """How much more is right than under plain ICL, question by question: a row, or none where no prompt set has
    both."""
    both = [(_errors(results, contestant, prompts), _errors(results, plain, prompts)) for prompts in sets]
    differences = [d for own, other in both if len(d := (own - other).dropna().to_numpy(float))]
    if not differences:
        return []
    if len(differences) == 1:
        found: dict[str, Any] = summaries(differences[0][:, None], sets[0].seed)[0]
    else:
        found = student(np.array([d.mean() for d in differences]))
    return [shared | {"metric": "accuracy_gain"} | found | {"n_episodes": sum(len(d) for d in differences)}]


def student(values: Float[np.ndarray, " seeds"]) -> dict[str, Any]:
    """The mean of at least two values with the interval of Student's t."""
    from scipy import stats

    mean, error = float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * error
    return {"value": mean, "low": mean - reach, "high": mean + reach}


def _values(results: Path, contestant: Contestant, prompts: LanguagePrompts) -> pd.DataFrame:
    found = tables.read("values", cell_path(results, contestant, prompts))
    return found[found["status"] == "ok"]


def _errors(results: Path, contestant: Contestant, prompts: LanguagePrompts) -> pd.Series:
    """Right or wrong, by episode; empty where the cell failed."""
    path = cell_path(results, contestant, prompts, "errors")
    found = tables.read("errors", path) if path.exists() else tables.frame("errors", [])
    return found[found["metric"] == "accuracy"].set_index("episode")["value"].astype(float)
