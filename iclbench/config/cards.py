"""Task, baseline and grid cards: what is measured, as short TOML files without code.

A card holds plain values: no templates, no inheritance, no expressions. It is found by name (`linear`, in the shipped
folders) or by path (`./mine.toml`). The hash of what it has trained and evaluated stands in every result row.
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
from iclbench.core.errors import UnknownNameError, UsageError, brief_line
from iclbench.core.formats import canonical
from iclbench.core.hashing import content_hash
from iclbench.core.settings import (
    BaseSettings,
    Decay,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Role,
    Share,
    validate,
)
from iclbench.core.version import checkout
from iclbench.registry import FAMILIES, is_target, spelling

PresetName = Literal["smoke", "grid", "small", "paper"]
PRESETS: tuple[PresetName, ...] = ("smoke", "grid", "small", "paper")

Head = Literal["point", "gaussian", "mixture", "categorical", "event"]
CardKind = Literal["tasks", "baselines", "grids", "tasks/language", "tasks/language/suites"]
_Model = TypeVar("_Model", bound=BaseModel)


# Fewer steps have no last fifth.
_SHORTEST = 5


def _plain(value: Any, key: str = "", depth: int = 0) -> Any:
    """The value, unless there is something in it that a card may not hold: infinities, NaN, dates, deep nesting."""
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = ((key, item) for item in value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number for {key!r}, got {value}")
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"expected a number, a string or a boolean for {key!r}, got {reprlib.repr(value)}")
    if depth > 8:
        raise ValueError("expected tables and lists at most eight deep")
    for name, item in inner:
        _plain(item, str(name), depth + 1)
    return value


def _plain_values(table: dict[str, Any]) -> Any:
    return _plain(table)


# Settings that some family, backbone or estimator will check against its own model.
Values = Annotated[dict[str, Any], AfterValidator(_plain_values)]


def _in_one_spelling(table: dict[str, Any]) -> dict[str, Any]:
    written: dict[str, str] = {}
    for name in table:
        if (other := written.setdefault(spelling(name), name)) != name:
            raise ValueError(f"{other!r} and {name!r} are one backbone; leave one of them")
    return {spelling(name): value for name, value in table.items()}


# Of a table by backbones, which are looked up in one spelling.
ByBackbone = AfterValidator(_in_one_spelling)


class Ramp(BaseSettings):
    """One quantity of a curriculum: from `start`, by `by` every `every` steps, up to the task's own value.

    Attributes:
        start: the first value.
        by: what is added at a time.
        every: steps after which it is added.
    """

    start: PositiveInt
    by: PositiveInt = 1
    every: PositiveInt

    def at(self, step: int, end: int) -> int:
        """The value during `step` (counted from 0), never beyond `end`."""
        return min(end, self.start + self.by * (step // self.every))


class Curriculum(BaseSettings):
    """Which part of the task is trained on while training goes on; None: all of it from the start.

    `points` counts context examples plus the query, as Garg et al. do (11 -> 41 trains 10 -> 40 examples).

    Attributes:
        dims: of the input dimensions that are not zero.
        points: of the points of an episode, the query included.
    """

    dims: Ramp | None = None
    points: Ramp | None = None


class TrainSettings(BaseSettings):
    """Everything the training loop needs to know besides the task and the backbone.

    Attributes:
        steps: batches that are trained on.
        batch: episodes per step.
        optimiser: Adam, or AdamW with `weight_decay`.
        lr: learning rate at its highest.
        betas: Adam's two rates of decay.
        weight_decay: of AdamW.
        warmup: steps over which the learning rate rises from 0.
        schedule: of the learning rate after the warm-up: constant, cosine to 0, inverse-sqrt, or warmup-stable-decay
            (constant, then linearly to 0 over the last fifth of the steps).
        branches: shares of the steps at which shorter trainings end that this one also gives, like [0.25, 0.5]; with
            warmup-stable-decay. A branch leaves the training where a fifth of its own steps is left, and its rate falls
            to 0 over them; all else (warm-up, curriculum, episodes, scheduled noise) is that of the training, which
            goes on as if there were no branch.
        clip: greatest norm of the gradient; 0: any.
        curriculum: what training begins with.
        precision: of the forward pass; weights are float32.
        compile: whether torch compiles the model.
        evaluate_every: steps between evaluations while training goes on; 0: none.
        evaluators: tests that are put then; none named: all of the card.
        checkpoint_every: steps between checkpoints.
        log_every: steps between logged losses.
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
    def _branches_are_trainings(self) -> TrainSettings:
        if self.branches and self.schedule != "warmup-stable-decay":
            raise ValueError(f'branches: expected schedule = "warmup-stable-decay" beside them, got "{self.schedule}"')
        if self.branches and self.branch_steps[0] < _SHORTEST:
            share, most = min(self.branches), self.steps
            raise ValueError(f"branches: {share:g} of {most} steps is fewer than {_SHORTEST}; give a larger share")
        if len({*self.branch_steps, self.steps}) <= len(self.branches):
            raise ValueError(f"branches: expected shares that end at different steps, got {self.branches}")
        return self

    @property
    def branch_steps(self) -> list[int]:
        """The step at which every branch ends, the first one first."""
        return sorted(round(share * self.steps) for share in self.branches)

    @property
    def all_steps(self) -> int:
        """Batches that are trained on, those of branches included."""
        return self.steps + sum(steps - decay_begins(steps) for steps in self.branch_steps)

    def in_steps(self, steps: int) -> dict[str, Any]:
        """What changes, in plain values, where training takes so many steps instead: warm-up and curriculum take the
        same share of them."""
        ratio = steps / self.steps
        curriculum = self.curriculum.model_dump(exclude_none=True)
        for ramp in curriculum.values():
            ramp["every"] = max(1, round(ramp["every"] * ratio))
        return {"steps": steps, "warmup": round(self.warmup * ratio), "curriculum": curriculum}

    def at_full_size(self) -> TrainSettings:
        """The same without a curriculum: steps of the size that training ends with."""
        return self.model_copy(update={"curriculum": Curriculum()})


def decay_begins(steps: int) -> int:
    """The step (from 0) at which the last fifth of so many begins."""
    return steps - steps // 5


# How far from its budget of parameters a backbone may be, as a share of it.
TOLERANCE = 0.03


def deviation(parameters: Any, budget: float) -> Any:
    """How far a size, or a column of sizes, is from a budget, as a share of it; negative: smaller."""
    return parameters / budget - 1


class Preset(BaseSettings):
    """How big: the size of the task, of the backbones and of the training.

    Attributes:
        points: examples in context (question `next`), or points of the largest context (`targets`).
        episodes: of every prompt set.
        parameters: the family's, over those of the card.
        train: the training of all backbones.
        train_for: what differs for one of them, by name.
        budget: parameters of a backbone, an image encoder left out; every backbone is sized to it within 3 %.
        encoder: what turns images into features, for all backbones.
        backbones: settings of one of them, by name: published sizes where there is no budget.
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
    """A number from a paper, how it was read, and for which data it is: those parameters of the task that name them.

    Attributes:
        contestant: the backbone or method, by our name or the paper's.
        preset: the size that it is for.
        shift: the shift that it is under.
        evaluator: the question or test; by default the trained question.
        metric: what was measured.
        n_context: context points; left out: a summary over them.
        n_related: related datasets.
        value: the number.
        low: lower end of its interval.
        high: upper end.
        source: paper, with table or figure.
        read: how it was read: from a table, off a figure, from released numbers.
        data: parameters of the task that name the data it is for, such as `glyphs`.
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
    """A task: a family with its parameters fixed and its protocol written down.

    With `context_targets`, training asks and scores the context points as further targets; evaluation does not. It
    wants a `floor`: without one a model learns to repeat the outputs that it was shown, ever surer of them, at the cost
    of all others (`benchmarks/periodic.md`).

    Attributes:
        summary: what the task is, in a line.
        source: paper, with section.
        notes: what else a reader should know, such as deviations.
        question: what is trained: `next` (for every n, y[n+1] from the first n points) or `targets` (a set of targets
            from one context).
        head: the kind of prediction.
        floor: least standard deviation of a Gaussian head.
        components: Gaussians of a mixture head, log-normals of an event head.
        context_targets: whether training asks the context points too.
        parameters: the family's, for all presets.
        baselines: estimators that stand beside every run, by the names of their cards.
        oracles: estimators that are Bayes-optimal on this task for what they are told: who is told least scores 1.
        shifts: what `--shift all` asks.
        evaluators: tests of a family that has its own, in the order of tables.
        presets: how big, by name: smoke, grid, small, paper.
        published: numbers of papers, which the report shows beside ours.
    """

    family: str = Field(description="the name of a family, like 'linear', or package.module:Class")
    summary: Annotated[str, Role.REPORTING]
    source: Annotated[str, Role.REPORTING] = ""
    notes: Annotated[str, Role.REPORTING] = ""
    question: Literal["next", "targets"] = "next"
    head: Head = "point"
    floor: NonNegativeFloat = 0.0
    components: PositiveInt = 8
    context_targets: bool = False
    parameters: Values = {}
    baselines: Annotated[list[str], Role.REPORTING] = []
    oracles: Annotated[list[str], Role.REPORTING] = []
    shifts: Annotated[list[str], Role.REPORTING] = []
    evaluators: Annotated[list[str], Role.REPORTING] = []
    presets: dict[PresetName, Preset]
    published: Annotated[list[Published], Role.REPORTING] = []

    @field_validator("family")
    @classmethod
    def _known_family(cls, value: str) -> str:
        if ":" not in value:
            try:
                FAMILIES.entry(value)
            except UnknownNameError as error:
                raise ValueError(str(error)) from None
        elif not is_target(value):
            raise ValueError(f"expected a family's name or package.module:Class, got {value!r}")
        return value

    @field_validator("presets")
    @classmethod
    def _at_least_one(cls, value: dict[PresetName, Preset]) -> dict[PresetName, Preset]:
        if not value:
            raise ValueError("expected at least one of smoke, grid, small, paper")
        return value

    @property
    def hash(self) -> str:
        """Content hash of what is trained and evaluated, as the card gives it: words may
        be mended without a trace."""
        return content_hash(self._hashed())

    @property
    def unobserved(self) -> str:
        """The same hash but for how often training is looked at, on which no number depends."""
        plain = self._hashed()
        for preset in plain["presets"].values():
            for table in (preset["train"], *preset.get("train_for", {}).values()):
                for key in TrainSettings.with_role(Role.MONITORING) & table.keys():
                    del table[key]
        return content_hash(plain)

    def _hashed(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={*self.with_role(Role.REPORTING)}, exclude_unset=True)

    def preset(self, name: str, task: str) -> Preset:
        found = self.presets.get(name)  # type: ignore[call-overload]
        if found is None:
            raise UnknownNameError("preset", name, self.presets, hint=f"(presets of task '{task}')")
        return found


class BaselineCard(BaseSettings):
    """A baseline: an estimator with its settings.

    Attributes:
        estimator: its registered name, or `package.module:Class`.
        summary: what it is, in a line.
        source: paper, with section.
        settings: the estimator's.
    """

    estimator: str
    summary: str
    source: str = ""
    settings: Values = {}


@cache
def cards_folder(kind: CardKind) -> Path:
    """The checkout's folder when there is one, else the copy inside the installed package."""
    root = checkout()
    if root is not None and (root / kind).is_dir():
        return root / kind
    return Path(__file__).resolve().parents[1] / "_cards" / kind


@cache
def names(kind: CardKind) -> tuple[str, ...]:
    """The names of all shipped cards."""
    return tuple(sorted(p.stem for p in cards_folder(kind).glob("*.toml")))


def load_task(name: str) -> tuple[str, TaskCard]:
    """The task's canonical name and its card, from a name or a path to a `.toml` file."""
    if canonical(name) in names("tasks/language"):
        raise UsageError(f"'{name}' is a task for language models: iclbench lm eval --model DIR_OR_ID --tasks {name}")
    return load_card("tasks", name, TaskCard)


def load_baseline(name: str) -> tuple[str, BaselineCard]:
    """The baseline's canonical name and its card, from a name or a path to a `.toml` file."""
    return load_card("baselines", name, BaselineCard)


def is_baseline(name: str) -> bool:
    """Whether a path to a `.toml` file leads to a card of a baseline: no other has an `estimator`."""
    return name.endswith(".toml") and "estimator" in read_toml(Path(name))


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; raises `UsageError` with file, line and what is wrong."""
    return _read_toml(path, tomllib.loads)


def read_toml_of_many(path: Path) -> dict[str, Any]:
    """The same for thousands of files that differ in nothing but the lines before their first table, such as the seed:
    the rest of the text is parsed once. Values of tables are shared and must not be changed."""
    return _read_toml(path, _parse_head)


def _parse_head(text: str) -> dict[str, Any]:
    head, opening, tables = text.partition("\n[")
    try:
        first, rest = tomllib.loads(head), _parse_tables(opening + tables)
    except ValueError:
        return tomllib.loads(text)  # the bracket was inside a value, or the file is not valid
    return first | rest if first.keys().isdisjoint(rest) else tomllib.loads(text)


_parse_tables = lru_cache(maxsize=256)(tomllib.loads)


def _read_toml(path: Path, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    try:
        return parse(limits.read_bytes(path, limits.max_line()).decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: it is not UTF-8 text") from error
    except RecursionError as error:
        raise UsageError(f"{path} is not valid TOML: nested too deeply") from error
    except ValueError as error:
        # TOMLDecodeError, but also numbers with thousands of digits and paths with a null byte.
        raise UsageError(f"{path} is not valid TOML: {brief_line(str(error))}") from error


def load_card(kind: CardKind, name: str, model: type[_Model]) -> tuple[str, _Model]:
    """The card's canonical name and the card, from a name or a path to a `.toml` file."""
    path = _path(kind, name)
    card = read_card(path, model)
    return card_name(path), card


def read_card(path: Path, model: type[_Model]) -> _Model:
    """The card in a file."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return validate(model, read_toml(path), str(path))  # which says what is wrong
    card = _read_card(str(path), str(Path.cwd()), model, state.st_mtime_ns, state.st_size)
    assert isinstance(card, model)
    return card


@lru_cache(maxsize=1024)
def _read_card(path: str, folder: str, model: type[BaseModel], *state: int) -> BaseModel:
    """One version of a card's file, read once per process: a grid asks for the same few cards thousands of times."""
    return validate(model, read_toml(Path(path)), path)


def _path(kind: CardKind, name: str) -> Path:
    if name.endswith(".toml"):
        return Path(name)
    if canonical(name) not in names(kind):
        raise UnknownNameError(_called(kind), name, names(kind), hint="(or a path to a .toml card)")
    return cards_folder(kind) / f"{canonical(name)}.toml"


def _called(kind: CardKind) -> str:
    """A kind in the singular."""
    return {"tasks/language": "language task", "tasks/language/suites": "suite"}.get(kind, kind.removesuffix("s"))


def card_file(name: str) -> Path:
    """The file of a task, baseline or grid card, by name or path."""
    kinds: tuple[CardKind, ...] = ("tasks", "baselines", "grids", "tasks/language", "tasks/language/suites")
    for kind in kinds:
        if name.endswith(".toml") or canonical(name) in names(kind):
            return _path(kind, name)
    raise UnknownNameError("card", name, [known for kind in kinds for known in names(kind)])


def card_name(path: Path) -> str:
    """The name a card's file gives it: lower-case letters, digits and hyphens, so that it can be part of a file
    name."""
    name = canonical(path.stem)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise UsageError(f"{path}: a card's file name must be letters, digits and hyphens, like my-task.toml")
    return name
