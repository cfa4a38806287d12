"""`iclbench demo` on a small grid: its output, its files, and a second run."""

from functools import partial
from pathlib import Path

import pytest

from iclbench.cli import demo
from iclbench.cli.main import main
from iclbench.report import build
from iclbench.sweep.cells import grid_cells
from tests.inline_executor import InlineExecutor
from tests.sweep.conftest import tiny_grid


@pytest.mark.slow
def test_the_demo_writes_a_report_and_a_second_demo_has_nothing_to_compute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "GRID", str(tiny_grid(tmp_path, backbones=("gpt2",))))
    # A worker process would import torch.
    monkeypatch.setattr("iclbench.cli.sweep_run.worker_pool", lambda slots, threads: InlineExecutor())
    monkeypatch.setattr("iclbench.report.build", partial(build, only=["heat-map"]))
    results = tmp_path / "results"
    assert main(["demo", "--results", str(results)]) == 0
    out, err = capsys.readouterr()
    assert "tiny-linear-gpt2-smoke-s0, tiny-quadratic-gpt2-smoke-s0" in err
    assert out.count("shift none") == 2 and "orthants" not in out, "one table for each task, without the shift"
    assert (results / "report" / "index.html").is_file()
    assert {path.name for path in (results / "runs").iterdir()} == {
        "tiny-linear-gpt2-smoke-s0",
        "tiny-quadratic-gpt2-smoke-s0",
    }
    first_report_time = (results / "report" / "index.html").stat().st_mtime_ns
    assert main(["demo", "--results", str(results)]) == 0
    assert (results / "report" / "index.html").stat().st_mtime_ns > first_report_time
    assert ": 0 cells" in capsys.readouterr().err


def test_the_grid_of_the_demo_has_the_documented_sizes() -> None:
    """Two backbones on two tasks with three dimensions and 15 examples."""
    cells = grid_cells([demo.GRID])
    configs = {cell.run: cell.config for cell in cells if cell.kind == "train"}
    assert len(configs) == 4 and {config.backbone.name for config in configs.values()} == {"gpt2", "mamba"}
    for config in configs.values():
        assert config.task.points == 15 and config.task.parameters["dim"] == 3 and config.train.steps == 600
    assert sum(cell.kind == "probe" for cell in cells) == 4
    evaluations = [cell for cell in cells if cell.kind == "evaluate" and cell.config is not None]
    assert all(any("points-45" in shift for shift in cell.options["shifts"]) for cell in evaluations)
