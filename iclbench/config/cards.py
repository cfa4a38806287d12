"""Task, baseline and grid cards: short TOML files that define an experiment.

A card contains only plain values, without templates, inheritance or expressions. Shipped cards are loaded by name
(`linear`), other cards by path (`./mine.toml`). Each result row contains a hash of the parts of the task card that
determine training and evaluation.
"""

from __future__ import annotations

import math
import re
import reprlib
import tomllib
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    field_validator,
    model_validator,
)

from iclbench.core import limits
from iclbench.core.errors import UnknownNameError, UsageError, shorten_to_line
from iclbench.core.formats import canonical
from iclbench.core.hashing import content_hash
from iclbench.core.settings import (
    BaseSettings,
    Buckets,
    Decay,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Role,
    Share,
    validate,
)
from iclbench.core.version import checkout
from iclbench.registry import FAMILIES, canonical_name, is_target

PresetName = Literal["smoke", "grid", "small", "paper"]
PRESETS: tuple[PresetName, ...] = ("smoke", "grid", "small", "paper")

Head = Literal["point", "gaussian", "mixture", "bar", "categorical", "event"]
CardKind = Literal["tasks", "baselines", "grids", "tasks/language", "tasks/language/suites"]
_Model = TypeVar("_Model", bound=BaseModel)


# With fewer steps, the last fifth of a run would be empty.
_MIN_BRANCH_STEPS = 5


def _check_plain(value: Any, key: str = "", depth: int = 0) -> Any:
    """Return the value; raise `ValueError` if it contains infinity, NaN, dates or deep nesting."""
    entries: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = ((key, item) for item in value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number for {key!r}, got {value}")
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"expected a number, a string or a boolean for {key!r}, got {reprlib.repr(value)}")
    if depth > 8:
        raise ValueError("expected at most eight levels of tables and lists")
    for name, item in entries:
        _check_plain(item, str(name), depth + 1)
    return value


def _check_plain_table(table: dict[str, Any]) -> Any:
    return _check_plain(table)


# Settings of a family, backbone or estimator, which are validated later by its class.
Values = Annotated[dict[str, Any], AfterValidator(_check_plain_table)]


def _with_registered_spelling(table: dict[str, Any]) -> dict[str, Any]:
    card_spellings: dict[str, str] = {}
    for name in table:
        if (other := card_spellings.setdefault(canonical_name(name), name)) != name:
            raise ValueError(f"{other!r} and {name!r} are the same backbone; remove one of them")
    return {canonical_name(name): value for name, value in table.items()}


# A validator for tables whose keys are names of backbones.
ByBackbone = AfterValidator(_with_registered_spelling)


class Ramp(BaseSettings):
    """One quantity of a curriculum, which grows up to its value in the task.

    Attributes:
        start: the initial value.
        by: the increment.
        every: number of steps between increments.
    """

    start: PositiveInt
    by: PositiveInt = 1
    every: PositiveInt

    def at(self, step: int, end: int) -> int:
        """Return the value at `step` (counted from 0), at most `end`."""
        return min(end, self.start + self.by * (step // self.every))


class Curriculum(BaseSettings):
    """Quantities of the task that grow during training (default: none).

    Attributes:
        dims: number of input dimensions that are not zero.
        points: number of points in an episode, which are the context examples and the query, as in Garg et al. (2022);
            11 to 41 points correspond to 10 to 40 examples.
    """

    dims: Ramp | None = None
    points: Ramp | None = None


class TrainSettings(BaseSettings):
    """Settings of the training loop.

    Attributes:
        steps: number of training steps.
        batch: number of episodes per step.
        optimiser: Adam, or AdamW with `weight_decay`.
        lr: peak learning rate.
        betas: the two decay rates of Adam.
        weight_decay: weight decay of AdamW.
        warmup: number of steps during which the learning rate rises from 0.
        schedule: schedule of the learning rate after the warm-up: constant, cosine (to 0), inverse-sqrt, or
            warmup-stable-decay (constant, then linearly to 0 in the last fifth of the steps).
        branches: shorter training runs that start from this run, given as shares of its steps, such as [0.25, 0.5].
            They require the schedule warmup-stable-decay. The learning rate of a branch decays to 0 in the last fifth
            of its steps. Warm-up, curriculum, episodes and scheduled noise are the same as in this run. Branches do not
            affect this run.
        clip: largest norm of the gradient (0: no limit).
        curriculum: quantities of the task that grow during training.
        precision: precision of the forward pass. Weights are always float32.
        compile: whether to compile the model with torch.
        evaluate_every: number of steps between evaluations during training (0: no evaluations).
        evaluators: tests that are used in these evaluations (default: all tests of the card).
        checkpoint_every: number of steps between checkpoints.
        log_every: number of steps between logged losses.
    """

    steps: PositiveInt
    batch: PositiveInt = 64
    optimiser: Literal["adam", "adamw"] = "adam"
    lr: PositiveFloat = 1e-4
    betas: tuple[Decay, Decay] = Field(default=(0.9, 0.999), strict=False)
    weight_decay: NonNegativeFloat = 0.0
    warmup: Annotated[int, Field(ge=0)] = 0
    schedule: Literal["constant", "cosine", "inverse-sqrt", "warmup-stable-decay"] = "cosine"
    branches: Annotated[list[Share], Role.MONITORING] = []
    clip: NonNegativeFloat = 0.0
    curriculum: Curriculum = Curriculum()
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    evaluate_every: Annotated[int, Field(ge=0), Role.MONITORING] = 0
    evaluators: Annotated[list[str], Role.MONITORING] = []
    checkpoint_every: Annotated[PositiveInt, Role.MONITORING] = 1000
    log_every: Annotated[PositiveInt, Role.MONITORING] = 100

    @model_validator(mode="after")
    def _check_branches(self) -> TrainSettings:
        if self.branches and self.schedule != "warmup-stable-decay":
            raise ValueError(f'branches: expected schedule = "warmup-stable-decay", got "{self.schedule}"')
        if self.branches and self.branch_steps[0] < _MIN_BRANCH_STEPS:
            share = min(self.branches)
            raise ValueError(
                f"branches: {share:g} of {self.steps} steps is fewer than {_MIN_BRANCH_STEPS}; use a larger share"
            )
        if len({*self.branch_steps, self.steps}) <= len(self.branches):
            raise ValueError(f"branches: expected shares that end at different steps, got {self.branches}")
        return self

    @property
    def branch_steps(self) -> list[int]:
        """The last steps of the branches, in ascending order."""
        return sorted(round(share * self.steps) for share in self.branches)

    @property
    def total_steps(self) -> int:
        """The number of training steps, including those of branches."""
        return self.steps + sum(steps - decay_start(steps) for steps in self.branch_steps)

    def scaled_to(self, steps: int) -> dict[str, Any]:
        """Return the settings that depend on the number of steps, as plain values.

        Warm-up and curriculum keep their shares of the steps.
        """
        ratio = steps / self.steps
        curriculum = self.curriculum.model_dump(exclude_none=True)
        for ramp in curriculum.values():
            ramp["every"] = max(1, round(ramp["every"] * ratio))
        return {"steps": steps, "warmup": round(self.warmup * ratio), "curriculum": curriculum}

    def without_curriculum(self) -> TrainSettings:
        """Return the settings without a curriculum, so that all steps have their final size."""
        return self.model_copy(update={"curriculum": Curriculum()})


def decay_start(steps: int) -> int:
    """Return the first step (counted from 0) of the last fifth of a training run."""
    return steps - steps // 5


# Largest relative deviation of a backbone's number of parameters from the budget.
BUDGET_TOLERANCE = 0.03


def deviation(parameters: Any, budget: float) -> Any:
    """Return the relative deviation of one or several numbers of parameters from a budget."""
    return parameters / budget - 1


class Preset(BaseSettings):
    """The sizes of the task and of the backbones, and the training settings.

    Attributes:
        points: number of examples in context (question `next`), or of points in the largest context (`targets`).
        episodes: number of episodes in each prompt set.
        parameters: parameters of the family that differ from those of the card.
        train: training settings for all backbones.
        train_for: training settings that differ for single backbones, by name.
        budget: number of parameters of a backbone without its image encoder. Backbones are within 3 % of this number.
        encoder: image encoder of all backbones.
        backbones: settings of backbones, by name, for presets without a budget, such as published sizes.
    """

    points: PositiveInt
    episodes: PositiveInt
    parameters: Values = {}
    train: TrainSettings
    train_for: Annotated[dict[str, Values], ByBackbone] = {}
    budget: PositiveInt | None = None
    encoder: str | None = None
    backbones: Annotated[dict[str, Values], ByBackbone] = {}


class Published(BaseSettings):
    """A number from a paper.

    Attributes:
        contestant: the backbone or method, by its name in iclbench or in the paper.
        preset: the preset with the same sizes.
        shift: the shift.
        evaluator: the question or test (default: the question of the task).
        metric: the metric.
        n_context: number of context points (default: the value is a summary over all numbers of points).
        n_related: number of related datasets.
        value: the published value.
        low: lower end of the interval of the value.
        high: upper end of the interval of the value.
        source: the paper, with table or figure.
        read: where the value was read: in a table, in a figure, or in released numbers.
        data: parameters of the task that identify the data behind the value, such as `glyphs`.
    """

    contestant: str
    preset: PresetName = "paper"
    shift: str = "none"
    evaluator: str | None = None
    metric: str = "squared_error"
    n_context: Annotated[int, Field(ge=0)] | None = None
    n_related: Annotated[int, Field(ge=0)] | None = None
    value: float
    low: float | None = None
    high: float | None = None
    source: str
    read: str
    data: Values = {}


class TaskCard(BaseSettings):
    """A task: a family with fixed parameters, and the protocol of training and evaluation.

    With `context_targets`, the context points are additional targets in training, but not in evaluation. This setting
    requires a `floor`. Without a floor, a model learns to repeat outputs from the context with smaller and smaller
    standard deviations, and its predictions of other targets get worse (`benchmarks/periodic.md`).

    Attributes:
        summary: one line about the task.
        source: the paper, with section.
        notes: further remarks, such as deviations from the paper.
        question: the question of training and evaluation: `next` (predict y[n+1] from the first n points, for each n)
            or `targets` (predict a set of targets from one context).
        head: the kind of prediction.
        floor: smallest standard deviation of a Gaussian or mixture head; for an event head, a number that is added to
            the scales of the log-normals.
        components: number of Gaussians in a mixture head, or of log-normals in an event head.
        buckets: number of buckets in a bar head.
        context_targets: whether the context points are also targets in training.
        parameters: parameters of the family, for all presets.
        baselines: names of the baseline cards that are evaluated with every run.
        oracles: estimators that are Bayes-optimal on this task, given different parts of the true process. The oracle
            with access to the smallest part has the score 1.
        shifts: the shifts that `--shift all` evaluates.
        evaluators: tests of the family, in the order in which tables list them.
        solutions: baselines and oracles whose distance from the model is measured during training
            (`train.evaluate_every`).
        presets: sizes by name of the preset: smoke, grid, small, paper.
        published: published numbers, which are shown in the report.
    """

    family: str = Field(description="the name of a family, like 'linear', or package.module:Class")
    summary: Annotated[str, Role.REPORTING]
    source: Annotated[str, Role.REPORTING] = ""
    notes: Annotated[str, Role.REPORTING] = ""
    question: Literal["next", "targets"] = "next"
    head: Head = "point"
    floor: NonNegativeFloat = 0.0
    components: PositiveInt = 8
    buckets: Buckets = 100
    context_targets: bool = False
    parameters: Values = {}
    baselines: Annotated[list[str], Role.REPORTING] = []
    oracles: Annotated[list[str], Role.REPORTING] = []
    shifts: Annotated[list[str], Role.REPORTING] = []
    evaluators: Annotated[list[str], Role.REPORTING] = []
    solutions: Annotated[list[str], Role.REPORTING] = []
    presets: dict[PresetName, Preset]
    published: Annotated[list[Published], Role.REPORTING] = []

    @field_validator("family")
    @classmethod
    def _check_family(cls, value: str) -> str:
        if ":" not in value:
            try:
                FAMILIES.entry(value)
            except UnknownNameError as error:
                raise ValueError(str(error)) from None
        elif not is_target(value):
            raise ValueError(f"expected the name of a family or package.module:Class, got {value!r}")
        return value

    @field_validator("presets")
    @classmethod
    def _check_presets(cls, value: dict[PresetName, Preset]) -> dict[PresetName, Preset]:
        if not value:
            raise ValueError("expected at least one of smoke, grid, small, paper")
        return value

    @property
    def hash(self) -> str:
        """Content hash of the parts that determine training and evaluation; descriptions do not affect it."""
        return content_hash(self._hashed_part())

    @property
    def hash_without_monitoring(self) -> str:
        """Content hash without the settings that only monitor training and do not affect results."""
        part = self._hashed_part()
        for preset in part["presets"].values():
            for table in (preset["train"], *preset.get("train_for", {}).values()):
                for key in TrainSettings.with_role(Role.MONITORING) & table.keys():
                    del table[key]
        return content_hash(part)

    def _hashed_part(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={*self.with_role(Role.REPORTING)}, exclude_unset=True)

    def preset(self, name: str, task: str) -> Preset:
        """Return a preset by name; raise `UnknownNameError` if the card of the task does not have it."""
        preset = self.presets.get(name)  # type: ignore[call-overload]
        if preset is None:
            raise UnknownNameError("preset", name, self.presets, hint=f"(presets of task '{task}')")
        return preset


class BaselineCard(BaseSettings):
    """A baseline: an estimator with its settings.

    Attributes:
        estimator: registered name of the estimator, or `package.module:Class`.
        summary: one line about the baseline.
        source: the paper, with section.
        settings: settings of the estimator.
    """

    estimator: str
    summary: str
    source: str = ""
    settings: Values = {}


@cache
def cards_folder(kind: CardKind) -> Path:
    """Return the folder of the shipped cards of a kind, in the checkout or in the installed package."""
    root = checkout()
    if root is not None and (root / kind).is_dir():
        return root / kind
    return Path(__file__).resolve().parents[1] / "_cards" / kind


@cache
def card_names(kind: CardKind) -> tuple[str, ...]:
    """Return the names of all shipped cards of a kind."""
    return tuple(sorted(p.stem for p in cards_folder(kind).glob("*.toml")))


def load_task(name: str) -> tuple[str, TaskCard]:
    """Return the canonical name and the card of a task, given its name or a path to a `.toml` file."""
    if canonical(name) in card_names("tasks/language"):
        raise UsageError(
            f"'{name}' is a task for language models; write iclbench lm eval --model DIR_OR_ID --tasks {name}",
            code="not-applicable",
        )
    return load_card("tasks", name, TaskCard)


def load_baseline(name: str) -> tuple[str, BaselineCard]:
    """Return the canonical name and the card of a baseline, given its name or a path to a `.toml` file.

    A target `package.module:Class` is a baseline with the default settings of the class. Its name is the target in
    lower case, with hyphens in place of other characters.
    """
    if is_target(name):
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64]
        return slug, BaselineCard(estimator=name, summary=f"{name} with its default settings")
    return load_card("baselines", name, BaselineCard)


def is_baseline(name: str) -> bool:
    """Return whether a name is the path of a baseline card, the only kind of card with the key `estimator`."""
    return name.endswith(".toml") and "estimator" in read_toml(Path(name))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise `UsageError` if it cannot be read or is not valid."""
    return _read_toml(path, tomllib.loads)


def read_similar_toml(path: Path) -> dict[str, Any]:
    """Read one of many TOML files that differ only in the lines before their first table, such as the seed.

    Equal tables are parsed only once. Their values are shared between files, so they must not be changed.
    """
    return _read_toml(path, _parse_similar)


def _parse_similar(text: str) -> dict[str, Any]:
    head, bracket, tables_text = text.partition("\n[")
    try:
        top_level, tables = tomllib.loads(head), _parse_tables(bracket + tables_text)
    except ValueError:
        return tomllib.loads(text)  # the bracket is in a value, or the file is not valid
    return top_level | tables if top_level.keys().isdisjoint(tables) else tomllib.loads(text)


_parse_tables = lru_cache(maxsize=256)(tomllib.loads)


def _read_toml(path: Path, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    try:
        return parse(limits.read_bytes(path, limits.max_line()).decode("utf-8-sig"))
    except OSError as error:
        code = "missing-file" if isinstance(error, FileNotFoundError) else "unreadable-file"
        raise UsageError(f"cannot read {path}: {error.strerror}", code=code) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: it is not UTF-8 text", code="bad-syntax") from error
    except RecursionError as error:
        raise UsageError(f"{path} is not valid TOML: nested too deeply", code="bad-syntax") from error
    except ValueError as error:
        # Raised for invalid TOML, but also for numbers with thousands of digits and paths with a null byte.
        raise UsageError(f"{path} is not valid TOML: {shorten_to_line(str(error))}", code="bad-syntax") from error


def load_card(kind: CardKind, name: str, model: type[_Model]) -> tuple[str, _Model]:
    """Return the canonical name of a card and the card, given its name or a path to a `.toml` file."""
    path = _path(kind, name)
    card = read_card(path, model)
    return card_name(path), card


def read_card(path: Path, model: type[_Model]) -> _Model:
    """Read the card in a file; raise `UsageError` if the file cannot be read or is not a valid card."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return validate(model, read_toml(path), str(path))  # raises the error
    card = _read_card(str(path), str(Path.cwd()), model, status.st_mtime_ns, status.st_size)
    assert isinstance(card, model)
    return card


@lru_cache(maxsize=1024)
def _read_card(path: str, folder: str, model: type[BaseModel], *file_version: int) -> BaseModel:
    """Read the card in one version of a file.

    Each version is read once per process, because grids use the same cards thousands of times. Other cards are named
    by their path, which is relative to the current folder or to the folder of the card.
    """
    parent = Path(path).parent

    def path_of(text: str) -> str:
        is_relative_to_card = text.endswith(".toml") and not Path(text).is_file() and (parent / text).is_file()
        return str(parent / text) if is_relative_to_card else text

    return validate(model, map_texts(read_toml(Path(path)), path_of), path)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Apply a function to all strings in plain values, including the keys of tables."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): map_texts(item, change) for key, item in value.items()}
    return [map_texts(item, change) for item in value] if isinstance(value, list) else value


def _path(kind: CardKind, name: str) -> Path:
    if name.endswith(".toml"):
        return Path(name)
    if canonical(name) not in card_names(kind):
        raise UnknownNameError(_singular(kind), name, card_names(kind), hint="(or a path to a .toml card)")
    return cards_folder(kind) / f"{canonical(name)}.toml"


def _singular(kind: CardKind) -> str:
    """Return the name of a kind of card in the singular."""
    return {"tasks/language": "language task", "tasks/language/suites": "suite"}.get(kind, kind.removesuffix("s"))


def card_file(name: str) -> Path:
    """Return the file of a card of any kind, given its name or path."""
    kinds: tuple[CardKind, ...] = ("tasks", "baselines", "grids", "tasks/language", "tasks/language/suites")
    for kind in kinds:
        if name.endswith(".toml") or canonical(name) in card_names(kind):
            return _path(kind, name)
    raise UnknownNameError("card", name, [card for kind in kinds for card in card_names(kind)])


def card_name(path: Path) -> str:
    """Return the name of a card from its file name.

    Because it is part of other file names, it must consist of lower-case letters, digits and hyphens.
    """
    name = canonical(path.stem)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise UsageError(
            f"{path}: the file name of a card must consist of letters, digits and hyphens, like my-task.toml",
            code="bad-syntax",
        )
    return name
