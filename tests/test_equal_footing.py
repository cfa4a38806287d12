"""The preset `grid` compares architectures on an equal footing: size, steps and batches of all backbones of a card."""

import pytest

from iclbench.config.cards import TOLERANCE, load_task, names
from iclbench.config.resolution import resolve_run, unfit_reason
from iclbench.registry import BACKBONES

TASKS = [name for name in names("tasks") if "grid" in load_task(name)[1].presets]


# As many as the largest kind has cards: it meets every backbone once.
PARTS = 9


def marks_of(task: str, part: int) -> list[pytest.MarkDecorator]:
    """In every run each card of a kind with another ninth of the backbones; all others by `make test-slow`."""
    kinds = {name: (card.head, card.question) for name in TASKS for card in [load_task(name)[1]]}
    alike = [name for name in TASKS if kinds[name] == kinds[task]]
    return [] if part == alike.index(task) % PARTS else [pytest.mark.slow]


@pytest.mark.parametrize(
    ("task", "part"),
    [pytest.param(task, part, marks=marks_of(task, part)) for task in TASKS for part in range(PARTS)],
)
def test_all_backbones_have_the_size_of_the_budget_and_the_same_training(task: str, part: int) -> None:
    """Nothing but the learning rate, tuned for each, differs in training."""
    card = load_task(task)[1]
    own = [name for name in BACKBONES.architectures() if name in BACKBONES.shipped]
    fit = [name for name in own if unfit_reason(name, task, card.head) is None]
    budget = card.presets["grid"].budget
    assert set(own) - set(fit) == (set() if card.head == "event" else {"cmhp", "thp"}), "these read events only"
    assert budget == (100_000 if task == "events-reddit" else 25_000)  # its 984 marks alone take more in set models
    runs = [resolve_run(task, name, "grid") for name in fit[part::PARTS]]
    for run in runs:
        built = run.backbone.build(run.shape(run.task.build()))
        size = built.parameter_count - built.encoder_parameter_count
        assert abs(size / budget - 1) <= TOLERANCE, (run.backbone, size)
    first, *others = (run.train.model_dump(exclude={"lr"}) for run in (resolve_run(task, "cnp", "grid"), *runs))
    assert all(other == first for other in others)


def test_there_is_such_a_grid() -> None:
    assert len(TASKS) >= 12
