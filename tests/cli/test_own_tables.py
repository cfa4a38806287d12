"""`iclbench eval --csv`: a table of the user's own, its header, and its names on the terminal."""

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

EVIL = "a\x1b[31m\u202e\x07\u200f\nerror: b"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("trained")
    card = folder / "tiny.toml"
    card.write_text(tomli_w.dumps(small_card(baselines=["zero"], oracles=[])))
    run = create(folder, resolve_run(str(card), "gpt2", "smoke", 0))
    train(run)
    return run


@pytest.fixture
def results(trained: Run, tmp_path: Path) -> Path:
    return Path(copytree(trained.path.parents[1], tmp_path / "results"))


def array(rows: int = 40) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3))


def asked(run: Run, results: Path, table: Path, *options: str) -> int:
    words = ["eval", run.name, "--csv", str(table), *options, "--baseline", "zero", "--results", str(results)]
    return main(words)


def test_a_header_of_numbers_is_asked_about_and_taken_as_the_user_says(
    trained: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.csv"
    pd.DataFrame(array()).to_csv(table, index=False)
    assert asked(trained, results, table, "--target", "2") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--header" in said and "--no-header" in said
    assert asked(trained, results, table, "--target", "2", "--header") == 0
    assert "all 2 features (0, 1)" in capsys.readouterr().out
    assert asked(trained, results, table, "--target", "2", "--no-header") == 0
    assert "all 2 features (column 1, column 3)" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--header", "--no-header"])
def test_the_header_of_what_is_no_csv_is_refused(
    option: str, trained: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame(array(), columns=["a", "b", "y"]).to_parquet(tmp_path / "t.parquet")
    assert asked(trained, results, tmp_path / "t.parquet", "--target", "y", option) == 2
    assert option in capsys.readouterr().err
    assert main(["eval", trained.name, option, "--results", str(results)]) == 2
    assert "--csv" in capsys.readouterr().err


def test_a_table_is_read_and_xgboost_fitted_on_it_once_for_all_runs(
    trained: Run, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(results / "runs" / trained.name, results / "runs" / "twin")
    table = tmp_path / "mine.csv"
    np.savetxt(table, array(), delimiter=",", header="a,b,y", comments="")
    counts = dict.fromkeys(("read_table", "_cross_validated"), 0)

    def counted(module: object, name: str) -> None:
        function = getattr(module, name)

        def call(*arguments: object) -> object:
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, call)

    counted(eval_runs, "read_table")
    counted(full_table, "_cross_validated")
    words = ["eval", trained.name, "twin", "--csv", str(table), "--target", "y", "--baseline", "zero"]
    assert main([*words, "--results", str(results)]) == 0
    assert counts == {"read_table": 1, "_cross_validated": 1}


def test_nothing_that_a_terminal_obeys_is_printed_of_columns_and_files(
    trained: Run, results: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine\x1b[2J\u2066.csv"
    pd.DataFrame(array(), columns=[EVIL, "b" * 3000, "y\x9b\x7f"]).to_csv(table, index=False)
    for target, code in (("y\x9b\x7f", 0), (EVIL, 0), ("no\x1b[31m", 2)):
        assert asked(trained, results, table, "--target", target) == code
        out, err = capfd.readouterr()
        assert all(c.isprintable() or c == "\n" for c in out + err), (out, err)
        assert sum(line.startswith("error: ") for line in (out + err).splitlines()) == (code == 2)
        assert max(map(len, (out + err).splitlines())) < 900


@pytest.mark.parametrize("unit", [1e300, 1e-300])
def test_targets_at_the_ends_of_double_precision_are_answered(
    unit: float, trained: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.csv"
    np.savetxt(table, array() * unit, delimiter=",", header="a,b,y", comments="")
    assert asked(trained, results, table, "--target", "y") == 0
    assert "nan" not in capsys.readouterr().out.lower()
