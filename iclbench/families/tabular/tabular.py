"""Episodes of real regression tables, on which models that are trained on synthetic functions can be evaluated.

An episode is a random subset of the rows of one table, in random order. Features are standardised over the complete
table, since models have access to all inputs, and mapped to the d dimensions of the task:

- `pad`: the features in their order, then zeros; for a table with more than d features, d random features per episode;
- `project`: x R with a Gaussian matrix R per episode, scaled so that every coordinate has variance 1 on average.

Labels are standardised per episode with statistics of the context only. Since models predict from every prefix, two
simple choices fail: statistics of all points would leak later labels to the first predictions, and statistics of each
prefix would change the label of a point between prefixes. Instead, the mean and standard deviation of the *opening*,
the first `opening` points (at most half of all points), are used for the complete episode, and only points after the
opening are scored. Every scored prefix contains the opening, so its labels are a function of its context, and no later
label affects an earlier one. The disadvantages are that predictions from fewer points are not scored and that the zero
predictor scores above 1 (11/10 · 10/7 = 1.57 for Gaussian labels and ten points). If all labels of the opening are
equal, the scale of the table is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.errors import DataError, UnknownNameError
from iclbench.core.file_errors import cannot_read
from iclbench.core.formats import as_one_line
from iclbench.core.hashing import data_fingerprint
from iclbench.core.settings import PositiveFloat
from iclbench.core.standard import Standardisation
from iclbench.families.base import Family, FunctionParameters
from iclbench.families.request import Request
from iclbench.families.sampling import normal
from iclbench.families.tabular.columns import table_stem
from iclbench.families.tabular.table_file import SUFFIXES, Table, read_table, stem

TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_. -]*$")]


class TabularParameters(FunctionParameters):
    """Parameters of real tables.

    Attributes:
        tables: names of files in the folder `tabular`, with or without suffix (default: all).
        encoding: the map from features to inputs, `pad` or `project`.
        opening: number of first points whose labels determine the standardisation of the episode; these points are not
            scored.
        variance: variance of the labels, for example the variance in the task on which a model was trained.
    """

    tables: tuple[TableName, ...] = Field(default=(), strict=False)
    encoding: Literal["pad", "project"] = "pad"
    opening: Annotated[int, Field(ge=2, le=1000)] = 10
    variance: PositiveFloat = 1.0


class Tabular(Family):
    """Episodes of real tables. Each episode comes from one table, and all tables are equally likely.

    Args:
        parameters: see `TabularParameters`.
        data_dir: the folder that contains `tabular/`.
        tables: tables to use instead of files below `data_dir`.

    Raises:
        DataError: on first use, if tables are missing, cannot be read or have fewer rows than an episode has points.
    """

    Parameters = TabularParameters

    def __init__(
        self, parameters: TabularParameters, data_dir: Path | None = None, tables: Sequence[Table] | None = None
    ) -> None:
        super().__init__(parameters, data_dir)
        self._tables_in_memory = tables

    @property
    def x_dim(self) -> int:
        return int(self.parameters.dim)

    @property
    def normaliser(self) -> float:
        return float(self.parameters.variance)

    @cached_property
    def tables(self) -> list[Table]:
        if self._tables_in_memory is not None:
            return list(self._tables_in_memory)
        return [read_table(path) for path in _table_paths(self.data_dir, self.parameters.tables)]

    @cached_property
    def fingerprint(self) -> str:
        parts = ((f"{table.name} {table.x.shape}", table.x.tobytes(), table.y.tobytes()) for table in self.tables)
        return data_fingerprint(*chain.from_iterable(parts))

    @property
    def needs_data(self) -> bool:
        return self._tables_in_memory is None

    @cached_property
    def _standard_tables(self) -> list[tuple[Tensor, Tensor]]:
        """Features and target of every table, standardised over its rows, in float32."""
        return [(_to_standard_units(t.x), _to_standard_units(t.y[:, None])[:, 0]) for t in self.tables]

    @cached_property
    def _target_standards(self) -> list[Standardisation]:
        """Mean and standard deviation of the target of every table."""
        return [Standardisation.of(table.y[:, None]) for table in self.tables]

    def sample(self, request: Request) -> Episodes:
        episodes, points, generator = request.episodes, request.points, request.generator
        self.parse_shift(request.shift)
        for table in self.tables:
            if table.rows < points:
                raise DataError(
                    f"table '{table.name}' has {table.rows} rows, fewer than the {points} points of an episode; "
                    "use fewer points or remove the table",
                    code="not-applicable",
                )
        device = generator.device
        table_index = torch.randint(len(self.tables), (episodes,), generator=generator, device=device)
        x = torch.zeros(episodes, points, self.x_dim, device=device)
        y = torch.zeros(episodes, points, device=device)
        rows = torch.zeros(episodes, points, dtype=torch.long, device=device)
        for index, (features, target) in enumerate(self._standard_tables):
            episode_rows = (table_index == index).nonzero().squeeze(1)
            rows[episode_rows] = distinct_rows(len(episode_rows), points, len(target), generator)
            x[episode_rows] = self._encode(features.to(device)[rows[episode_rows]], generator)
            y[episode_rows] = target.to(device)[rows[episode_rows]]
        if request.active_dims is not None:
            x = x * (torch.arange(self.x_dim, device=device) < request.active_dims)
        y = self.parameters.variance**0.5 * _standardise_by_opening(y, opening := self._opening(points))
        context = Points.full(x, y.unsqueeze(-1))
        scored = (torch.arange(points, device=device) >= opening).expand(episodes, points)
        return Episodes(context=context, scored=scored, truth={"table": table_index, "rows": rows})

    def _opening(self, points: int) -> int:
        return min(self.parameters.opening, max(1, points // 2))

    def to_labels(
        self, values: Float[np.ndarray, "B N"], table_index: Int[np.ndarray, " B"], rows: Int[np.ndarray, "B N"]
    ) -> Float[np.ndarray, "B N"]:
        """Convert values of the target from the units of the files to labels of episodes.

        Args:
            values: value of every row of every episode, for example a prediction.
            table_index: table of every episode.
            rows: row numbers of every episode.
        """
        standardised, labels = np.empty(rows.shape), torch.empty(rows.shape)
        for index, target_standard in enumerate(self._target_standards):
            is_table = table_index == index
            standardised[is_table] = target_standard.apply(values[is_table].reshape(-1, 1)).reshape(-1, rows.shape[1])
            labels[torch.from_numpy(is_table)] = self._standard_tables[index][1][rows[is_table]]
        mean, scale = _opening_scale(labels, self._opening(rows.shape[1]))
        return np.asarray(self.parameters.variance**0.5 * (standardised - mean.numpy()) / scale.numpy())

    def remarks(self, examples: int) -> list[str]:
        """Return lines that describe episodes with this number of examples. They are printed with the scores."""
        opening = self._opening(examples + 1)
        scale = "" if self.parameters.variance == 1 else f", times {self.parameters.variance**0.5:.3g}"
        if len(self.tables) == 1:
            source, target = "", f"'{as_one_line(self.tables[0].target)}'"
        else:
            source, target = " of one table", "the target"
        return [
            *(f"{as_one_line(table.name)}: {self._features(table)}; {table.rows} rows" for table in self.tables),
            f"an episode: {examples + 1} rows{source}, drawn at random; features are standardised over the table, "
            f"{target} by mean and standard deviation of the first {opening} rows{scale}; these rows are not scored",
            f"all models and methods predict each scored row from the {opening} to {examples} rows before it",
        ]

    def _features(self, table: Table) -> str:
        """Return a description of the inputs of models and baselines on a table."""
        names = ", ".join(map(as_one_line, table.features[:12])) + (", ..." if len(table.features) > 12 else "")
        count, dim = len(table.features), self.x_dim
        if self.parameters.encoding == "project":
            return f"{dim} projections of {count} features ({names}), drawn at random in each episode"
        if count > dim:
            return f"{dim} of {count} features ({names}), chosen at random in each episode"
        return f"all {count} features ({names})" + (f" and {dim - count} columns of zeros" if count < dim else "")

    def _encode(self, features: Float[Tensor, "B N F"], generator: torch.Generator) -> Float[Tensor, "B N Dx"]:
        batch, _, count = features.shape
        if self.parameters.encoding == "project":
            return features @ (normal((batch, count, self.x_dim), generator) / count**0.5)
        if count > self.x_dim:
            columns = distinct_rows(batch, self.x_dim, count, generator).sort(1).values
            return take(features.transpose(1, 2), columns).transpose(1, 2)
        return torch.nn.functional.pad(features, (0, self.x_dim - count))


def distinct_rows(batch: int, count: int, rows: int, generator: torch.Generator) -> Int[Tensor, "batch count"]:
    """Draw, for every episode, `count` different numbers below `rows` in random order, at a cost that does not depend
    on `rows`.

    Floyd's algorithm (Bentley and Floyd 1987) for all episodes at once: step j draws a number from 0..j, and uses j if
    that number is already taken. This gives a uniform subset, which is then shuffled.
    """
    device = generator.device
    numbers = torch.full((batch, count), -1, dtype=torch.long, device=device)
    for step, last in enumerate(range(rows - count, rows)):
        number = torch.randint(last + 1, (batch,), generator=generator, device=device)
        is_taken = (numbers == number.unsqueeze(1)).any(1)
        numbers[:, step] = torch.where(is_taken, last, number)
    order = torch.rand((batch, count), generator=generator, device=device).argsort(1)
    return numbers.gather(1, order)


def _standardise_by_opening(y: Float[Tensor, "B N"], opening: int) -> Float[Tensor, "B N"]:
    """Standardise labels by the mean and standard deviation of the first `opening` points."""
    mean, scale = _opening_scale(y, opening)
    return ((y - mean) / scale).to(y.dtype)


def _opening_scale(y: Float[Tensor, "B N"], opening: int) -> tuple[Float[Tensor, "B 1"], Float[Tensor, "B 1"]]:
    """Return the mean and standard deviation of the first `opening` labels. If these labels are equal, the standard
    deviation is replaced by 1, the value for the complete table in standard units."""
    opening_labels = y[:, :opening].double()
    std = opening_labels.std(1, correction=0, keepdim=True)
    is_constant = opening_labels.amax(1, keepdim=True) == opening_labels.amin(1, keepdim=True)
    return opening_labels.mean(1, keepdim=True), torch.where(is_constant, 1.0, std)


def _to_standard_units(values: Float[np.ndarray, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """Convert columns to standard units; constant columns become 0."""
    standardised = Standardisation.of(values).apply(values)
    return torch.from_numpy(np.ascontiguousarray(standardised, dtype=np.float32))


def _table_paths(data_dir: Path | None, names: Sequence[str]) -> list[Path]:
    """Return the paths of these tables in the data folder or, without names, the paths of all its tables."""
    advice = "set --data-dir or ICLBENCH_DATA to the folder that contains 'tabular'"
    if data_dir is None:
        raise DataError(
            f"the family tabular requires real tables (.csv, .csv.gz or .parquet, target last); {advice}",
            code="missing-data",
        )
    folder = data_dir / "tabular"
    try:
        paths = sorted(p for p in folder.iterdir() if any(table_stem(p, suffix) for suffix in SUFFIXES))
    except OSError as error:
        raise cannot_read(folder, error, advice, missing="missing-data") from None
    if not paths:
        raise DataError(f"{folder} has no table (.csv, .csv.gz or .parquet); {advice}", code="missing-data")
    by_name = {stem(p): p for p in paths} | {p.name: p for p in paths}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UnknownNameError("table", unknown[0], [stem(p) for p in paths], hint=f"(tables in {folder})")
    return [by_name[name] for name in names] or paths
