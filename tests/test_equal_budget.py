"""The preset `grid` gives all architectures the same number of parameters and the same training settings."""

import pytest

from iclbench.backbones.sequence import SequenceBackbone
from iclbench.config.cards import BUDGET_TOLERANCE, card_names, load_task
from iclbench.config.resolution import family_class, resolve_run, unfit_reason
from iclbench.registry import BACKBONES

TASKS = [name for name in card_names("tasks") if "grid" in load_task(name)[1].presets]

# The number of parts into which the backbones are split. The fast tests of a card cover one part, and those of `PARTS`
# cards with the same head and question cover every backbone.
PARTS = 9


def slow_marks(task: str, part: int) -> list[pytest.MarkDecorator]:
    """Return the mark `slow`, except for one part of the backbones per card.

    The parts without the mark differ between cards with the same head and question.
    """
    problems = {name: (card.head, card.question) for name in TASKS for card in [load_task(name)[1]]}
    similar_tasks = [name for name in TASKS if problems[name] == problems[task]]
    return [] if part == similar_tasks.index(task) % PARTS else [pytest.mark.slow]


@pytest.mark.parametrize(
    ("task", "part"),
    [pytest.param(task, part, marks=slow_marks(task, part)) for task in TASKS for part in range(PARTS)],
)
def test_all_backbones_meet_the_parameter_budget_and_share_the_training_settings(task: str, part: int) -> None:
    """Only the learning rate differs, because it is tuned for every backbone."""
    card = load_task(task)[1]
    architectures = [name for name in BACKBONES.architectures() if name in BACKBONES.builtin_entries]
    applicable = [name for name in architectures if unfit_reason(name, card) is None]
    # `cells` reads only features, and the other two read only events.
    unfit = {"cells"} if card.head == "event" else {"cmhp", "thp"}
    if family_class(card.family).reads_images:
        unfit |= {"cells"}
    if family_class(card.family).is_stream:
        unfit = {name for name in architectures if not issubclass(BACKBONES.get(name), SequenceBackbone)}
    assert set(architectures) - set(applicable) == unfit
    budget = card.presets["grid"].budget
    assert budget == (100_000 if task == "events-reddit" else 25_000)  # the 984 marks of Reddit need more parameters
    runs = [resolve_run(task, name, "grid") for name in applicable[part::PARTS]]
    for run in runs:
        model = run.backbone.build(run.shape(run.task.build()))
        size = model.parameter_count - model.encoder_parameter_count
        assert abs(size / budget - 1) <= BUDGET_TOLERANCE, (run.backbone, size)
    first, *others = (run.train.model_dump(exclude={"lr"}) for run in (resolve_run(task, "gpt2", "grid"), *runs))
    assert all(other == first for other in others)


def test_at_least_12_tasks_have_the_preset_grid() -> None:
    assert len(TASKS) >= 12
