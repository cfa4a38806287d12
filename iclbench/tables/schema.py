"""Schemas of the result tables: their columns with types and meanings, and the validation of rows.

A row is one measured value or, in the tables `answers`, `cells` and `trials`, one answer, cell or trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray
from pandas.arrays import NumpyExtensionArray

from iclbench.core.errors import IclbenchError
from iclbench.core.formats import as_one_line

# The version of the columns, in the metadata of every file. Files of another version are not read. Increase it when the
# meaning of a column changes, and convert `results/reference` in the same commit.
SCHEMA_VERSION = 3

TableName = Literal["values", "costs", "errors", "examples", "answers", "cells", "trials"]

# name -> (pandas dtype, may be missing, meaning)
VALUES: dict[str, tuple[str, bool, str]] = {
    "run": ("string", False, "name of the run; for baselines, the contestant"),
    "task": ("string", False, "name of the task card"),
    "family": ("string", False, "family of the task"),
    "data": (
        "string",
        True,
        "data set of the episodes or of a published number, as parameters of the task (glyphs=procedural); missing for "
        "tasks without such parameters",
    ),
    "trained_data": (
        "string",
        True,
        "fingerprint of the training data, if the run is evaluated on other data (iclbench eval --data-changed), whose "
        "fingerprint is in `data`; leaderboards of a report omit such rows; missing: the same data, or no data",
    ),
    "contestant": ("string", False, "backbone or baseline; the name includes the method that is applied to a model"),
    "model": (
        "string",
        True,
        "the contestant without its method and without its training task; for a baseline, its name without "
        "a number (lasso for lasso-1e-2)",
    ),
    "method": (
        "string",
        True,
        "the method that is applied to the model (the end of the contestant's name); missing: no method",
    ),
    "kind": ("string", False, "backbone, baseline, oracle or published"),
    "preset": ("string", False, "smoke, grid, small, paper; language for pretrained language models"),
    "seed": ("Int64", True, "seed of the training run; missing for untrained methods"),
    "variant": (
        "string",
        True,
        "hash of the configuration of the training run without the seed, equal for runs that differ only in the seed; "
        "backbones only",
    ),
    "tuned": (
        "boolean",
        True,
        "whether the run was trained at the tuned learning rate of its backbone, preset and task, as given by the "
        "tables of rates at the time of the evaluation; missing if this is unknown or the contestant is not trained",
    ),
    "trained_on": (
        "string",
        True,
        "the training task, if the prompts are from another task; the contestant is then BACKBONE@TASK",
    ),
    "context_order": (
        "string",
        True,
        "causal (the prediction may depend on the order of the points) or set; for scores of backbones only",
    ),
    "shift": ("string", False, "change of the distribution at evaluation; none for the training distribution"),
    "distribution": ("string", True, "the shift without its number of examples (none for points-64)"),
    "extrapolated_to": ("Int64", True, "the number of examples that the shift sets (64 for points-64)"),
    "related_from": (
        "string",
        True,
        "the process of the related datasets, if the shift sets it (far for mismatch-far)",
    ),
    "evaluator": (
        "string",
        False,
        "question or test: next, targets, icl, iwl, probe, gamma_search, train, choice, greedy, ...",
    ),
    "axis": (
        "string",
        True,
        "name of a further coordinate: layer, gd_step, gamma, train_step, branch (steps of a shorter training run that "
        "branched off and decayed its learning rate to 0), pool (number of truths; unlimited if the value is missing), "
        "loops (iterations of a looped model, if not those of training), passes, demo_seed, order, "
        "n_context (upper end of a bin of context sizes: 4, 16, 64, ...), stratum:NAME (for the column stratum)",
    ),
    "axis_value": ("Float64", True, "value of the further coordinate"),
    "stratum": (
        "string",
        True,
        "the family's name for a subset of the episodes; missing: all episodes",
    ),
    "n_context": ("Int64", True, "number of context points or demonstrations"),
    "n_related": ("Int64", True, "number of related datasets"),
    "metric": ("string", False, "squared_error, log_likelihood, accuracy_within_choices, loss, auc, score, ..."),
    "value": (
        "Float64",
        True,
        "mean over episodes, divided by the normaliser; missing if the status is not ok",
    ),
    "low": ("Float64", True, "lower end of the interval"),
    "high": ("Float64", True, "upper end of the interval"),
    "score_of": ("string", True, "for a score: the metric from which it is computed"),
    "score_one": ("string", True, "for a score: the contestant that scores 1, or a description"),
    "n_episodes": ("Int64", True, "number of episodes of the mean"),
    "normaliser": ("Float64", True, "divisor of the raw metric"),
    "status": (
        "string",
        False,
        "ok, failed, or skipped (more examples than the contestant supports, a target of a probe that is not defined "
        "or does not vary, or a score that is not defined)",
    ),
    "reason": (
        "string",
        True,
        "why the evaluation failed or was skipped, the origin of a published or tuned number, or the scale of a score: "
        "'METRIC: 1 is CONTESTANT'",
    ),
    "prompt_set": ("string", True, "hash of the frozen episodes"),
    "demo_seed": (
        "Int64",
        True,
        "seed of the demonstrations for a language model; missing in means over several sets",
    ),
    "demo_order": ("Int64", True, "order of the demonstrations; 0: as drawn"),
    "mean_of": (
        "string",
        True,
        "for a published mean: its tasks, separated by commas; missing: the task of the row. For a language model: the "
        "prompt sets of a gain or of a mean over sets of demonstrations",
    ),
    "card": ("string", False, "content hash of the parts of the task card that determine training and evaluation"),
    "version": ("string", False, "version of iclbench"),
    "commit": (
        "string",
        True,
        "commit of the code that computed the row, with -dirty if files differed from it; missing if neither git nor "
        "the installed package names it, and in rows from before this column was added",
    ),
}

COSTS: dict[str, tuple[str, bool, str]] = {
    "run": ("string", False, "as in values"),
    "task": ("string", False, "as in values"),
    "contestant": ("string", False, "as in values"),
    "preset": ("string", False, "as in values"),
    "phase": (
        "string",
        False,
        "model, train, evaluate, train_step (cost of a complete batch), or condition, query, update (cost of one "
        "episode of a batch)",
    ),
    "n_points": ("Int64", True, "number of processed points; for query and update, points in the state"),
    "n_at_once": ("Int64", True, "number of queries in a forward pass, or of points in an update; missing: one"),
    "metric": ("string", False, "seconds, bytes, parameters, encoder_parameters, flops, state_bytes, steps"),
    "value": ("Float64", False, "the measurement"),
    "device": ("string", False, "cpu or the name of the accelerator"),
    "threads": ("Int64", False, "torch threads"),
    "n_episodes": ("Int64", True, "size of the batch, if the value is the cost of the batch divided by its size"),
    "version": ("string", False, "version of iclbench"),
}

ERRORS: dict[str, tuple[str, bool, str]] = {
    "run": ("string", False, "as in values"),
    "prompt_set": ("string", False, "as in values"),
    "metric": ("string", False, "as in values"),
    "n_context": ("Int64", True, "number of context points; missing: the value is the mean height of the curve"),
    "n_related": ("Int64", True, "as in values"),
    "episode": ("Int64", False, "index within the prompt set"),
    "value": ("Float64", False, "score of the episode, divided by the normaliser"),
    "n_events": (
        "Float64",
        True,
        "for event sequences in observation windows: the number of events by which the value, a sum over the episode "
        "and its last open interval, must be divided; missing: the value is a mean, or belongs to one position",
    ),
}

EXAMPLES: dict[str, tuple[str, bool, str]] = {
    "run": ("string", False, "as in values; 'prompts' for the points of the episode"),
    "task": ("string", False, "as in values"),
    "contestant": ("string", False, "as in values; 'prompts' for the points of the episode"),
    "kind": ("string", False, "as in values, or prompts"),
    "preset": ("string", False, "as in values"),
    "seed": ("Int64", True, "as in values"),
    "shift": ("string", False, "as in values"),
    "prompt_set": ("string", False, "as in values"),
    "episode": ("Int64", False, "index within the prompt set"),
    "n_related": ("Int64", True, "number of related datasets in the prompt"),
    "role": (
        "string",
        False,
        "context, related, target, function (the true values), predicted, drawn (a joint sample of all outputs), "
        "dimension (of a learned space)",
    ),
    "set": (
        "Int64",
        True,
        "zero-based index of the related dataset, of the sample, or of the feature whose direction is the x axis of a "
        "dimension",
    ),
    "point": ("Int64", False, "index of the point"),
    "x1": ("Float64", False, "first coordinate of the input"),
    "x2": ("Float64", True, "second coordinate"),
    "output": ("Int64", False, "output dimension, from 0"),
    "value": ("Float64", False, "the output, the predicted mean, or the sample"),
    "low": ("Float64", True, "lower end of the predicted central 90 % interval"),
    "high": ("Float64", True, "upper end of the predicted interval"),
    "version": ("string", False, "version of iclbench"),
}

ANSWERS: dict[str, tuple[str, bool, str]] = {
    "run": ("string", False, "as in values"),
    "prompt_set": ("string", False, "as in values"),
    "episode": ("Int64", False, "index within the prompt set"),
    "prompt": ("string", False, "the complete input text, or its end after shared demonstrations"),
    "target": ("string", False, "the correct answer"),
    "predicted": ("string", False, "the answer of the model"),
    "correct": ("boolean", False, "whether the answer is correct"),
    "candidates": ("string", True, "the possible answers, as a JSON list"),
    "scores": ("string", True, "summed log-probabilities of the possible answers, as a JSON list"),
}

CELLS: dict[str, tuple[str, bool, str]] = {
    "cell": ("string", False, "content hash of the frozen configuration of the cell"),
    "kind": ("string", False, "train, evaluate, probe or cost"),
    "run": ("string", False, "as in values"),
    "task": ("string", False, "as in values"),
    "contestant": ("string", False, "as in values"),
    "preset": ("string", False, "as in values"),
    "seed": ("Int64", True, "as in values"),
    "status": (
        "string",
        False,
        "done; failed (the next sweep tries it again); skipped (not applicable); diverged (the loss or a weight is not "
        "finite, and the cell is not tried again)",
    ),
    "reason": ("string", True, "why the cell failed, diverged or is not applicable"),
    "files": ("string", True, "files of the cell, as a JSON list of paths in the results folder"),
    "metrics": (
        "string",
        True,
        "for an evaluation: the metrics of its rows and the other metrics that its code could compute, separated by "
        "spaces",
    ),
    "seconds": ("Float64", True, "duration; of a training run, the sum over all its processes"),
    "device": ("string", True, "cpu or the name of the accelerator"),
    "hardware": ("string", True, "processor and memory of the machine"),
    "kernels": ("string", True, "instruction set of PyTorch's CPU kernels: default, avx2, avx512, ..."),
    "threads": ("Int64", True, "torch threads"),
    "libraries": ("string", True, "versions of Python and of the libraries that affect the values, as JSON"),
    "version": ("string", False, "version of iclbench"),
}

TRIALS: dict[str, tuple[str, bool, str]] = {
    "task": ("string", False, "as in values"),
    "family": ("string", False, "as in values"),
    "contestant": ("string", False, "as in values"),
    "preset": ("string", False, "as in values"),
    "seed": ("Int64", False, "seed of the training run; grids do not use the seeds of `iclbench tune`"),
    "variant": ("string", False, "as in values: one for every combination of settings"),
    "lr": ("Float64", False, "peak learning rate"),
    "optimiser": ("string", False, "adam or adamw"),
    "warmup": ("Int64", False, "steps over which the learning rate rises from 0"),
    "weight_decay": ("Float64", False, "weight decay of AdamW"),
    "beta_1": ("Float64", False, "decay rate of Adam's mean of gradients"),
    "beta_2": ("Float64", False, "decay rate of Adam's mean of squared gradients"),
    "steps": ("Int64", False, "number of training steps"),
    "budget": ("Int64", True, "parameters of every backbone at the preset; missing: the preset has no budget"),
    "metric": ("string", False, "metric by which settings are chosen: auc, log_likelihood, ..."),
    "evaluator": ("string", False, "question or test; tests of a mean are separated by commas"),
    "value": ("Float64", True, "mean over validation episodes; missing if the training or its scores failed"),
    "n_episodes": ("Int64", True, "number of validation episodes of every test"),
    "status": ("string", False, "ok, or failed: the training diverged, or a score is not finite"),
    "reason": ("string", True, "why the trial failed"),
    "prompt_set": ("string", False, "hash of the validation episodes"),
    "version": ("string", False, "version of iclbench"),
}

SCHEMAS: dict[TableName, dict[str, tuple[str, bool, str]]] = {
    "values": VALUES,
    "costs": COSTS,
    "errors": ERRORS,
    "examples": EXAMPLES,
    "answers": ANSWERS,
    "cells": CELLS,
    "trials": TRIALS,
}

# The columns that identify a row.
_KEYS: dict[TableName, list[str]] = {
    "values": [
        "run",
        "task",
        "contestant",
        "preset",
        "seed",
        "shift",
        "evaluator",
        "axis",
        "axis_value",
        "n_context",
        "n_related",
        "metric",
        "prompt_set",
    ],
    "costs": ["run", "task", "preset", "phase", "n_points", "n_at_once", "metric", "device", "threads", "n_episodes"],
    "errors": ["run", "prompt_set", "metric", "n_context", "n_related", "episode"],
    "examples": ["run", "prompt_set", "episode", "n_related", "role", "set", "point", "output"],
    "answers": ["run", "prompt_set", "episode"],
    "cells": ["cell"],
    "trials": ["task", "contestant", "preset", "seed", "variant", "prompt_set"],
}

_DTYPES: dict[str, Any] = {
    dtype: pd.api.types.pandas_dtype(dtype) for schema in SCHEMAS.values() for dtype, _, _ in schema.values()
}

# Up to this number of rows, a set of tuples finds duplicates faster than pandas.
_MAX_TUPLE_ROWS = 1000

# Metrics of `values` that compare the contestants of a prompt set. Their rows belong to the summary of the prompt set.
COMPARISON_METRICS = ("score", "gap", "gap_joint", "log_likelihood_adjusted")

# Metrics of the question `targets` that are compared with the same metric of an oracle, episode by episode.
LIKELIHOODS = ("log_likelihood", "log_likelihood_joint")

# Names in packed tables are cut to this number of characters before they are shown, and texts for readers to four times
# this number. Columns that are read by code are not cut.
_MAX_NAME = 64
_TEXTS = {"reason": 4 * _MAX_NAME, "hardware": 4 * _MAX_NAME}
_CODE_COLUMNS = ("cell", "files", "metrics", "libraries")

_KINDS = {"backbone", "baseline", "oracle", "published"}


class TableError(IclbenchError):
    """A table does not match its schema, or a file is not a table."""

    code = "bad-data"


def frame(table: TableName, rows: list[dict[str, object]] | pd.DataFrame) -> pd.DataFrame:
    """Convert rows to a validated frame of one table. Omitted columns are filled with missing values."""
    if isinstance(rows, pd.DataFrame):
        return validate(table, rows.reindex(columns=list(SCHEMAS[table])))
    # For small tables, a frame of columns is much faster than a frame of dictionaries.
    columns = {name: np.fromiter((row.get(name) for row in rows), object, len(rows)) for name in SCHEMAS[table]}
    return _without_duplicates(table, _typed_frame(table, columns, pd.RangeIndex(len(rows))))


def validate(table: TableName, data: pd.DataFrame, file_indices: np.ndarray | None = None) -> pd.DataFrame:
    """Validate rows and convert their columns to the types of the schema. Omitted optional columns are filled with
    missing values.

    Args:
        table: name of the table.
        data: the rows.
        file_indices: the index of the file of each row. Rows of one file must have different keys. Of rows of several
            files with the same keys, the first one is used (default: one file).

    Raises:
        TableError: a required column or value is missing, a column is unknown, a value has the wrong type, or rows have
            the same keys.
    """
    # For small tables with forty columns, arrays are five times faster than a frame.
    arrays = {str(column): _without_wrapper(series.array) for column, series in data.items()}
    return _without_duplicates(table, _typed_frame(table, arrays, data.index), file_indices)


def _without_duplicates(table: TableName, rows: pd.DataFrame, file_indices: np.ndarray | None = None) -> pd.DataFrame:
    """Return the rows. Of rows of several files with the same keys, the first one is used. Raise `TableError` if two
    rows of one file have the same keys."""
    keys = rows[_KEYS[table]]
    if len(keys) <= _MAX_TUPLE_ROWS:
        tuples = set(zip(*(column.tolist() for _, column in keys.items()), strict=True))
        if len(tuples) == len(keys):
            return rows
    is_repeated = keys.duplicated()
    if not is_repeated.any():
        return rows
    is_duplicate = is_repeated if file_indices is None else keys.assign(file_index=file_indices).duplicated()
    if is_duplicate.any():
        first = rows.loc[is_duplicate, _KEYS[table]].iloc[0].dropna().to_dict()
        raise TableError(f"table '{table}': two rows for {first}", code="duplicate")
    return rows[~is_repeated].reset_index(drop=True)


def key_columns(table: TableName) -> list[str]:
    """The columns that identify a row."""
    return list(_KEYS[table])


def _typed_frame(table: TableName, arrays: Mapping[str, Any], index: pd.Index) -> pd.DataFrame:
    """The frame of these columns, with the types of the schema."""
    schema = SCHEMAS[table]
    missing = [c for c, (_, optional, _) in schema.items() if not optional and c not in arrays]
    unknown = [c for c in arrays if c not in schema]
    if missing or unknown:
        raise TableError(f"table '{table}': missing columns {missing}, unknown columns {unknown}")
    columns: dict[str, ExtensionArray] = {}
    for column, (dtype, optional, _) in schema.items():
        try:
            values = (
                _converted_values(dtype, arrays[column]) if column in arrays else _missing_values(dtype, len(index))
            )
        except (TypeError, ValueError) as error:
            raise TableError(f"table '{table}': column '{column}': {error}") from error
        if not optional and values.isna().any():
            raise TableError(f"table '{table}': column '{column}' has missing values")
        columns[column] = values
    if table == "values":
        _validate_values(columns)
    return pd.DataFrame(columns, index=index, copy=False)


def _without_wrapper(values: Any) -> Any:
    """The values without the NumPy wrapper of pandas, which is slow to convert."""
    return values.to_numpy() if isinstance(values, NumpyExtensionArray) else values


def _converted_values(dtype: str, values: Any) -> ExtensionArray:
    converted: ExtensionArray = values if values.dtype == _DTYPES[dtype] else pd.array(values, dtype=_DTYPES[dtype])
    if dtype == "Float64":  # some functions of pandas do not treat a NaN in a nullable column as missing
        is_nan = np.isnan(converted.to_numpy(float, na_value=np.nan))
        if is_nan.any():
            converted = converted.copy()
            converted[is_nan] = pd.NA
    return converted


def _missing_values(dtype: str, rows: int) -> ExtensionArray:
    return pd.array([pd.NA] * rows, dtype=_DTYPES[dtype])


def _validate_values(columns: Mapping[str, ExtensionArray]) -> None:
    if not set(columns["kind"].unique()) <= _KINDS:
        raise TableError(f"table 'values': kind must be one of {sorted(_KINDS)}")
    status = columns["status"]
    if not set(status.unique()) <= {"ok", "failed", "skipped"}:
        raise TableError("table 'values': status must be ok, failed or skipped")
    is_ok = np.asarray(status == "ok", dtype=bool)
    if columns["value"].isna()[is_ok].any():
        raise TableError("table 'values': a row with status ok has no value")
    if columns["reason"].isna()[~is_ok].any():
        raise TableError("table 'values': a failed or skipped row has no reason")


def union(table: TableName, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of several frames of one table. Of rows with the same keys, the first one is used."""
    nonempty = [rows for rows in frames if len(rows)]
    if not nonempty:
        return frame(table, [])
    return pd.concat(nonempty, ignore_index=True).drop_duplicates(_KEYS[table], ignore_index=True)


def short_name(value: object, column: str = "") -> str:
    r"""A value of a packed table for a message: one line, cut in the middle, with escaped control characters.

    >>> print(short_name("gpt2\x1b[31m"), len(short_name("a" * 100)), len(short_name("a" * 100, "reason")))
    gpt2\x1b[31m 63 100
    """
    return as_one_line(str(value), _TEXTS.get(column, _MAX_NAME))


def with_short_names(rows: pd.DataFrame) -> pd.DataFrame:
    """The frame with long names and texts cut in the middle, and with escaped control characters in them."""
    long: dict[str, pd.Series] = {}
    for name, column in rows.items():
        limit = _TEXTS.get(str(name), _MAX_NAME)
        if isinstance(column.dtype, pd.StringDtype) and name not in _CODE_COLUMNS and (column.str.len() > limit).any():
            texts = {text: short_name(text, str(name)) for text in column.dropna().unique()}
            long[str(name)] = column.map(texts).astype(column.dtype)
    return rows.assign(**long)


def with_python_strings(rows: pd.DataFrame) -> pd.DataFrame:
    """The frame with strings as Python objects. Equal strings share one object.

    Small frames with Python strings are filtered several times faster than frames with Arrow arrays. Arrow arrays take
    less memory and are read faster.
    """
    return rows.assign(
        **{
            str(name): _python_strings(column.array)
            for name, column in rows.items()
            if isinstance(column.dtype, pd.StringDtype) and column.dtype.storage == "pyarrow"
        }
    )


def _python_strings(strings: ExtensionArray) -> ExtensionArray:
    codes, unique = strings.factorize()
    objects = np.array([*unique, pd.NA], dtype=object)  # the code of a missing value is -1
    return pd.array(objects[codes], dtype=pd.StringDtype("python"))
