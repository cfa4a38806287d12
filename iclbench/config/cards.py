"""Task, baseline and grid cards: short TOML files that define an experiment.

A card has plain values only: no templates, inheritance or expressions. Shipped cards are loaded by name (`linear`),
other cards by path (`./mine.toml`). Every result row has a hash of the parts of the task card that determine training
and evaluation.
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


# A run with fewer steps has no last fifth.
_MIN_BRANCH_STEPS = 5


def _check_plain(value: Any, key: str = "", depth: int = 0) -> Any:
    """The value; raises `ValueError` if it contains infinity, NaN, dates or deep nesting."""
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


# Settings of a family, backbone or estimator, which its class validates later.
Values = Annotated[dict[str, Any], AfterValidator(_check_plain_table)]


def _with_registered_spelling(table: dict[str, Any]) -> dict[str, Any]:
    card_spellings: dict[str, str] = {}
    for name in table:
        if (other := card_spellings.setdefault(canonical_name(name), name)) != name:
            raise ValueError(f"{other!r} and {name!r} are the same backbone; remove one of them")
    return {canonical_name(name): value for name, value in table.items()}


# Validates a table whose keys are names of backbones.
ByBackbone = AfterValidator(_with_registered_spelling)


class Ramp(BaseSettings):
    """One quantity of a curriculum, which grows up to the value of the task.

    Attributes:
        start: the first value.
        by: the increment.
        every: number of steps between increments.
    """

    start: PositiveInt
    by: PositiveInt = 1
    every: PositiveInt

    def at(self, step: int, end: int) -> int:
        """The value during `step` (counted from 0), at most `end`."""
        return min(end, self.start + self.by * (step // self.every))


class Curriculum(BaseSettings):
    """Quantities of the task that grow during training (default: none).

    Attributes:
        dims: number of input dimensions that are not zero.
        points: number of points of an episode: context examples plus the query, as in Garg et al. (2022), so that
            11 to 41 points are 10 to 40 examples.
    """

    dims: Ramp | None = None
    points: Ramp | None = None


class TrainSettings(BaseSettings):
    """Settings of the training loop.

    Attributes:
        steps: number of batches.
        batch: episodes per step.
        optimiser: Adam, or AdamW with `weight_decay`.
        lr: peak learning rate.
        betas: the two decay rates of Adam.
        weight_decay: weight decay of AdamW.
        warmup: number of steps in which the learning rate rises from 0.
        schedule: schedule of the learning rate after the warm-up: constant, cosine to 0, inverse-sqrt, or
            warmup-stable-decay (constant, then linearly to 0 in the last fifth of the steps).
        branches: shorter training runs that start from this one, as shares of the steps, like [0.25, 0.5]. They need
            the schedule warmup-stable-decay. In the last fifth of the steps of a branch, its learning rate decays to 0.
            Warm-up, curriculum, episodes and scheduled noise are the same as in this run, which does not depend on its
            branches.
        clip: largest norm of the gradient (0: no limit).
        curriculum: quantities of the task that grow during training.
        precision: precision of the forward pass. Weights are float32.
        compile: whether to compile the model with torch.
        evaluate_every: number of steps between evaluations during training (0: no evaluations).
        evaluators: tests of these evaluations (default: all tests of the card).
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
                f"branches: {share:g} of {self.steps} steps is fewer than {_MIN_BRANCH_STEPS}; give a larger share"
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
        """The number of batches, including those of branches."""
        return self.steps + sum(steps - decay_start(steps) for steps in self.branch_steps)

    def scaled_to(self, steps: int) -> dict[str, Any]:
        """The settings that change with the number of steps, as plain values: warm-up and curriculum have the same
        shares of the steps."""
        ratio = steps / self.steps
        curriculum = self.curriculum.model_dump(exclude_none=True)
        for ramp in curriculum.values():
            ramp["every"] = max(1, round(ramp["every"] * ratio))
        return {"steps": steps, "warmup": round(self.warmup * ratio), "curriculum": curriculum}

    def without_curriculum(self) -> TrainSettings:
        """The settings without a curriculum, so that all steps have their final size."""
        return self.model_copy(update={"curriculum": Curriculum()})


def decay_start(steps: int) -> int:
    """The first step (from 0) of the last fifth of a training run."""
    return steps - steps // 5


# Largest deviation of a backbone from its budget of parameters.
BUDGET_TOLERANCE = 0.03


def deviation(parameters: Any, budget: float) -> Any:
    """The relative deviation of a number of parameters, or of a column of them, from a budget."""
    return parameters / budget - 1


class Preset(BaseSettings):
    """The sizes of the task, of the backbones and of training.

    Attributes:
        points: number of examples in context (question `next`), or points of the largest context (`targets`).
        episodes: number of episodes of every prompt set.
        parameters: parameters of the family that differ from those of the card.
        train: training settings for all backbones.
        train_for: training settings that differ for one backbone, by name.
        budget: number of parameters of a backbone without its image encoder. Sizes of backbones are within 3 % of it.
        encoder: image encoder of all backbones.
        backbones: settings of backbones, by name: published sizes, for presets without a budget.
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
        preset: the preset of the same size.
        shift: the shift.
        evaluator: the question or test (default: the trained question).
        metric: the metric.
        n_context: number of context points (default: a summary over all numbers).
        n_related: number of related datasets.
        value: the number.
        low: lower end of its interval.
        high: upper end of its interval.
        source: paper, with table or figure.
        read: origin of the number: a table, a figure, or released numbers.
        data: parameters of the task that identify the data of the number, such as `glyphs`.
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

    With `context_targets`, the context points are further targets in training, but not in evaluation. This setting
    needs a `floor`: without it, a model learns to repeat outputs of the context with ever smaller standard deviations,
    and its predictions of other targets get worse (`benchmarks/periodic.md`).

    Attributes:
        summary: one line about the task.
        source: paper, with section.
        notes: further remarks, such as deviations from the paper.
        question: the trained question: `next` (for every n, y[n+1] from the first n points) or `targets` (a set of
            targets from one context).
        head: the kind of prediction.
        floor: smallest standard deviation of a Gaussian head.
        components: number of Gaussians of a mixture head, or of log-normals of an event head.
        buckets: number of buckets of a bar head.
        context_targets: whether the context points are also targets in training.
        parameters: parameters of the family, for all presets.
        baselines: baselines that are evaluated with every run, by the names of their cards.
        oracles: estimators that are Bayes-optimal on this task, given different parts of the true process. The oracle
            with access to the smallest part has the score 1.
        shifts: the shifts of `--shift all`.
        evaluators: tests of the family, in the order of tables.
        solutions: baselines and oracles whose distance from the model is measured during training
            (`train.evaluate_every`).
        presets: sizes by name: smoke, grid, small, paper.
        published: numbers from papers, for the report.
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
        """Content hash of the parts that determine training and evaluation. It does not depend on descriptions."""
        return content_hash(self._hashed_part())

    @property
    def hash_without_monitoring(self) -> str:
        """The hash without the settings that only monitor training; no result depends on these."""
        part = self._hashed_part()
        for preset in part["presets"].values():
            for table in (preset["train"], *preset.get("train_for", {}).values()):
                for key in TrainSettings.with_role(Role.MONITORING) & table.keys():
                    del table[key]
        return content_hash(part)

    def _hashed_part(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={*self.with_role(Role.REPORTING)}, exclude_unset=True)

    def preset(self, name: str, task: str) -> Preset:
        """A preset by name; raises `UnknownNameError` if the card of the task has no such preset."""
        preset = self.presets.get(name)  # type: ignore[call-overload]
        if preset is None:
            raise UnknownNameError("preset", name, self.presets, hint=f"(presets of task '{task}')")
        return preset


class BaselineCard(BaseSettings):
    """A baseline: an estimator with its settings.

    Attributes:
        estimator: registered name of the estimator, or `package.module:Class`.
        summary: one line about the baseline.
        source: paper, with section.
        settings: settings of the estimator.
    """

    estimator: str
    summary: str
    source: str = ""
    settings: Values = {}


@cache
def cards_folder(kind: CardKind) -> Path:
    """The folder of the shipped cards of a kind, in the checkout or in the installed package."""
    root = checkout()
    if root is not None and (root / kind).is_dir():
        return root / kind
    return Path(__file__).resolve().parents[1] / "_cards" / kind


@cache
def card_names(kind: CardKind) -> tuple[str, ...]:
    """The names of all shipped cards."""
    return tuple(sorted(p.stem for p in cards_folder(kind).glob("*.toml")))


def load_task(name: str) -> tuple[str, TaskCard]:
    """The canonical name and the card of a task, from a name or a path to a `.toml` file."""
    if canonical(name) in card_names("tasks/language"):
        raise UsageError(
            f"'{name}' is a task for language models; write iclbench lm eval --model DIR_OR_ID --tasks {name}",
            code="not-applicable",
        )
    return load_card("tasks", name, TaskCard)


def load_baseline(name: str) -> tuple[str, BaselineCard]:
    """The canonical name and the card of a baseline, from a name or a path to a `.toml` file.

    A target `package.module:Class` is a baseline with the default settings of the class. Its name is the target with
    hyphens.
    """
    if is_target(name):
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64]
        return slug, BaselineCard(estimator=name, summary=f"{name} with its default settings")
    return load_card("baselines", name, BaselineCard)


def is_baseline(name: str) -> bool:
    """Whether a name is the path to a card of a baseline, the only kind of card with the key `estimator`."""
    return name.endswith(".toml") and "estimator" in read_toml(Path(name))


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; raises `UsageError` if it cannot be read or is not valid."""
    return _read_toml(path, tomllib.loads)


def read_similar_toml(path: Path) -> dict[str, Any]:
    """`read_toml` for many files that differ only in the lines before their first table, such as the seed.

    Equal tables are parsed only once. Files share their values, which must not be changed.
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
        # TOMLDecodeError, but also numbers with thousands of digits and paths with a null byte.
        raise UsageError(f"{path} is not valid TOML: {shorten_to_line(str(error))}", code="bad-syntax") from error


def load_card(kind: CardKind, name: str, model: type[_Model]) -> tuple[str, _Model]:
    """The canonical name of a card and the card, from a name or a path to a `.toml` file."""
    path = _path(kind, name)
    card = read_card(path, model)
    return card_name(path), card


def read_card(path: Path, model: type[_Model]) -> _Model:
    """The card in a file; raises `UsageError` if the file cannot be read or is not a valid card."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return validate(model, read_toml(path), str(path))  # raises the error
    card = _read_card(str(path), str(Path.cwd()), model, status.st_mtime_ns, status.st_size)
    assert isinstance(card, model)
    return card


@lru_cache(maxsize=1024)
def _read_card(path: str, folder: str, model: type[BaseModel], *file_version: int) -> BaseModel:
    """The card in one version of a file. Each version is read once per process, because grids use the same cards
    thousands of times."""
    return validate(model, read_toml(Path(path)), path)


def _path(kind: CardKind, name: str) -> Path:
    if name.endswith(".toml"):
        return Path(name)
    if canonical(name) not in card_names(kind):
        raise UnknownNameError(_singular(kind), name, card_names(kind), hint="(or a path to a .toml card)")
    return cards_folder(kind) / f"{canonical(name)}.toml"


def _singular(kind: CardKind) -> str:
    """The name of a kind of card in the singular."""
    return {"tasks/language": "language task", "tasks/language/suites": "suite"}.get(kind, kind.removesuffix("s"))


def card_file(name: str) -> Path:
    """The file of a card of any kind, by name or path."""
    kinds: tuple[CardKind, ...] = ("tasks", "baselines", "grids", "tasks/language", "tasks/language/suites")
    for kind in kinds:
        if name.endswith(".toml") or canonical(name) in card_names(kind):
            return _path(kind, name)
    raise UnknownNameError("card", name, [card for kind in kinds for card in card_names(kind)])


def card_name(path: Path) -> str:
    """The name of a card, from its file. It has only lower-case letters, digits and hyphens, because it is part of file
    names."""
    name = canonical(path.stem)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise UsageError(
            f"{path}: the file name of a card must be letters, digits and hyphens, like my-task.toml", code="bad-syntax"
        )
    return name
