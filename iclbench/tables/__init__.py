"""The schema of the result tables and the only door to parquet.

Seven tables, tidy, one row per measured value. `values` holds what is computed (byte for byte reproducible), `costs`
what is measured on a machine (seconds, bytes), `errors` the score of every single episode, so that differences are
tested paired, `examples` a few episodes and what was predicted for them, to be drawn, `answers` what a language model
was asked and said, `cells` what became of every cell of a sweep, where and how long it ran, `trials` what `iclbench
tune` tried. Nothing here imports torch, and no file carries a time stamp.
"""

from iclbench.tables.parquet import (
    OWN,
    files,
    is_intact,
    is_packed,
    metadata,
    packed,
    packed_name,
    read,
    read_all,
    read_columns,
    write,
)
from iclbench.tables.schema import (
    ANSWERS,
    CELLS,
    COMPARING,
    COSTS,
    ERRORS,
    EXAMPLES,
    LIKELIHOODS,
    SCHEMA,
    SCHEMAS,
    TRIALS,
    VALUES,
    TableError,
    TableName,
    frame,
    keys,
    union,
    validate,
)

__all__ = [
    "ANSWERS",
    "CELLS",
    "COMPARING",
    "COSTS",
    "ERRORS",
    "EXAMPLES",
    "LIKELIHOODS",
    "OWN",
    "SCHEMA",
    "SCHEMAS",
    "TRIALS",
    "VALUES",
    "TableError",
    "TableName",
    "files",
    "frame",
    "is_intact",
    "is_packed",
    "keys",
    "metadata",
    "packed",
    "packed_name",
    "read",
    "read_all",
    "read_columns",
    "union",
    "validate",
    "write",
]
