"""`iclbench eval --csv`: users' tables, their headers, and names with control characters."""

import json
from pathlib import Path
from shutil import copytree

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch

import iclbench as icl
from iclbench.cli import eval_runs
from iclbench.cli.main import main
from iclbench.config.resolution import resolve_run
from iclbench.evaluation.all_rows import AllRows, all_rows_baselines
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.tabular import table_set
from iclbench.store import shipped
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.api.blobs import CARD
from tests.conftest import small_card
from tests.texts import numbers, words

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
def test_if_the_first_line_contains_numbers_the_option_header_or_no_header_is_required(
    trained_run: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.csv"
    pd.DataFrame(array()).to_csv(table, index=False)
    assert evaluate(trained_run, results, table, "--target", "2") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "--header" in err and "--no-header" in err
    assert evaluate(trained_run, results, table, "--target", "2", "--header") == 0
    out = capsys.readouterr().out
    assert "0: number" in out and "1: number" in out and "2 (target)" in out
    assert evaluate(trained_run, results, table, "--target", "2", "--no-header") == 0
    out = capsys.readouterr().out
    assert "column 1: number" in out and "column 2 (target)" in out and "column 3: number" in out


@pytest.mark.parametrize("option", ["--header", "--no-header"])
def test_the_header_options_need_a_csv_file(
    option: str, trained_run: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame(array(), columns=["a", "b", "y"]).to_parquet(tmp_path / "t.parquet")
    assert evaluate(trained_run, results, tmp_path / "t.parquet", "--target", "y", option) == 2
    assert option in capsys.readouterr().err
    assert main(["eval", trained_run.name, option, "--results", str(results)]) == 2
    assert "--csv" in capsys.readouterr().err


def test_a_table_is_read_and_encoded_once_for_all_runs(
    trained_run: Run, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(results / "runs" / trained_run.name, results / "runs" / "copy")
    table = tmp_path / "mine.csv"
    np.savetxt(table, array(), delimiter=",", header="a,b,y", comments="")
    counts = dict.fromkeys(("read_labelled_frame", "TableEncoder"), 0)

    def count_calls(module: object, name: str) -> None:
        function = getattr(module, name)

        def call(*arguments: object) -> object:
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, call)

    count_calls(eval_runs, "read_labelled_frame")
    count_calls(table_set, "TableEncoder")
    words = ["eval", trained_run.name, "copy", "--csv", str(table), "--target", "y", "--baseline", "zero"]
    assert main([*words, "--results", str(results)]) == 0
    assert counts == {"read_labelled_frame": 1, "TableEncoder": 1}


def mixed_table(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, 2)), columns=["wind", "height"])
    frame["site"] = rng.choice(["north", "south"], rows)
    frame["day"] = pd.date_range("2020-01-01", periods=rows).strftime("%d.%m.%Y")
    frame.loc[::7, "height"] = np.nan
    frame["power"] = 1e9 * (2 * frame["wind"] + (frame["site"] == "north"))
    return frame.assign(kind=np.where(frame["wind"] > 0, "strong", "weak"), unit="kW")


def board(out: str) -> list[str]:
    """Return the contestants in the order of the printed table."""
    return [line.split()[0] for line in out.partition("\n\n")[0].splitlines()[2:]]


def test_all_columns_are_encoded_and_baselines_with_all_rows_are_listed(
    trained_run: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.csv"
    mixed_table().to_csv(table, index=False)
    assert evaluate(trained_run, results, table, "--target", "power", "--baseline", "ridge-cv", "--points", "8") == 0
    out = capsys.readouterr().out
    names = board(out)
    assert set(names) == {trained_run.name, "zero", "ridge-cv", "ridge-cv-all-rows"}
    assert names[0] == "ridge-cv-all-rows", "the target is a function of the columns"
    assert {"north", "south", "2020-01-01", "unit"} <= words(out)
    assert {8, mixed_table()["height"].isna().sum()} <= set(numbers(out.partition("\n\n")[2]))
    (encoding,) = (results / "tables").glob("csv-mine*/encoding.json")
    record = json.loads(encoding.read_text())
    assert record["target"] == {"name": "power", "kind": "number", "classes": []}
    assert [column["name"] for column in record["columns"]] == ["wind", "height", "site", "day", "kind"]
    values = pd.concat(map(pd.read_parquet, (results / "tables").glob("csv-mine*/*.values.parquet")))
    r_squared = values[values["metric"].eq("r_squared") & values["run"].eq("ridge-cv-all-rows")]["value"]
    assert (r_squared > 0.95).all() and len(r_squared)


def test_baselines_with_all_rows_do_not_read_the_targets_of_their_queries(trained_run: Run, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(40.0) % 7, "y": np.random.default_rng(0).normal(size=40)})
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    task, family = eval_runs.table_task(trained_run, eval_runs.read_user_table(path, "y", None), 8)
    prompts = PromptSet(task, "smoke", "none", 0, None, family)
    (contestant,) = all_rows_baselines(prompts, ["xgboost-default", "zero"])
    changed = eval_runs.UserFile(path, frame[["x"]], frame["y"].copy())
    rows = prompts.episodes.truth["rows"][0].numpy()
    changed.target.iloc[rows[8:]] += 100.0
    answers = []
    for file in (eval_runs.read_user_table(path, "y", None), changed):
        other = eval_runs.table_task(trained_run, file, 8)[1]
        predictor = AllRows(contestant.predictor._baseline, other, 8)
        episodes = prompts.episodes[:1]
        answers.append(predictor.informed(episodes.truth).predict_targets(episodes.context, episodes.queries.x).point())
    assert torch.equal(*answers)


def test_tables_that_are_too_small_and_contexts_that_are_too_long_are_refused(
    trained_run: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.csv"
    np.savetxt(table, array(), delimiter=",", header="a,b,y", comments="")
    assert evaluate(trained_run, results, table, "--target", "y", "--points", "30") == 2
    err = capsys.readouterr().err
    assert "--points 30" in err and str(trained_run.config.task.points) in err
    np.savetxt(table, array(5), delimiter=",", header="a,b,y", comments="")
    assert evaluate(trained_run, results, table, "--target", "y") == 2
    assert "5 rows" in capsys.readouterr().err
    assert main(["eval", trained_run.name, "--points", "3", "--results", str(results)]) == 2
    assert "--csv" in capsys.readouterr().err


def test_a_target_of_classes_can_be_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = tmp_path / "blobs.toml"
    card.write_text(tomli_w.dumps(CARD))
    results = tmp_path / "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICLBENCH_TRUST", "tests")
        run = create(results, resolve_run(str(card), "cnp", "smoke", 0, overrides=["train.steps=5"]))
        train(run)
        mixed_table().to_csv(tmp_path / "mine.csv", index=False)
        words = ["eval", run.name, "--csv", str(tmp_path / "mine.csv"), "--target", "kind", "--results", str(results)]
        assert main([*words, "--baseline", "logistic-regression", "--baseline", "majority"]) == 0
        out = capsys.readouterr().out
        assert set(board(out)) == {run.name, "majority", "logistic-regression", "logistic-regression-all-rows"}
        assert "2 classes" in out and "ROC AUC" in out
        frame = mixed_table().assign(kind=[f"class {i % 6}" for i in range(60)])
        frame.to_csv(tmp_path / "mine.csv", index=False)
        assert main(words) == 2
        err = capsys.readouterr().err
        assert "6 classes" in err and "at most 5" in err and err.count("error:") == 1


def test_without_finished_runs_the_run_in_the_package_is_evaluated(
    trained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "shipped_folder", lambda: tmp_path / "package")
    shipped.ship(trained_run, "cells-regression")
    pd.DataFrame(array(), columns=["a", "b", "y"]).to_csv(tmp_path / "t.csv", index=False)
    words = ["eval", "--csv", str(tmp_path / "t.csv"), "--target", "y", "--results", str(tmp_path / "empty")]
    runs = []
    monkeypatch.setattr(eval_runs, "evaluate_run", lambda _, run, *arguments: runs.append(run.name) or 0)
    assert main(words) == 0 and runs == ["cells-regression"]
    labelled = eval_runs.UserFile(tmp_path, pd.DataFrame({"a": [1, 2]}), pd.Series(["x", "y"], name="kind"))
    assert labelled.packaged_run() == "reference/cells-classification"


def test_runs_that_cannot_read_the_table_are_skipped(
    trained_run: Run, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipped, "shipped_folder", lambda: tmp_path / "package")
    classes_run = icl.train(
        icl.task("tabular-prior-classes", preset="smoke"), "gpt2", results=tmp_path / "other", steps=1, progress=False
    )
    shipped.ship(classes_run, "cells-classification")
    pd.DataFrame(array(), columns=["a", "b", "y"]).assign(y=["u", "v"] * (len(array()) // 2)).to_csv(
        tmp_path / "t.csv", index=False
    )
    runs: list[str] = []
    monkeypatch.setattr(eval_runs, "evaluate_run", lambda _, run, *arguments: runs.append(run.name) or 0)
    words = ["eval", "--csv", str(tmp_path / "t.csv"), "--target", "y", "--results", str(results)]
    assert main(words) == 0 and runs == ["cells-classification"]
    assert f"skipped run '{trained_run.name}'" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--task", "linear"], ["--shift", "noisy", "--extrapolate"]])
def test_options_of_other_prompts_cannot_be_used_with_a_table(
    options: list[str], trained_run: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in ([], ["--target", "y"]):
        assert evaluate(trained_run, results, tmp_path / "mine.csv", *target, *options) == 2
        err = capsys.readouterr().err
        names = [option for option in options if option.startswith("--")]
        assert err.count("\n") == 1 and all(name in err for name in ("--csv", *names)) and "--evaluator" not in err


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (mixed_table()[["unit", "power"]], ("unit", "no column")),
        (mixed_table().assign(power=1.5), ("power", "same value")),
    ],
    ids=["no column", "constant target"],
)
def test_a_table_without_information_is_refused(
    table: pd.DataFrame,
    words: tuple[str, ...],
    trained_run: Run,
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table.to_csv(tmp_path / "mine.csv", index=False)
    assert evaluate(trained_run, results, tmp_path / "mine.csv", "--target", "power", "--baseline", "ridge-cv") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and all(word in err for word in ("mine.csv", *words))


def test_the_encoding_of_many_columns_is_written_to_a_file(
    trained_run: Run, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 30))).add_prefix("x")
    mixed_table().join(wide).to_csv(tmp_path / "mine.csv", index=False)
    assert evaluate(trained_run, results, tmp_path / "mine.csv", "--target", "power") == 0
    lines = capsys.readouterr().out.splitlines()
    (encoding,) = (results / "tables").glob("csv-mine*/encoding.json")
    assert sum(line.endswith(": number") for line in lines) < 15 and any(str(encoding) in line for line in lines)
    assert len(json.loads(encoding.read_text())["columns"]) == 35


@pytest.mark.slow
def test_control_characters_in_names_of_columns_and_files_are_escaped(
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
