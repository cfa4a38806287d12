"""Grid cards: which tasks x backbones x presets x seeds are trained, and how they are evaluated and probed.

One file per figure of a paper, `grids/<name>.toml`. A card holds plain values; what it stands for, run by run, is
resolved here through the same door as `iclbench train`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from iclbench.cards import PresetName, SeedInt, Strict, load_baseline, load_card, load_task, read_toml
from iclbench.config import RunConfig, parse_overrides, resolve_run
from iclbench.errors import UnknownNameError, UsageError
from iclbench.registry import BACKBONES, canonical
from iclbench.runs import run_name


def _length(value: Any) -> int | str:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if whole or (isinstance(value, str) and re.fullmatch(r"[1-9]\d?x", value)):
        return value
    raise ValueError(f'expected a number of examples, like 500, or of trained lengths, like "4x", got {value!r}')


# Examples in context: a number of them, or a multiple of what each run is trained with.
Length = Annotated[Any, AfterValidator(_length)]


def _once(value: list[Any]) -> list[Any]:
    for item in value:
        if value.count(item) > 1:
            raise ValueError(f"{item!r} stands there twice")
    return value


Once = AfterValidator(_once)
Names = Annotated[list[str], Field(min_length=1), Once]
Seeds = Annotated[list[SeedInt], Field(min_length=1), Once]


class Evaluate(Strict):
    """In-distribution always; up to `extrapolate` examples at each preset, in-distribution and under all `shifts`.

    `baselines`: beside these instead of all that the task cards name.
    """

    shifts: list[str] = []
    extrapolate: dict[PresetName, Length] = {}
    baselines: list[str] = []

    @field_validator("baselines")
    @classmethod
    def _known_baselines(cls, value: list[str]) -> list[str]:
        for name in value:
            _in_one_line(load_baseline, name)
        return value


class Probe(Strict):
    """Which probes, and examples in context at each preset: the trained length where none are named."""

    of: Annotated[list[Literal["layers", "rank", "representation"]], Field(min_length=1)] = ["layers"]
    contexts: dict[PresetName, list[Length]] = {}


class GridCard(Strict):
    """A grid: every task with every backbone, preset and seed, in every variant that `overrides` names for the preset.

    `overrides.<preset>.<variant>` is a list of `-o` settings. A preset without variants trains the cards as they are,
    and so does a variant with an empty list, under the default names of its runs.
    """

    summary: str
    source: str = ""
    notes: str = ""
    tasks: Names
    backbones: Names
    presets: Annotated[list[PresetName], Field(min_length=1), Once]
    seeds: Seeds
    evaluate: Evaluate | None = None
    probe: Probe | None = None
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
    def _known_tasks_and_presets(self) -> GridCard:
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
        return self


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
        baselines: ... beside these instead of the task card's, if any are named.
        contexts: examples in context to probe at; None: no probe ...
        probes: ... of these kinds.
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
    contexts: tuple[int, ...] | None = None
    probes: tuple[str, ...] = ()

    def commands(self, results: Path | None = None) -> Iterator[str]:
        """The `iclbench` commands that train, evaluate and probe this run, quoted for a shell."""
        where = _options("--results", [results] if results else [])
        size = ["--preset", self.config.preset, "--seed", str(self.config.seed), "--name", self.name]
        settings = _options("-o", self.overrides)
        yield shlex.join(["iclbench", "train", self.task, self.backbone, *size, *settings, *where])
        if self.evaluate:
            longer = [] if self.extrapolate is None else [self.extrapolate]
            asked = [*_options("--extrapolate", longer), *_options("--shift", self.shifts)]
            beside = _options("--baseline", self.baselines)
            yield shlex.join(["iclbench", "eval", self.name, *asked, *beside, *where])
        for kind in self.probes:
            # A representation is that of an input alone.
            sizes = [] if kind == "representation" else _options("--context", self.contexts or ())
            flag = [] if kind == "layers" else [f"--{kind}"]
            yield shlex.join(["iclbench", "probe", self.name, *flag, *sizes, *where])


def load_grid(name: str) -> tuple[str, GridCard]:
    """The grid's canonical name and its card, from a name or a path to a `.toml` file."""
    return load_card("grids", name, GridCard)


def is_grid(name: str) -> bool:
    """Whether a path to a `.toml` file leads to a grid card: other cards have no `backbones` of their own."""
    return name.endswith(".toml") and "backbones" in read_toml(Path(name))


def grid_runs(name: str, preset: str | None = None) -> list[GridRun]:
    """All runs of a grid, or those of one preset; the backbones of one task and seed stand together.

    Raises:
        UsageError: something in the card does not fit a task, a backbone or a family; the line names the card.
    """
    grid, card = load_grid(name)
    if preset is not None and canonical(preset) not in card.presets:
        raise UnknownNameError("preset", preset, card.presets, hint=f"(presets of grid '{grid}')")
    try:
        return list(_runs(card, canonical(preset) if preset else None))
    except UsageError as error:
        raise UsageError(f"grid '{grid}': {error}") from error


def _runs(card: GridCard, only: str | None) -> Iterator[GridRun]:
    for preset in card.presets:
        if only not in (None, preset):
            continue
        variants = card.overrides.get(preset, {"": []})
        for task in card.tasks:
            for variant, settings in variants.items():
                for seed in card.seeds:
                    for backbone in card.backbones:
                        config = resolve_run(task, backbone, preset, seed, settings)
                        yield _run(card, task, backbone, config, variant if settings else "", settings)


def _run(card: GridCard, task: str, backbone: str, config: RunConfig, variant: str, settings: list[str]) -> GridRun:
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
        shifts = tuple(_shifts(card.evaluate.shifts, config, extrapolate))
    if card.probe:
        contexts = tuple(_examples(length, trained) for length in card.probe.contexts.get(preset, ["1x"]))
    ending = f"-{preset}-s{config.seed}"
    name = run_name(config).removesuffix(ending) + (f"-{variant}" if variant else "") + ending
    return GridRun(
        name, task, backbone, config, tuple(settings), evaluate=card.evaluate is not None, extrapolate=extrapolate,
        shifts=shifts, baselines=tuple(card.evaluate.baselines if card.evaluate else ()), contexts=contexts,
        probes=tuple(card.probe.of if card.probe else ()),
    )  # fmt: skip


def _shifts(names: list[str], config: RunConfig, extrapolate: int | None) -> Iterator[str]:
    family = config.task.build()
    for name in names:
        longer = name if extrapolate is None else f"{name}+points-{extrapolate}"
        family.parse_shift(longer)
        yield canonical(longer)


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
