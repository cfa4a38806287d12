"""Grid cards of language models: models x tasks x methods.

Each figure or table of a paper has one card, `grids/<name>.toml`, next to the grids that train backbones. A card with
the key `models` is a grid of language models. In a sweep, each combination of a model and a task is one cell. The same
tables can be written by `iclbench lm eval`, with one command for each combination of a model and a variant.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from iclbench.config.cards import card_names, cards_folder, load_card, read_toml
from iclbench.core.errors import IclbenchError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.settings import BaseSettings, PositiveInt
from iclbench.language.tasks.cards import PRESET, LanguageTask
from iclbench.language.tasks.ranges import as_text
from iclbench.language.tasks.selection import language_tasks
from iclbench.store.identity import language_cell_id
from iclbench.sweep.cells import GridCell
from iclbench.sweep.grids import Seeds, Texts, Unique


class Variant(BaseSettings):
    """A method of using the demonstrations, and its `-o` settings."""

    method: Literal["icl", "deep-thinking", "repeat"] = "icl"
    overrides: list[str] = []


class LanguageGridCard(BaseSettings):
    """A grid of language models: all models on all tasks, in all variants of `methods`.

    Attributes:
        models: local folders, or ids on the Hugging Face hub.
        tasks: names of tasks, families and suites.
        shots: numbers of demonstrations (default: the number in each task's card).
        demo_seeds: seeds that draw the demonstrations.
        orders: orders of the demonstrations; 0 is the order in which they are drawn.
        episodes: number of queries (default: the number in each task's card).
        controls: whether to also evaluate the controls: no demonstrations, shuffled labels, repeated demonstrations and
            the majority label.
        overlength: treatment of prompts that are longer than the context of a model.
        dtype: data type of the models' weights.
        methods: variants, by name.
    """

    summary: str
    source: str = ""
    notes: str = ""
    models: Texts
    tasks: Texts
    shots: Annotated[list[Annotated[int, Field(ge=0)]], Unique] = []
    demo_seeds: Seeds
    orders: Seeds = [0]
    episodes: PositiveInt | None = None
    controls: bool = True
    overlength: Literal["error", "skip", "drop"] = "error"
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    methods: Annotated[dict[str, Variant], Field(min_length=1)] = {"icl": Variant()}

    @field_validator("models")
    @classmethod
    def _check_models(cls, value: list[str]) -> list[str]:
        models: dict[str, str] = {}
        for model in value:
            if (first_model := models.setdefault(_contestant_name(model), model)) != model:
                raise ValueError(
                    f"{first_model!r} and {model!r} have the same name '{_contestant_name(model)}' in the tables; "
                    "remove one, or rename its folder"
                )
        return value

    @field_validator("methods")
    @classmethod
    def _check_names(cls, value: dict[str, Variant]) -> dict[str, Variant]:
        for name in value:
            if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", name):
                raise ValueError(f"a variant's name: expected lower-case letters, digits and '-', got {name!r}")
        return value


def _contestant_name(model: str) -> str:
    """Return the name of a model in the tables, without the suffix for its precision."""
    return Path(model).expanduser().resolve().name


def load_language_grid(name: str) -> tuple[str, LanguageGridCard]:
    """Load a grid by name or path to a `.toml` file. Return its canonical name and its card."""
    return load_card("grids", name, LanguageGridCard)


def is_language_grid(name: str) -> bool:
    """Whether this is the name or the path of a grid of language models. Such a card has the key `models`."""
    if name.endswith(".toml"):
        return "models" in read_toml(Path(name))
    grid_name = canonical(name)
    return grid_name in card_names("grids") and "models" in read_toml(cards_folder("grids") / f"{grid_name}.toml")


@dataclass(frozen=True)
class LanguageCell(GridCell):
    """One language model on one task. All variants of a grid are in the same cell, because they share their controls.

    Attributes:
        task_config: the task.
        options: name and precision of the model, methods as arguments of `parse_method`, and further arguments of
            `evaluate_model`.
        identity: digest of the weights if the model is in a folder; None for a model on the hub, which is identified by
            its name.
    """

    task_config: LanguageTask  # type: ignore[assignment]
    identity: str | None = None

    @property
    def work(self) -> str:
        return "language"

    @property
    def affinity(self) -> str:
        """The model. Cells of one model follow each other, since a worker holds only one model at a time."""
        return self.run

    def read_data(self, data_dir: Path | None) -> None:
        self.task_config.pool(data_dir)

    @cached_property
    def hash(self) -> str:
        """Hash of all inputs of the cell's rows."""
        return language_cell_id(self)


def language_cells(name: str) -> Iterator[LanguageCell]:
    """Yield the cells of a grid, one for each combination of a model and a task.

    Raises:
        UsageError: a task or a setting of a method does not exist; the message names the card.
    """
    grid, card = load_language_grid(name)
    tasks, methods = _tasks(grid, card), _methods(grid, card)
    for model in card.models:
        run = _contestant_name(model) + ("" if card.dtype in ("float32", "auto") else f"-{card.dtype}")
        identity = _identity(model, card.dtype)
        for task in tasks:
            options = {
                "model": model,
                "dtype": card.dtype,
                "methods": methods,
                "shots": card.shots or None,
                "demo_seeds": card.demo_seeds,
                "orders": card.orders,
                "episodes": card.episodes,
                "controls": card.controls,
                "overlength": card.overlength,
            }
            yield LanguageCell("evaluate", run, run, task, PRESET, options=options, identity=identity)


def _identity(model: str, dtype: str) -> str | None:
    """Return the digest of a model's folder; None for models on the hub, and for a folder that cannot be read. In the
    latter case, the cell reports the error."""
    from iclbench.language.models import loading

    if not Path(model).expanduser().is_dir():
        return None
    try:
        return loading.weights_id(loading.find(model), dtype)
    except IclbenchError:
        return None


def grid_tasks(name: str) -> list[LanguageTask]:
    """Return the tasks of a grid of language models.

    Raises:
        UsageError: a task of the card does not exist; the message names the card.
    """
    return _tasks(*load_language_grid(name))


def _tasks(grid: str, card: LanguageGridCard) -> list[LanguageTask]:
    try:
        return language_tasks(card.tasks)
    except UsageError as error:
        raise UsageError(f"grid '{grid}': {error}", code=error.code) from error


def commands(name: str, results: Path | None = None) -> Iterator[str]:
    """Yield the `iclbench lm eval` commands of a grid, quoted for a shell and grouped by model.

    Raises:
        UsageError: a task or a setting of a method does not exist; the message names the card.
    """
    grid, card = load_language_grid(name)
    _tasks(grid, card)
    _methods(grid, card)
    for model in card.models:
        for variant in card.methods.values():
            yield shlex.join(_command_words(card, model, variant, results))


def _methods(grid: str, card: LanguageGridCard) -> list[tuple[str, list[str]]]:
    """Return the variants of a grid as arguments of `parse_method`. Raise `UsageError` if a setting is unknown."""
    from iclbench.deep_thinking.methods import parse_method

    for variant in card.methods.values():
        try:
            parse_method(variant.method, variant.overrides)
        except UsageError as error:
            raise UsageError(f"grid '{grid}': {error}", code=error.code) from error
    return [(variant.method, variant.overrides) for variant in card.methods.values()]


def _command_words(card: LanguageGridCard, model: str, variant: Variant, results: Path | None) -> Iterator[str]:
    yield from ("iclbench", "lm", "eval", "--model", model, "--tasks", ",".join(card.tasks))
    if card.shots:
        yield from ("--shots", as_text(card.shots))
    yield from ("--demo-seeds", as_text(card.demo_seeds))
    if card.orders != [0]:
        yield from ("--orders", as_text(card.orders))
    if card.episodes is not None:
        yield from ("--episodes", str(card.episodes))
    if not card.controls:
        yield "--no-controls"
    for option, value, default in (("--overlength", card.overlength, "error"), ("--dtype", card.dtype, "float32")):
        if value != default:
            yield from (option, value)
    if variant.method != "icl":
        yield from ("--method", variant.method)
    for setting in variant.overrides:
        yield from ("-o", setting)
    if results is not None:
        yield from ("--results", str(results))
