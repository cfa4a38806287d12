"""`icl.fit` and `icl.train`: equal weights in memory and in a folder, settings that scale with the steps, and
errors.
"""

import contextlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import iclbench as icl
from iclbench.api.models import registered_name
from iclbench.cli.main import main
from iclbench.config.cards import TrainSettings
from iclbench.store.runs import Run
from iclbench.training.fit import Training, TrainingDivergedError
from tests.refusals import refused

SIZE = {"layers": 1, "width": 16, "heads": 2}


def test_the_command_train_and_the_functions_train_and_fit_give_equal_weights(tmp_path: Path) -> None:
    task = icl.task("linear", "smoke", dim=3)
    overrides = ["-o", "task.dim=3", *(word for k, v in SIZE.items() for word in ("-o", f"backbone.{k}={v}"))]
    command = ["train", "linear", "gpt2", "-p", "smoke", "--seed", "3", "-o", "train.steps=12", *overrides]
    assert main([*command, "--results", str(tmp_path / "command")]) == 0
    run = icl.train(task, "gpt2", seed=3, results=tmp_path / "function", settings=SIZE, steps=12, progress=False)
    command_weights = tmp_path / "command" / "runs" / run.name / "model.safetensors"
    assert run.weights.read_bytes() == command_weights.read_bytes()
    assert icl.train(task, "gpt2", seed=3, results=tmp_path / "function", settings=SIZE, steps=12).is_finished
    model = icl.GPT2(task, seed=3, **SIZE)
    # Unlike `fit`, the command does not scale warm-up and curriculum with the steps.
    history = icl.fit(model, task, seed=3, progress=False, **{"steps": 12} | _unscaled_settings(task))
    assert isinstance(history, pd.DataFrame) and history["step"].iloc[-1] == 12
    for name, weights in run.load().state_dict().items():
        assert torch.equal(weights, model.state_dict()[name]), name


def _unscaled_settings(task: icl.Task) -> dict[str, object]:
    preset = task.sizes.train
    return {"curriculum": preset.curriculum.model_dump(exclude_none=True), "warmup": preset.warmup, "log_every": 1}


def test_warm_up_and_curriculum_scale_with_the_steps() -> None:
    curriculum = {"dims": {"start": 5, "every": 200}, "points": {"start": 11, "by": 2, "every": 300}}
    settings = TrainSettings.model_validate({"steps": 1000, "warmup": 100, "curriculum": curriculum})
    shorter = TrainSettings.model_validate(settings.model_dump(exclude_none=True) | settings.scaled_to(250))
    assert (shorter.steps, shorter.warmup) == (250, 25)
    assert shorter.curriculum.dims.every == 50 and shorter.curriculum.points.every == 75
    for step in range(250):
        assert abs(shorter.curriculum.dims.at(step, 20) - settings.curriculum.dims.at(4 * step, 20)) <= 1


def test_a_given_curriculum_setting_does_not_change_the_other_curriculum_settings() -> None:
    task = icl.task("linear", "small", dim=5)
    preset, trainings = task.sizes.train, []
    model = icl.GPT2(task, **SIZE)
    points = {"points": {"start": 3, "every": 1}}
    icl.fit(model, task, np.int64(1), curriculum=points, batch=2, progress=False, callbacks=[trainings.append])
    settings = trainings[0].settings
    assert settings.steps == 1 and settings.curriculum.points.start == 3
    assert settings.curriculum.dims.every == max(1, round(preset.curriculum.dims.every / preset.steps))


def test_callbacks_are_called_after_every_step_and_losses_decrease() -> None:
    task = icl.task("linear", "smoke", dim=2)
    steps: list[int] = []

    def record_step(training: Training) -> None:
        steps.append(training.progress.step)

    model = icl.TNP(task, layers=1, width=16, heads=2)
    history = icl.fit(model, task, 80, 3e-3, callbacks=[record_step], progress=False, curriculum={})
    assert steps == list(range(1, 81)) and list(history.columns) == ["step", "loss"]
    assert history["loss"].iloc[-3:].mean() < history["loss"].iloc[:3].mean()


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        ({"steps": 0}, "bad-value", ["steps", 0]),
        ({"steps": 2.5}, "bad-value", ["steps", 2.5]),
        ({"lr": -1.0}, "bad-value", ["lr", -1]),
        ({"stpes": 3}, "unknown-name", ["'stpes'", "'steps'"]),
        ({"device": "gpu"}, "bad-value", ["'gpu'", "cpu"]),
    ],
)
def test_invalid_settings_are_refused(change: dict, code: str, names: list[object]) -> None:
    task = icl.task("linear", "smoke", dim=2)
    with refused(code, *names):
        icl.fit(icl.GPT2(task, **SIZE), task, **{"steps": 2, **change}, progress=False)


def test_a_model_that_is_unsuitable_for_the_task_is_refused() -> None:
    task, other = icl.task("linear", "smoke", dim=2), icl.task("linear", "smoke", dim=3)
    with refused("not-applicable", "x_dim=2", "dim=3", "x_dim=3"):
        icl.fit(icl.GPT2(task, **SIZE), other)
    with refused("bad-value", "Linear"):
        icl.fit(torch.nn.Linear(2, 1), task)
    with refused("missing-value", "'icicl-tnp'", "linear", "paper"):
        icl.ICICLTNP(icl.task("linear", "paper"))


@pytest.mark.parametrize(("built_for", "trained_on"), [("gp-mixture", "linear"), ("linear", "gp-mixture")])
def test_training_a_model_that_was_built_for_the_other_question_is_refused(built_for: str, trained_on: str) -> None:
    tasks = {
        "gp-mixture": icl.task("gp-mixture", "smoke", head="gaussian", episodes=2, points=4, targets=2, max_related=0),
        "linear": icl.task("linear", "smoke", dim=1, head="gaussian", episodes=2, points=4),
    }
    model, task = icl.TNP(tasks[built_for], **SIZE), tasks[trained_on]
    with refused("not-applicable", "'next'", "'targets'"):
        icl.fit(model, task, 1, batch=2, progress=False)
    assert len(icl.evaluate(model, task)), "such a model can still be evaluated"


def test_a_refused_training_run_does_not_change_the_model() -> None:
    short_task, task = (icl.task("linear", "smoke", dim=2, points=points) for points in (4, 9))
    model = icl.backbone("gpt2-learned", short_task, **SIZE)
    initial = {name: weights.clone() for name, weights in model.state_dict().items()}
    with refused("not-applicable", 9, 4):
        icl.fit(model, task, 3, batch=2, progress=False, curriculum={"points": {"start": 2, "every": 1}})
    assert all(torch.equal(weights, initial[name]) for name, weights in model.state_dict().items())
    assert len(icl.fit(model, short_task, 1, batch=2, progress=False)) == 1, "the model reads 4 examples"
    with refused("bad-value", "torch.float64", "model.float()"):
        icl.fit(icl.CNP(task, width=8).double(), task, 1, batch=2, progress=False)


def test_a_model_is_in_eval_mode_after_its_training_has_diverged() -> None:
    task = icl.task("linear", "smoke", dim=2)
    model = icl.CNP(task, width=8).eval()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(TrainingDivergedError):
        icl.fit(model, task, 1, batch=2, progress=False)
    assert not model.training


def test_models_in_memory_are_not_evaluated_during_training() -> None:
    task = icl.task("bursty", "smoke")
    assert task.sizes.train.evaluate_every
    history = icl.fit(icl.backbone("cnp", task), task, steps=1, progress=False)
    assert history["step"].tolist() == [1]


def test_registered_name_returns_the_name_with_which_a_model_was_built() -> None:
    task = icl.task("linear", "smoke", dim=2)
    for name in ("gpt2", "gpt2-rotary", "coqe-learned", "cnp"):
        assert registered_name(icl.backbone(name, task)) == name


def test_a_completed_run_cannot_be_trained_with_different_settings(tmp_path: Path) -> None:
    task = icl.task("linear", "smoke", dim=2)
    run = icl.train(task, "gpt2", results=tmp_path, settings=SIZE, steps=6, progress=False)
    assert isinstance(run, Run) and run.is_finished
    with refused("settings-changed", "steps"):
        icl.train(task, "gpt2", results=tmp_path, settings=SIZE, steps=7, progress=False)


def test_interrupted_training_is_recorded_with_the_number_of_completed_steps() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=4)

    def variant(end: int | None, steps: int = 4) -> str:
        model = icl.CNP(task, width=8)

        def stop(training: Training) -> None:
            if training.progress.step == end:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            icl.fit(model, task, steps, batch=2, progress=False, device="cpu", callbacks=[stop])
        (variant,) = icl.evaluate(model, task, device="cpu")["variant"].unique()
        return str(variant)

    assert variant(None) == variant(4), "an interrupt after the last step has no effect"
    assert len({variant(end) for end in (1, 2, None)}) == 3


def test_training_without_a_completed_step_is_not_recorded() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=4)
    model = icl.CNP(task, width=8)
    variants = set(icl.evaluate(model, task, device="cpu")["variant"])
    model.loss = lambda *args: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        icl.fit(model, task, 2, batch=2, progress=False, device="cpu")
    assert set(icl.evaluate(model, task, device="cpu")["variant"]) == variants


def test_a_task_does_not_change_when_its_card_is_edited(card_path: Path, tmp_path: Path) -> None:
    task = icl.task(card_path, "smoke")
    text = card_path.read_text()
    card_path.write_text(text.replace("points = 8", "points = 5").replace("steps = 12", "steps = 7"))
    run = icl.train(task, "gpt2", results=tmp_path, progress=False, device="cpu")
    assert run.config.task == task.config
    assert run.config.task.points == 8 and run.config.train.steps == 12
    assert icl.fit(icl.GPT2(task), task, progress=False, device="cpu")["step"].iloc[-1] == 12
    card_path.unlink()
    assert icl.GPT2(task).shape.points == 9
    card_path.write_text(text.replace("points = 8", "points = 5"))
    assert icl.task(card_path, "smoke").config.points == 5
