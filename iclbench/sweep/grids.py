"""Grid cards: which tasks x backbones x presets x seeds are trained, and how they are evaluated and probed.

One file per figure of a paper, `grids/<name>.toml`. A card holds plain values; what it stands for, run by run, is
resolved here through the same door as `iclbench train`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from iclbench.config.cards import PresetName, load_baseline, load_card, load_task, read_toml
from iclbench.config.pairs import Pair
from iclbench.config.resolution import RunConfig, parse_overrides, resolve_run, typed_tables, unfit
from iclbench.config.sizes import missing_size, tell_once
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.settings import BaseSettings, Once, PositiveInt, SeedInt
from iclbench.core.trust import UntrustedError
from iclbench.registry import BACKBONES, spelling
from iclbench.store.runs import keeping_rate, run_name
from iclbench.sweep.engines import GridEngine

if TYPE_CHECKING:
    from iclbench.families.base import Family


def _length(value: Any) -> int | str:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if whole or (isinstance(value, str) and re.fullmatch(r"[1-9]\d?x", value)):
        return value
    raise ValueError(f'expected a number of examples, like 500, or of trained lengths, like "4x", got {value!r}')


# Examples in context: a number of them, or a multiple of what each run is trained with.
Length = Annotated[Any, AfterValidator(_length)]


def _spelled(names: Iterable[str]) -> list[str]:
    """Names as tables have them; paths to cards and targets as they stand."""
    return [name if name.endswith(".toml") else spelling(name) for name in names]


# Names, folders, ids of models: as they stand.
Texts = Annotated[list[str], Field(min_length=1), Once]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_spelled), Once]
Seeds = Annotated[list[SeedInt], Field(min_length=1), Once]


class Evaluate(BaseSettings):
    """In-distribution always; up to `extrapolate` examples at each preset, in-distribution and under all `shifts`.

    Attributes:
        shifts: that all runs are asked under, those of `extrapolate` included.
        shifts_of: further shifts of single tasks, at the trained length.
        extrapolate: by preset, up to how many examples: 500, or "4x" the trained length.
        baselines: beside those of these that can answer the task, instead of those of each task's card; the oracles of
            the card stand beside either.
        seed: of the prompts; those of another seed are independent.
    """

    shifts: list[str] = []
    shifts_of: dict[str, list[str]] = {}
    extrapolate: dict[PresetName, Length] = {}
    baselines: list[str] = []
    seed: SeedInt = 0

    @field_validator("shifts_of")
    @classmethod
    def _of_tasks_as_they_are_spelled(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        return dict(zip(_spelled(value), value.values(), strict=True))

    @field_validator("baselines")
    @classmethod
    def _known_baselines(cls, value: list[str]) -> list[str]:
        for name in value:
            _in_one_line(load_baseline, name)
        return value


class Probe(BaseSettings):
    """Which probes, and examples in context at each preset: the trained length where none are named.

    Attributes:
        of: which probes.
        contexts: by preset, examples in context: numbers, or multiples like "2x".
    """

    of: Annotated[list[Literal["layers", "rank", "representation"]], Field(min_length=1)] = ["layers"]
    contexts: dict[PresetName, list[Length]] = {}


class Cost(BaseSettings):
    """What runs cost, conditioned on so many points, and on as many as they were trained with.

    Attributes:
        points: context sizes.
    """

    points: Annotated[list[PositiveInt], Field(min_length=1), Once] = [40, 500]


class Without(BaseSettings):
    """Pairs that make no sense: they stay in the tables, with the reason.

    Attributes:
        tasks: with each of these tasks ...
        backbones: ... none of these is trained.
        reason: why, as the tables say it.
    """

    tasks: Names
    backbones: Names
    reason: str


class GridPart(BaseSettings):
    """Every task with every backbone, preset and seed, in every variant that `overrides` names for the preset.

    `overrides.<preset>.<variant>` is a list of `-o` settings. A preset without variants trains the cards as they are,
    and so does a variant with an empty list, under the default names of its runs.

    Attributes:
        tasks: names of task cards.
        backbones: names of backbones and variants.
        presets: sizes of runs.
        seeds: of weights and training data.
        evaluate: how runs are scored; left out: not at all.
        probe: what is probed; left out: nothing.
        cost: what is measured; left out: nothing.
        weights: seeds whose finished weights packed results bring along.
        without: pairs that are left out.
        overrides: settings of variants, by preset and name.
    """

    tasks: Names
    backbones: Names
    presets: Annotated[list[PresetName], Field(min_length=1), Once]
    seeds: Seeds
    evaluate: Evaluate | None = None
    probe: Probe | None = None
    cost: Cost | None = None
    weights: Annotated[list[SeedInt], Once] = []
    without: list[Without] = []
    overrides: dict[PresetName, dict[str, list[str]]] = {}

    @field_validator("backbones")
    @classmethod
    def _known_backbones(cls, value: list[str]) -> list[str]:
        for name in value:
            _in_one_line(BACKBONES.entry, name)
        return value

    @field_validator("overrides")
    @classmethod
    def _sound_overrides(cls, value: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, list[str]]]:
        for variants in value.values():
            for variant, settings in variants.items():
                if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", variant):
                    raise ValueError(
                        f"a variant is part of run names: lower-case letters, digits, '-', got {variant!r}"
                    )
                _in_one_line(parse_overrides, settings)
        return value

    @model_validator(mode="after")
    def _known_tasks_and_presets(self) -> GridPart:
        for task in self.tasks:
            _, card = _in_one_line(load_task, task)
            for preset in self.presets:
                _in_one_line(card.preset, preset, task)
        of_presets = {
            "evaluate.extrapolate": self.evaluate.extrapolate if self.evaluate else {},
            "probe.contexts": self.probe.contexts if self.probe else {},
            "overrides": self.overrides,
        }
        for key, table in of_presets.items():
            for preset in table:
                if preset not in self.presets:
                    raise ValueError(f"{key}.{preset}: '{preset}' is none of the card's presets")
        for task in self.evaluate.shifts_of if self.evaluate else {}:
            if task not in self.tasks:
                raise ValueError(f"evaluate.shifts_of.{task}: '{task}' is none of the card's tasks")
        for seed in self.weights:
            if seed not in self.seeds:
                raise ValueError(f"weights: {seed} is none of the card's seeds")
        for pair in self.without:
            for key, names in {"tasks": self.tasks, "backbones": self.backbones}.items():
                for name in getattr(pair, key):
                    if name not in names:
                        raise ValueError(f"without.{key}: '{name}' is none of the card's {key}")
        return self

    def without_reason(self, task: str, backbone: str) -> str | None:
        """Why this pair makes no sense; None: it does."""
        pairs = (pair for pair in self.without if task in pair.tasks and backbone in pair.backbones)
        return next((pair.reason for pair in pairs), None)


class GridCard(GridPart):
    """A grid: its first part, and `more` that are asked for other things.

    Attributes:
        summary: what it is for, in a line.
        source: paper, with figure or table.
        notes: what else a reader should know.
        more: further parts.
        pairs: backbones that findings compare, which are trained from more seeds for it.
        engine: how jobs of a cluster look.
    """

    summary: str
    source: str = ""
    notes: str = ""
    more: list[GridPart] = []
    pairs: list[Pair] = []
    engine: GridEngine | None = None

    @model_validator(mode="after")
    def _pairs_are_trained(self) -> GridCard:
        _in_one_line(lambda: self.parts)
        return self

    @property
    def parts(self) -> list[GridPart]:
        """All parts: of each pair those that train it from the seeds that no other part has."""
        own = [self, *self.more]
        return [*own, *_of_pairs(own, self.pairs)]


@dataclass(frozen=True)
class GridRun:
    """One run of a grid with all that is asked of it.

    Attributes:
        name: the run's name; default unless overrides make it a variant.
        config: what `iclbench train` resolves the typed words to.
        overrides: `-o` settings.
        evaluate: whether it is evaluated at all ...
        extrapolate: ... up to so many examples; None: only the trained length ...
        shifts: ... under these shifts, as `iclbench eval` reads them ...
        baselines: ... beside these instead of the task card's, if any are named, and beside its oracles.
        evaluation_seed: ... on prompts of this seed.
        contexts: examples in context to probe at; None: no probe ...
        probes: ... of these kinds.
        cost: points to be conditioned on while costs are measured; none: they are not measured.
        weights: whether its weights are packed.
        without: why the pair makes no sense; None: it does.
    """

    name: str
    task: str
    backbone: str
    config: RunConfig
    overrides: tuple[str, ...] = ()
    evaluate: bool = False
    extrapolate: int | None = None
    shifts: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    evaluation_seed: int = 0
    contexts: tuple[int, ...] | None = None
    probes: tuple[str, ...] = ()
    cost: tuple[int, ...] = ()
    weights: bool = False
    without: str | None = None

    @property
    def beside(self) -> list[str]:
        """The oracles and baselines that it meets: what can be reached is known wherever an oracle is, whatever
        baselines the grid names."""
        task = self.config.task
        return list(dict.fromkeys([*task.oracles, *(self.baselines or task.baselines)]))

    def commands(self, results: Path | None = None) -> Iterator[str]:
        """The `iclbench` commands that train, evaluate, probe and measure this run, quoted for a shell."""
        if self.without:
            return
        from iclbench.evaluation.contestants import misfit  # needs torch

        where = _options("--results", [results] if results else [])
        size = ["--preset", self.config.preset, "--seed", str(self.config.seed), "--name", self.name]
        settings = _options("-o", self.overrides)
        yield shlex.join(["iclbench", "train", self.task, self.backbone, *size, *settings, *where])
        if self.evaluate:
            longer = [] if self.extrapolate is None else [self.extrapolate]
            asked = [*_options("--extrapolate", longer), *_options("--shift", self.shifts)]
            named = (name for name in self.beside if not misfit(name, self.config.task))
            beside = _options("--baseline", named if self.baselines else ())
            prompts = _options("--seed", [self.evaluation_seed] if self.evaluation_seed else [])
            yield shlex.join(["iclbench", "eval", self.name, *asked, *beside, *prompts, *where])
        for kind in self.probes:
            # A representation is that of an input alone.
            sizes = [] if kind == "representation" else _options("--context", self.contexts or ())
            flag = [] if kind == "layers" else [f"--{kind}"]
            yield shlex.join(["iclbench", "probe", self.name, *flag, *sizes, *where])
        if self.cost:
            yield shlex.join(["iclbench", "cost", self.name, *_options("--points", self.cost), *where])


def load_grid(name: str) -> tuple[str, GridCard]:
    """The grid's canonical name and its card, from a name or a path to a `.toml` file."""
    return load_card("grids", name, GridCard)


def is_grid(name: str) -> bool:
    """Whether a path to a `.toml` file leads to a grid card: other cards have no `backbones` of their own."""
    return name.endswith(".toml") and "backbones" in read_toml(Path(name))


def grid_runs(
    name: str, preset: str | None = None, added: Sequence[str] = (), results: Path | None = None
) -> list[GridRun]:
    """All runs of a grid, or those of one preset; the backbones of one task and seed stand together.

    Args:
        name: of the grid, or a path to its card.
        preset: the only one.
        added: backbones, by name or target, that meet every task at every preset beside those of the card: as the first
            part that trains the task's card as it is.
        results: the results folder, whose table of learning rates goes over the shipped one for runs that have not
            begun.

    Raises:
        UsageError: something in the card does not fit a task, a backbone or a family; the line names the card.
    """
    grid, card = load_grid(name)
    presets = list(dict.fromkeys(known for part in card.parts for known in part.presets))
    if preset is not None and canonical(preset) not in presets:
        raise UnknownNameError("preset", preset, presets, hint=f"(presets of grid '{grid}')")
    try:
        parts = _with(card.parts, list(dict.fromkeys(_spelled(added))))
        runs = [run for part in parts for run in _runs(part, canonical(preset) if preset else None, results)]
    except UntrustedError:
        raise
    except UsageError as error:
        raise UsageError(f"grid '{grid}': {error}") from error
    seen: set[str] = set()
    for run in runs:
        if run.name in seen:
            raise UsageError(f"grid '{grid}': two of its parts ask for the run '{run.name}'; leave it in one of them")
        seen.add(run.name)
    return runs


def _with(parts: Sequence[GridPart], added: Sequence[str]) -> Iterator[GridPart]:
    """The parts of a grid, and behind each one for those who are added to the tasks and presets that first stand there
    without variants."""
    plain = [(part, preset) for part in parts for preset in part.presets if not part.overrides.get(preset)]
    met = {(preset, task, each) for part, preset in plain for task in part.tasks for each in part.backbones}
    for part in parts:
        yield part
        for preset in part.presets:
            if part.overrides.get(preset):
                continue
            for task in part.tasks:
                if left := [each for each in added if (preset, task, each) not in met]:
                    met |= {(preset, task, each) for each in left}
                    yield part.model_copy(
                        update={"tasks": [task], "presets": [preset], "backbones": left, "overrides": {}}
                    )


def _of_pairs(parts: Sequence[GridPart], pairs: Iterable[Pair]) -> Iterator[GridPart]:
    """Trained and evaluated like the first seeds; what is inside a model and what it costs is known from these.

    Raises:
        UsageError: nobody else trains a backbone of a pair on its task as the cards are.
    """
    more: dict[tuple[str, str, PresetName], list[int]] = {}
    for pair in pairs:
        for task in pair.tasks:
            for backbone in (pair.a, pair.b):
                seeds = more.setdefault((task, backbone, pair.preset), [])
                seeds += [seed for seed in pair.seeds if seed not in seeds]
    for (task, backbone, preset), seeds in more.items():
        own = [
            part
            for part in parts
            if task in part.tasks and backbone in part.backbones and preset in part.presets
            if not part.overrides.get(preset) and part.without_reason(task, backbone) is None
        ]
        if not own:
            raise UsageError(
                f"pairs: '{backbone}' on '{task}' at preset '{preset}' is trained by no part of the card without "
                "overrides; add it there"
            )
        if left := [seed for seed in seeds if not any(seed in part.seeds for part in own)]:
            one = {"tasks": [task], "backbones": [backbone], "presets": [preset], "seeds": left}
            yield own[0].model_copy(update={**one, "overrides": {}, "weights": [], "probe": None, "cost": None})


def _runs(part: GridPart, only: str | None, results: Path | None) -> Iterator[GridRun]:
    for preset in part.presets:
        if only not in (None, preset):
            continue
        variants = part.overrides.get(preset) or {"": []}
        for task in part.tasks:
            for variant, settings in variants.items():
                typed = typed_tables(settings)
                first = [
                    _first(part, task, backbone, preset, variant if settings else "", settings, results)
                    for backbone in part.backbones
                ]
                for seed in part.seeds:
                    for run in first:
                        if run is None:
                            continue
                        run = _of_seed(run, seed, part)
                        if results is not None:
                            kept = keeping_rate(results, run.config, run.name, typed.get("train", {}))
                            run = replace(run, config=kept)
                        yield run


def _first(
    part: GridPart, task: str, backbone: str, preset: str, variant: str, settings: list[str], results: Path | None
) -> GridRun | None:
    """The run of the first seed, which differs from those of others in nothing else; None: there is none, which is
    said."""
    if (line := unfit(backbone, *_name_and_head(task))) is not None:
        tell_once(f"{line}: left out")
        return None
    config = resolve_run(task, backbone, preset, part.seeds[0], settings, results=results)
    if part.without_reason(task, backbone) is None:
        given = typed_tables(settings).get("backbone", {})
        if (line := missing_size(task, backbone, preset, given)) is not None:
            tell_once(line)
    return _run(part, task, backbone, config, variant, settings)


def _of_seed(run: GridRun, seed: int, part: GridPart) -> GridRun:
    """The same run with another seed."""
    ending, other = (f"-{run.config.preset}-s{each}" for each in (run.config.seed, seed))
    config = run.config.model_copy(update={"seed": seed})
    return replace(run, name=run.name.removesuffix(ending) + other, config=config, weights=seed in part.weights)


def _name_and_head(task: str) -> tuple[str, str]:
    name, card = load_task(task)
    return name, card.head


def _run(card: GridPart, task: str, backbone: str, config: RunConfig, variant: str, settings: list[str]) -> GridRun:
    trained, preset = config.task.points, config.preset
    extrapolate: int | None = None
    shifts: tuple[str, ...] = ()
    contexts: tuple[int, ...] | None = None
    if card.evaluate:
        if preset in card.evaluate.extrapolate:
            extrapolate = _examples(card.evaluate.extrapolate[preset], trained)
            if extrapolate <= trained:
                raise UsageError(
                    f"evaluate.extrapolate.{preset}: {extrapolate} is not beyond the trained length of "
                    f"'{config.task.name}' ({trained} examples)"
                )
        family = config.task.build()
        shifts = (
            *_shifts(card.evaluate.shifts, family, extrapolate),
            *_shifts(card.evaluate.shifts_of.get(task, []), family, None),
        )
    if card.probe:
        contexts = tuple(_examples(length, trained) for length in card.probe.contexts.get(preset, ["1x"]))
    ending = f"-{preset}-s{config.seed}"
    name = run_name(config).removesuffix(ending) + (f"-{variant}" if variant else "") + ending
    return GridRun(
        name,
        task,
        backbone,
        config,
        tuple(settings),
        evaluate=card.evaluate is not None,
        extrapolate=extrapolate,
        shifts=shifts,
        baselines=tuple(card.evaluate.baselines if card.evaluate else ()),
        evaluation_seed=card.evaluate.seed if card.evaluate else 0,
        contexts=contexts,
        probes=tuple(card.probe.of if card.probe else ()),
        without=card.without_reason(task, backbone),
        cost=tuple(sorted({trained, *card.cost.points})) if card.cost else (),
        weights=config.seed in card.weights,
    )


def _shifts(names: list[str], family: Family, extrapolate: int | None) -> Iterator[str]:
    for name in names:
        shift = family.parse_shift(name)
        yield shift.name if extrapolate is None else family.parse_shift(shift.with_examples(extrapolate).name).name


def _examples(length: int | str, trained: int) -> int:
    return length if isinstance(length, int) else int(length.removesuffix("x")) * trained


def _options(flag: str, values: Iterable[object]) -> list[str]:
    """The flag before each value, as a command line has it."""
    return [word for value in values for word in (flag, str(value))]


def _in_one_line(function: Any, *arguments: Any) -> Any:
    """The function's value; its `UsageError` as the `ValueError` that a validator may raise."""
    try:
        return function(*arguments)
    except UsageError as error:
        raise ValueError(str(error)) from None
