"""`iclbench eval --csv`: tables of the user, their headers, and their names on the terminal."""

from pathlib import Path
from shutil import copytree

import numpy as np
import pandas as pd
import pytest
import tomli_w

from iclbench.cli import eval_runs
from iclbench.cli.main import main
from iclbench.config.resolution import resolve_run
from iclbench.evaluation import full_table
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.conftest import small_card

CONTROL_NAME = "a\x1b[31m\u202e\x07\u200f\nerror: b"


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("trained")
    card = folder / "tiny.toml"
    card.write_text(tomli_w.dumps(small_card(baselines=["zero"], oracles=[])))
    run = create(folder, resolve_run(str(card), "gpt2", "smoke", 0))
    train(run)
    return run


@pytest.fixture
def results(trained_run: Run, tmp_path: Path) -> Path:
    return Path(copytree(trained_run.path.parents[1], tmp_path / "results"))


def array(rows: int = 40) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3))


def evaluate(run: Run, results: Path, table: Path, *options: str) -> int:
    words = ["eval", run.name, "--csv", str(table), *options, "--baseline", "zero", "--results", str(results)]
    return main(words)


@pytest.mark.slow
def test_a_header_of_numbers_needs_the_option_header_or_no_header(
    trained_run: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.csv"
    pd.DataFrame(array()).to_csv(table, index=False)
    assert evaluate(trained_run, results, table, "--target", "2") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "--header" in err and "--no-header" in err
    assert evaluate(trained_run, results, table, "--target", "2", "--header") == 0
    assert "2 features (0, 1)" in capsys.readouterr().out
    assert evaluate(trained_run, results, table, "--target", "2", "--no-header") == 0
    assert "2 features (column 1, column 3)" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--header", "--no-header"])
def test_the_header_options_need_a_csv_file(
    option: str, trained_run: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame(array(), columns=["a", "b", "y"]).to_parquet(tmp_path / "t.parquet")
    assert evaluate(trained_run, results, tmp_path / "t.parquet", "--target", "y", option) == 2
    assert option in capsys.readouterr().err
    assert main(["eval", trained_run.name, option, "--results", str(results)]) == 2
    assert "--csv" in capsys.readouterr().err


def test_a_table_is_read_once_and_xgboost_is_fitted_once_for_all_runs(
    trained_run: Run, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(results / "runs" / trained_run.name, results / "runs" / "copy")
    table = tmp_path / "mine.csv"
    np.savetxt(table, array(), delimiter=",", header="a,b,y", comments="")
    counts = dict.fromkeys(("read_table", "_cross_validate"), 0)

    def count_calls(module: object, name: str) -> None:
        function = getattr(module, name)

        def call(*arguments: object) -> object:
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, call)

    count_calls(eval_runs, "read_table")
    count_calls(full_table, "_cross_validate")
    words = ["eval", trained_run.name, "copy", "--csv", str(table), "--target", "y", "--baseline", "zero"]
    assert main([*words, "--results", str(results)]) == 0
    assert counts == {"read_table": 1, "_cross_validate": 1}


@pytest.mark.slow
def test_control_characters_of_columns_and_files_are_escaped(
    trained_run: Run, results: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine\x1b[2J\u2066.csv"
    pd.DataFrame(array(), columns=[CONTROL_NAME, "b" * 3000, "y\x9b\x7f"]).to_csv(table, index=False)
    for target, code in (("y\x9b\x7f", 0), (CONTROL_NAME, 0), ("no\x1b[31m", 2)):
        assert evaluate(trained_run, results, table, "--target", target) == code
        out, err = capfd.readouterr()
        assert all(c.isprintable() or c == "\n" for c in out + err), (out, err)
        assert sum(line.startswith("error: ") for line in (out + err).splitlines()) == (code == 2)
        assert max(map(len, (out + err).splitlines())) < 900


@pytest.mark.parametrize("unit", [1e300, 1e-300])
def test_targets_at_the_limits_of_double_precision_are_evaluated(
    unit: float, trained_run: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.csv"
    np.savetxt(table, array() * unit, delimiter=",", header="a,b,y", comments="")
    assert evaluate(trained_run, results, table, "--target", "y") == 0
    assert "nan" not in capsys.readouterr().out.lower()
