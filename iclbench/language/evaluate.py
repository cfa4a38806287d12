"""Evaluation of a pretrained language model on in-context tasks, with controls for each accuracy.

`evaluate_model` yields the cells one by one and does not recompute existing cells. The controls use the same
queries as the method:

- plain ICL
- the method and plain ICL with shuffled outputs of the demonstrations
- plain ICL without demonstrations; a query that is repeated with other demonstrations is evaluated only once
- for Deep-Thinking, demonstrations that are written twice, which tests whether the method does more than repetition
- for Deep-Thinking, eta = 0, which must equal plain ICL exactly (with `setting=released`, up to rounding to bfloat16)
- the most frequent answer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from iclbench import tables
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.deep_thinking.methods import Method
from iclbench.deep_thinking.methods import method as method_named
from iclbench.evaluation import cells
from iclbench.evaluation.cells import CellResult
from iclbench.language.answering.development import development_prompts
from iclbench.language.cell import cell_tables, shared_columns
from iclbench.language.contestants import LanguageContestant, contestant, majority_baseline
from iclbench.language.models.batches import Batches
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.fitting import Overlength, PromptCache
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.summary import write_summary
from iclbench.language.tasks.cards import LanguageTask
from iclbench.language.tasks.published import write_published
from iclbench.store.runs import check_name


@dataclass(frozen=True)
class Comparison:
    """Contestants on prompt sets that differ only in their demonstrations.

    Attributes:
        sets: the prompt sets.
        contestants: the contestants, each of which answers all prompt sets.
        plain_icl: plain ICL, if the other contestants are compared with it; otherwise None.
        is_summarised: whether a summary over the prompt sets is written.
    """

    sets: tuple[LanguagePrompts, ...]
    contestants: tuple[LanguageContestant, ...]
    plain_icl: LanguageContestant | None = None
    is_summarised: bool = True


def evaluate_model(
    context: Context,
    model: LanguageModel,
    tasks: Sequence[LanguageTask],
    method: Method,
    *,
    shots: Sequence[int] | None = None,
    episodes: int | None = None,
    demo_seeds: Sequence[int] = (0,),
    orders: Sequence[int] = (0,),
    seed: int = 0,
    controls: bool = True,
    batch: int = 64,
    overlength: Overlength = "error",
) -> Iterator[CellResult]:
    """Evaluate a model with a method and yield each finished cell. If a cell fails, a failed row is written, and the
    evaluation continues.

    Args:
        context: results folder, and folder of the user's data sets.
        model: the model.
        tasks: the tasks.
        method: the method by which the model processes the demonstrations.
        shots: numbers of demonstrations (default: the number in each task's card).
        episodes: maximum number of queries in a prompt set (default: the number in each task's card).
        demo_seeds: seeds that draw the demonstrations.
        orders: orders of the demonstrations; 0 is the order in which they are drawn.
        seed: evaluation seed, which selects the queries.
        controls: whether to evaluate the controls.
        batch: maximum number of rows in a batch.
        overlength: treatment of prompts that are too long for the model.

    Raises:
        UsageError: the model does not support the method, or a task has no data. Nothing has been computed.
    """
    _check_model(model, method)
    comparisons: list[Comparison] = []
    for task in tasks:
        zero_shot = LanguagePrompts(task, 0, episodes or task.card.episodes, seed=seed, data_dir=context.data_dir)
        zero_shot.with_pool(task.pool(context.data_dir))
        contestants = _Contestants(model, method, controls, overlength)
        comparisons += _comparisons(zero_shot, contestants, shots or [task.card.shots], demo_seeds, orders)
    write_published(context.results, tasks)
    batches = Batches(batch)
    for comparison in comparisons:
        yield from _cells(context.results, comparison, batches, overlength)


class _Contestants:
    """The contestants: the model with the method, and the controls."""

    def __init__(self, model: LanguageModel, method: Method, controls: bool, overlength: Overlength) -> None:
        self.controls, self.method = controls, method
        icl, control_methods = method_named("icl"), method.controls if controls else ()
        compared_methods = [method, icl, *control_methods] if controls else [method]
        self.main = contestant(model, method, overlength, compared_methods)
        self.plain_icl = contestant(model, icl, overlength, compared_methods) if controls else self.main
        control_contestants = [
            contestant(model, control, overlength, compared_methods)
            for control in control_methods
            if control.hash != method.hash
        ]
        self.others = (*control_contestants, majority_baseline()) if controls else ()

    @property
    def with_and_without_method(self) -> tuple[LanguageContestant, ...]:
        """The model with the method, and the model with plain ICL. If the method is plain ICL, both are the same
        contestant, which is returned once."""
        return tuple({contestant.run: contestant for contestant in (self.main, self.plain_icl)}.values())


def _comparisons(
    zero_shot: LanguagePrompts,
    contestants: _Contestants,
    shots: Sequence[int],
    demo_seeds: Sequence[int],
    orders: Sequence[int],
) -> Iterator[Comparison]:
    """Yield the comparisons on one task.

    Args:
        zero_shot: the prompts of the task without demonstrations.
        contestants: the contestants.
        shots: numbers of demonstrations.
        demo_seeds: seeds that draw the demonstrations.
        orders: orders of the demonstrations.

    Raises:
        UsageError: demonstrations, development examples or candidates are needed but missing.
    """

    def sets(count: int, order: int, shift: str = "none") -> tuple[LanguagePrompts, ...]:
        return tuple(
            replace(zero_shot, shots=count, demo_seed=seed, order=order, shift=shift).with_pool(zero_shot.pool)
            for seed in demo_seeds
        )

    if 0 in shots and contestants.method.name != "icl":
        raise UsageError(
            f"task '{zero_shot.task.name}': method '{contestants.method.name}' needs demonstrations; pass --shots 1 or "
            "more",
            code="conflict",
        )
    if contestants.method.settings.selection == "dev":
        development_prompts(zero_shot).queries  # noqa: B018  (raises an error if the task has no development examples)
    zero_shot.drawn_episodes  # noqa: B018  (raises an error if candidates are needed but missing)
    plain = contestants.plain_icl if contestants.controls else None
    for count in filter(None, dict.fromkeys(shots)):
        prompt_sets = sets(count, orders[0])
        yield Comparison(prompt_sets, (*contestants.with_and_without_method, *contestants.others), plain)
        for order in orders[1:]:
            yield Comparison(sets(count, order), contestants.with_and_without_method, is_summarised=False)
        if contestants.controls and prompt_sets[0].can_shuffle:
            yield Comparison(sets(count, orders[0], "shuffled-labels"), contestants.with_and_without_method, plain)
    if contestants.controls or 0 in shots:
        without_model = (other for other in contestants.others if other.model is None)
        yield Comparison((zero_shot,), (contestants.plain_icl, *without_model))


def _cells(results: Path, comparison: Comparison, batches: Batches, overlength: Overlength) -> Iterator[CellResult]:
    for prompts in comparison.sets:
        cache = PromptCache()
        for member in comparison.contestants:
            yield _cell(results, member, prompts, partial(cell_tables, member, prompts, batches, overlength, cache))
    if comparison.is_summarised:
        for member in comparison.contestants:
            plain = None if member is comparison.plain_icl or member.model is None else comparison.plain_icl
            write_summary(results, member, comparison.sets, plain)


def _cell(
    results: Path,
    model: LanguageContestant,
    prompts: LanguagePrompts,
    compute_tables: Callable[[], tuple[cells.Tables, str]],
) -> CellResult:
    """Return a cell from the results folder, or compute it if the folder lacks it."""
    if cells.is_done(results, model, prompts):
        return CellResult(model, prompts, True, None, _cached_note(results, model, prompts))
    notes = [""]

    def work() -> cells.Tables:
        new_tables, notes[0] = compute_tables()
        return new_tables

    reason = cells.compute_cell(results, model, prompts, shared_columns(model, prompts), work)
    return CellResult(model, prompts, False, reason, notes[0])


def _cached_note(results: Path, contestant: LanguageContestant, prompts: LanguagePrompts) -> str:
    """Return the note of a cached cell, which may report dropped demonstrations."""
    reasons = tables.read("values", cells.cell_path(results, contestant, prompts))["reason"].dropna()
    return str(reasons.iloc[0]) if len(reasons) else ""


def _check_model(model: LanguageModel, method: Method) -> None:
    """Raise `UsageError` if the name of the model is reserved, or the model does not support the method."""
    if check_name(model.name) == majority_baseline().name or model.name.startswith("published-"):
        raise UsageError(
            f"the name '{model.name}' is reserved for other rows of the tables; choose another with --name",
            code="bad-value",
        )
    if method.settings.thinks and model.memory_obstacle:
        raise UsageError(
            f"'{model.name}' does not support Deep-Thinking: {model.memory_obstacle}; pass --method icl or repeat",
            code="not-applicable",
        )
