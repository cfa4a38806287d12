"""The preset `grid` compares architectures on an equal footing: size, steps and batches of all backbones of a card."""

import pytest

from iclbench.config.cards import load_task, names
from iclbench.config.resolution import RunConfig, resolve_run

TASKS = [name for name in names("tasks") if "grid" in load_task(name)[1].presets]


def parameters(config: RunConfig) -> int:
    return config.backbone.build(config.shape(config.task.build())).parameter_count


@pytest.mark.parametrize("task", TASKS)
def test_all_backbones_of_a_card_have_the_same_size_and_the_same_training(task: str) -> None:
    """A fifth apart at most; nothing but the learning rate, tuned for each, differs in training."""
    runs = [resolve_run(task, name, "grid") for name in load_task(task)[1].presets["grid"].backbones]
    sizes = {run.backbone.name: parameters(run) for run in runs}
    assert len(sizes) >= 10
    assert max(sizes.values()) <= 1.2 * min(sizes.values()), sizes
    first, *others = (run.train.model_dump(exclude={"lr"}) for run in runs)
    assert all(other == first for other in others)


def test_there_is_such_a_grid() -> None:
    assert len(TASKS) >= 12
