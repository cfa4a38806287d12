"""What result tables hold: the columns of each with their meaning, and whether rows fit them.

One row per measured value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray
from pandas.arrays import NumpyExtensionArray

from iclbench.core.errors import IclbenchError

# The version of these columns, in the metadata of every file. A file with another one is not read: raise it when the
# meaning of a column changes, and convert `results/reference` in the same commit.
SCHEMA = 3

TableName = Literal["values", "costs", "errors", "examples", "answers", "cells", "trials"]

# name -> (pandas dtype, may be missing, meaning)
VALUES: dict[str, tuple[str, bool, str]] = {
    "run": ("string", False, "run the row belongs to; for baselines the contestant's own name"),
    "task": ("string", False, "task card"),
    "family": ("string", False, "family of the task"),
    "data": (
        "string",
        True,
        "images that the episodes are made of, as parameters of the task (glyphs=procedural), or that a published "
        "number is for; missing where there are none",
    ),
    "trained_data": (
        "string",
        True,
        "fingerprint of the data that the run was trained on, where it is evaluated on other data (iclbench eval "
        "--data-changed), whose fingerprint `data` holds; such rows are in no leaderboard of a report; missing: the "
        "same data, or none",
    ),
    "contestant": ("string", False, "backbone or baseline; a method applied to a model is part of the name"),
    "model": (
        "string",
        True,
        "the contestant without the method and without the task that it was trained on; of a baseline its name without "
        "a number (lasso of lasso-1e-2)",
    ),
    "method": ("string", True, "what is applied to the model, as the contestant's name ends; missing: nothing"),
    "kind": ("string", False, "backbone, baseline, oracle or published"),
    "preset": ("string", False, "smoke, grid, small, paper; language: a pretrained language model of its own size"),
    "seed": ("Int64", True, "seed of the run; missing where nothing was trained"),
    "variant": (
        "string",
        True,
        "hash of what was trained but for the seed: the same for runs that differ in nothing else; backbones only",
    ),
    "tuned": (
        "boolean",
        True,
        "whether the run was trained at the learning rate that a table of rates had for its backbone, preset and task "
        "when it was evaluated; missing: not known, or nothing was trained",
    ),
    "trained_on": (
        "string",
        True,
        "the task that the run was trained on, where its prompts are of another: BACKBONE@TASK is then the contestant",
    ),
    "context_order": (
        "string",
        True,
        "causal (the answer may depend on the order of the points) or set; of scores of backbones only",
    ),
    "shift": ("string", False, "change of the distribution at evaluation; 'none' for none"),
    "distribution": ("string", True, "the shift but for the number of examples: 'none' of points-64"),
    "extrapolated_to": ("Int64", True, "the number of examples that the shift sets: 64 of points-64"),
    "related_from": (
        "string",
        True,
        "the process that related datasets come from, where the shift sets it: far of mismatch-far",
    ),
    "evaluator": (
        "string",
        False,
        "question or test: next, targets, icl, iwl, probe, gamma_search, train, choice, greedy, ...",
    ),
    "axis": (
        "string",
        True,
        "name of a further coordinate: layer, gd_step, gamma, train_step, branch (steps of a shorter training that "
        "branched off, its rate fallen to 0), passes, demo_seed, order; "
        "n_context (upper end of a bin of context sizes: 4, 16, 64, ...); stratum:NAME (of the column stratum)",
    ),
    "axis_value": ("Float64", True, "that coordinate"),
    "stratum": (
        "string",
        True,
        "kind of episodes that the row is over, by the family's name for it; missing: all",
    ),
    "n_context": ("Int64", True, "context points, or demonstrations, that the prediction was conditioned on"),
    "n_related": ("Int64", True, "related datasets"),
    "metric": ("string", False, "squared_error, log_likelihood, accuracy_within_choices, loss, auc, score, ..."),
    "value": (
        "Float64",
        True,
        "mean over episodes, divided by the normaliser; missing when the cell failed or was skipped",
    ),
    "low": ("Float64", True, "lower end of the interval"),
    "high": ("Float64", True, "upper end of the interval"),
    "score_of": ("string", True, "of a score the metric that it is made of"),
    "score_one": ("string", True, "of a score what scores 1: a contestant, or in words"),
    "n_episodes": ("Int64", True, "episodes averaged over"),
    "normaliser": ("Float64", True, "what the raw metric was divided by"),
    "status": ("string", False, "ok, failed, or skipped: more examples than the contestant takes"),
    "reason": (
        "string",
        True,
        "why the cell failed or was skipped, how a published or a tuned number was found, or what a score is by: "
        "'METRIC: 1 is WHAT'",
    ),
    "prompt_set": ("string", True, "the frozen episodes the row was scored on"),
    "demo_seed": (
        "Int64",
        True,
        "which demonstrations a language model was shown; missing in means over several sets of them",
    ),
    "demo_order": ("Int64", True, "in which order; 0: as they were drawn"),
    "mean_of": (
        "string",
        True,
        "the tasks that a published number is the mean of, with commas; missing: its own. Of a language model the "
        "prompt sets that a mean over sets of demonstrations, or a gain, is over",
    ),
    "card": ("string", False, "content hash of what the task's card has trained and evaluated"),
    "version": ("string", False, "version of iclbench"),
    "commit": (
        "string",
        True,
        "commit of the code that computed the row, with -dirty if files of the code differed from it; missing if "
        "neither git nor the installed package names it, and in rows of earlier commits",
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
        "model; train, train_step (a whole batch); evaluate; condition, query, update (per episode, of a batch)",
    ),
    "n_points": ("Int64", True, "points the phase dealt with; for query and update those in the state"),
    "n_at_once": ("Int64", True, "queries answered, or points taken in by an update, at once; missing: one"),
    "metric": ("string", False, "seconds, bytes, parameters, flops, state_bytes, steps"),
    "value": ("Float64", False, "the measurement"),
    "device": ("string", False, "cpu or the name of the accelerator"),
    "threads": ("Int64", False, "torch threads"),
    "n_episodes": ("Int64", True, "episodes side by side, where the value is one episode's part of such a batch"),
    "version": ("string", False, "version of iclbench"),
}

ERRORS: dict[str, tuple[str, bool, str]] = {
    "run": ("string", False, "as in values"),
    "prompt_set": ("string", False, "as in values"),
    "metric": ("string", False, "as in values"),
    "n_context": ("Int64", True, "context points of this episode; missing: the mean height of its curve over them"),
    "n_related": ("Int64", True, "as in values"),
    "episode": ("Int64", False, "index within the prompt set"),
    "value": ("Float64", False, "the episode's score, divided by the normaliser"),
    "n_events": (
        "Float64",
        True,
        "of event sequences in windows of observation: the value is a sum over the episode with its open interval, to "
        "be divided by this many events; missing: the value is a mean, or of one position",
    ),
}

EXAMPLES: dict[str, tuple[str, bool, str]] = {
    "run": ("string", False, "as in values; 'prompts' for the points of the episode itself"),
    "task": ("string", False, "as in values"),
    "contestant": ("string", False, "as in values; 'prompts' for the points of the episode itself"),
    "kind": ("string", False, "as in values, or prompts"),
    "preset": ("string", False, "as in values"),
    "seed": ("Int64", True, "as in values"),
    "shift": ("string", False, "as in values"),
    "prompt_set": ("string", False, "as in values"),
    "episode": ("Int64", False, "index within the prompt set"),
    "n_related": ("Int64", True, "related datasets that the prediction was given"),
    "role": (
        "string",
        False,
        "context, related, target, function (the true values), predicted, drawn (a sample of all outputs together), "
        "dimension (of a learned space)",
    ),
    "set": (
        "Int64",
        True,
        "which of the related datasets or samples; of a dimension, along which feature's direction; from 0",
    ),
    "point": ("Int64", False, "index of the point"),
    "x1": ("Float64", False, "first coordinate of the input"),
    "x2": ("Float64", True, "second coordinate"),
    "output": ("Int64", False, "output dimension, from 0"),
    "value": ("Float64", False, "the output, the mean that was predicted, or what was drawn"),
    "low": ("Float64", True, "lower end of the central 90 % interval that was predicted"),
    "high": ("Float64", True, "upper end"),
    "version": ("string", False, "version of iclbench"),
}

ANSWERS: dict[str, tuple[str, bool, str]] = {
    "run": ("string", False, "as in values"),
    "prompt_set": ("string", False, "as in values"),
    "episode": ("Int64", False, "index within the prompt set"),
    "prompt": ("string", False, "the whole text that the model was given, or its end behind shared demonstrations"),
    "target": ("string", False, "the right answer"),
    "predicted": ("string", False, "the answer that was given"),
    "correct": ("boolean", False, "whether it counts as right"),
    "candidates": ("string", True, "what there was to choose from, as a JSON list"),
    "scores": ("string", True, "their summed log-probabilities, as a JSON list"),
}

CELLS: dict[str, tuple[str, bool, str]] = {
    "cell": ("string", False, "content hash of the frozen configuration that the cell is a function of"),
    "kind": ("string", False, "train, evaluate, probe or cost"),
    "run": ("string", False, "as in values"),
    "task": ("string", False, "as in values"),
    "contestant": ("string", False, "as in values"),
    "preset": ("string", False, "as in values"),
    "seed": ("Int64", True, "as in values"),
    "status": (
        "string",
        False,
        "done; failed (tried again by the next sweep); skipped (it makes no sense); diverged (its training "
        "came to no finite weights, and is not tried again)",
    ),
    "reason": ("string", True, "why it failed, diverged or makes no sense"),
    "files": ("string", True, "what it wrote, as a JSON list of paths below the results folder"),
    "metrics": (
        "string",
        True,
        "of an evaluation the metrics that it has or that the code which computed it knew, separated by blanks; "
        "missing in rows of earlier commits, whose rows of values say it",
    ),
    "seconds": ("Float64", True, "how long it took, trainings by all processes that took part in them"),
    "device": ("string", True, "cpu or the name of the accelerator"),
    "hardware": ("string", True, "processor and memory of the machine"),
    "kernels": ("string", True, "instruction set of PyTorch's CPU kernels: default, avx2, avx512, ..."),
    "threads": ("Int64", True, "torch threads"),
    "libraries": ("string", True, "Python and the libraries that the values depend on, with versions, as JSON"),
    "version": ("string", False, "version of iclbench"),
}

TRIALS: dict[str, tuple[str, bool, str]] = {
    "task": ("string", False, "as in values"),
    "family": ("string", False, "as in values"),
    "contestant": ("string", False, "as in values"),
    "preset": ("string", False, "as in values"),
    "seed": ("Int64", False, "of the training; those of `iclbench tune` are no grid's"),
    "variant": ("string", False, "as in values: one for every setting that was tried"),
    "lr": ("Float64", False, "learning rate at its highest"),
    "optimiser": ("string", False, "adam or adamw"),
    "warmup": ("Int64", False, "steps over which the learning rate rises from 0"),
    "weight_decay": ("Float64", False, "of AdamW"),
    "beta_1": ("Float64", False, "Adam's rate of decay of the mean of gradients"),
    "beta_2": ("Float64", False, "Adam's rate of decay of the mean of their squares"),
    "steps": ("Int64", False, "steps of the training"),
    "budget": ("Int64", True, "parameters of every backbone at the preset; missing: it names none"),
    "metric": ("string", False, "what settings are chosen by: auc, log_likelihood, accuracy_within_choices, ..."),
    "evaluator": ("string", False, "question or test; several tests, whose mean it is, with commas"),
    "value": ("Float64", True, "mean over validation episodes; missing where the training or its scores failed"),
    "n_episodes": ("Int64", True, "validation episodes, of every test"),
    "status": ("string", False, "ok, or failed: the training diverged, or a score is not finite"),
    "reason": ("string", True, "why it failed"),
    "prompt_set": ("string", False, "the validation episodes"),
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

# A row is told apart from all others by these columns.
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

# Up to so many rows a set of tuples finds two alike sooner than pandas does.
_FEW = 1000

# Metrics of `values` that follow from all contestants of a prompt set together: rows of its summary, of no contestant.
COMPARING = ("score", "gap", "gap_joint", "log_likelihood_adjusted")

# Of targets, metrics that are compared with an oracle's episode by episode.
LIKELIHOODS = ("log_likelihood", "log_likelihood_joint")

_KINDS = {"backbone", "baseline", "oracle", "published"}


class TableError(IclbenchError):
    """A table does not fit its schema, or a file does not hold a table."""

    code = "bad-data"


def frame(table: TableName, rows: list[dict[str, object]] | pd.DataFrame) -> pd.DataFrame:
    """Rows as a validated frame of one table; columns left out are missing values."""
    if isinstance(rows, pd.DataFrame):
        return validate(table, rows.reindex(columns=list(SCHEMAS[table])))
    # Column by column: a frame of dictionaries takes longer than all the rest, and thousands of tables are small.
    columns = {name: np.fromiter((row.get(name) for row in rows), object, len(rows)) for name in SCHEMAS[table]}
    return _whole(table, _typed(table, columns, pd.RangeIndex(len(rows))))


def validate(table: TableName, data: pd.DataFrame, origin: np.ndarray | None = None) -> pd.DataFrame:
    """The frame with exact column types, optional columns that it lacks as missing values.

    Args:
        table: its name.
        data: the rows.
        origin: the file that each row is from; no row may stand twice in one file. None: all are from one.

    Raises:
        TableError: for other missing columns, missing values or duplicate rows.
    """
    # By arrays: a frame of forty columns takes five times as long, and thousands of tables are small.
    given = {str(column): _plain(series.array) for column, series in data.items()}
    return _whole(table, _typed(table, given, data.index), origin)


def _whole(table: TableName, typed: pd.DataFrame, origin: np.ndarray | None = None) -> pd.DataFrame:
    """The frame, in which no row stands twice."""
    keys = typed[_KEYS[table]]
    _refuse_duplicates(table, typed, keys if origin is None else keys.assign(origin=origin))
    return typed


def keys(table: TableName) -> list[str]:
    """The columns by which a row is told apart from all others."""
    return list(_KEYS[table])


def _typed(table: TableName, given: Mapping[str, Any], index: pd.Index) -> pd.DataFrame:
    """The frame of these columns, with its exact types."""
    schema = SCHEMAS[table]
    missing = [c for c, (_, optional, _) in schema.items() if not optional and c not in given]
    unknown = [c for c in given if c not in schema]
    if missing or unknown:
        raise TableError(f"table '{table}': missing columns {missing}, unknown columns {unknown}")
    columns: dict[str, ExtensionArray] = {}
    for column, (dtype, optional, _) in schema.items():
        try:
            values = _as(dtype, given[column]) if column in given else _absent(dtype, len(index))
        except (TypeError, ValueError) as error:
            raise TableError(f"table '{table}': {error}") from error
        if not optional and values.isna().any():
            raise TableError(f"table '{table}': column '{column}' has missing values")
        columns[column] = values
    if table == "values":
        _validate_values(columns)
    return pd.DataFrame(columns, index=index, copy=False)


def _plain(values: Any) -> Any:
    """A numpy array without pandas' wrapper around it, which is slow to convert."""
    return values.to_numpy() if isinstance(values, NumpyExtensionArray) else values


def _as(dtype: str, values: Any) -> ExtensionArray:
    typed: ExtensionArray = values if values.dtype == _DTYPES[dtype] else pd.array(values, dtype=_DTYPES[dtype])
    if dtype == "Float64":  # a NaN computed inside a nullable column is not the missing value everywhere in pandas
        nan = np.isnan(typed.to_numpy(float, na_value=np.nan))
        if nan.any():
            typed = typed.copy()
            typed[nan] = pd.NA
    return typed


def _absent(dtype: str, rows: int) -> ExtensionArray:
    return pd.array([pd.NA] * rows, dtype=_DTYPES[dtype])


def _refuse_duplicates(table: TableName, typed: pd.DataFrame, keys: pd.DataFrame) -> None:
    if len(keys) <= _FEW and len(set(zip(*(column.tolist() for _, column in keys.items()), strict=True))) == len(keys):
        return
    twice = keys.duplicated()
    if twice.any():
        first = typed.loc[twice, _KEYS[table]].iloc[0].dropna().to_dict()
        raise TableError(f"table '{table}': two rows for {first}")


def _validate_values(columns: Mapping[str, ExtensionArray]) -> None:
    if not set(columns["kind"].unique()) <= _KINDS:
        raise TableError(f"table 'values': kind must be one of {sorted(_KINDS)}")
    status = columns["status"]
    if not set(status.unique()) <= {"ok", "failed", "skipped"}:
        raise TableError("table 'values': status must be ok, failed or skipped")
    ok = np.asarray(status == "ok", dtype=bool)
    if columns["value"].isna()[ok].any():
        raise TableError("table 'values': a row with status ok has no value")
    if columns["reason"].isna()[~ok].any():
        raise TableError("table 'values': a failed or skipped row has no reason")


def union(table: TableName, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of several frames of one table; of rows with the same keys the first."""
    filled = [rows for rows in frames if len(rows)]
    if not filled:
        return frame(table, [])
    return pd.concat(filled, ignore_index=True).drop_duplicates(_KEYS[table], ignore_index=True)
