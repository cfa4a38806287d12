"""Training through the API: in memory as in a folder, and scaled to the steps that are asked."""

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
from iclbench.core.errors import UsageError
from iclbench.store.runs import Run
from iclbench.training.fit import Training, TrainingDivergedError

SIZE = {"layers": 1, "width": 16, "heads": 2}


def test_a_run_trained_by_the_command_has_the_weights_of_one_trained_here_or_in_memory(tmp_path: Path) -> None:
    task = icl.task("linear", "smoke", dim=3)
    overrides = ["-o", "task.dim=3", *(part for k, v in SIZE.items() for part in ("-o", f"backbone.{k}={v}"))]
    command = ["train", "linear", "gpt2", "-p", "smoke", "--seed", "3", "-o", "train.steps=12", *overrides]
    assert main([*command, "--results", str(tmp_path / "typed")]) == 0
    run = icl.train(task, "gpt2", seed=3, results=tmp_path / "called", settings=SIZE, steps=12, progress=False)
    typed = tmp_path / "typed" / "runs" / run.name / "model.safetensors"
    assert run.weights.read_bytes() == typed.read_bytes()
    assert icl.train(task, "gpt2", seed=3, results=tmp_path / "called", settings=SIZE, steps=12).finished
    model = icl.GPT2(task, seed=3, **SIZE)
    # As the run: steps that are given as a setting are not scaled.
    history = icl.fit(model, task, seed=3, progress=False, **{"steps": 12} | _unscaled(task))
    assert isinstance(history, pd.DataFrame) and history["step"].iloc[-1] == 12
    for name, weights in run.load().state_dict().items():
        assert torch.equal(weights, model.state_dict()[name]), name


def _unscaled(task: icl.Task) -> dict[str, object]:
    whole = task.sizes.train
    return {"curriculum": whole.curriculum.model_dump(exclude_none=True), "warmup": whole.warmup, "log_every": 1}


def test_warm_up_and_curriculum_take_the_same_share_of_other_steps() -> None:
    curriculum = {"dims": {"start": 5, "every": 200}, "points": {"start": 11, "by": 2, "every": 300}}
    settings = TrainSettings.model_validate({"steps": 1000, "warmup": 100, "curriculum": curriculum})
    shorter = TrainSettings.model_validate(settings.model_dump(exclude_none=True) | settings.in_steps(250))
    assert (shorter.steps, shorter.warmup) == (250, 25)
    assert shorter.curriculum.dims.every == 50 and shorter.curriculum.points.every == 75
    for step in range(250):
        assert abs(shorter.curriculum.dims.at(step, 20) - settings.curriculum.dims.at(4 * step, 20)) <= 1


def test_a_part_of_the_curriculum_that_is_given_leaves_the_other_scaled() -> None:
    task = icl.task("linear", "small", dim=5)
    whole, seen = task.sizes.train, []
    model = icl.GPT2(task, **SIZE)
    points = {"points": {"start": 3, "every": 1}}
    icl.fit(model, task, np.int64(1), curriculum=points, batch=2, progress=False, callbacks=[seen.append])
    settings = seen[0].settings
    assert settings.steps == 1 and settings.curriculum.points.start == 3
    assert settings.curriculum.dims.every == max(1, round(whole.curriculum.dims.every / whole.steps))


def test_callbacks_see_every_step_and_losses_fall() -> None:
    task = icl.task("linear", "smoke", dim=2)
    seen: list[int] = []

    def note(training: Training) -> None:
        seen.append(training.progress.step)

    model = icl.TNP(task, layers=1, width=16, heads=2)
    history = icl.fit(model, task, 80, 3e-3, callbacks=[note], progress=False, curriculum={})
    assert seen == list(range(1, 81)) and list(history.columns) == ["step", "loss"]
    assert history["loss"].iloc[-3:].mean() < history["loss"].iloc[:3].mean()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"steps": 0}, "steps: .*0"),
        ({"steps": 2.5}, "steps: .*2.5"),
        ({"lr": -1.0}, "lr"),
        ({"stpes": 3}, "stpes"),
        ({"device": "gpu"}, "'gpu' is not a device; write auto, cpu"),
    ],
)
def test_wrong_settings_are_one_line(change: dict, line: str) -> None:
    task = icl.task("linear", "smoke", dim=2)
    with pytest.raises(UsageError, match=line) as error:
        icl.fit(icl.GPT2(task, **SIZE), task, **{"steps": 2, **change}, progress=False)
    assert "\n" not in str(error.value)


def test_a_model_for_another_task_and_what_is_no_model_are_refused() -> None:
    task, other = icl.task("linear", "smoke", dim=2), icl.task("linear", "smoke", dim=3)
    with pytest.raises(UsageError, match=r"x_dim=2.*dim=3.*x_dim=3"):
        icl.fit(icl.GPT2(task, **SIZE), other)
    with pytest.raises(UsageError, match="not Linear"):
        icl.fit(torch.nn.Linear(2, 1), task)
    with pytest.raises(UsageError, match="has no size for 'icicl-tnp'"):
        icl.ICICLTNP(icl.task("linear", "paper"))


@pytest.mark.parametrize(("built_for", "trained_on"), [("gp-mixture", "linear"), ("linear", "gp-mixture")])
def test_a_model_for_the_other_question_is_not_trained_on_its_own_answers(built_for: str, trained_on: str) -> None:
    tasks = {
        "gp-mixture": icl.task("gp-mixture", "smoke", head="gaussian", episodes=2, points=4, targets=2, max_related=0),
        "linear": icl.task("linear", "smoke", dim=1, head="gaussian", episodes=2, points=4),
    }
    model, task = icl.TNP(tasks[built_for], **SIZE), tasks[trained_on]
    with pytest.raises(UsageError, match=r"'(next|targets)'.*'(next|targets)'") as error:
        icl.fit(model, task, 1, batch=2, progress=False)
    assert "\n" not in str(error.value)
    assert len(icl.evaluate(model, task)), "what it was trained for, it may be asked elsewhere"


def test_what_cannot_be_trained_is_said_before_a_weight_has_moved() -> None:
    short, task = (icl.task("linear", "smoke", dim=2, points=points) for points in (4, 9))
    model = icl.backbone("gpt2-learned", short, **SIZE)
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    with pytest.raises(UsageError, match=r"9 examples.* 4 examples"):
        icl.fit(model, task, 3, batch=2, progress=False, curriculum={"points": {"start": 2, "every": 1}})
    assert all(torch.equal(weights, before[name]) for name, weights in model.state_dict().items())
    assert len(icl.fit(model, short, 1, batch=2, progress=False)) == 1, "its own length fits"
    with pytest.raises(UsageError, match=r"torch\.float64 .*model\.float\(\)"):
        icl.fit(icl.CNP(task, width=8).double(), task, 1, batch=2, progress=False)


def test_a_training_that_diverges_leaves_the_model_in_eval_mode() -> None:
    task = icl.task("linear", "smoke", dim=2)
    model = icl.CNP(task, width=8).eval()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(TrainingDivergedError):
        icl.fit(model, task, 1, batch=2, progress=False)
    assert not model.training


def test_a_task_whose_runs_are_evaluated_while_they_train_is_trained_without() -> None:
    task = icl.task("bursty", "smoke")
    assert task.sizes.train.evaluate_every
    history = icl.fit(icl.backbone("cnp", task), task, steps=1, progress=False)
    assert history["step"].tolist() == [1]


def test_models_are_known_by_the_names_of_their_variants() -> None:
    task = icl.task("linear", "smoke", dim=2)
    for name in ("gpt2", "gpt2-rotary", "coqe-learned", "cnp"):
        assert registered_name(icl.backbone(name, task)) == name


def test_a_run_continues_where_it_stopped(tmp_path: Path) -> None:
    task = icl.task("linear", "smoke", dim=2)
    run = icl.train(task, "gpt2", results=tmp_path, settings=SIZE, steps=6, progress=False)
    assert isinstance(run, Run) and run.finished
    with pytest.raises(UsageError, match="steps"):
        icl.train(task, "gpt2", results=tmp_path, settings=SIZE, steps=7, progress=False)


def test_an_interrupted_training_is_recorded_with_the_steps_it_reached() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=4)

    def variant(end: int | None, steps: int = 4) -> str:
        model = icl.CNP(task, width=8)

        def stop(at: Training) -> None:
            if at.progress.step == end:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            icl.fit(model, task, steps, batch=2, progress=False, device="cpu", callbacks=[stop])
        (found,) = icl.evaluate(model, task, device="cpu")["variant"].unique()
        return str(found)

    assert variant(None) == variant(4), "all steps are done"
    assert len({variant(end) for end in (1, 2, None)}) == 3


def test_a_training_that_does_no_step_leaves_no_record() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=4)
    model = icl.CNP(task, width=8)
    before = set(icl.evaluate(model, task, device="cpu")["variant"])
    model.loss = lambda *args: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        icl.fit(model, task, 2, batch=2, progress=False, device="cpu")
    assert set(icl.evaluate(model, task, device="cpu")["variant"]) == before


def test_a_task_and_its_runs_agree_after_its_card_was_edited(card_path: Path, tmp_path: Path) -> None:
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
