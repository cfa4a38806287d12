"""Result tables: their schemas and their parquet files.

There are seven tidy tables. A row is one measured value, except in `answers`, `cells` and `trials`:

- `values`: scores, reproducible byte for byte.
- `costs`: measurements on a machine, such as seconds and bytes.
- `errors`: scores of single episodes, for paired tests of differences.
- `examples`: a few episodes and their predictions, for figures.
- `answers`: questions to a language model and its answers, one row per question.
- `cells`: the outcome of every cell of a sweep, with its duration and its machine.
- `trials`: settings that `iclbench tune` tried, with their scores, one row per training run.

This package does not import torch. The files contain no time stamps.
"""

from iclbench.tables.parquet import (
    COMMAND_FOLDERS,
    files,
    is_intact,
    is_packed,
    metadata,
    packed_file_name,
    read,
    read_all,
    read_columns,
    read_packed,
    write,
)
from iclbench.tables.schema import (
    ANSWERS,
    CELLS,
    COMPARISON_METRICS,
    COSTS,
    ERRORS,
    EXAMPLES,
    LIKELIHOODS,
    SCHEMA_VERSION,
    SCHEMAS,
    TRIALS,
    VALUES,
    TableError,
    TableName,
    frame,
    key_columns,
    short_name,
    union,
    validate,
    with_python_strings,
    with_short_names,
)

__all__ = [
    "ANSWERS",
    "CELLS",
    "COMMAND_FOLDERS",
    "COMPARISON_METRICS",
    "COSTS",
    "ERRORS",
    "EXAMPLES",
    "LIKELIHOODS",
    "SCHEMAS",
    "SCHEMA_VERSION",
    "TRIALS",
    "VALUES",
    "TableError",
    "TableName",
    "files",
    "frame",
    "is_intact",
    "is_packed",
    "key_columns",
    "metadata",
    "packed_file_name",
    "read",
    "read_all",
    "read_columns",
    "read_packed",
    "short_name",
    "union",
    "validate",
    "with_python_strings",
    "with_short_names",
    "write",
]
