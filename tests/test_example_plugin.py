"""The example plug-in can be installed, fulfils all contracts, and can be trained and evaluated."""

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
from iclbench.store.cells import CellStore
from iclbench.sweep.cells import grid_cells
from iclbench.sweep.pack import pack
from iclbench.sweep.plan import make_plan
from iclbench.sweep.work import work
from tests.conftest import small_card
from tests.forked import run_commands

EXAMPLE = Path(__file__).parents[1] / "examples" / "iclbench-waves"


@pytest.fixture(scope="module")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the environment, into which the package and its entry points are installed."""
    target = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / EXAMPLE.name
    subprocess.run(["cp", "-r", EXAMPLE, source], check=True)  # building writes files into the folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, source], check=True, capture_output=True)
    return target


def run(plugin_folder: Path, folder: Path, *commands: list[str]) -> list[tuple[int, str]]:
    """Run commands in one new process that can import the plug-in. Return exit codes and outputs."""
    script = (
        "import contextlib, io, json, sys\n"
        "from iclbench.cli.main import main\n"
        "results = []\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        code = main(command)\n"
        "    results.append([code, out.getvalue()])\n"
        "print(json.dumps(results))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(plugin_folder), *sys.path[1:]])}
    process = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return [(code, out) for code, out in json.loads(process.stdout.splitlines()[-1])]


NAMES_BY_KIND = {"families": "waves", "backbones": "learned-kernel"}
CHECKED_NAMES = ("waves", "learned-kernel", "gaussian-kernel")


@dataclass(frozen=True)
class Outputs:
    """Exit codes and outputs of commands, which run in one process to import torch only once."""

    folder: Path
    lists: list[tuple[int, str]]
    checks: list[tuple[int, str]]
    readme_commands: list[tuple[int, str]]


@pytest.fixture(scope="module")
def outputs(plugin_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "cards").symlink_to(EXAMPLE / "cards")
    lists, checks = [["list", kind, "--json"] for kind in NAMES_BY_KIND], [["check", name] for name in CHECKED_NAMES]
    readme = (EXAMPLE / "README.md").read_text()
    lines = [line.split()[1:] for line in readme.splitlines() if line.startswith("    iclbench ")]
    steps = ["-o", "train.steps=20"]
    readme_commands = [line + (steps if line[0] == "train" else []) for line in lines if line[0] in ("train", "eval")]
    results = run(plugin_folder, folder, *lists, *checks, *readme_commands)
    first, last = len(lists), len(lists) + len(checks)
    return Outputs(folder, results[:first], results[first:last], results[last:])


@pytest.mark.slow
def test_registered_classes_are_listed_with_their_package(outputs: Outputs) -> None:
    for (code, out), name in zip(outputs.lists, NAMES_BY_KIND.values(), strict=True):
        rows = [row for row in json.loads(out) if name in row.values()]
        assert code == 0 and [row["from"] for row in rows] == ["iclbench-waves"]


@pytest.mark.slow
def test_family_backbone_and_estimator_fulfil_all_contracts(outputs: Outputs) -> None:
    for name, (code, out) in zip(CHECKED_NAMES, outputs.checks, strict=True):
        assert code == 0 and out.count("ok ") >= 10 and "FAILED" not in out, f"{name}: {out}"


@pytest.mark.slow
def test_the_commands_in_the_readme_train_and_evaluate_a_model(outputs: Outputs) -> None:
    assert [code for code, _ in outputs.readme_commands] == [0] * 4
    rows = tables.read_all("values", outputs.folder / "results")
    rows = rows[(rows["task"] == "waves") & (rows["metric"] == "auc") & (rows["status"] == "ok")]
    assert {"learned-kernel", "gpt2", "gaussian-kernel-half", "zero"} <= set(rows["contestant"])


@pytest.mark.slow
def test_the_grid_of_the_plugin_becomes_a_pack_that_passes_its_check(plugin_folder: Path, tmp_path: Path) -> None:
    """The commands of docs/packs.md, section "Contribute a result". The pack is checked without the original cards."""
    (tmp_path / "cards").symlink_to(EXAMPLE / "cards")
    sweep, packed = ["sweep", "cards/waves-study.toml"], "results/waves-study"
    for code, out in run(plugin_folder, tmp_path, [*sweep, "-j", "1"], [*sweep, "--pack", packed]):
        assert code == 0, out
    (tmp_path / "reviewer").mkdir()
    shutil.copytree(tmp_path / packed, tmp_path / "reviewer" / "waves-study")
    ((code, out),) = run(plugin_folder, tmp_path / "reviewer", ["check-pack", "waves-study"])
    assert code == 0 and "1/4" in out


@pytest.fixture
def importable_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.mark.usefixtures("importable_plugin")
def test_outputs_are_waves_with_unit_variance() -> None:
    from iclbench_waves.waves import Waves, WavesParameters

    episodes = Waves(WavesParameters(dim=3)).sample(Request(4000, 4, torch.Generator().manual_seed(0)))
    y, truth = episodes.context.y.squeeze(-1).double().numpy(), episodes.truth
    assert abs(y.var() - 1) < 0.05
    x, u = episodes.context.x[7].double().numpy(), truth["direction"][7].double().numpy()
    (a, b), w = truth["weights"][7].double().numpy(), float(truth["frequency"][7])
    np.testing.assert_allclose(y[7], a * np.sin(w * x @ u) + b * np.cos(w * x @ u), atol=1e-5)
    assert truth["frequency"].min() >= 1 and truth["frequency"].max() <= 3
    np.testing.assert_allclose(truth["direction"].norm(dim=1), 1, rtol=1e-5)


@pytest.mark.usefixtures("importable_plugin")
def test_the_gaussian_kernel_equals_a_numpy_loop() -> None:
    from iclbench_waves.gaussian_kernel import GaussianKernel, GaussianKernelSettings

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 6, 3)), rng.normal(size=(2, 6, 1))
    estimator = GaussianKernel(GaussianKernelSettings(bandwidth=0.7))
    means = estimator.predict_next(Points.full(torch.tensor(x), torch.tensor(y))).mean.squeeze(-1)
    for episode in range(2):
        assert means[episode, 0] == 0
        for n in range(1, 6):
            weights = np.exp(-((x[episode, :n] - x[episode, n]) ** 2).sum(-1) / (2 * 0.7**2))
            expected = weights @ y[episode, :n, 0] / weights.sum()
            np.testing.assert_allclose(means[episode, n], expected, rtol=1e-9)


@pytest.mark.slow
def test_a_plugin_model_can_be_added_to_a_packed_grid(plugin_folder: Path, tmp_path: Path) -> None:
    """Only the added model is trained, and the heat map and the ranking contain it next to the packed models."""
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
    for cell in make_plan(cells, CellStore(results)).todo:  # without workers, which would import torch
        assert work(cell, Context(results)).status == "done"
    pack(cells, CellStore(results), results / "reference")
    for folder in ("runs", "tables"):
        shutil.rmtree(results / folder)
    added_model, report = "iclbench_waves.learned_kernel:LearnedKernel", ["report", "--only", "heat-map,ranking"]
    sweep = ["sweep", "tiny.toml", "-j", "1", "--add", added_model]
    # A class given by its import path needs no entry point.
    printed = run_commands([sweep, report], tmp_path, dict(os.environ), str(plugin_folder))
    assert [code for code, *_ in printed] == [0, 0], printed
    trained = sorted(path.parent.name for path in results.glob("runs/*/model.safetensors"))
    assert trained == [f"{task}-iclbench-waves-learned-kernel-learnedkernel-smoke-s0" for task in ("one", "two")]
    heat_map = pd.read_csv(results / "report" / "tables" / "heat-map-smoke-numbers.csv")
    assert {"gpt2", "cnp", added_model} <= set(heat_map.columns) and not heat_map[added_model].isna().any()
    ranking = pd.read_csv(results / "report" / "tables" / "ranking-smoke.csv")
    assert dict(zip(ranking["contestant"], ranking["tasks"], strict=True)) == {"gpt2": 2, "cnp": 2, added_model: 2}
