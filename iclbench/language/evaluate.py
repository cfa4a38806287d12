"""Evaluation of a pretrained language model on in-context tasks, with controls for every accuracy.

`evaluate_model` yields one cell after the other; what is already there is not computed again. Controls, all on the same
questions (those that come again with demonstrations of their own are asked once without any): plain ICL; the
demonstrations with their outputs exchanged; none at all; where the method is Deep-Thinking, written twice (is it more
than repetition?) and thought over with eta = 0, which has to be plain ICL to the last digit (under `setting=released`
but for its memory in bfloat16); and the most frequent answer.
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
from iclbench.language.answering.development import development
from iclbench.language.cell import cell_tables, shared_columns
from iclbench.language.contestants import LanguageContestant, constant, contestant
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
    """Contestants on prompt sets that differ in nothing but their demonstrations.

    Attributes:
        sets: the prompt sets.
        contestants: every one of them answers all prompt sets.
        plain: plain ICL, where it is among these and others are compared with it.
        summed: whether there is a summary over the sets.
    """

    sets: tuple[LanguagePrompts, ...]
    contestants: tuple[LanguageContestant, ...]
    plain: LanguageContestant | None = None
    summed: bool = True


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
    """Evaluate a model under a method, yielding every cell when it is done; a cell that fails is a failed row, and the
    others go on.

    Args:
        context: results folder, and where the user's copies of data sets lie.
        model: the model.
        tasks: the tasks.
        method: how it takes in its demonstrations.
        shots: numbers of demonstrations; None: those of the cards.
        episodes: queries of a prompt set, at most; None: those of the cards.
        demo_seeds: which demonstrations are drawn.
        orders: which orders these have; 0: as they were drawn.
        seed: evaluation seed: which queries.
        controls: whether the controls are evaluated, too.
        batch: rows that go through the model at a time, at most.
        overlength: what is done about prompts that are too long for the model.

    Raises:
        UsageError: the model cannot do what the method asks, or a task has no data; nothing has been computed then.
    """
    _refuse(model, method)
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
    """The contestants: the model under the method, and the controls."""

    def __init__(self, model: LanguageModel, method: Method, controls: bool, overlength: Overlength) -> None:
        self.controls, self.method = controls, method
        icl, more = method_named("icl"), method.controls if controls else ()
        compared = [method, icl, *more] if controls else [method]
        self.asked = contestant(model, method, overlength, compared)
        self.plain = contestant(model, icl, overlength, compared) if controls else self.asked
        control_contestants = [
            contestant(model, each, overlength, compared) for each in more if each.hash != method.hash
        ]
        self.others = (*control_contestants, constant()) if controls else ()

    @property
    def paired(self) -> tuple[LanguageContestant, ...]:
        """The method and plain ICL; one contestant where they are the same."""
        return tuple({contestant.run: contestant for contestant in (self.asked, self.plain)}.values())


def _comparisons(
    zero: LanguagePrompts,
    contestants: _Contestants,
    shots: Sequence[int],
    demo_seeds: Sequence[int],
    orders: Sequence[int],
) -> Iterator[Comparison]:
    """What is evaluated of a task, of which `zero` are the prompts without demonstrations.

    Raises:
        UsageError: the method needs demonstrations, or examples to choose settings on, and there are none; or there is
            nothing to choose answers from.
    """

    def sets(count: int, order: int, shift: str = "none") -> tuple[LanguagePrompts, ...]:
        return tuple(
            replace(zero, shots=count, demo_seed=seed, order=order, shift=shift).with_pool(zero.pool)
            for seed in demo_seeds
        )

    if 0 in shots and contestants.method.name != "icl":
        raise UsageError(
            f"task '{zero.task.name}': method '{contestants.method.name}' needs demonstrations; give --shots from 1 on"
        )
    if contestants.method.settings.selection == "dev":
        development(zero).queries  # noqa: B018  (raises where there are none)
    zero.drawn  # noqa: B018  (raises where there is nothing to choose answers from)
    plain = contestants.plain if contestants.controls else None
    for count in filter(None, dict.fromkeys(shots)):
        prompt_sets = sets(count, orders[0])
        yield Comparison(prompt_sets, (*contestants.paired, *contestants.others), plain)
        for order in orders[1:]:
            yield Comparison(sets(count, order), contestants.paired, summed=False)
        if contestants.controls and prompt_sets[0].can_shuffle:
            yield Comparison(sets(count, orders[0], "shuffled-labels"), contestants.paired, plain)
    if contestants.controls or 0 in shots:
        yield Comparison((zero,), (contestants.plain, *(other for other in contestants.others if other.model is None)))


def _cells(results: Path, comparison: Comparison, batches: Batches, overlength: Overlength) -> Iterator[CellResult]:
    for prompts in comparison.sets:
        cache = PromptCache()
        for member in comparison.contestants:
            yield _cell(results, member, prompts, partial(cell_tables, member, prompts, batches, overlength, cache))
    if comparison.summed:
        for member in comparison.contestants:
            plain = None if member is comparison.plain or member.model is None else comparison.plain
            write_summary(results, member, comparison.sets, plain)


def _cell(
    results: Path,
    model: LanguageContestant,
    prompts: LanguagePrompts,
    tables_of: Callable[[], tuple[cells.Tables, str]],
) -> CellResult:
    """The cell that is already there, or else computed."""
    if cells.is_done(results, model, prompts):
        return CellResult(model, prompts, True, None, _kept_note(results, model, prompts))
    notes = [""]

    def work() -> cells.Tables:
        computed, notes[0] = tables_of()
        return computed

    reason = cells.compute_cell(results, model, prompts, shared_columns(model, prompts), work)
    return CellResult(model, prompts, False, reason, notes[0])


def _kept_note(results: Path, contestant: LanguageContestant, prompts: LanguagePrompts) -> str:
    """The note of a cached cell, so that dropped demonstrations are reported again."""
    reasons = tables.read("values", cells.cell_path(results, contestant, prompts))["reason"].dropna()
    return str(reasons.iloc[0]) if len(reasons) else ""


def _refuse(model: LanguageModel, method: Method) -> None:
    """Raise `UsageError` for what cannot be done whatever the task."""
    if check_name(model.name) == constant().name or model.name.startswith("published-"):
        raise UsageError(f"'{model.name}' is the name of other rows in the tables; choose another with --name")
    if method.settings.thinks and model.forgets:
        raise UsageError(f"'{model.name}' cannot do Deep-Thinking: {model.forgets}; give --method icl or repeat")
