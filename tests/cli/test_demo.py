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
def test_the_demo_writes_a_report_and_a_repeated_demo_computes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(demo.GRIDS, "functions", str(tiny_grid(tmp_path, backbones=("gpt2",))))
    # Use no worker process, because it would have to import torch.
    monkeypatch.setattr("iclbench.cli.sweep_run.worker_pool", lambda slots, threads: InlineExecutor())
    monkeypatch.setattr("iclbench.report.build", partial(build, only=["heat-map"]))
    results = tmp_path / "results"
    assert main(["demo", "--results", str(results)]) == 0
    out, err = capsys.readouterr()
    assert "tiny-linear-gpt2-smoke-s0, tiny-quadratic-gpt2-smoke-s0" in err
    assert out.count("shift none") == 2 and "orthants" not in out, "the shift orthants has no tables"
    assert (results / "report" / "index.html").is_file()
    assert {path.name for path in (results / "runs").iterdir()} == {
        "tiny-linear-gpt2-smoke-s0",
        "tiny-quadratic-gpt2-smoke-s0",
    }
    first_report_time = (results / "report" / "index.html").stat().st_mtime_ns
    assert main(["demo", "--results", str(results)]) == 0
    assert (results / "report" / "index.html").stat().st_mtime_ns > first_report_time
    assert ": 0 cells" in capsys.readouterr().err


@pytest.mark.slow
def test_the_tables_demo_evaluates_models_and_baselines_on_scikit_learn_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = tmp_path / "tiny-tables.toml"
    card.write_text(
        'summary = "s"\ntasks = ["tabular-prior"]\nbackbones = ["cells"]\npresets = ["smoke"]\nseeds = [0]\n'
        '[overrides.smoke]\ntiny = ["train.steps=3"]\n'
    )
    monkeypatch.setitem(demo.GRIDS, "tables", str(card))
    monkeypatch.setattr("iclbench.cli.sweep_run.worker_pool", lambda slots, threads: InlineExecutor())
    monkeypatch.setattr("iclbench.report.build", partial(build, only=["heat-map"]))
    assert main(["demo", "tables", "--results", str(tmp_path / "results")]) == 0
    out = capsys.readouterr().out
    for name in ("cells", "ridge-cv", "forest", "xgboost-default"):
        assert name in out


def test_the_grid_of_the_demo_has_the_documented_sizes() -> None:
    """The demo trains two backbones on two tasks with three dimensions and 15 examples."""
    cells = grid_cells([demo.GRIDS["functions"]])
    configs = {cell.run: cell.config for cell in cells if cell.kind == "train"}
    assert len(configs) == 4 and {config.backbone.name for config in configs.values()} == {"gpt2", "mamba"}
    for config in configs.values():
        assert config.task.points == 15 and config.task.parameters["dim"] == 3 and config.train.steps == 600
    assert sum(cell.kind == "probe" for cell in cells) == 4
    evaluations = [cell for cell in cells if cell.kind == "evaluate" and cell.config is not None]
    assert all(any("points-45" in shift for shift in cell.options["shifts"]) for cell in evaluations)


def test_the_tables_demo_defines_real_tables_for_each_of_its_tasks() -> None:
    """The demo trains one model for classes and one for numbers, with fewer rows than the preset."""
    configs = [cell.config for cell in grid_cells([demo.GRIDS["tables"]]) if cell.kind == "train"]
    assert {config.task.name for config in configs if config} == set(demo.REAL_TABLES)
    assert all(config.task.points == 49 and config.backbone.name == "cells" for config in configs if config)
