"""Predict the new rows of a user's table: read and encode the tables, predict, and write the predictions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import typer

from iclbench.api.estimators import (
    ContextSizeWarning,
    InContextClassifier,
    InContextRegressor,
    UnreadCellsWarning,
)
from iclbench.api.predict import load
from iclbench.cli.terminal import print_json, say
from iclbench.core.context import Context
from iclbench.core.errors import DataError, IclbenchError, UsageError
from iclbench.core.files import check_output_file, check_replaceable, write_text
from iclbench.core.formats import as_one_line, plural
from iclbench.core.memory import REAL_TABLE_REMEDY, memory_advice
from iclbench.families.tabular.column_kinds import is_missing
from iclbench.families.tabular.columns import list_names, table_stem
from iclbench.families.tabular.encoder import (
    MAX_LINES,
    EncodedTarget,
    TargetKind,
    check_varies,
    encode_target,
    list_lines,
    target_remarks,
    target_step,
)
from iclbench.families.tabular.frame import read_frame, read_labelled_frame

if TYPE_CHECKING:
    from iclbench.api.predict import Trained

# Probability with which an interval should contain the target.
LEVEL = 0.9
_TASKS: dict[TargetKind, str] = {"class": "classification", "number": "regression"}
_DIGITS = "%.15g"


@dataclass(frozen=True)
class UserTables:
    """A training table and the new rows.

    Attributes:
        rows: the training table without the target column.
        target: the target column.
        new: the new rows, with the same columns as `rows`.
    """

    rows: pd.DataFrame
    target: pd.Series
    new: pd.DataFrame


def check_writable(out: Path | None) -> None:
    """Raise `UsageError` before any computation if the predictions cannot be written, or would overwrite a file that
    does not hold predictions."""
    if out is None:
        return
    if any(table_stem(out, suffix) is not None for suffix in (".parquet", ".arff", ".gz")):
        raise UsageError(f"--out {out}: predictions are written as CSV; pass the path of a .csv file", code="bad-value")
    check_output_file(out, "--out")
    check_replaceable(out, "a file of predictions", _holds_predictions)


def _holds_predictions(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(10) == b"prediction"


def read_tables(train: Path, new: Path, target: str, header: bool | None) -> UserTables:
    """Read both tables, and match the columns of the new table to the training table by name.

    Raises:
        DataError: a table cannot be read, or a column is missing.
    """
    with memory_advice(REAL_TABLE_REMEDY):
        rows, labels = read_labelled_frame(train, header if _is_csv(train) else None, target)
        new_frame = read_frame(new, header if _is_csv(new) else None, rows)
    names = [*rows.columns, str(labels.name)]
    # Columns without names are matched by position. The new table may lack the target column.
    has_names = _has_names(names)
    if not has_names and len(new_frame.columns) == len(rows.columns):
        new_frame = new_frame.set_axis(list(rows.columns), axis=1)
    missing_columns = [name for name in rows.columns if name not in new_frame]
    if missing_columns:
        noun = "columns" if len(missing_columns) > 1 else "column"
        raise DataError(
            f"{new} lacks {noun} {list_names(missing_columns)} of {train}; "
            + _remedy(train, missing_columns, list(new_frame.columns), has_names)
        )
    unused_columns = [name for name in new_frame.columns if name not in names]
    if unused_columns:
        say(f"note: columns of {new} that are not in {train} are not used: {list_names(unused_columns, 12)}")
    return UserTables(rows, labels, new_frame[list(rows.columns)])


def _has_names(names: Sequence[str]) -> bool:
    """Return whether the file names its columns. If it does not, they are named by their positions."""
    return {*names} != {f"column {i + 1}" for i in range(len(names))}


def _remedy(train: Path, missing_columns: list[str], names: list[str], has_names: bool) -> str:
    """Return advice for a new table that lacks columns of the training table.

    Args:
        train: path of the training table.
        missing_columns: the columns that the new table lacks.
        names: the columns of the new table.
        has_names: whether the training table names its columns.
    """
    if has_names != _has_names(names):
        return "add a first line with the names of the columns" + (f" to {train}" if not has_names else "")
    by_key = {_key(name): name for name in names}
    renamings = [
        f"'{as_one_line(by_key[_key(name)])}' to '{as_one_line(name)}'"
        for name in missing_columns
        if _key(name) in by_key
    ]
    if renamings and has_names:
        return f"rename {list_names(renamings)}"
    hint = "" if has_names else ", or pass --header if the first lines name the columns"
    return f"add {'them' if len(missing_columns) > 1 else 'it'}{hint}"


def _key(name: str) -> str:
    """Return the name in lower case without spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", "", name.casefold())


def _is_csv(path: Path) -> bool:
    return any(table_stem(path, suffix) is not None for suffix in (".csv", ".csv.gz"))


def predict(
    context: Context,
    tables: UserTables,
    run: str | None,
    task: str | None,
    permutations: int | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Predict the new rows, write the predictions, and print the encoding and random selections on stderr.

    Args:
        context: results folder, data sets and device.
        tables: the tables.
        run: name of a run (default: a run in the package that predicts this kind of target).
        task: classification or regression (default: as the run predicts; without a run, it depends on the target).
        permutations: number of row orders to average predictions over.
        seed: seed for the random choice of rows, columns and orders.
        out: file of the predictions (default: stdout).
        as_json: whether to print the encoding and the predictions as JSON.
    """
    kind = next((kind for kind, name in _TASKS.items() if name == task), None)
    trained = None if run is None else load(run, context.results, device=context.device, data_dir=context.data_dir)
    target = _encoded_target(tables.target, kind, trained)
    check_varies(str(tables.target.name), target)
    rows = tables.rows[target.known]
    cls = InContextClassifier if target.kind == "class" else InContextRegressor
    model = cls(trained, n_permutations=permutations, random_state=seed, device=context.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextSizeWarning)
        warnings.simplefilter("ignore", UnreadCellsWarning)
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        try:
            model.fit(rows, target.known_values)
            predictions = _predictions(model, tables.new, target)
        except ValueError as error:  # raised by the estimators for invalid tables, as in scikit-learn
            raise UsageError(str(error), code="not-applicable") from None
    encoder = model.encoder_
    remarks = [*target_remarks(target), *encoder.remarks]
    remarks += [f"training table, {remark}" for remark in encoder.unread(rows)]
    remarks += [f"new table, {remark}" for remark in encoder.unread(tables.new)]
    remarks += _only_missing_in_new(rows, tables.new)
    remarks += model.remarks_
    if target.kind == "number" and "low" not in predictions:
        remarks.append(f"run '{model.trained_.run.name}' predicts single values, so there are no intervals")
    step = target_step(str(tables.target.name), target)
    for line in (step, *encoder.summary, *(f"note: {remark}" for remark in remarks)):
        say(line)
    if len(encoder.steps) > MAX_LINES and not as_json:
        say("--json prints the encoding of all columns")
    if out is not None:
        _write(out, _csv(predictions))
        say(f"wrote {plural(len(predictions), 'prediction')} to {out}")
    if as_json:
        record = {
            "run": model.trained_.run.name,
            "task": _TASKS[target.kind],
            "target": str(tables.target.name),
            "context_rows": len(rows),
            "seed": seed,
            "encoding": encoder.to_dict(),
            "steps": [step, *encoder.steps],
            "notes": remarks,
            "predictions": predictions.to_dict("records"),
        }
        print_json(record)
    elif out is None:
        typer.echo(_csv(predictions), nl=False)


def _encoded_target(series: pd.Series, kind: TargetKind | None, trained: Trained | None) -> EncodedTarget:
    """Encode the target as the run predicts it, as numbers or classes."""
    if trained is None:
        return encode_target(series, kind)
    shape, name = trained.model.shape, trained.run.name
    run_kind: TargetKind = "number" if shape.classes is None else "class"
    if kind not in (None, run_kind):
        raise UsageError(
            f"run '{name}' is for {_TASKS[run_kind]}; use --task {_TASKS[run_kind]}, or another run", code="conflict"
        )
    target = encode_target(series, run_kind)
    if shape.classes is not None and len(target.classes) > shape.classes:
        raise _too_many_classes(str(series.name), len(target.classes), shape.classes, name)
    return target


def _only_missing_in_new(rows: pd.DataFrame, new: pd.DataFrame) -> list[str]:
    """Return remarks on columns that have missing cells in the new table but not in the training table."""
    remarks = []
    for name in rows.columns:
        count = int(is_missing(new[name]).sum())
        if count and not is_missing(rows[name]).any():
            cells = f"{count} of {len(new)} cells are missing, but none in the training table"
            remarks.append(f"new table, {as_one_line(str(name), 80)}: {cells}")
    return list_lines(remarks, "further columns have missing cells in the new table only")


def _too_many_classes(target: str, count: int, limit: int, run: str) -> DataError:
    return DataError(
        f"the target '{as_one_line(target)}' has {count} classes, and run '{run}' predicts at most {limit}; merge rare "
        "classes, use --task regression if they are numbers, or use another run",
        code="not-applicable",
    )


def _predictions(
    model: InContextClassifier | InContextRegressor, new: pd.DataFrame, target: EncodedTarget
) -> pd.DataFrame:
    """Return one prediction per new row: means and intervals, or classes and their probabilities."""
    if isinstance(model, InContextClassifier):
        probabilities = model.predict_proba(new)
        names = [target.classes[index] for index in model.classes_]
        columns: dict[str, Any] = {"prediction": np.array(names, dtype=object)[probabilities.argmax(1)]}
        return pd.DataFrame(columns | {f"p_{name}": probabilities[:, i] for i, name in enumerate(names)})
    if not model.model_.has_intervals:
        return pd.DataFrame({"prediction": model.predict(new)})
    mean, low, high = model.predict_interval(new, LEVEL)
    return pd.DataFrame({"prediction": mean, "low": low, "high": high})


def _csv(predictions: pd.DataFrame) -> str:
    text = StringIO()
    predictions.to_csv(text, index=False, float_format=_DIGITS, lineterminator="\n")
    return text.getvalue()


def _write(out: Path, text: str) -> None:
    try:
        write_text(out, text)
    except OSError as error:
        raise IclbenchError(
            f"cannot write {out}: {error.strerror or error}; pass the path of another file to --out",
            code="unreadable-file",
        ) from error
