"""Arguments of the wrong type, shape or range raise errors with a code and the name of the argument."""

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import iclbench as icl
from iclbench.api.tasks import Task
from iclbench.backbones.base import Backbone, BackboneSettings
from iclbench.backbones.recurrent import RecurrentBackbone
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.store.runs import Run
from tests.refusals import refused

X, Y = np.zeros((3, 2)), np.zeros(3)
SIZE = {"layers": 1, "width": 16, "heads": 2}


@dataclass(frozen=True)
class Inputs:
    """Valid arguments for public functions."""

    task: Task
    model: Backbone
    values: pd.DataFrame


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    return Inputs(task, icl.GPT2(task, **SIZE), icl.evaluate(["ridge", "zero"], task))


def test_the_error_for_an_argument_that_is_not_a_task_shows_the_correct_call(inputs: Inputs, tmp_path: Path) -> None:
    for call in (
        lambda: icl.GPT2("linear"),
        lambda: icl.backbone("gpt2", "linear"),
        lambda: icl.fit(inputs.model, "linear"),
        lambda: icl.train("linear", "gpt2", results=tmp_path),
        lambda: icl.evaluate("ridge", "linear"),
    ):
        with refused("bad-value", "task", "icl.task('linear')"):
            call()
    with refused("bad-value", "task", "GPT2", "icl.task(NAME)"):
        icl.evaluate(inputs.task, inputs.model)
    with refused("bad-value", "Task"):
        icl.fit(inputs.task, inputs.model)


@pytest.mark.parametrize("seed", [-1, 1.5, True, None, "0", 2**63, np.bool_(True)])
def test_a_seed_that_is_not_a_nonnegative_63_bit_integer_is_refused(inputs: Inputs, seed: Any, tmp_path: Path) -> None:
    for call in (
        lambda: inputs.task.sample(2, seed),
        lambda: icl.backbone("gpt2", inputs.task, seed=seed, **SIZE),
        lambda: icl.GPT2(inputs.task, seed=seed, **SIZE),
        lambda: icl.fit(inputs.model, inputs.task, 1, seed=seed, progress=False),
        lambda: icl.train(inputs.task, "gpt2", seed=seed, results=tmp_path),
        lambda: icl.evaluate("ridge", inputs.task, seed=seed),
    ):
        with refused("bad-value", "seed"):
            call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("device", "code"),
    [("gpu", "bad-value"), (3, "bad-value"), (None, "bad-value"), ("meta", "not-supported")]
    + ([] if torch.cuda.is_available() else [("cuda", "not-supported"), (torch.device("cuda:1"), "not-supported")]),
)
def test_unusable_devices_are_refused(inputs: Inputs, run: Run, device: Any, code: str) -> None:
    for call in (
        lambda: inputs.task.sample(2, device=device),
        lambda: icl.fit(inputs.model, inputs.task, 1, device=device),
        lambda: icl.train(inputs.task, "gpt2", device=device),
        lambda: icl.load(run, device=device),
        lambda: icl.Trained(run, device),
        lambda: icl.evaluate(run, inputs.task, device=device),
    ):
        with refused(code, device):
            call()


def test_devices_may_be_torch_devices(inputs: Inputs, run: Run) -> None:
    cpu = torch.device("cpu")
    assert inputs.task.sample(2, device=cpu).context.x.device == cpu
    icl.fit(inputs.model, inputs.task, 1, device=cpu, progress=False)
    assert icl.load(run, device=cpu).device == "cpu"


@pytest.mark.parametrize("number", [0, -1, 2.5, "3", True, 10**12])
def test_numbers_of_episodes_points_and_steps_must_be_positive_integers(inputs: Inputs, number: Any) -> None:
    for call, name in (
        (lambda: inputs.task.sample(number), "episodes"),
        (lambda: inputs.task.sample(2, points=number), "points"),
        (lambda: icl.fit(inputs.model, inputs.task, number), "steps"),
        (lambda: icl.evaluate("ridge", inputs.task, extrapolate=number), "extrapolate"),
    ):
        with refused("bad-value", name):
            call()


def test_numbers_may_be_numpy_or_torch_scalars(inputs: Inputs) -> None:
    task = icl.task("linear", "smoke", dim=np.int64(3), points=torch.tensor(5))
    assert task.shape.x_dim == 3 and len(task.sample(np.int64(2), np.int32(1), points=np.int8(4))) == 2
    model = icl.GPT2(inputs.task, seed=np.int64(1), layers=np.int64(1), width=16, heads=2)
    history = icl.fit(model, inputs.task, np.int64(2), np.float32(1e-3), betas=(0.9, 0.99), progress=False)
    assert history["step"].iloc[-1] == 2


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda i: icl.task(3), ["name", "string", 3]),
        (lambda i: icl.task(i.task), ["name", "string", "task('linear'"]),
        (lambda i: icl.task("linear", 3), ["preset", "string", 3]),
        (lambda i: icl.task("linear", "smoke", data_dir=3), ["data_dir", "path", 3]),
        (lambda i: i.task.sample(2, shift=["none"]), ["shift", "string", "['none']"]),
        (lambda i: icl.backbone(None, i.task), ["backbone", "'gpt2'", None]),
        (lambda i: icl.backbone("gpt2", i.task, layers="two"), ["backbone", "layers", "'two'"]),
        (lambda i: icl.fit(type(i.model), i.task), ["GPT2"]),
        (lambda i: icl.fit(icl.GPT2, i.task), ["GPT2"]),
        (lambda i: icl.fit(i.model, i.task, 1, callbacks=print), ["callbacks", "functions", "<built-in"]),
        (lambda i: icl.fit(i.model, i.task, 1, callbacks=[3]), ["callbacks", "functions", "[3]"]),
        (lambda i: icl.fit(i.model, i.task, 1, lr="fast"), ["train", "lr", "'fast'"]),
        (lambda i: icl.train(i.task, i.model), ["backbone", "'gpt2'", "GPT2", "icl.fit"]),
        (lambda i: icl.train(i.task, type(i.model)), ["'iclbench.backbones.gpt2:GPT2'"]),
        (lambda i: icl.train(i.task, "gpt2", name=3), ["name", "string", 3]),
        (lambda i: icl.train(i.task, "gpt2", results=3), ["results", "path", 3]),
        (lambda i: icl.train(i.task, "gpt2", settings=["layers"]), ["settings", "{'layers': 2}"]),
        (lambda i: icl.train(i.task, "gpt2", log=3), ["log", "list of strings", 3]),
        (lambda i: icl.evaluate([icl.GPT2], i.task), ["function"]),
        (lambda i: icl.evaluate({"a": 3}, i.task), ["int"]),
        (lambda i: icl.evaluate({3: i.model}, i.task), ["models", "string", 3]),
        (lambda i: icl.evaluate("gpt2", i.task), ["'gpt2'", "icl.backbone('gpt2', task)"]),
        (lambda i: icl.evaluate(i.model, i.task, shifts=3), ["shifts", "list of strings", 3]),
        (lambda i: icl.evaluate(i.model, i.task, extrapolate=10), ["extrapolate", 10]),
        (lambda i: icl.load(i.model), ["GPT2"]),
        (lambda i: icl.load("a", 3), ["results", "path", 3]),
        (lambda i: icl.open_results(None), ["path", None]),
        (lambda i: icl.write_report(3), ["results", "path", 3]),
        (lambda i: icl.write_report("a", 3), ["folder", "path", 3]),
        (lambda i: icl.write_report("a", tasks=3), ["tasks", "list of strings", 3]),
        (lambda i: icl.InContextRegressor(i.model).fit(X, Y), ["GPT2"]),
        (lambda i: icl.plot.leaderboard(i.values, shift=3), ["shift", "string", 3]),
        (lambda i: icl.plot.learning_curves(i.values, task=i.task), ["task", "string", "task('linear'"]),
        (lambda i: icl.plot.learning_curves(i.values, metric=3), ["metric", "string", 3]),
    ],
)
def test_arguments_of_wrong_types_are_refused(inputs: Inputs, call: Callable[[Inputs], Any], names: list[Any]) -> None:
    with refused("bad-value", *names):
        call(inputs)


def test_unknown_trackers_are_refused(inputs: Inputs) -> None:
    with refused("unknown-name", "tracker", "'csv'"):
        icl.train(inputs.task, "gpt2", log="csv")


def test_an_evaluation_needs_a_model_and_a_shift(inputs: Inputs) -> None:
    with refused("nothing-to-do", "model"):
        icl.evaluate([], inputs.task)
    with refused("nothing-to-do", "shift"):
        icl.evaluate(inputs.model, inputs.task, shifts=[])


@pytest.mark.parametrize("chart", icl.plot.__all__)
def test_charts_refuse_arguments_that_are_not_rows_of_values(inputs: Inputs, chart: str) -> None:
    draw = getattr(icl.plot, chart)
    for values in (None, [], icl.open_results(".")):
        with refused("bad-value", "values", "icl.evaluate(...)"):
            draw(values)
    with refused("nothing-to-do"):
        draw(pd.DataFrame())
    with refused("bad-data", "icl.evaluate(...)"):
        draw(inputs.values[["contestant", "value"]])


@pytest.mark.slow
def test_duplicate_rows_appear_once_in_a_chart(inputs: Inputs) -> None:
    duplicated = pd.concat([inputs.values, inputs.values])
    from_duplicates, expected = (
        icl.plot.leaderboard(rows).to_dict(validate=False) for rows in (duplicated, inputs.values)
    )
    assert from_duplicates == expected


class Unfinished(SequenceBackbone):
    """A backbone that defines only `trunk`."""

    Settings = BackboneSettings

    def trunk(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens[:, ::2]


def test_the_error_for_a_backbone_without_required_methods_names_them(inputs: Inputs) -> None:
    methods = ("fork", "start", "advance", "absorb", "resume", "peek_layers", "finish")
    module = "tests.api.test_arguments"
    names = [f"{module}.Unfinished", *methods, "iclbench.backbones.causal_trunk.CausalTrunk"]
    with refused("plugin", *names):
        Unfinished(BackboneSettings(), inputs.task.shape)
    with refused("plugin", *names):
        icl.backbone(f"{module}:Unfinished", inputs.task)
    recurrent = type("Empty", (RecurrentBackbone,), {})
    with refused("plugin", "Empty"):
        recurrent(BackboneSettings(), inputs.task.shape, 8, [])
    with pytest.raises(TypeError, match="predict_next, predict_targets, query"):
        type("Empty", (Backbone,), {})


SCRIPT = """
import iclbench as icl
from iclbench.api.architectures import GPT2
from iclbench.backbones.gpt2 import GPT2 as Base
from iclbench.core.errors import UsageError

class Net(Base):
    pass

task = icl.task("linear", "smoke", dim=2)
for call in (lambda: icl.train(task, "__main__:Net"), lambda: icl.train(task, Net), lambda: icl.backbone(Net, task)):
    try:
        call()
    except UsageError as error:
        print(error)
icl.fit(Net(Net.Settings(layers=1, width=16, heads=2), task.shape), task, 1)
mine = icl.backbone("my_net:Mine", task, layers=1, width=16, heads=2)
print(type(mine).__module__)
"""


def test_a_class_defined_in_main_cannot_be_given_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_net.py").write_text("from iclbench.backbones.gpt2 import GPT2\nclass Mine(GPT2): pass\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        runpy.run_path("script.py", run_name="__main__")
    del sys.modules["my_net"]
    *messages, module = capsys.readouterr().out.splitlines()
    assert len(messages) == 3
    assert all("__main__:Net" in message and "icl.fit(Net(...), task)" in message for message in messages)
    assert module == "my_net", "a module named by the user is trusted"


def test_a_task_can_be_used_after_the_working_directory_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Path(icl.__file__).parents[1] / "tasks" / "linear.toml"
    (tmp_path / "mine.toml").write_bytes(card.read_bytes())
    monkeypatch.chdir(tmp_path)
    task = icl.task(Path("mine.toml"), "smoke", dim=2)
    monkeypatch.chdir("/")
    assert icl.GPT2(task, **SIZE).parameter_count and task.name == "mine"
