"""Summaries over demonstration seeds: the mean of each metric, the standard deviation of the accuracy, and the gain in
accuracy of a method over plain ICL on the same queries.

Intervals of means over seeds are defined in `tables.means`. `n_episodes` is the number of answers, summed over seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.evaluation.cells import cell_path
from iclbench.evaluation.contestant import Contestant
from iclbench.language.accuracies import summary_columns
from iclbench.language.cell import shared_columns
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.tasks.cards import PRESET
from iclbench.store import identity
from iclbench.store.runs import write_errors
from iclbench.tables.means import student_interval

# Metrics whose standard deviation over seeds is also reported, each with the metric name of its standard deviation.
_SD_METRICS = {"accuracy": "accuracy_sd"}


def write_summary(
    results: Path, contestant: Contestant, sets: Sequence[LanguagePrompts], plain: Contestant | None = None
) -> None:
    """Write the means over prompt sets that differ only in their demonstrations, and remove summaries for a different
    number of episodes, a different seed or different data. If all cells failed, no file is written.

    Args:
        results: results folder.
        contestant: the contestant.
        sets: the prompt sets, one for each demonstration seed.
        plain: the same model with plain ICL; if None, no gain is reported.
    """
    first_set = sets[0]
    path = summary_path(results, contestant.run, first_set)
    shared = shared_columns(contestant, first_set) | {"prompt_set": None, "demo_seed": None, "demo_order": None}
    shared["mean_of"] = ", ".join(prompts.id for prompts in sets)
    rows = list(_means(shared, [_values(results, contestant, prompts) for prompts in sets]))
    if rows and plain is not None:
        rows += _gain(shared, results, contestant, plain, sets)
    with write_errors(results):
        if rows:
            tables.write("values", rows, path, {})
        # Old summaries are removed after the new file is written, so that a summary always exists. Another process may
        # remove them first.
        for older in (results / "tables").glob(f"{_stem(first_set)}-{'[0-9a-f]' * 8}/summary/{path.name}"):
            if older != path or not rows:
                older.unlink(missing_ok=True)


def summary_path(results: Path, run: str, prompts: LanguagePrompts) -> Path:
    """Return the path of the means over prompt sets that differ from this one only in their demonstrations."""
    shared = identity.language_prompts_id(data=prompts.pool.fingerprint, episodes=prompts.episodes, seed=prompts.seed)
    folder = results / "tables" / f"{_stem(prompts)}-{shared}"
    return folder / "summary" / f"{run}.values.parquet"


def _stem(prompts: LanguagePrompts) -> str:
    return f"{prompts.task.name}-{PRESET}-{prompts.shots}shot-{prompts.shift}"


def _means(shared: dict[str, object], cells: Sequence[pd.DataFrame]) -> Iterator[dict[str, object]]:
    """Yield a row for each metric and each number of passes over the demonstrations. If any set of demonstrations
    failed, the row has the status `failed`, because a mean over the other sets could be biased."""
    failures = [reason for cell in cells if (reason := _failure_reason(cell)) is not None]
    finished = pd.concat(
        [cell for cell in cells if _failure_reason(cell) is None] or [cells[0].iloc[:0]], ignore_index=True
    )
    finished["passes"] = finished["axis_value"].where(finished["axis"] == "passes").astype(float).fillna(0.0)
    failed = finished["status"] == "failed"
    failed_groups = finished[failed].groupby(["evaluator", "passes"])["reason"].agg(list).to_dict()
    for (evaluator, passes, metric), seed_rows in finished[~failed].groupby(
        ["evaluator", "passes", "metric"], sort=False
    ):
        axis_columns = {"axis": "passes", "axis_value": passes} if passes else {}
        row = shared | axis_columns | {"evaluator": evaluator, "metric": metric}
        reasons = list(dict.fromkeys(seed_rows["reason"].dropna()))
        n_answers = int(seed_rows["n_episodes"].sum())
        if problems := [*failures, *failed_groups.get((evaluator, passes), [])]:
            yield row | _failed(problems, len(cells))
            continue
        row |= {"reason": "; ".join(reasons)} if reasons else {}
        if len(seed_rows) == 1:
            single_row = seed_rows.iloc[0]
            yield row | {
                "value": single_row["value"],
                "low": single_row["low"],
                "high": single_row["high"],
                "n_episodes": n_answers,
            }
            continue
        values = seed_rows["value"].to_numpy(float)
        yield row | student_interval(values) | {"n_episodes": n_answers}
        if metric in _SD_METRICS and not passes:
            yield row | {"metric": _SD_METRICS[metric], "value": float(np.std(values, ddof=1)), "n_episodes": n_answers}


def _gain(
    shared: dict[str, object],
    results: Path,
    contestant: Contestant,
    plain: Contestant,
    sets: Sequence[LanguagePrompts],
) -> list[dict[str, object]]:
    """Return one row with the difference in accuracy from plain ICL, paired by query.

    The row has the status `failed` if one of the two contestants failed on a set of demonstrations. It is omitted if
    the two contestants have no answers to the same queries.
    """
    frames = [_values(results, member, prompts) for prompts in sets for member in (contestant, plain)]
    reason_by_set = [
        _failure_reason(frame) or _failure_reason(plain_frame)
        for frame, plain_frame in zip(frames[::2], frames[1::2], strict=True)
    ]
    failures = [reason for reason in reason_by_set if reason is not None]
    if failures:
        return [shared | {"metric": "accuracy_gain"} | _failed(failures, len(sets))]
    error_pairs = [(_errors(results, contestant, prompts), _errors(results, plain, prompts)) for prompts in sets]
    pairs = [
        (difference, prompt_set)
        for (frame, plain_frame), prompt_set in zip(error_pairs, sets, strict=True)
        if len(difference := (frame - plain_frame).dropna())
    ]
    differences = [difference.to_numpy(float) for difference, _ in pairs]
    if not differences:
        return []
    if len(differences) == 1:
        ((single, prompt_set),) = pairs
        queries = (
            None if prompt_set.repeated_queries is None else prompt_set.repeated_queries[single.index.to_numpy(int)]
        )
        summary: dict[str, Any] = summary_columns("accuracy_gain", differences[0], prompt_set.seed, queries)
    else:
        summary = student_interval(np.array([difference.mean() for difference in differences]))
    return [
        shared
        | {"metric": "accuracy_gain"}
        | summary
        | {"n_episodes": sum(len(difference) for difference in differences)}
    ]


def _failure_reason(cell: pd.DataFrame) -> str | None:
    """Return the reason for the failure if all rows of a cell failed; otherwise None."""
    return str(cell.iloc[0]["reason"]) if cell["status"].eq("failed").all() else None


def _failed(reasons: Sequence[str], sets: int) -> dict[str, Any]:
    """Return the columns of a failed row that summarises `sets` sets of demonstrations."""
    count_text = f"{len(reasons)} of {sets} sets of demonstrations failed: " if sets > 1 else ""
    return {"status": "failed", "reason": count_text + reasons[0]}


def _values(results: Path, contestant: Contestant, prompts: LanguagePrompts) -> pd.DataFrame:
    return tables.read("values", cell_path(results, contestant, prompts))


def _errors(results: Path, contestant: Contestant, prompts: LanguagePrompts) -> pd.Series:
    """Return 1 (correct) or 0 (wrong) for each episode; the result is empty if the cell failed."""
    path = cell_path(results, contestant, prompts, "errors")
    errors = tables.read("errors", path) if path.exists() else tables.frame("errors", [])
    return errors[errors["metric"] == "accuracy"].set_index("episode")["value"].astype(float)
