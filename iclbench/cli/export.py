"""`iclbench export RUN... --log TRACKER`: write the curves and scores of finished runs to a tracker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Results, Trackers, Trust
from iclbench.core.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from iclbench.store.runs import Run


def command(
    run: Annotated[list[str], typer.Argument(autocompletion=completion.runs, help="Finished runs to export.")],
    log: Trackers,
    results: Results = RESULTS,
    trust: Trust = None,
) -> None:
    """Write the training curves and scores of finished runs to TensorBoard, W&B or MLflow."""
    from iclbench import tables
    from iclbench.cli.terminal import out
    from iclbench.core.formats import plural
    from iclbench.store.archives import find
    from iclbench.training.trackers import check_trackers, open_trackers

    check_trackers(log)
    runs = [find(results, name) for name in run]
    for trained_run in runs:
        if not trained_run.is_finished:
            raise UsageError(
                f"run '{trained_run.name}' has not finished training; continue it with iclbench train",
                code="not-finished",
            )
    values = tables.read_all("values", results)
    for trained_run in runs:
        rows = list(values_by_step(trained_run, values[values["run"] == trained_run.name]))
        with open_trackers(trained_run, log) as trackers:
            for step, values_of_step in rows:
                for tracker in trackers:
                    tracker.log(step, values_of_step)
        out.print(f"{trained_run.name}: {plural(len(rows), 'step')} for {', '.join(log)}")


def values_by_step(run: Run, values: pd.DataFrame) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each training step of a run with its values by name.

    The values of the last step include the scores on prompts of the run's task. A score's name is
    `EVALUATOR/SHIFT/METRIC`, or `EVALUATOR/SHIFT/METRIC/N-related` with related datasets. If several evaluation seeds
    give scores of the same name, the name of the prompt set is added as a prefix.
    """
    import pandas as pd

    from iclbench.store.identity import variant_id

    ok_rows = values[values["status"].eq("ok") & values["value"].notna() & values["trained_on"].isna()]
    ok_rows = ok_rows[ok_rows["variant"].isna() | ok_rows["variant"].eq(variant_id(run.config))]
    curve = ok_rows[ok_rows["axis"].eq("train_step").fillna(False)]
    scores = ok_rows[
        ok_rows["axis"].isna() & ok_rows["n_context"].isna() & ok_rows["stratum"].isna() & ok_rows["prompt_set"].notna()
    ]
    by_step: dict[int, dict[str, float]] = {}
    for evaluator, name, step, value in _column_tuples(curve, "evaluator", "metric", "axis_value", "value"):
        by_step.setdefault(int(step), {})[name if evaluator == "train" else f"{evaluator}/{name}"] = float(value)
    last_values = by_step.setdefault(run.config.train.steps, {})
    for evaluator, shift, name, related, prompt_set, value in _column_tuples(
        scores.sort_values("prompt_set", kind="stable"),
        "evaluator",
        "shift",
        "metric",
        "n_related",
        "prompt_set",
        "value",
    ):
        key = f"{evaluator}/{shift}/{name}" + (f"/{related}-related" if pd.notna(related) and related else "")
        last_values[key if key not in last_values else f"{prompt_set}/{key}"] = float(value)
    yield from sorted(by_step.items())


def _column_tuples(rows: pd.DataFrame, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[name].tolist() for name in names), strict=True)
