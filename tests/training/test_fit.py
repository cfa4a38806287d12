"""Training in memory: from a task or a family, and with callbacks."""

from pathlib import Path

import pytest
import torch

from iclbench.backbones.base import TaskShape
from iclbench.backbones.gpt2 import GPT2
from iclbench.backbones.s4 import S4
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import resolve_run
from iclbench.core.seeds import global_stream
from iclbench.families.linear import Linear
from iclbench.store.runs import create
from iclbench.training.fit import Training, fit
from iclbench.training.run import train
from iclbench.training.step import TrainingData
from tests.refusals import refused
from tests.training.test_run import new_run, weights

SETTINGS = TrainSettings(steps=30, batch=16, lr=3e-3, warmup=5, clip=1.0, log_every=10)
FAMILY = Linear(Linear.Parameters(dim=1))


def tiny_model() -> GPT2:
    with global_stream(0, "weights"):
        settings = GPT2.Settings(layers=1, width=16, heads=2, init_std=0.2)
        return GPT2(settings, TaskShape(x_dim=FAMILY.x_dim, points=6))


def have_same_weights(a: GPT2, b: GPT2) -> bool:
    return all(map(torch.equal, a.state_dict().values(), b.state_dict().values()))


def test_training_on_a_family_is_deterministic() -> None:
    models = tiny_model(), tiny_model()
    first, second = (fit(model, FAMILY, SETTINGS, points=6, seed=3) for model in models)
    assert first.steps == [10, 20, 30] and first.losses == second.losses
    assert have_same_weights(*models) and not have_same_weights(models[0], tiny_model())
    assert not models[0].training and first.seconds > 0


def test_training_in_memory_gives_the_same_weights_as_a_run(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)
    train(run)
    model = run.config.build(run.config.task.build())
    fit(model, run.config.task, run.config.train, seed=run.config.seed)
    assert model.state_dict().keys() == weights(run).keys()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in weights(run).items())


def test_the_learning_rate_of_a_parameter_group_is_scaled_by_its_factor() -> None:
    """In S4, the parameters of the state-space systems have a smaller learning rate, as in the code of the authors."""
    settings = S4.Settings(layers=1, width=8, state=4, rate_factor=0.25)
    training = Training(
        S4(settings, TaskShape(x_dim=FAMILY.x_dim, points=6)),
        TrainingData(FAMILY, 6),
        SETTINGS.model_copy(update={"warmup": 0}),
    )
    training.step()
    assert [group["lr"] for group in training.optimiser.param_groups] == [SETTINGS.lr, 0.25 * SETTINGS.lr]


def test_callbacks_are_called_after_every_step_in_order() -> None:
    calls: list[tuple[str, int, int]] = []
    callbacks = [
        lambda training, name=name: calls.append((name, training.progress.step, len(training.progress.steps)))
        for name in "ab"
    ]
    fit(tiny_model(), FAMILY, SETTINGS.model_copy(update={"steps": 3, "log_every": 2}), callbacks, points=6)
    assert calls == [(name, step, logged_count) for step, logged_count in ((1, 0), (2, 1), (3, 2)) for name in "ab"]


def test_a_pause_stops_the_clock_and_puts_the_model_into_eval_mode() -> None:
    model = tiny_model()
    modes: list[bool] = []

    def evaluate(training: Training) -> None:
        with training.paused():
            modes.append(training.backbone.training)
            training._meter._start -= 1000.0  # simulates an earlier step of 1,000 seconds
        modes.append(training.backbone.training)

    progress = fit(model, FAMILY, SETTINGS.model_copy(update={"steps": 1}), [evaluate], points=6)
    assert modes == [False, True]
    assert 1000 < progress.seconds < 1100


def test_the_divergence_error_names_the_step_and_the_weight() -> None:
    diverging = {"lr": 1e30, "clip": 0.0, "schedule": "constant", "warmup": 0, "log_every": 1}
    with refused("diverged", "step", exit_code=1):
        fit(tiny_model(), FAMILY, SETTINGS.model_copy(update=diverging), points=6)
    model = tiny_model()
    one_step = SETTINGS.model_copy(update={"steps": 1, "lr": 1e-30})
    with refused("diverged", "step 1", "read_out.weight", exit_code=1):
        fit(model, FAMILY, one_step, [lambda training: model.read_out.weight.data.fill_(torch.inf)], points=6)


def test_training_on_a_family_without_a_number_of_points_is_refused() -> None:
    with refused("missing-value", "points="):
        fit(tiny_model(), FAMILY, SETTINGS)


def test_training_in_memory_refuses_periodic_evaluations() -> None:
    with refused("bad-value", "evaluate_every"):
        fit(tiny_model(), FAMILY, SETTINGS.model_copy(update={"evaluate_every": 5}), points=4)


def test_a_run_with_evaluations_cannot_be_trained_without_a_monitor(tmp_path: Path) -> None:
    config = resolve_run("bursty", "transformer", "smoke")
    assert config.train.evaluate_every
    run = create(tmp_path, config)
    with pytest.raises(ValueError, match="monitor=Monitor"):
        train(run)
    assert not run.is_started
