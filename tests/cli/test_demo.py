"""`iclbench demo` on a grid of seconds: what it says, writes and does again."""

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
def test_demo_trains_evaluates_probes_and_writes_a_page_and_a_second_time_finds_all_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "GRID", str(tiny_grid(tmp_path, backbones=("gpt2",))))
    # A worker would have to import torch.
    monkeypatch.setattr("iclbench.cli.sweep_run.pool", lambda slots, threads: InlineExecutor())
    monkeypatch.setattr("iclbench.report.build", partial(build, only=["heat-map"]))
    results = tmp_path / "results"
    assert main(["demo", "--results", str(results)]) == 0
    out, err = capsys.readouterr()
    assert "training, evaluating and probing tiny-linear-gpt2-smoke-s0, tiny-quadratic-gpt2-smoke-s0: " in err
    assert out.count("shift none") == 2 and "orthants" not in out, "a table for each task, none for the shift"
    assert (results / "report" / "index.html").is_file()
    assert {path.name for path in (results / "runs").iterdir()} == {
        "tiny-linear-gpt2-smoke-s0",
        "tiny-quadratic-gpt2-smoke-s0",
    }
    written = (results / "report" / "index.html").stat().st_mtime_ns
    assert main(["demo", "--results", str(results)]) == 0
    assert (results / "report" / "index.html").stat().st_mtime_ns > written
    assert ": 0 cells" in capsys.readouterr().err


def test_the_demo_asks_what_its_card_promises() -> None:
    """Two backbones on two tasks, three dimensions and 15 examples, beside ten baselines and the oracle."""
    cells = grid_cells([demo.GRID])
    trained = {cell.run: cell.config for cell in cells if cell.kind == "train"}
    assert len(trained) == 4 and {config.backbone.name for config in trained.values()} == {"gpt2", "mamba"}
    for config in trained.values():
        assert config.task.points == 15 and config.task.parameters["dim"] == 3 and config.train.steps == 600
    assert sum(cell.kind == "probe" for cell in cells) == 4
    asked = [cell for cell in cells if cell.kind == "evaluate" and cell.config is not None]
    assert all(any("points-45" in shift for shift in cell.options["shifts"]) for cell in asked)
