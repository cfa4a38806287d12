"""Grid cards: tasks x backbones x presets x seeds, with the evaluation, the probes and the costs of the runs.

Each figure of a paper has one card, `grids/<name>.toml`. A card contains only plain values. Its runs are resolved in
the same way as by `iclbench train`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from iclbench.config.cards import PresetName, load_baseline, load_card, load_task, read_toml
from iclbench.config.pairs import Pair
from iclbench.config.resolution import RunConfig, parse_overrides, resolve_run, unfit_reason, user_tables
from iclbench.config.sizes import log_once, missing_size_message
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.settings import BaseSettings, LoopCount, PositiveInt, SeedInt, Unique
from iclbench.core.trust import UntrustedError
from iclbench.registry import BACKBONES, canonical_name
from iclbench.store.rates import read_rates
from iclbench.store.runs import run_name, with_rates_of_started_run
from iclbench.sweep.engines import GridEngine

if TYPE_CHECKING:
    from iclbench.families.base import Family


def _length(value: Any) -> int | str:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if is_count or (isinstance(value, str) and re.fullmatch(r"[1-9]\d?x", value)):
        return value
    raise ValueError(
        f'expected a number of examples, like 500, or a multiple of the training length, like "4x", got {value!r}'
    )


# A number of examples in context, or a multiple of the training length of each run.
Length = Annotated[Any, AfterValidator(_length)]


def _canonical_names(names: Iterable[str]) -> list[str]:
    """Convert names to the spelling that tables use. Paths to cards and import targets do not change."""
    return [name if name.endswith(".toml") else canonical_name(name) for name in names]


# Names, folders and hub ids of models, which are not converted.
Texts = Annotated[list[str], Field(min_length=1), Unique]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_canonical_names), Unique]
Seeds = Annotated[list[SeedInt], Field(min_length=1), Unique]


class Evaluate(BaseSettings):
    """The evaluation of runs. Runs are always evaluated on the training distribution, at the training length and up to
    `extrapolate` examples, and also under all `shifts`.

    Attributes:
        shifts: shifts under which all runs are evaluated, with up to `extrapolate` examples if it is set.
        shifts_of: further shifts for single tasks, at the training length.
        extrapolate: largest number of examples, by preset: a number such as 500, or "4x" for 4 times the training
            length.
        baselines: baselines that replace the baselines of each task's card. A baseline that does not fit the task is
            omitted. The oracles of the card are always included.
        loops: numbers of loops with which all runs are also evaluated, with the same weights.
        seed: seed of the prompts. Different seeds give independent prompts.
    """

    shifts: list[str] = []
    shifts_of: dict[str, list[str]] = {}
    extrapolate: dict[PresetName, Length] = {}
    baselines: list[str] = []
    loops: Annotated[list[LoopCount], Unique] = []
    seed: SeedInt = 0

    @field_validator("shifts_of")
    @classmethod
    def _with_canonical_tasks(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        return dict(zip(_canonical_names(value), value.values(), strict=True))

    @field_validator("baselines")
    @classmethod
    def _check_baselines(cls, value: list[str]) -> list[str]:
        for name in value:
            _call_in_validator(load_baseline, name)
        return value


class Probe(BaseSettings):
    """The probes of runs.

    Attributes:
        of: kinds of probes.
        contexts: numbers of examples in context, by preset: a number, or a multiple of the training length such as "2x"
            (default: the training length).
    """

    of: Annotated[list[Literal["layers", "rank", "representation"]], Field(min_length=1)] = ["layers"]
    contexts: dict[PresetName, list[Length]] = {}


class Cost(BaseSettings):
    """The cost measurement of runs.

    Attributes:
        points: context sizes at which costs are measured, in addition to the training length.
    """

    points: Annotated[list[PositiveInt], Field(min_length=1), Unique] = [40, 500]


class ExcludedPairs(BaseSettings):
    """Pairs of a task and a backbone that are not trained. The tables list them with the reason.

    Attributes:
        tasks: names of tasks.
        backbones: backbones that are not trained on these tasks.
        reason: the reason, which is shown in the tables.
    """

    tasks: Names
    backbones: Names
    reason: str


class GridPart(BaseSettings):
    """A part of a grid: all combinations of its tasks, backbones, presets and seeds.

    `overrides.<preset>.<variant>` is a list of `-o` settings; all combinations with the preset are trained in each of
    its variants. If a preset has no variants, or a variant has an empty list, runs are trained with the unchanged cards
    and have their default names.

    Attributes:
        tasks: names of task cards.
        backbones: names of backbones and variants.
        presets: presets, which set the sizes of runs.
        seeds: seeds of weights and training data.
        evaluate: the evaluation of runs (default: no evaluation).
        probe: the probes of runs (default: no probes).
        cost: the cost measurement of runs (default: no measurement).
        weights: seeds of the runs whose finished weights are included in packed results.
        without: pairs of a task and a backbone that are not trained.
        overrides: settings of variants, by preset and name of the variant.
    """

    tasks: Names
    backbones: Names
    presets: Annotated[list[PresetName], Field(min_length=1), Unique]
    seeds: Seeds
    evaluate: Evaluate | None = None
    probe: Probe | None = None
    cost: Cost | None = None
    weights: Annotated[list[SeedInt], Unique] = []
    without: list[ExcludedPairs] = []
    overrides: dict[PresetName, dict[str, list[str]]] = {}

    @field_validator("backbones")
    @classmethod
    def _check_backbones(cls, value: list[str]) -> list[str]:
        for name in value:
            _call_in_validator(BACKBONES.entry, name)
        return value

    @field_validator("overrides")
    @classmethod
    def _check_overrides(cls, value: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, list[str]]]:
        for variants in value.values():
            for variant, settings in variants.items():
                if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", variant):
                    raise ValueError(
                        f"a variant is part of run names: expected lower-case letters, digits and '-', got {variant!r}"
                    )
                _call_in_validator(parse_overrides, settings)
        return value

    @model_validator(mode="after")
    def _check_tasks_and_presets(self) -> GridPart:
        for task in self.tasks:
            _, card = _call_in_validator(load_task, task)
            for preset in self.presets:
                _call_in_validator(card.preset, preset, task)
        preset_tables = {
            "evaluate.extrapolate": self.evaluate.extrapolate if self.evaluate else {},
            "probe.contexts": self.probe.contexts if self.probe else {},
            "overrides": self.overrides,
        }
        for key, table in preset_tables.items():
            for preset in table:
                if preset not in self.presets:
                    raise ValueError(f"{key}.{preset}: '{preset}' is not one of the presets next to it")
        for task in self.evaluate.shifts_of if self.evaluate else {}:
            if task not in self.tasks:
                raise ValueError(f"evaluate.shifts_of.{task}: '{task}' is not one of the tasks next to it")
        for seed in self.weights:
            if seed not in self.seeds:
                raise ValueError(f"weights: {seed} is not one of the seeds next to it")
        for pair in self.without:
            for key, names in {"tasks": self.tasks, "backbones": self.backbones}.items():
                for name in getattr(pair, key):
                    if name not in names:
                        raise ValueError(f"without.{key}: '{name}' is not one of the {key} next to it")
        return self

    def without_reason(self, task: str, backbone: str) -> str | None:
        """Return why this pair is not trained; None if it is trained."""
        pairs = (pair for pair in self.without if task in pair.tasks and backbone in pair.backbones)
        return next((pair.reason for pair in pairs), None)


class GridCard(GridPart):
    """A grid, which consists of the part defined by its own keys and the parts in `more`.

    Attributes:
        summary: purpose of the grid, in one line.
        source: paper, with figure or table.
        notes: further notes for readers.
        more: further parts, with other settings.
        pairs: pairs of backbones that the findings compare. They are trained with additional seeds.
        engine: resources of jobs on a cluster.
    """

    summary: str
    source: str = ""
    notes: str = ""
    more: list[GridPart] = []
    pairs: list[Pair] = []
    engine: GridEngine | None = None

    @model_validator(mode="after")
    def _check_pairs(self) -> GridCard:
        _call_in_validator(lambda: self.parts)
        return self

    @property
    def parts(self) -> list[GridPart]:
        """All parts, including parts that train the pairs with seeds that are missing in all other parts."""
        parts = [self, *self.more]
        return [*parts, *_pair_parts(parts, self.pairs)]


@dataclass(frozen=True)
class GridRun:
    """One run of a grid with its evaluation, probes and cost measurement.

    Attributes:
        name: name of the run. It is the default name, unless the run is a variant.
        task: name of the task, as in the card.
        backbone: name of the backbone, as in the card.
        config: configuration of the run, resolved as by `iclbench train`.
        overrides: `-o` settings.
        evaluate: whether the run is evaluated.
        extrapolate: largest number of examples in the evaluation; None for the training length.
        shifts: shifts of the evaluation, as in `iclbench eval`.
        loops: numbers of loops of the evaluation, in addition to the number in training.
        baselines: baselines that replace the baselines of the task's card; empty to use those of the card.
        evaluation_seed: seed of the prompts.
        contexts: numbers of examples in context for the probes; None without probes.
        probes: kinds of probes.
        cost_points: context sizes of the cost measurement; empty if costs are not measured.
        packs_weights: whether the weights are packed.
        exclusion: why the pair of task and backbone is not trained; None if it is trained.
    """

    name: str
    task: str
    backbone: str
    config: RunConfig
    overrides: tuple[str, ...] = ()
    evaluate: bool = False
    extrapolate: int | None = None
    shifts: tuple[str, ...] = ()
    loops: tuple[int, ...] = ()
    baselines: tuple[str, ...] = ()
    evaluation_seed: int = 0
    contexts: tuple[int, ...] | None = None
    probes: tuple[str, ...] = ()
    cost_points: tuple[int, ...] = ()
    packs_weights: bool = False
    exclusion: str | None = None

    @property
    def baseline_names(self) -> list[str]:
        """The oracles of the task and the baselines of the evaluation."""
        task = self.config.task
        return list(dict.fromkeys([*task.oracles, *(self.baselines or task.baselines)]))

    def commands(self, results: Path | None = None) -> Iterator[str]:
        """Yield the `iclbench` commands that train and evaluate the run, probe it and measure its costs, quoted for a
        shell."""
        if self.exclusion:
            return
        from iclbench.evaluation.contestants import output_mismatch  # needs torch

        results_option = _options("--results", [results] if results else [])
        run_options = ["--preset", self.config.preset, "--seed", str(self.config.seed), "--name", self.name]
        settings = _options("-o", self.overrides)
        yield shlex.join(["iclbench", "train", self.task, self.backbone, *run_options, *settings, *results_option])
        if self.evaluate:
            max_examples = [] if self.extrapolate is None else [self.extrapolate]
            evaluation = [*_options("--extrapolate", max_examples), *_options("--shift", self.shifts)]
            evaluation += _options("--loops", self.loops)
            names = (name for name in self.baseline_names if not output_mismatch(name, self.config.task))
            baselines = _options("--baseline", names if self.baselines else ())
            seed_option = _options("--seed", [self.evaluation_seed] if self.evaluation_seed else [])
            yield shlex.join(["iclbench", "eval", self.name, *evaluation, *baselines, *seed_option, *results_option])
        for kind in self.probes:
            # A representation depends only on the input.
            sizes = [] if kind == "representation" else _options("--context", self.contexts or ())
            flag = [] if kind == "layers" else [f"--{kind}"]
            yield shlex.join(["iclbench", "probe", self.name, *flag, *sizes, *results_option])
        if self.cost_points:
            yield shlex.join(["iclbench", "cost", self.name, *_options("--points", self.cost_points), *results_option])


def load_grid(name: str) -> tuple[str, GridCard]:
    """Load a grid by name or path to a `.toml` file. Return its canonical name and its card."""
    return load_card("grids", name, GridCard)


def is_grid(name: str) -> bool:
    """Whether this is the path of a grid card (`.toml`). Only grid cards have the key `backbones`."""
    return name.endswith(".toml") and "backbones" in read_toml(Path(name))


def grid_groups(name: str) -> set[tuple[str, str]]:
    """Return the tasks and presets of a grid, in pairs."""
    _, card = load_grid(name)
    return {(load_task(task)[0], preset) for part in card.parts for task in part.tasks for preset in part.presets}


def grid_runs(
    name: str,
    preset: str | None = None,
    added_backbones: Sequence[str] = (),
    results: Path | None = None,
    tasks: Collection[str] | None = None,
) -> list[GridRun]:
    """Return all runs of a grid, or the runs of one preset or some tasks, grouped by task and seed.

    Args:
        name: name of the grid, or a path to its card.
        preset: the only preset whose runs are returned (default: all presets).
        added_backbones: names or import targets of backbones to add on all tasks and presets, with the settings of the
            first part that trains the task's unchanged card.
        results: the results folder. Its table of learning rates overrides the shipped one for runs that have not
            started.
        tasks: names of the only tasks whose runs are returned (default: all tasks).

    Raises:
        UsageError: the card does not fit a task, a backbone or a family; the message names the card.
    """
    grid, card = load_grid(name)
    presets = list(dict.fromkeys(each for part in card.parts for each in part.presets))
    if preset is not None and canonical(preset) not in presets:
        raise UnknownNameError("preset", preset, presets, hint=f"(presets of grid '{grid}')")
    try:
        parts = _with_added_backbones(card.parts, list(dict.fromkeys(_canonical_names(added_backbones))))
        only_preset = canonical(preset) if preset else None
        runs = [run for part in parts for run in _runs(part, only_preset, results, tasks)]
    except UntrustedError:
        raise
    except UsageError as error:
        raise UsageError(f"grid '{grid}': {error}", code=error.code) from error
    run_names: set[str] = set()
    for run in runs:
        if run.name in run_names:
            raise UsageError(
                f"grid '{grid}': the run '{run.name}' is in two parts; remove it from one of them", code="duplicate"
            )
        run_names.add(run.name)
    return runs


def _with_added_backbones(parts: Sequence[GridPart], added_backbones: Sequence[str]) -> Iterator[GridPart]:
    """Yield the parts of a grid, each followed by parts that train the added backbones.

    An added backbone is trained once on each task and preset, with the settings of the first part that trains them
    without variants.
    """
    pairs = [(part, preset) for part in parts for preset in part.presets if not part.overrides.get(preset)]
    trained = {(preset, task, backbone) for part, preset in pairs for task in part.tasks for backbone in part.backbones}
    for part in parts:
        yield part
        for preset in part.presets:
            if part.overrides.get(preset):
                continue
            for task in part.tasks:
                if missing := [backbone for backbone in added_backbones if (preset, task, backbone) not in trained]:
                    trained |= {(preset, task, backbone) for backbone in missing}
                    yield part.model_copy(
                        update={"tasks": [task], "presets": [preset], "backbones": missing, "overrides": {}}
                    )


def _pair_parts(parts: Sequence[GridPart], pairs: Iterable[Pair]) -> Iterator[GridPart]:
    """Yield parts that train and evaluate pairs with additional seeds. Their runs have no probes and no cost
    measurement.

    Raises:
        UsageError: no part trains a backbone of a pair on its task with unchanged cards.
    """
    pair_seeds: dict[tuple[str, str, PresetName], list[int]] = {}
    for pair in pairs:
        for task in pair.tasks:
            for backbone in (pair.a, pair.b):
                seeds = pair_seeds.setdefault((task, backbone, pair.preset), [])
                seeds += [seed for seed in pair.seeds if seed not in seeds]
    for (task, backbone, preset), seeds in pair_seeds.items():
        plain_parts = [
            part
            for part in parts
            if task in part.tasks and backbone in part.backbones and preset in part.presets
            if not part.overrides.get(preset) and part.without_reason(task, backbone) is None
        ]
        if not plain_parts:
            raise UsageError(
                f"pairs: no part of the card without overrides trains '{backbone}' on '{task}' at preset '{preset}'; "
                "add it to a part",
                code="missing-value",
            )
        if missing := [seed for seed in seeds if not any(seed in part.seeds for part in plain_parts)]:
            keys = {"tasks": [task], "backbones": [backbone], "presets": [preset], "seeds": missing}
            yield plain_parts[0].model_copy(
                update={**keys, "overrides": {}, "weights": [], "probe": None, "cost": None}
            )


def _runs(
    part: GridPart, only_preset: str | None, results: Path | None, tasks: Collection[str] | None
) -> Iterator[GridRun]:
    for preset in part.presets:
        if only_preset not in (None, preset):
            continue
        variants = part.overrides.get(preset) or {"": []}
        for task in part.tasks:
            if tasks is not None and load_task(task)[0] not in tasks:
                continue
            for variant, settings in variants.items():
                setting_tables = user_tables(settings)
                first_runs = [
                    _first_run(part, task, backbone, preset, variant if settings else "", settings, results)
                    for backbone in part.backbones
                ]
                for seed in part.seeds:
                    for run in first_runs:
                        if run is None:
                            continue
                        run = _with_seed(run, seed, part)
                        if results is not None:
                            config = with_rates_of_started_run(
                                results, run.config, run.name, setting_tables.get("train", {})
                            )
                            run = replace(run, config=config)
                        yield run


def _first_run(
    part: GridPart, task: str, backbone: str, preset: str, variant: str, settings: list[str], results: Path | None
) -> GridRun | None:
    """Return the run of the first seed, from which the runs of the other seeds are copied. Log a note and return None
    if the backbone does not fit the task."""
    name, card = load_task(task)
    if (line := unfit_reason(backbone, card)) is not None:
        log_once(f"task '{name}', backbone '{backbone}': {line} (left out)")
        return None
    config = resolve_run(task, backbone, preset, part.seeds[0], settings, read_rates=partial(read_rates, results))
    if part.without_reason(task, backbone) is None:
        table = user_tables(settings).get("backbone", {})
        if (line := missing_size_message(task, backbone, preset, table)) is not None:
            log_once(line)
    return _run(part, task, backbone, config, variant, settings)


def _with_seed(run: GridRun, seed: int, part: GridPart) -> GridRun:
    """Return the same run with another seed."""
    ending, new_ending = (f"-{run.config.preset}-s{number}" for number in (run.config.seed, seed))
    config = run.config.model_copy(update={"seed": seed})
    return replace(
        run, name=run.name.removesuffix(ending) + new_ending, config=config, packs_weights=seed in part.weights
    )


def _run(part: GridPart, task: str, backbone: str, config: RunConfig, variant: str, settings: list[str]) -> GridRun:
    trained_length, preset = config.task.points, config.preset
    extrapolate: int | None = None
    shifts: tuple[str, ...] = ()
    contexts: tuple[int, ...] | None = None
    if part.evaluate:
        if preset in part.evaluate.extrapolate:
            extrapolate = _examples(part.evaluate.extrapolate[preset], trained_length)
            if extrapolate <= trained_length:
                raise UsageError(
                    f"evaluate.extrapolate.{preset}: {extrapolate} is not beyond the training length of "
                    f"'{config.task.name}' ({trained_length} examples)",
                    code="bad-value",
                )
        if part.evaluate.loops and config.backbone.settings.get("loops", 1) == 1:
            raise UsageError(
                f"evaluate.loops: '{backbone}' has no loops; set backbone.loops in overrides.{preset}, or move it to "
                "another part",
                code="not-applicable",
            )
        family = config.task.build()
        shifts = (
            *_shifts(part.evaluate.shifts, family, extrapolate),
            *_shifts(part.evaluate.shifts_of.get(task, []), family, None),
        )
    if part.probe:
        contexts = tuple(_examples(length, trained_length) for length in part.probe.contexts.get(preset, ["1x"]))
    ending = f"-{preset}-s{config.seed}"
    name = run_name(config).removesuffix(ending) + (f"-{variant}" if variant else "") + ending
    return GridRun(
        name,
        task,
        backbone,
        config,
        tuple(settings),
        evaluate=part.evaluate is not None,
        extrapolate=extrapolate,
        shifts=shifts,
        loops=tuple(part.evaluate.loops if part.evaluate else ()),
        baselines=tuple(part.evaluate.baselines if part.evaluate else ()),
        evaluation_seed=part.evaluate.seed if part.evaluate else 0,
        contexts=contexts,
        probes=tuple(part.probe.of if part.probe else ()),
        exclusion=part.without_reason(task, backbone),
        cost_points=tuple(sorted({trained_length, *part.cost.points})) if part.cost else (),
        packs_weights=config.seed in part.weights,
    )


def _shifts(names: list[str], family: Family, extrapolate: int | None) -> Iterator[str]:
    for name in names:
        shift = family.parse_shift(name)
        yield shift.name if extrapolate is None else family.parse_shift(shift.with_examples(extrapolate).name).name


def _examples(length: int | str, trained_length: int) -> int:
    return length if isinstance(length, int) else int(length.removesuffix("x")) * trained_length


def _options(flag: str, values: Iterable[object]) -> list[str]:
    """Return the words of a command line in which an option is repeated for each value."""
    return [word for value in values for word in (flag, str(value))]


def _call_in_validator(function: Any, *arguments: Any) -> Any:
    """Call a function in a validator. A `UsageError` becomes a `ValueError`, which pydantic expects from validators."""
    try:
        return function(*arguments)
    except UsageError as error:
        raise ValueError(str(error)) from None
