"""What does not fit an argument is refused in one line that says what to give instead."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import iclbench as icl
from iclbench.backbones.base import Backbone, BackboneSettings
from iclbench.backbones.recurrent import RecurrentBackbone
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.core.errors import UsageError
from iclbench.store.runs import Run

X, Y = np.zeros((3, 2)), np.zeros(3)
SIZE = {"layers": 1, "width": 16, "heads": 2}


@pytest.fixture(scope="module")
def given() -> SimpleNamespace:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    return SimpleNamespace(t=task, m=icl.GPT2(task, **SIZE), scores=icl.evaluate(["ridge", "zero"], task))


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_task_is_told_how_to_make_one(given: SimpleNamespace, tmp_path: Path) -> None:
    for call in (
        lambda: icl.GPT2("linear"),
        lambda: icl.backbone("gpt2", "linear"),
        lambda: icl.fit(given.m, "linear"),
        lambda: icl.train("linear", "gpt2", results=tmp_path),
        lambda: icl.evaluate("ridge", "linear"),
    ):
        assert refused(call) == "task: expected a task, got 'linear'; write icl.task('linear')"
    assert refused(lambda: icl.evaluate(given.t, given.m)) == "task: expected a task, got a GPT2; write icl.task(NAME)"
    assert "not Task" in refused(lambda: icl.fit(given.t, given.m))


@pytest.mark.parametrize("seed", [-1, 1.5, True, None, "0", 2**63, np.bool_(True)])
def test_seeds_are_whole_numbers_from_0_to_63_bits(given: SimpleNamespace, seed: Any, tmp_path: Path) -> None:
    for call in (
        lambda: given.t.sample(2, seed),
        lambda: icl.backbone("gpt2", given.t, seed=seed, **SIZE),
        lambda: icl.GPT2(given.t, seed=seed, **SIZE),
        lambda: icl.fit(given.m, given.t, 1, seed=seed, progress=False),
        lambda: icl.train(given.t, "gpt2", seed=seed, results=tmp_path),
        lambda: icl.evaluate("ridge", given.t, seed=seed),
    ):
        assert refused(call).startswith("seed: expected ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("device", "line"),
    [("gpu", "not a device"), (3, "not a device"), (None, "not a device"), ("meta", "not supported")]
    + ([] if torch.cuda.is_available() else [("cuda", "sees no CUDA"), (torch.device("cuda:1"), "sees no CUDA")]),
)
def test_devices_that_are_none_are_refused(given: SimpleNamespace, run: Run, device: Any, line: str) -> None:
    for call in (
        lambda: given.t.sample(2, device=device),
        lambda: icl.fit(given.m, given.t, 1, device=device),
        lambda: icl.train(given.t, "gpt2", device=device),
        lambda: icl.load(run, device=device),
        lambda: icl.Trained(run, device),
        lambda: icl.evaluate(run, given.t, device=device),
    ):
        assert line in refused(call)


def test_devices_may_be_those_of_torch(given: SimpleNamespace, run: Run) -> None:
    cpu = torch.device("cpu")
    assert given.t.sample(2, device=cpu).context.x.device == cpu
    icl.fit(given.m, given.t, 1, device=cpu, progress=False)
    assert icl.load(run, device=cpu).device == "cpu"


@pytest.mark.parametrize("number", [0, -1, 2.5, "3", True, 10**12])
def test_numbers_of_episodes_points_and_steps_are_whole_and_positive(given: SimpleNamespace, number: Any) -> None:
    for call, name in (
        (lambda: given.t.sample(number), "episodes"),
        (lambda: given.t.sample(2, points=number), "points"),
        (lambda: icl.fit(given.m, given.t, number), "steps"),
        (lambda: icl.evaluate("ridge", given.t, extrapolate=number), "extrapolate"),
    ):
        assert refused(call).startswith(f"{name}: expected ")


def test_numbers_of_numpy_and_torch_are_numbers(given: SimpleNamespace) -> None:
    task = icl.task("linear", "smoke", dim=np.int64(3), points=torch.tensor(5))
    assert task.shape.x_dim == 3 and len(task.sample(np.int64(2), np.int32(1), points=np.int8(4))) == 2
    model = icl.GPT2(given.t, seed=np.int64(1), layers=np.int64(1), width=16, heads=2)
    history = icl.fit(model, given.t, np.int64(2), np.float32(1e-3), betas=(0.9, 0.99), progress=False)
    assert history["step"].iloc[-1] == 2


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda g: icl.task(3), "name: expected a string, got 3"),
        (lambda g: icl.task(g.t), "name: expected a string, got task('linear'"),
        (lambda g: icl.task("linear", 3), "preset: expected a string, got 3"),
        (lambda g: icl.task("linear", "smoke", data_dir=3), "data_dir: expected a path, got 3"),
        (lambda g: g.t.sample(2, shift=["none"]), "shift: expected a string, got ['none']"),
        (lambda g: icl.backbone(None, g.t), "backbone: expected a name, like 'gpt2', got None"),
        (lambda g: icl.backbone("gpt2", g.t, layers="two"), "backbone: layers: expected a valid integer, got 'two'"),
        (lambda g: icl.fit(type(g.m), g.t), "not GPT2 itself; call it"),
        (lambda g: icl.fit(icl.GPT2, g.t), "not GPT2 itself; call it"),
        (lambda g: icl.fit(g.m, g.t, 1, callbacks=print), "callbacks: expected a list of functions, got <built-in"),
        (lambda g: icl.fit(g.m, g.t, 1, callbacks=[3]), "callbacks: expected a list of functions, got [3]"),
        (lambda g: icl.fit(g.m, g.t, 1, lr="fast"), "train: lr: expected a valid number, got 'fast'"),
        (lambda g: icl.train(g.t, g.m), "backbone: expected a name, like 'gpt2', got a GPT2 (icl.fit trains a model"),
        (lambda g: icl.train(g.t, type(g.m)), "write 'iclbench.backbones.gpt2:GPT2'"),
        (lambda g: icl.train(g.t, "gpt2", name=3), "name: expected a string, got 3"),
        (lambda g: icl.train(g.t, "gpt2", results=3), "results: expected a path, got 3"),
        (lambda g: icl.train(g.t, "gpt2", settings=["layers"]), "settings: expected settings by name, like {'layers'"),
        (lambda g: icl.train(g.t, "gpt2", log=3), "log: expected a string or a list of strings, got 3"),
        (lambda g: icl.train(g.t, "gpt2", log="csv"), "unknown tracker 'csv'"),
        (lambda g: icl.evaluate([], g.t), "nothing to evaluate"),
        (lambda g: icl.evaluate(g.m, g.t, shifts=[]), "nothing to evaluate"),
        (lambda g: icl.evaluate([icl.GPT2], g.t), "not function"),
        (lambda g: icl.evaluate({"a": 3}, g.t), "not int"),
        (lambda g: icl.evaluate({3: g.m}, g.t), "models: expected a string, got 3"),
        (
            lambda g: icl.evaluate("gpt2", g.t),
            "'gpt2' is a backbone: give a model, icl.backbone('gpt2', task)",
        ),
        (lambda g: icl.evaluate(g.m, g.t, shifts=3), "shifts: expected a string or a list of strings, got 3"),
        (lambda g: icl.evaluate(g.m, g.t, extrapolate=10), "extrapolate: expected more than the 10 examples"),
        (lambda g: icl.load(g.m), "load takes a run, its name or its folder, not GPT2"),
        (lambda g: icl.load("a", 3), "results: expected a path, got 3"),
        (lambda g: icl.open_results(None), "path: expected a path, got None"),
        (lambda g: icl.write_report(3), "results: expected a path, got 3"),
        (lambda g: icl.write_report("a", 3), "folder: expected a path, got 3"),
        (lambda g: icl.write_report("a", tasks=3), "tasks: expected a string or a list of strings, got 3"),
        (lambda g: icl.InContextRegressor(g.m).fit(X, Y), "load takes a run, its name or its folder, not GPT2"),
        (lambda g: icl.plot.leaderboard(g.scores, shift=3), "shift: expected a string, got 3"),
        (lambda g: icl.plot.learning_curves(g.scores, task=g.t), "task: expected a string, got task('linear'"),
        (lambda g: icl.plot.learning_curves(g.scores, metric=3), "metric: expected a string, got 3"),
    ],
)
def test_other_types_are_refused(given: SimpleNamespace, call: Callable[[Any], Any], line: str) -> None:
    assert line in refused(lambda: call(given))


@pytest.mark.parametrize("chart", icl.plot.__all__)
def test_charts_are_of_rows_of_values(given: SimpleNamespace, chart: str) -> None:
    draw = getattr(icl.plot, chart)
    for values in (None, [], icl.open_results(".")):
        assert refused(lambda values=values: draw(values)).startswith("values: expected a frame, got ")
    assert "there are no rows" in refused(lambda: draw(pd.DataFrame()))
    some = given.scores[["contestant", "value"]]
    assert "give rows as icl.evaluate(...)" in refused(lambda: draw(some))


def test_rows_that_stand_twice_are_drawn_once(given: SimpleNamespace) -> None:
    twice = pd.concat([given.scores, given.scores])
    one, other = (icl.plot.leaderboard(rows).to_dict(validate=False) for rows in (twice, given.scores))
    assert one == other


class Unfinished(SequenceBackbone):
    """A trunk and nothing else."""

    Settings = BackboneSettings

    def trunk(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens[:, ::2]


def test_a_backbone_that_lacks_methods_names_them_when_it_is_made(given: SimpleNamespace) -> None:
    missing = "fork, start, advance, absorb, resume, peek_layers, finish"
    where = "tests.api.test_arguments"
    base = "iclbench.backbones.causal_trunk.CausalTrunk"
    line = f"{where}.Unfinished does not implement {missing}, which {base} requires"
    assert refused(lambda: Unfinished(BackboneSettings(), given.t.shape)) == line
    assert refused(lambda: icl.backbone(f"{where}:Unfinished", given.t)) == line
    recurrent = type("Empty", (RecurrentBackbone,), {})
    assert "does not implement" in refused(lambda: recurrent(BackboneSettings(), given.t.shape, 8, []))
    with pytest.raises(TypeError, match="must implement one of predict_next, predict_targets, query"):
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


def test_a_class_of_a_notebook_is_told_to_live_in_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_net.py").write_text("from iclbench.backbones.gpt2 import GPT2\nclass Mine(GPT2): pass\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        runpy.run_path("script.py", run_name="__main__")
    del sys.modules["my_net"]
    *lines, module = capsys.readouterr().out.splitlines()
    assert [each.startswith("'__main__:Net'") for each in lines] == [True] * 3 and "icl.fit(Net(...), task)" in lines[0]
    assert module == "my_net", "a module that is typed is trusted"


def test_paths_stay_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Path(icl.__file__).parents[1] / "tasks" / "linear.toml"
    (tmp_path / "mine.toml").write_bytes(card.read_bytes())
    monkeypatch.chdir(tmp_path)
    task = icl.task(Path("mine.toml"), "smoke", dim=2)
    monkeypatch.chdir("/")
    assert icl.GPT2(task, **SIZE).parameter_count and task.name == "mine"
