"""The check of a pack from an unknown source: its cells are planned from its cards, evaluated from the packed weights,
and compared; some runs are trained again.

A pack is untrusted. Its files are copied, so that they do not change during the check. They are tables, weights in
safetensors files and cards, none of which can contain code. Code that the cards name is loaded only if the user trusts
it (`iclbench.core.trust`).

Not compared: measured seconds and bytes, descriptions of hardware and versions, reasons of skipped cells that are
recomputed, training curves of runs that are not drawn for retraining, and results of branches, whose weights a pack
does not contain. All of them must belong to cells of the grids.

In the environment that the pack names, recomputed numbers must be equal. In another one, a forward pass may give other
roundings, so numbers may differ a little. The limits are far below the differences that a paired test can detect.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.config.cards import BUDGET_TOLERANCE, deviation, load_task
from iclbench.config.resolution import RunConfig, differences, resolve_run, without_learned
from iclbench.core import limits
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError, UsageError
from iclbench.core.files import DIGEST
from iclbench.core.formats import integer, nbytes, plural
from iclbench.core.memory import memory_advice
from iclbench.evaluation.evaluate import prompt_sets
from iclbench.store import archives, identity
from iclbench.store.cells import CellStore, computes_scores, file_names
from iclbench.store.rates import read_rates
from iclbench.store.runs import Run, trained_and_current_codes
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.grids import GridRun, grid_runs
from iclbench.sweep.pack import cell_kinds, pack
from iclbench.sweep.pack_cards import CARD, no_grid_card, unpack_cards, unused_cards
from iclbench.sweep.verify import (
    Workers,
    aligned_numbers,
    environment_differences,
    first_difference,
    recorded_kernels,
    share_of_interval,
    share_of_spread,
    verify_cells,
)
from iclbench.tables import TableName
from iclbench.tables import short_name as short

# Names of the files in a pack.
_FILES = re.compile(
    r"[a-z0-9][a-z0-9.-]{0,127}(\.(values|costs|errors|examples|cells)\.parquet|\.weights\.safetensors(\.sha256)?|\.toml)"
    r"|README\.md"
)
# A long word, or a long text in single quotes.
_LONG_STRING = re.compile(r"""[^\s'"]{65,}|(?<=[\s(]')[^']{65,}(?=')""")
# Names that a plug-in may define.
_UNKNOWN_CLASS = re.compile(r"unknown (backbone|mixer|family|estimator|task|baseline)\b")
_MAX_FILES = 1000
# The process may take this multiple of the size limit for a file.
_MEMORY_FACTOR = 16
_MEMORY_REMEDY = (
    f"if the size of the pack is plausible, raise --max-bytes (the check may use {_MEMORY_FACTOR} times as much memory)"
)
_PROVENANCE = ("version", "commit")
_COMPARED: tuple[TableName, ...] = ("values", "errors", "examples", "costs")
# Metrics of `costs` that are recomputed, since they do not depend on the machine, and metrics that follow from the
# settings of a run, with their phases. The others are measured.
_COUNTED = ("flops", "state_bytes")
_SETTINGS = {"parameters": "model", "encoder_parameters": "model", "steps": "train"}
_MEASURED = ("seconds", "bytes")
# Largest differences by rounding: as a share of the half-width of an interval (`values`) or of a standard deviation
# (`examples`), and of the standard deviation over episodes (`errors`) for the root mean square and for the mean of the
# differences.
_ROUNDING = 0.01
_ROUNDING_OF_MEAN = 0.001


def check_pack(pack: Path, n: int, context: Context, max_seconds: float) -> Iterator[str]:
    """Check a pack. Yield one line for each passed check.

    Args:
        pack: the folder.
        n: number of runs that are trained again. If fewer are finished, all of them are.
        context: device, threads and data sets. Its results folder is not used.
        max_seconds: time limit for a training run or an evaluation.

    Raises:
        IclbenchError: a check failed. The message names the first difference.
    """
    if not pack.is_dir():
        raise UsageError(f"{pack} is not a folder of packed results", code="missing-file")
    with (
        TemporaryDirectory(prefix="iclbench-check-") as name,
        limits.process_memory(_MEMORY_FACTOR),
        _refusals(folder := Path(name)),
        memory_advice(_MEMORY_REMEDY),
    ):
        yield _copy(pack, folder / "packed" / pack.resolve().name)
        checked = _Pack(folder, pack.resolve().name, context)
        yield checked.check_tables()
        yield checked.check_seeds_and_budgets()
        yield checked.check_cells()
        yield checked.check_weights()
        with Workers(context.threads, max_seconds) as workers:
            yield checked.evaluate(workers)
            yield checked.retrain(n, workers)


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """Within the block, errors in the request become failures: the pack is wrong, not the command. Messages name files
    as in the pack, and long strings in them are cut."""
    try:
        yield
    except IclbenchError as error:
        message = str(error)
        for subfolder in ("packed", "cards", "results"):
            message = message.replace(f"{folder / subfolder}{os.sep}", "")
        message = _LONG_STRING.sub(lambda match: short(match[0]), message)
        if _UNKNOWN_CLASS.search(message):
            message += "; if the pack needs a plug-in, install it (see the README.md of the pack)"
        if error.exit_code == 1:
            error.args = (message,)
            raise
        raise IclbenchError(message, code=error.code) from error
    except (ValueError, RecursionError) as error:
        raise IclbenchError(f"the pack cannot be read: {short(error)}", code="unreadable-file") from error


def _copy(pack: Path, copy: Path) -> str:
    """Copy the files of a pack, all of which must be small regular files of a known kind."""
    paths = sorted(pack.iterdir())
    if not any(path.name.endswith(CARD) for path in paths):
        raise no_grid_card(pack.name)
    if len(paths) > _MAX_FILES:
        raise IclbenchError(f"the pack has more than {_MAX_FILES} files", code="too-large")
    copy.mkdir(parents=True)
    size = 0
    for path in paths:
        status = path.lstat()
        if not _FILES.fullmatch(path.name) or not stat.S_ISREG(status.st_mode):
            raise IclbenchError(
                f"'{short(path.name)}' does not belong in a pack: expected only tables, weights in safetensors "
                "files, cards and README.md",
                code="bad-data",
            )
        limits.check(status.st_size, f"{path.name} has")
        size += status.st_size
        shutil.copyfile(path, copy / path.name)
    return f"files: {plural(len(paths), 'file')}, {nbytes(size)}"


@dataclass(frozen=True)
class _ModelSize:
    """The number of all parameters of a model, that of its encoder, and the shape of each tensor of its weights."""

    parameters: int
    encoder_parameters: int
    shapes: dict[str, tuple[int, ...]]


@dataclass
class _Pack:
    """The copy of a pack, in a temporary folder.

    Attributes:
        folder: the temporary folder. It has the subfolders `packed` (a results folder with the copy), `cards`, and
            `results` (a results folder for recomputed cells).
        name: name of the pack.
        context: as in `check_pack`.
        grids: paths of the grid cards.
        frames: the tables, by file name.
        weights: the entries of the archives, by task and preset and by run.
        models: the sizes of models, by configuration without the seed.
    """

    folder: Path
    name: str
    context: Context
    grids: list[str] = field(init=False)
    frames: dict[str, pd.DataFrame] = field(init=False)
    weights: dict[str, dict[str, archives.PackedWeights]] = field(init=False)
    models: dict[str, _ModelSize] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path, self.results = self.folder / "packed" / self.name, self.folder / "results"

    def check_tables(self) -> str:
        """Read all tables, and check that their rows belong to the task and preset of their file."""
        self.frames = {}
        for path in sorted(self.path.glob("*.parquet")):
            group, table = path.name.removesuffix(".parquet").rsplit(".", 1)
            rows = tables.read(table, path)  # type: ignore[arg-type]
            self.frames[path.name] = rows
            if tables.metadata(path).get("packed") != group:
                raise IclbenchError(f"{path.name} is not a packed table of {group}", code="bad-data")
            if "preset" in rows and not (rows["task"] + "-" + rows["preset"]).eq(group).all():
                raise IclbenchError(f"{path.name} has rows of another task or preset", code="bad-data")
        self.weights = {}
        for path in self.path.glob(f"*{archives.SUFFIX}"):
            archives.check(path)
            self.weights[path.name.removesuffix(archives.SUFFIX)] = archives.entries(path)
        self.grids = unpack_cards(self.path, self.folder / "cards", self.results)
        if unused := unused_cards(self.path):
            raise IclbenchError(f"'{short(min(unused))}' is not needed by any cell of the pack", code="bad-data")
        count = sum(map(len, self.frames.values()))
        return f"tables: {plural(len(self.frames), 'table')}, {integer(count)} rows of schema {tables.SCHEMA_VERSION}"

    def _rows(self, table: TableName, group: str) -> pd.DataFrame:
        rows = self.frames.get(f"{group}.{table}.parquet")
        return tables.frame(table, []) if rows is None else rows

    @cached_property
    def runs(self) -> list[GridRun]:
        """The runs of the grids."""
        runs = [run for grid in self.grids for run in grid_runs(grid, results=self.results)]
        return [run for run in runs if run.exclusion is None]

    @cached_property
    def cells(self) -> list[GridCell]:
        """The applicable cells of the grids. Training comes first, since its settings explain most differences."""
        cells = [cell for cell in self._planned_cells if cell.reason is None]
        return sorted(cells, key=lambda cell: cell.kind != "train")

    @cached_property
    def excluded_cells(self) -> list[GridCell]:
        """The cells that are not applicable."""
        return [cell for cell in self._planned_cells if cell.reason is not None]

    @cached_property
    def _planned_cells(self) -> list[GridCell]:
        return grid_cells(self.grids, results=self.results)

    @cached_property
    def store(self) -> CellStore:
        return CellStore(self.path.parent)

    def check_seeds_and_budgets(self) -> str:
        """Check that the seeds of each model are 0, 1, 2, ... and that all models have the budgets of the preset."""
        seeds: dict[str, list[int]] = {}
        for run in self.runs:
            seed = run.config.seed
            seeds.setdefault(run.name.removesuffix(f"-s{seed}"), []).append(seed)
            self._check_budget(run)
        for model, numbers in seeds.items():
            if missing := set(range(max(numbers))) - set(numbers):
                raise IclbenchError(
                    f"missing seed: the card trains '{short(model)}' with seeds {sorted(numbers)}, but not with "
                    f"{min(missing)}",
                    code="missing-value",
                )
        return f"seeds and budgets: {plural(len(seeds), 'model')}, {plural(len(self.runs), 'run')}"

    def _check_budget(self, run: GridRun) -> None:
        config = run.config
        _, card = load_task(run.task)
        preset = card.preset(config.preset, config.task.name)
        if run.overrides:
            rates = partial(read_rates, self.results)
            plain = resolve_run(run.task, run.backbone, config.preset, config.seed, read_rates=rates).train
            for key in ("steps", "batch"):
                if (value := getattr(config.train, key)) != (expected := getattr(plain, key)):
                    raise IclbenchError(
                        f"other budget: '{short(run.name)}' is trained with {key} {value}, and preset "
                        f"'{config.preset}' has {expected}",
                        code="settings-changed",
                    )
        if preset.budget is not None:
            model = self._model(config)
            size = model.parameters - model.encoder_parameters
            if abs(deviation(size, preset.budget)) > BUDGET_TOLERANCE:
                raise IclbenchError(
                    f"other budget: '{short(run.name)}' has {integer(size)} parameters, and preset '{config.preset}' "
                    f"has {integer(preset.budget)}",
                    code="settings-changed",
                )

    def _model(self, config: RunConfig) -> _ModelSize:
        """Return the size of a model, which does not depend on the seed."""
        key = config.model_dump_json(exclude={"seed"})
        if key not in self.models:
            model = config.build(config.task.build(self.context.data_dir))
            shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
            self.models[key] = _ModelSize(model.parameter_count, model.encoder_parameter_count, shapes)
        return self.models[key]

    def check_cells(self) -> str:
        """Check that the pack has the results of all cells of the grids, of no other cell, and on the same prompts."""
        rows = tables.union("cells", [rows for file, rows in self.frames.items() if file.endswith(".cells.parquet")])
        planned_groups = {cell.group for cell in self._planned_cells}
        groups = {file.removesuffix(".parquet").rpartition(".")[0] for file in self.frames} | self.weights.keys()
        if unknown_groups := groups - planned_groups:
            raise IclbenchError(f"the card does not contain '{short(min(unknown_groups))}'", code="bad-data")
        others = rows[~rows["cell"].isin({cell.hash for cell in self.cells})]
        excluded = {cell.hash: cell.reason for cell in self.excluded_cells}
        is_excluded = others["status"].eq("skipped") & others["reason"].eq(others["cell"].map(excluded)).fillna(False)
        others = others[~is_excluded]
        names = {(cell.kind, cell.run, cell.task, cell.preset) for cell in self.cells}
        for kind, run, *group in others[["kind", "run", "task", "preset"]].itertuples(index=False):
            if (kind, run, *group) not in names:
                raise IclbenchError(f"the card does not contain '{short(run)}' ({short(kind)})", code="bad-data")
        diverged = set(rows.loc[rows["kind"].eq("train") & rows["status"].eq("diverged"), "cell"])
        for cell in self.cells:
            row = rows[rows["cell"].eq(cell.hash)]
            if row.empty:
                raise self._missing(cell, others)
            self._check_names(cell, row)
            status = row["status"].iloc[0]
            is_possible = {
                "done": True,
                "diverged": cell.kind == "train" or not diverged.isdisjoint(cell.needs),
                "skipped": cell.kind != "train",  # the cell is recomputed, and must be skipped again
            }
            if not is_possible.get(status, False):
                raise IclbenchError(f"{_label(cell)} has the status '{short(status)}'", code="not-finished")
            if status == "done":
                self._check_files(cell, row["files"].iloc[0])
            if status == "done" and computes_scores(cell):
                self._check_prompts(cell)
        if len(others):
            raise IclbenchError(
                f"{plural(len(others), 'row')} of cells that the card does not contain, such as one of "
                f"'{short(others['run'].iloc[0])}' ({short(others['kind'].iloc[0])})",
                code="bad-data",
            )
        return f"settings, codes and prompts: {plural(len(self.cells), 'cell')}"

    def _check_files(self, cell: GridCell, files: str) -> None:
        """Check that a finished cell names files of the pack, and all files that it needs."""
        try:
            names = set(file_names(files))
        except ValueError as error:
            raise IclbenchError(f"{_label(cell)}: {short(error, 'reason')}", code="not-finished") from None
        folders = {name.rpartition("/")[0] for name in names}
        if len(folders) == 1 and folders != {self.name}:
            raise IclbenchError(
                f"the files of {_label(cell)} are in the folder '{short(min(folders))}', and the pack is in "
                f"'{short(self.name)}'; give the folder of the pack its original name",
                code="missing-file",
            )
        needed: set[str] = set()
        if cell.kind == "train":
            suffixes = (".values.parquet", ".costs.parquet", archives.SUFFIX)
            needed = {f"{self.name}/{cell.group}{suffix}" for suffix in suffixes}
        if not needed <= names <= {f"{self.name}/{path.name}" for path in self.path.iterdir()}:
            raise IclbenchError(f"{_label(cell)} does not name its files in '{self.name}'", code="not-finished")
        if self.store.state(cell) != "done":
            raise IclbenchError(f"{_label(cell)} lacks files or metrics", code="not-finished")

    def _check_names(self, cell: GridCell, row: pd.DataFrame) -> None:
        """Check the columns of a cell's row that follow from the card."""
        for name in ("kind", "run", "task", "contestant", "preset", "seed"):
            value, expected = row[name].iloc[0], getattr(cell, name)
            if (None if pd.isna(value) else value) != expected:
                raise IclbenchError(
                    f"edited value: {cell.group}.cells.parquet gives {_label(cell)} the {name} '{short(value)}'",
                    code="bad-data",
                )

    def _missing(self, cell: GridCell, others: pd.DataFrame) -> IclbenchError:
        """Return the error for a cell without a row: its settings, code or prompts differ, or it was left out."""
        same_name = others["kind"].eq(cell.kind) & others["run"].eq(cell.run) & others["task"].eq(cell.task)
        if not (same_name & others["preset"].eq(cell.preset)).any():
            seed = "" if cell.seed is None else f"missing seed {cell.seed}: "
            return IclbenchError(f"{seed}{_label(cell)} is in the card, but not in the pack", code="not-finished")
        packed = self.weights.get(cell.group, {}).get(cell.run)
        if packed is not None and cell.config is not None:
            self._check_training(cell, packed)
        if computes_scores(cell):
            self._check_prompts(cell)
        return IclbenchError(
            f"other settings or code: {_label(cell)} was computed with settings or code that differ from the card and "
            "this iclbench",
            code="settings-changed",
        )

    def _check_training(self, cell: GridCell, packed: archives.PackedWeights) -> None:
        """Check that weights were trained with the settings and the code of a cell."""
        assert cell.config is not None
        config: RunConfig = packed.run_config
        for target, trained, current in trained_and_current_codes(config):
            if trained != current:
                raise IclbenchError(
                    f"other code: '{short(cell.run)}' was trained with code {short(trained)} of "
                    f"'{short(target)}', and the code here is {short(current)}",
                    code="code-changed",
                )
        if packed.training_id != identity.weights_id(cell.config):
            changes = differences(without_learned(packed.trained_part), without_learned(cell.config.trained_part))
            changes = [line for line in changes if not line.startswith("task.card")] or ["a hidden setting"]
            is_size = any(line.startswith(("backbone.settings", "train.steps", "train.batch")) for line in changes)
            raise IclbenchError(
                f"other {'budget' if is_size else 'settings'}: '{short(cell.run)}' was trained with settings that "
                f"differ from the card's (packed -> card): {'; '.join(map(short, changes[:4]))}",
                code="settings-changed",
            )

    def _check_trainings(self, group: str, cells: Sequence[GridCell]) -> None:
        """Check the rows of a group that are not recomputed: those of trainings and of branches, and costs.

        Args:
            group: the task and preset.
            cells: the training runs of the group that did not diverge.
        """
        values, costs = self._rows("values", group), self._rows("costs", group)
        branches = values[values["axis"].eq("branch").fillna(False)]
        is_branched = {cell.run for cell in cells if cell.config is not None and cell.config.train.branches}
        for run in set(branches["run"]) - is_branched:
            raise IclbenchError(f"the card gives '{short(run)}' no branches", code="bad-data")
        for metric in set(costs["metric"]) - {*_COUNTED, *_SETTINGS, *_MEASURED}:
            raise IclbenchError(f"{group}.costs.parquet has the metric '{short(metric)}'", code="bad-data")
        trained = {(cell.run, cell.contestant) for cell in cells}
        contestants = trained | {(cell.run, cell.contestant) for cell in self.cells if cell.group == group}
        for rows, known in ((values[~_is_recomputed(values)], trained), (costs, contestants)):
            for run, contestant in set(rows[["run", "contestant"]].itertuples(index=False, name=None)) - known:
                raise IclbenchError(f"the card does not contain '{short(run)}' ({short(contestant)})", code="bad-data")
        for cell in cells:
            self._check_curve(cell, values)
        counts: dict[tuple[str, ...], float] = {}
        for cell in cells:
            assert cell.config is not None
            model = self._model(cell.config)
            numbers = (model.parameters, model.encoder_parameters, cell.config.train.total_steps)
            counts |= {
                (cell.run, cell.contestant, phase, metric): float(number)
                for (metric, phase), number in zip(_SETTINGS.items(), numbers, strict=True)
                if number
            }
        columns = ["run", "contestant", "phase", "metric", "value"]
        stored = costs.loc[costs["metric"].isin(_SETTINGS), columns]
        packed = {tuple(key): float(value) for *key, value in stored.itertuples(index=False, name=None)}
        for key in sorted(counts.keys() | packed.keys()):
            if (value := packed.get(key)) != (expected := counts.get(key)):
                given = "no" if value is None else f"{value:g}"
                raise IclbenchError(
                    f"edited value: costs gives '{short(key[0])}' ({short(key[1])}) {given} {key[-1]}, and it has "
                    f"{'none' if expected is None else f'{expected:g}'}",
                    code="bad-data",
                )

    def _check_curve(self, cell: GridCell, values: pd.DataFrame) -> None:
        """Check that the rows of a training run are its losses at all logged steps, and evaluations at the steps that
        its settings name."""
        train = self.weights[cell.group][cell.run].run_config.train
        if train.branches:
            return
        rows = values[values["run"].eq(cell.run) & values["axis"].eq("train_step").fillna(False)]
        is_loss = rows["evaluator"].eq("train") & rows["metric"].eq("loss")
        keys = ["evaluator", "metric", "n_related", "n_context"]
        curves = [(train.log_every, rows[is_loss])]
        curves += [(train.evaluate_every, curve) for _, curve in rows[~is_loss].groupby(keys, dropna=False)]
        for every, curve in curves:
            due_steps = {*range(every, train.steps, every), train.steps} if every else set()
            if sorted(curve["axis_value"]) != sorted(due_steps):
                name = f"{short(curve['metric'].iloc[0])}" if len(curve) else "loss"
                raise IclbenchError(
                    f"edited training: the rows of {name} of '{short(cell.run)}' are not those of the steps at which "
                    "its settings record it",
                    code="bad-data",
                )

    def _check_prompts(self, cell: GridCell) -> None:
        """Check that an evaluation is on the prompts of its cell."""
        values = self._rows("values", cell.group)
        values = values[values["run"].eq(cell.run) & cell_kinds(values).eq("evaluate")]
        options = cell.options
        sets = prompt_sets(
            cell.task_config, cell.preset, options["shifts"], options["evaluators"], options["seed"],
            self.context.data_dir,
        )  # fmt: skip
        expected = {prompts.id for prompts in sets}
        if unknown := set(values["prompt_set"].dropna()) - expected:
            raise IclbenchError(
                f"other prompts: '{short(cell.run)}' was evaluated on prompt set '{short(min(unknown))}', and "
                f"the card gives {', '.join(sorted(expected))}",
                code="settings-changed",
            )

    @cached_property
    def trained_cells(self) -> list[GridCell]:
        """The training runs that did not diverge."""
        return [cell for cell in self.cells if cell.kind == "train" and self.store.state(cell) == "done"]

    @cached_property
    def diverged_cells(self) -> list[GridCell]:
        """The training runs that diverged."""
        return [cell for cell in self.cells if cell.kind == "train" and self.store.state(cell) == "diverged"]

    def check_weights(self) -> str:
        """Check that the pack has the weights of all runs and of no others, and unpack them."""
        for cell in self.trained_cells:
            packed = self.weights.get(cell.group, {}).get(cell.run)
            if packed is None:
                raise IclbenchError(
                    f"the pack has no weights of '{short(cell.run)}'; add seed {cell.seed} to `weights` of the grid "
                    "card, and pack again",
                    code="missing-file",
                )
            self._check_training(cell, packed)
            self._check_tensors(cell, packed)
            archives.unpack(packed, Run(self.results / "runs" / cell.run), self.results)
        for group in sorted({cell.group for cell in self.cells}):
            cells = [cell for cell in self.trained_cells if cell.group == group]
            if unknown := self.weights.get(group, {}).keys() - {cell.run for cell in cells}:
                raise IclbenchError(
                    f"weights of '{short(min(unknown))}', which is not a finished run of {group}", code="bad-data"
                )
            self._check_trainings(group, cells)
        return f"weights: {plural(len(self.trained_cells), 'run')}"

    def _check_tensors(self, cell: GridCell, packed: archives.PackedWeights) -> None:
        """Check that packed weights have the tensors of the model and no other metadata than the package writes."""
        assert cell.config is not None
        expected = self._model(cell.config).shapes
        stored = {name: tuple(tensor.shape) for name, tensor in packed.tensors().items()}
        for name in sorted(expected.keys() | stored.keys()):
            if stored.get(name) != expected.get(name):
                described = [str(shapes[name]) if name in shapes else "missing" for shapes in (stored, expected)]
                raise IclbenchError(
                    f"the weights of '{short(cell.run)}' do not fit its model: the shape of '{short(name)}' is "
                    f"{described[0]} in the pack and {described[1]} in the model",
                    code="bad-data",
                )
        if unknown := packed.metadata.keys() - {"config", DIGEST}:
            raise IclbenchError(
                f"the weights of '{short(cell.run)}' have unknown metadata '{short(min(unknown))}'", code="bad-data"
            )

    def evaluate(self, workers: Workers) -> str:
        """Recompute all cells from the packed weights, pack the results, and compare the tables."""
        cells = [cell for cell in self.cells if cell.kind != "train" and self.store.state(cell) in ("done", "skipped")]
        context = replace(self.context, results=self.results)
        environment: dict[str, None] = {}
        for cell in cells:
            instruction_set = recorded_kernels(self.store, cell)
            environment |= dict.fromkeys(environment_differences(self.store, cell, self.context, instruction_set))
            outcome = workers.work(cell, context, instruction_set)
            if outcome.status == "done" and self.store.state(cell) == "skipped":
                raise IclbenchError(f"{_label(cell)} is skipped in the pack, but is applicable", code="bad-data")
            if outcome.status != self.store.state(cell):
                reason = short(outcome.reason, "reason")
                raise IclbenchError(f"{_label(cell)} cannot be recomputed: {reason}", code="failed")
        recomputed = self.results / self.name
        pack(self.cells, CellStore(self.results), recomputed)
        are_equal = []
        for group in sorted({cell.group for cell in self.cells}):
            for table in _COMPARED:
                path = recomputed / tables.packed_file_name(table, *group.rsplit("-", 1))
                new = tables.read(table, path) if path.is_file() else tables.frame(table, [])
                are_equal.append(_are_equal(group, table, self._rows(table, group), new, may_round=bool(environment)))
        difference = "equal" if all(are_equal) else f"equal but for rounding ({'; '.join(environment)})"
        return f"values: {plural(len(cells), 'cell')} recomputed from the packed weights: {difference}"

    def retrain(self, n: int, workers: Workers) -> str:
        """Train the diverged runs and n random finished runs again, and compare the outcomes, the training curves and
        an evaluation of each run."""
        for cell in self.diverged_cells:
            context = replace(self.context, results=self.folder / "diverged")
            outcome = workers.work(cell, context, recorded_kernels(self.store, cell))
            if outcome.status != "diverged":
                raise IclbenchError(
                    f"edited training: '{short(cell.run)}' diverged in the pack, and after retraining it is "
                    f"{outcome.status}",
                    code="bad-data",
                )
        notes = [f"{plural(len(self.diverged_cells), 'run')} diverged again"] if self.diverged_cells else []
        total = len(self.trained_cells)
        sample = secrets.SystemRandom().sample(self.trained_cells, min(n, total))
        results = self.folder / "retrained"
        verified = [
            verify_cells(self._with_evaluation(cell), self.store, self.context, workers, results) for cell in sample
        ]
        for cell, each in zip(sample, verified, strict=True):
            if not each.rows:
                raise IclbenchError(f"{_label(cell)} cannot be retrained: {each.difference}", code="failed")
            difference = each.difference
            # On a GPU, the same training may give other numbers in the same environment.
            is_exact = not each.environment and self.context.device == "cpu"
            retrained = archives.of_run(Run(results / "runs" / cell.run))
            if is_exact and (retrained is None or retrained.digest != self.weights[cell.group][cell.run].digest):
                difference = difference or "its weights are not those of the pack"
            if difference and (is_exact or not each.agrees):
                raise IclbenchError(
                    f"edited training: '{short(cell.run)}' differs after retraining: {difference}", code="bad-data"
                )
        if sample:
            names = ", ".join(sorted(f"'{short(cell.run)}'" for cell in sample))
            notes.append(f"{names} retrained, {'equal' if all(each.is_equal for each in verified) else 'agrees'}")
            notes.append(
                "all trainings were recomputed"
                if len(sample) == total
                else f"an edited training is found with probability {len(sample)}/{total} only; --recompute {total} "
                "retrains all"
            )
        return f"training: {'; '.join(notes) or 'no runs'}"

    def _with_evaluation(self, trained: GridCell) -> list[GridCell]:
        """A training run, and the evaluation of its weights if the grid has one."""
        evaluations = [
            cell
            for cell in self.cells
            if cell.kind == "evaluate"
            and not cell.is_summary
            and trained.hash in cell.needs
            and self.store.state(cell) == "done"
        ]
        return [trained, *evaluations[:1]]


def _is_recomputed(values: pd.DataFrame) -> pd.Series:
    """Mask of the rows of `values` that are recomputed. A pack does not contain weights of branches, or from before the
    end of training."""
    return cell_kinds(values).ne("train") & values["axis"].ne("branch").fillna(True).astype(bool)


def _are_equal(
    group: str, table: TableName, stored: pd.DataFrame, computed: pd.DataFrame, may_round: bool = True
) -> bool:
    """Compare a table with the recomputed table. Return False if numbers differ by rounding.

    Raises:
        IclbenchError: the tables differ in more than rounding, or at all if `may_round` is False.
    """
    if table == "values":
        stored, computed = (rows[_is_recomputed(rows)] for rows in (stored, computed))
    if table == "costs":
        stored, computed = (
            rows[rows["metric"].isin(_COUNTED)].assign(device="", threads=0) for rows in (stored, computed)
        )
    difference = first_difference(stored, computed, table, _PROVENANCE)
    if difference is None:
        return True
    is_rounding = False
    if may_round and table == "errors":
        is_rounding = _errors_agree(stored, computed)
    elif may_round and table != "costs":
        of = share_of_interval if table == "values" else partial(share_of_spread, table=table)
        share = of(stored, computed, ignored=_PROVENANCE)
        is_rounding = share is not None and share < _ROUNDING
    if not is_rounding:
        raise IclbenchError(
            f"edited value: {group}.{table}.parquet differs from the recomputed table: {difference}", code="bad-data"
        )
    return False


def _errors_agree(stored: pd.DataFrame, computed: pd.DataFrame) -> bool:
    """Whether scores of episodes differ by rounding only.

    The difference of two models on the same episodes may vary much less than the scores themselves, so the limits are
    on the root mean square and on the mean of the differences over episodes.
    """
    if (aligned := aligned_numbers("errors", stored, computed, _PROVENANCE)) is None:
        return False
    rows, old, new = aligned
    keys = [key for key in tables.key_columns("errors") if key != "episode"]
    is_finite = np.isfinite(new[:, 0])  # infinite scores are equal
    old_values, new_values = old[is_finite, 0], new[is_finite, 0]
    rows = rows.loc[is_finite, keys].assign(value=new_values, difference=old_values - new_values)
    for _, each in rows.groupby(keys, dropna=False):
        difference, spread = each["difference"].to_numpy(float), float(np.std(each["value"].to_numpy(float)))
        if np.sqrt(np.mean(difference**2)) > _ROUNDING * spread or abs(difference.mean()) > _ROUNDING_OF_MEAN * spread:
            return False
    return True


def _label(cell: GridCell) -> str:
    return f"'{short(cell.run)}' ({cell.kind}, {cell.group})"
