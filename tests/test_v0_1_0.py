"""A results folder that version 0.1.0 wrote: every command goes on with it."""

import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from iclbench import tables
from iclbench.cli.main import main
from iclbench.config.runs import Run, find
from iclbench.core.episodes import Points

FIXTURE = Path(__file__).parent / "fixtures" / "v0_1_0" / "results.tar.gz"
EXAMPLE = Path(__file__).parents[1] / "examples" / "iclbench-waves"
RUN = "tiny-linear-gpt2-smoke-s0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`results` as it was left, the cards beside it, and what was computed later for comparison in `expected`."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_runs_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list", "runs", "--json")
    assert code == 0
    assert {RUN, "interrupted", "by-path", "waves-learned-kernel-smoke-s0"} <= {row["run"] for row in json.loads(out)}


def test_finished_cells_are_served_and_computing_them_again_gives_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cells() -> dict[Path, bytes]:
        found = Path("results/tables").glob("tiny-linear-smoke-*/*.values.parquet")
        return {path: path.read_bytes() for path in found}

    before = cells()
    code, out, _ = call(capsys, "eval", RUN, "--extrapolate")
    assert code == 0 and "least-squares (oracle)" in out
    assert cells() == before and len(before) > 10
    old = tables.read_all("values", Path("results/tables"))
    shutil.rmtree("results/tables")
    shutil.rmtree("results/packed")
    assert call(capsys, "eval", RUN, "--extrapolate")[0] == 0
    new = tables.read_all("values", Path("results/tables"))
    keys = tables.keys("values")
    both = new.merge(old, on=keys, suffixes=("", "_old"))
    assert len(both) == len(new)
    np.testing.assert_allclose(both["value"].to_numpy(float), both["value_old"].to_numpy(float), rtol=1e-4, atol=1e-6)


def test_an_interrupted_run_ends_with_the_weights_that_0_1_0_gives_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("train", "./tiny-linear.toml", "gpt2", "--preset", "smoke", "--name", "interrupted", "--seed", "3")
    assert Run(Path("results/runs/interrupted")).reached == 9
    assert call(capsys, *command)[0] == 0
    expected = load_file("expected/interrupted.safetensors")
    found = load_file("results/runs/interrupted/model.safetensors")
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        np.testing.assert_allclose(found[name], weights, rtol=1e-3, atol=1e-5, err_msg=name)


def test_points_are_streamed_through_its_weights(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("x1,x2,x3,y1\n0,1,2,0.5\n1,0,1,-0.5\n1,1,1,?\n"))
    code, out, _ = call(capsys, "stream", RUN)
    points = Points.full(torch.tensor([[[0.0, 1, 2], [1, 0, 1]]]), torch.tensor([[[0.5], [-0.5]]]))
    with torch.no_grad():
        expected = find(Path("results"), RUN).load().predict_targets(points, torch.ones(1, 1, 3)).mean
    assert code == 0 and float(out.splitlines()[-1].split(",")[-1]) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.slow
def test_its_packed_grid_has_every_cell_done_but_for_its_scores_which_are_over_other_sizes_since(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for gone in ("cells", "tables", "runs"):
        shutil.rmtree(Path("results") / gone)
    code, out, _ = call(capsys, "sweep", "./tiny-grid.toml", "--dry-run", "--json")
    assert code == 0 and json.loads(out)["total"]["to_do"] == {"evaluate": 1}
    code, _, said = call(capsys, "sweep", "./tiny-grid.toml")
    assert code == 0 and "summary of tiny-linear-smoke" in said and " train " not in said


@pytest.mark.slow
def test_a_report_is_written_on_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, *_ = call(capsys, "report", "--formats", "none")
    assert code == 0 and RUN in Path("results/report/index.html").read_text()


def test_a_run_of_a_plug_in_in_the_current_folder_is_adopted_where_its_module_is_trusted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("ICLBENCH_TRUST", "")
    shutil.copytree(EXAMPLE / "iclbench_waves", "iclbench_waves")
    code, _, said = call(capsys, "adopt", "by-path", "--trust", "iclbench_waves")
    assert code == 0 and said.count("warning") == 1


def test_a_run_of_a_plug_in_is_refused_until_it_is_adopted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setenv("ICLBENCH_TRUST", "iclbench_waves")
    code, _, said = call(capsys, "eval", "by-path")
    assert code == 2 and "iclbench adopt by-path" in said and len(said.strip().splitlines()) == 1
    code, _, said = call(capsys, "adopt", "by-path")
    assert code == 0 and said.count("warning") == 1
    code, _, said = call(capsys, "eval", "by-path")
    assert code == 0 and "warning" not in said
    assert "code" in find(Path("results"), "by-path").config.dump()["backbone"]
