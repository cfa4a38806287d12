"""Real tables for the question `targets`: predict the held-out rows of a table from the rows of a context.

An episode is a split of one table: N random rows in random order are the context, and further random rows, at most
`targets`, are the targets. This family differs from `tabular` as follows:

- Targets are numbers or classes, and columns of every type are used: categories, dates and missing cells are encoded
  (`iclbench.families.tabular.encoder`). The types of columns are determined from all rows.
- Columns and outputs are standardised by the context alone, so the encoded context depends on target rows only through
  the types of columns. In `tabular`, inputs are standardised over the complete table, and outputs are standardised by
  the first rows.
- All targets of an episode are predicted from the same context, so that metrics of all targets, such as the ROC AUC,
  are defined.
- Prompts take the tables in turn, and tables are the clusters of confidence intervals.

Encoded columns are mapped to the d inputs of the task as in the family `tabular-prior`: if a table has fewer columns,
zeros follow them; if it has more, every episode has d random columns. Standardised values are clipped at ±100. A column
that is constant in the context is 0. If all outputs of a context are equal, this value is subtracted from all outputs,
and the divisor is its absolute value, or 1 if it is 0.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num
from pydantic import Field
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import DataError, UnknownNameError
from iclbench.core.formats import plural
from iclbench.core.hashing import data_fingerprint
from iclbench.core.settings import PositiveFloat, PositiveInt, Role
from iclbench.core.standard import Standardisation
from iclbench.families.base import Family, FunctionParameters
from iclbench.families.request import Request
from iclbench.families.tabular.table_set import LabelledTable, bundled_tables, folder_tables
from iclbench.families.tabular.tabular import TableName, distinct_rows

log = logging.getLogger("iclbench")

# Smallest number of target rows.
MIN_TARGETS = 10
# Largest absolute value of an input.
LIMIT = 100.0


class RealTablesParameters(FunctionParameters):
    """Parameters of real tables.

    Attributes:
        kind: whether targets are numbers or classes.
        classes: number of classes of the task. A table with fewer classes has only the first labels.
        path: a folder of tables, in the data folder or relative to the current folder. The default is the folder
            `tables` of the data folder if `suite` or `tables` is set, and otherwise the tables that scikit-learn
            bundles.
        suite: a published collection, to select only its tables.
        tables: names of tables of the folder or of bundled tables (default: all with enough rows and not too many
            classes).
        targets: largest number of target rows.
        splits: largest number of splits of every table in the prompts.
        variance: variance of outputs that are numbers, for example the variance in the task on which a model was
            trained.
    """

    kind: Literal["number", "class"] = "number"
    classes: Annotated[int, Field(ge=2, le=1000)] = 10
    path: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00-\x1f]*$"), Role.LOCATION] = ""
    suite: Literal["", "cc18", "tabarena"] = ""
    tables: tuple[TableName, ...] = Field(default=(), strict=False)
    targets: Annotated[int, Field(ge=MIN_TARGETS, le=100_000)] = 256
    splits: PositiveInt = 10
    variance: PositiveFloat = 1.0


class RealTables(Family):
    """Splits of real tables.

    Args:
        parameters: see `RealTablesParameters`.
        data_dir: the folder that contains `tables/`.
        tables: tables to use instead of bundled tables or files.

    Raises:
        DataError: on first use, if tables are missing, cannot be read, have too few rows or too many classes.
    """

    Parameters = RealTablesParameters
    questions: ClassVar[frozenset[str]] = frozenset({"targets"})
    data_parameters: ClassVar[tuple[str, ...]] = ("suite", "tables")
    parameters: RealTablesParameters

    def __init__(
        self,
        parameters: RealTablesParameters,
        data_dir: Path | None = None,
        tables: Sequence[LabelledTable] | None = None,
    ) -> None:
        super().__init__(parameters, data_dir)
        self._tables_in_memory = tables
        self._reported_points: set[int] = set()
        if parameters.kind == "class":
            self.classes = parameters.classes
        self.target_metrics = (  # type: ignore[misc]
            ("roc_auc", "calibration_error") if self.classes else ("r_squared", "crps")
        )

    @property
    def x_dim(self) -> int:
        return int(self.parameters.dim)

    @property
    def normaliser(self) -> float:
        return 1.0 if self.classes is not None else float(self.parameters.variance)

    @property
    def needs_data(self) -> bool:
        return self._tables_in_memory is None and self._folder is not None

    @property
    def max_prompts(self) -> int:
        return self.parameters.splits * len(self.tables)

    def prompt_limit(self, points: int) -> int:
        """Return the number of splits of all tables with enough rows."""
        return self.parameters.splits * len(self.usable_tables(points))

    @cached_property
    def fingerprint(self) -> str:
        return data_fingerprint(*(f"{table.name} {table.fingerprint} " for table in self.tables))

    def files(self) -> dict[str, str]:
        """Return the folder: unchanged if it is relative to the data folder, otherwise as an absolute path."""
        folder = self._folder
        if not self.parameters.path or folder is None:
            return {}
        path = Path(self.parameters.path)
        return {"path": self.parameters.path if folder != path else str(path.absolute())}

    @property
    def _folder(self) -> Path | None:
        """The folder of the tables; None if only bundled tables are used."""
        if not self.parameters.path:
            folder = None if self.data_dir is None else self.data_dir / "tables"
            if self.parameters.suite:
                return folder or Path("tables")
            return folder if self.parameters.tables and folder is not None and folder.is_dir() else None
        path = Path(self.parameters.path)
        in_data_dir = path if self.data_dir is None else self.data_dir / path
        return path if path.is_dir() and not in_data_dir.is_dir() else in_data_dir

    @cached_property
    def tables(self) -> list[LabelledTable]:
        """All tables with at most `classes` classes, in the order of the names on the card if the card names tables."""
        tables = self._read_tables() if self._tables_in_memory is None else list(self._tables_in_memory)
        large = [table for table in tables if self.classes is not None and table.classes > self.classes]
        if large and (self.parameters.tables or len(large) == len(tables)):
            raise DataError(
                f"table '{large[0].name}' has {large[0].classes} classes, and the task has {self.classes}; use "
                f"-o task.classes={large[0].classes} in training, or other tables",
                code="not-applicable",
            )
        if large:
            names = ", ".join(table.name for table in large)
            log.info("left out, because they have more than %d classes: %s", self.classes, names)
        return [table for table in tables if table not in large]

    def _read_tables(self) -> list[LabelledTable]:
        kind, names, suite = self.parameters.kind, self.parameters.tables, self.parameters.suite
        bundled = {table.name: table for table in bundled_tables(kind)}
        if self._folder is None:
            unknown = next((name for name in names if name not in bundled), None)
            if unknown is not None:
                hint = "(bundled tables; for others pass -o task.path=FOLDER)"
                raise UnknownNameError("table", unknown, bundled, hint=hint)
            return [bundled[name] for name in names or bundled]
        in_folder = [name for name in names if name not in bundled]
        if names and not in_folder:
            return [bundled[name] for name in names]
        tables = folder_tables(self._folder, kind, in_folder, suite)
        table_by_name = dict(zip(in_folder, tables, strict=False))
        return [bundled[name] if name in bundled else table_by_name[name] for name in names] if names else tables

    def usable_tables(self, points: int) -> list[int]:
        """Return the indices of the tables with enough rows for contexts of `points` rows.

        Raises:
            DataError: no table has enough rows, or a named table has too few rows.
        """
        needed = points + MIN_TARGETS
        small = [table for table in self.tables if table.rows < needed]
        if small and (self.parameters.tables or len(small) == len(self.tables)):
            raise DataError(
                f"table '{small[0].name}' has {small[0].rows} rows, fewer than the {points} rows of a context and "
                f"{MIN_TARGETS} targets; use fewer points or other tables",
                code="not-applicable",
            )
        if small and points not in self._reported_points:
            self._reported_points.add(points)
            names = ", ".join(table.name for table in small)
            log.info("left out, because they have fewer than %d rows: %s", needed, names)
        return [index for index, table in enumerate(self.tables) if table.rows >= needed]

    def sample(self, request: Request) -> Episodes:
        usable = torch.tensor(self.usable_tables(request.points))
        generator = request.generator
        index = torch.randint(len(usable), (request.episodes,), generator=generator, device=generator.device)
        return self._splits(request, usable[index.cpu()])

    def sample_prompts(self, request: Request) -> Episodes:
        """Draw splits of all tables in turn."""
        usable = torch.tensor(self.usable_tables(request.points))
        number = request.before + torch.arange(request.episodes)
        return self._splits(request, usable[number % len(usable)])

    def _splits(self, request: Request, table_index: Int[Tensor, " B"]) -> Episodes:
        """Draw one split of the given table per episode."""
        self.parse_shift(request.shift)
        generator, points = request.generator, request.points
        limit = self.parameters.targets
        counts = [min(limit, self.tables[i].rows - points) for i in table_index.tolist()]
        largest = max(counts)
        rows = torch.full((request.episodes, points + largest), -1, dtype=torch.long)
        for index in table_index.unique().tolist():
            episodes = (table_index == index).nonzero().squeeze(1)
            table = self.tables[index]
            count = points + min(limit, table.rows - points)
            rows[episodes, :count] = distinct_rows(len(episodes), count, table.rows, generator).cpu()
        # If a table has more columns than the task has inputs, the columns with the smallest keys are used.
        widest = max(len(table.encoder.names) for table in self.tables)
        keys = torch.rand((request.episodes, widest), generator=generator, device=generator.device).cpu().numpy()
        inputs = np.zeros((request.episodes, points + largest, self.x_dim), dtype=np.float32)
        outputs = np.zeros(rows.shape)
        for episode, index in enumerate(table_index.tolist()):
            x, y = self._encoded(self.tables[index], rows[episode].numpy(), points, keys[episode])
            inputs[episode, : len(x), : x.shape[1]] = x
            outputs[episode, : len(y)] = y
        x = torch.from_numpy(inputs)
        if request.active_dims is not None:
            x = x * (torch.arange(self.x_dim) < request.active_dims)
        y = torch.from_numpy(outputs)
        y = y.long() if self.classes is not None else y.float().unsqueeze(-1)
        sampled = Points(x, y, rows >= 0).to(device=generator.device)
        context, targets = sampled.span(0, points), sampled.span(points)
        choices = None if self.classes is None else self._allowed_labels(table_index).to(generator.device)
        rows = rows.to(generator.device)
        return Episodes(
            context=context,
            targets=targets,
            scored=targets.mask,
            classes=self.classes,
            choices=choices,
            truth={"table": table_index.to(generator.device), "rows": rows},
        )

    def _encoded(
        self, table: LabelledTable, rows: Int[np.ndarray, " rows"], points: int, keys: Float[np.ndarray, " columns"]
    ) -> tuple[Float[np.ndarray, "valid d"], Num[np.ndarray, " valid"]]:
        """Return the inputs and outputs of a split. The first `points` rows are the context."""
        rows = rows[rows >= 0]
        context, targets = table.encode(rows[:points], rows[points:])
        standard = Standardisation.of(context)
        x = np.concatenate([standard.apply(context), standard.apply(targets)]).clip(-LIMIT, LIMIT)
        if x.shape[1] > self.x_dim:
            x = x[:, np.sort(np.argsort(keys[: x.shape[1]])[: self.x_dim])]
        y = table.y[rows]
        return x, y if self.classes is not None else self.scaled_outputs(y, points)

    def scaled_outputs(self, y: Float[np.ndarray, " rows"], points: int) -> Float[np.ndarray, " rows"]:
        """Convert outputs to the units of an episode whose context is the first `points` rows."""
        scaled: np.ndarray = standardise_by_context(y, points) * self.parameters.variance**0.5
        return scaled

    def _allowed_labels(self, table_index: Int[Tensor, " B"]) -> Bool[Tensor, "B classes"]:
        """Return a mask of the labels of each episode's table."""
        counts = torch.tensor([self.tables[index].classes for index in table_index.tolist()])
        return torch.arange(int(self.classes or 0)) < counts.unsqueeze(1)

    def strata(self, episodes: Episodes) -> dict[str, Bool[Tensor, " B"]]:
        """Group episodes by table if they come from several tables."""
        index = episodes.truth["table"]
        numbers = index.unique().tolist()
        return {self.tables[n].name: index == n for n in numbers} if len(numbers) > 1 else {}

    def clusters(self, episodes: Episodes) -> Int[Tensor, " B"]:
        return episodes.truth["table"]

    def remarks(self, points: int, prompts: int) -> list[str]:
        """Return lines that describe the tables and the splits of `prompts` prompts. They are printed with the
        scores."""
        usable = [self.tables[index] for index in self.usable_tables(points)]
        splits, remainder = divmod(prompts, len(usable))
        count = f"{splits} or {splits + 1} splits" if remainder else plural(splits, "split")
        return [
            *(self._remark(table) for table in usable),
            f"{count} of every table: {points} rows are the context, and at most "
            f"{self.parameters.targets} others are targets; columns"
            + ("" if self.classes else " and targets")
            + " are standardised by the context",
        ]

    def _remark(self, table: LabelledTable) -> str:
        columns = len(table.encoder.names)
        noun = "columns" if columns == len(table.encoder.columns) else "encoded columns"
        inputs = f"all {columns} {noun}" if columns <= self.x_dim else f"{self.x_dim} of {columns} {noun}"
        kind = f"{table.classes} classes, " if self.classes else ""
        return f"{table.name}: {kind}{table.rows} rows, {inputs}"


def standardise_by_context(y: Float[np.ndarray, " rows"], points: int) -> Float[np.ndarray, " rows"]:
    """Standardise outputs by the mean and standard deviation of the first `points` outputs. If these are equal, the
    divisor is their absolute value, or 1 if it is 0."""
    standard = Standardisation.of(y[:points, None])
    if standard.width[0] > 0:
        return np.asarray(standard.apply(y[:, None])[:, 0])
    constant = float(y[0])
    return np.asarray((y - constant) / (abs(constant) or 1.0))


def table_hashes(family: RealTables) -> dict[str, str]:
    """Return the fingerprint of every table by name."""
    return {table.name: table.fingerprint for table in family.tables}
