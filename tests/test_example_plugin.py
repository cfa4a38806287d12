"""The example plug-in: installed as a third party would, it is found, keeps all contracts, trains and is evaluated."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch

from iclbench import tables
from iclbench.core.context import Context
from iclbench.core.episodes import Points
from iclbench.families.request import Request
from iclbench.store.cells import Store
from iclbench.sweep.cells import grid_cells
from iclbench.sweep.pack import pack
from iclbench.sweep.plan import plan
from iclbench.sweep.work import work
from tests.conftest import small_card
from tests.forked import printed_each

EXAMPLE = Path(__file__).parents[1] / "examples" / "iclbench-waves"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and its entry points, beside the environment and not in it."""
    target = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / EXAMPLE.name
    subprocess.run(["cp", "-r", EXAMPLE, source], check=True)  # a build may leave things in the folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, source], check=True, capture_output=True)
    return target


def run(installed: Path, where: Path, *commands: list[str]) -> list[tuple[int, str]]:
    """Exit codes and output of several commands in one new process that finds the plug-in."""
    script = (
        "import contextlib, io, json, sys\n"
        "from iclbench.cli.main import main\n"
        "found = []\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        code = main(command)\n"
        "    found.append([code, out.getvalue()])\n"
        "print(json.dumps(found))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), *sys.path[1:]])}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)], cwd=where, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [(code, out) for code, out in json.loads(done.stdout.splitlines()[-1])]


KINDS = {"families": "waves", "backbones": "learned-kernel"}
CHECKED = ("waves", "learned-kernel", "gaussian-kernel")


@dataclass(frozen=True)
class Answers:
    """Exit codes and outputs of what is asked of the plug-in, all in one process: most of its time is for importing
    torch."""

    folder: Path
    listed: list[tuple[int, str]]
    checked: list[tuple[int, str]]
    typed: list[tuple[int, str]]


@pytest.fixture(scope="module")
def answers(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("asked")
    (folder / "cards").symlink_to(EXAMPLE / "cards")
    lists, checks = [["list", kind, "--json"] for kind in KINDS], [["check", name] for name in CHECKED]
    readme = (EXAMPLE / "README.md").read_text()
    lines = [line.split()[1:] for line in readme.splitlines() if line.startswith("    iclbench ")]
    steps = ["-o", "train.steps=20"]
    typed = [line + (steps if line[0] == "train" else []) for line in lines if line[0] in ("train", "eval")]
    found = run(installed, folder, *lists, *checks, *typed)
    first, last = len(lists), len(lists) + len(checks)
    return Answers(folder, found[:first], found[first:last], found[last:])


@pytest.mark.slow
def test_its_names_are_found_by_their_entry_points(answers: Answers) -> None:
    for (code, out), name in zip(answers.listed, KINDS.values(), strict=True):
        rows = [row for row in json.loads(out) if name in row.values()]
        assert code == 0 and [row["from"] for row in rows] == ["iclbench-waves"]


@pytest.mark.slow
def test_family_backbone_and_estimator_keep_all_contracts(answers: Answers) -> None:
    for name, (code, out) in zip(CHECKED, answers.checked, strict=True):
        assert code == 0 and out.count("ok ") >= 10 and "FAILED" not in out, f"{name}: {out}"


@pytest.mark.slow
def test_the_commands_of_its_readme_train_and_evaluate(answers: Answers) -> None:
    assert [code for code, _ in answers.typed] == [0] * 4
    rows = tables.read_all("values", answers.folder / "results")
    own = rows[(rows["task"] == "waves") & (rows["metric"] == "auc") & (rows["status"] == "ok")]
    assert {"learned-kernel", "gpt2", "gaussian-kernel-half", "zero"} <= set(own["contestant"])


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.mark.usefixtures("modules")
def test_values_of_waves_have_variance_one_and_are_waves() -> None:
    from iclbench_waves.waves import Waves, WavesParameters

    episodes = Waves(WavesParameters(dim=3)).sample(Request(4000, 4, torch.Generator().manual_seed(0)))
    y, truth = episodes.context.y.squeeze(-1).double().numpy(), episodes.truth
    assert abs(y.var() - 1) < 0.05
    x, u = episodes.context.x[7].double().numpy(), truth["direction"][7].double().numpy()
    (a, b), w = truth["weights"][7].double().numpy(), float(truth["frequency"][7])
    np.testing.assert_allclose(y[7], a * np.sin(w * x @ u) + b * np.cos(w * x @ u), atol=1e-5)
    assert truth["frequency"].min() >= 1 and truth["frequency"].max() <= 3
    np.testing.assert_allclose(truth["direction"].norm(dim=1), 1, rtol=1e-5)


@pytest.mark.usefixtures("modules")
def test_the_gaussian_kernel_is_that_of_a_plain_loop() -> None:
    from iclbench_waves.gaussian_kernel import GaussianKernel, GaussianKernelSettings

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 6, 3)), rng.normal(size=(2, 6, 1))
    estimator = GaussianKernel(GaussianKernelSettings(bandwidth=0.7))
    found = estimator.predict_next(Points.full(torch.tensor(x), torch.tensor(y))).mean.squeeze(-1)
    for episode in range(2):
        assert found[episode, 0] == 0
        for n in range(1, 6):
            weights = np.exp(-((x[episode, :n] - x[episode, n]) ** 2).sum(-1) / (2 * 0.7**2))
            expected = weights @ y[episode, :n, 0] / weights.sum()
            np.testing.assert_allclose(found[episode, n], expected, rtol=1e-9)


@pytest.mark.slow
def test_a_newcomer_is_added_to_a_packed_grid(installed: Path, tmp_path: Path) -> None:
    """Only what is missing is trained, and it stands beside the packed results in heat map and ranking."""
    card = small_card()
    preset = card["presets"]["smoke"]  # type: ignore[index]
    del preset["backbones"]
    preset |= {"budget": 25_000}
    preset["train"]["steps"] = 3
    grid = {"summary": "tiny", "backbones": ["gpt2", "cnp"], "presets": ["smoke"], "seeds": [0], "evaluate": {}}
    tasks = [tmp_path / "one.toml", tmp_path / "two.toml"]
    for path in tasks:
        path.write_text(tomli_w.dumps(card))
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(grid | {"tasks": [str(path) for path in tasks]}))
    cells, results = grid_cells([str(tmp_path / "tiny.toml")]), tmp_path / "results"
    for cell in plan(cells, Store(results)).todo:  # in this process: others would have to import torch
        assert work(cell, Context(results)).status == "done"
    pack(cells, Store(results), results / "reference")
    for made in ("runs", "tables"):
        shutil.rmtree(results / made)
    newcomer, report = "iclbench_waves.learned_kernel:LearnedKernel", ["report", "--only", "heat-map,ranking"]
    sweep = ["sweep", "tiny.toml", "-j", "1", "--add", newcomer]
    # Named by its class, it need not be found when iclbench is imported.
    done = printed_each([sweep, report], tmp_path, dict(os.environ), str(installed))
    assert [code for code, *_ in done] == [0, 0], done
    trained = sorted(path.parent.name for path in results.glob("runs/*/model.safetensors"))
    assert trained == [f"{task}-iclbench-waves-learned-kernel-learnedkernel-smoke-s0" for task in ("one", "two")]
    shown = pd.read_csv(results / "report" / "tables" / "heat-map-smoke-numbers.csv")
    assert {"gpt2", "cnp", newcomer} <= set(shown.columns) and not shown[newcomer].isna().any()
    ranked = pd.read_csv(results / "report" / "tables" / "ranking-smoke.csv")
    assert dict(zip(ranked["contestant"], ranked["tasks"], strict=True)) == {"gpt2": 2, "cnp": 2, newcomer: 2}
