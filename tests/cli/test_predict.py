"""`iclbench predict`: predictions for the rows of users' tables with various formats, headers, columns and targets."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w

import iclbench as icl
from iclbench.cli.main import main
from iclbench.store import shipped
from iclbench.store.runs import Run
from tests.api.blobs import CARD

Frame = pd.DataFrame
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("predict") / "results"


@pytest.fixture(scope="session")
def numbers_run(folder: Path) -> Run:
    """A CNP that predicts numbers from four inputs."""
    task = icl.task("linear", preset="smoke", dim=4, head="gaussian", points=20, episodes=16)
    return icl.train(task, "cnp", name="numbers", results=folder, steps=20, progress=False)


@pytest.fixture(scope="session")
def causal_run(folder: Path) -> Run:
    task = icl.task("linear", preset="smoke", dim=4, points=20, episodes=16)
    return icl.train(task, "gpt2", name="causal", results=folder, steps=2, progress=False)


@pytest.fixture(scope="session")
def classes_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A CNP that predicts one of five classes from ten inputs."""
    card = tmp_path_factory.mktemp("card") / "blobs.toml"
    card.write_text(tomli_w.dumps(CARD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICLBENCH_TRUST", "tests")
        return icl.train(icl.task(str(card), "smoke"), "cnp", results=folder, name="classes", steps=20, progress=False)


@pytest.fixture(autouse=True)
def trust_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICLBENCH_TRUST", "tests")


def table(rows: int = 40, seed: int = 0) -> Frame:
    rng = np.random.default_rng(seed)
    frame = Frame(rng.normal(size=(rows, 2)), columns=["wind", "height"])
    return frame.assign(
        power=2 * frame["wind"] - frame["height"] + 5, kind=np.where(frame["wind"] > 0, "strong", "weak")
    )


class Answer:
    """Runs the command, and stores its exit code and the path of its predictions."""

    def __init__(
        self, run: Run, folder: Path, train: Frame | str, new: Frame | str, target: str, *options: str
    ) -> None:
        self.folder, self.out = folder, folder / "p.csv"
        paths = [self._write(name, content) for name, content in (("a.csv", train), ("b.csv", new))]
        words = ["--train", str(paths[0]), "--new", str(paths[1]), "--target", target, "--out", str(self.out)]
        results = str(run.path.parents[1])
        self.code = main(["predict", run.name, *words, *options, "--results", results, "--device", "cpu"])

    def _write(self, name: str, content: Frame | str) -> Path:
        path = self.folder / name
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            content.to_csv(path, index=False)
        return path

    def predictions(self) -> Frame:
        assert self.code == 0
        return pd.read_csv(self.out)


Ask = Callable[..., Answer]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    return lambda run, *arguments: Answer(run, tmp_path, *arguments)


def check_one_line(error: str, *words: str) -> None:
    lines = error.splitlines()
    assert lines[-1].startswith("error: ") and sum(line.startswith("error") for line in lines) == 1, error
    assert all(word in lines[-1] for word in words), error


def test_numbers_are_predicted_with_intervals(numbers_run: Run, ask: Ask, capsys: Capture) -> None:
    train, new = table(), table(7, seed=1)
    predictions = ask(numbers_run, train, new.drop(columns="power"), "power").predictions()
    assert list(predictions.columns) == ["prediction", "low", "high"] and len(predictions) == 7
    assert (predictions["low"] < predictions["prediction"]).all()
    assert (predictions["prediction"] < predictions["high"]).all()
    X = train.drop(columns="power")
    regressor = icl.InContextRegressor(numbers_run).fit(X, train["power"])
    np.testing.assert_allclose(predictions["prediction"], regressor.predict(new[X.columns]), rtol=1e-6)
    err = capsys.readouterr().err
    assert all(name in err for name in ("wind", "height", "kind", "power", "strong", "regression"))


def test_predictions_are_in_the_order_of_the_new_table_and_columns_are_matched_by_name(
    numbers_run: Run, ask: Ask
) -> None:
    train, new = table(), table(9, seed=1)
    expected = ask(numbers_run, train, new, "power").predictions()
    shuffled = new[::-1].assign(extra="x")[["extra", "kind", "power", "height", "wind"]]
    np.testing.assert_allclose(ask(numbers_run, train, shuffled, "power").predictions()[::-1], expected, rtol=1e-5)


def test_classes_are_predicted_with_probabilities(classes_run: Run, ask: Ask, capsys: Capture) -> None:
    predictions = ask(classes_run, table(), table(9, seed=1), "kind").predictions()
    assert list(predictions.columns) == ["prediction", "p_strong", "p_weak"] and len(predictions) == 9
    np.testing.assert_allclose(predictions["p_strong"] + predictions["p_weak"], 1, atol=1e-9)
    most_likely = np.where(predictions["p_strong"] >= predictions["p_weak"], "strong", "weak")
    assert predictions["prediction"].tolist() == most_likely.tolist()
    assert "2 classes" in capsys.readouterr().err


def test_the_run_determines_whether_numeric_targets_are_classes(classes_run: Run, numbers_run: Run, ask: Ask) -> None:
    train = table().assign(stars=[1, 2, 3, 5] * 10)
    assert list(ask(classes_run, train, train, "stars").predictions().columns) == [
        "prediction",
        *("p_1", "p_2", "p_3", "p_5"),
    ]
    assert "low" in ask(numbers_run, train, train, "stars").predictions()


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet"])
def test_other_formats_are_read(numbers_run: Run, tmp_path: Path, suffix: str, capsys: Capture) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        table().to_csv(path, index=False) if suffix == ".csv.gz" else table().to_parquet(path)
    words = ["--train", str(paths[0]), "--new", str(paths[1]), "--target", "power", "--device", "cpu"]
    results = ["--results", str(numbers_run.path.parents[1])]
    assert main(["predict", "numbers", *words, *results]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "prediction,low,high" and len(out) == 41
    assert main(["predict", "numbers", *words, *results, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["predictions"]) == 40 and record["run"] == "numbers" and record["context_rows"] == 40
    assert [column["name"] for column in record["encoding"]["columns"]] == ["wind", "height", "kind"]


TABLE_CHANGES: dict[str, Callable[[Frame], Frame]] = {
    "constant columns": lambda t: t.assign(unit="kg", one=1),
    "only constant columns": lambda t: t[["power"]].assign(unit="kg"),
    "large scales": lambda t: t.assign(wind=t["wind"] * 1e9 + 1e12, power=t["power"] * 1e9),
    "duplicate rows": lambda t: pd.concat([t.iloc[:2]] * 20),
    "two rows": lambda t: t.iloc[:2],
    "500 columns": lambda t: t.join(
        Frame(np.random.default_rng(1).normal(size=(len(t), 500))).add_prefix("x").set_index(t.index)
    ),
    "dates": lambda t: t.assign(day=pd.date_range("2020-01-01", periods=len(t)).strftime("%d.%m.%Y")),
    "thousands": lambda t: t.assign(price=[f"{1000 * i:,}" for i in range(len(t))]),
    "thousands in the target": lambda t: t.assign(power=[f"{1000 * i:,}" for i in range(len(t))]),
    "index column": lambda t: t.reset_index(),
    "unnamed index column": lambda t: t.reset_index().rename(columns={"index": "Unnamed: 0"}),
    "missing column": lambda t: t.assign(empty=np.nan),
    "missing cells": lambda t: t.assign(wind=t["wind"].where(t["wind"] > -0.5)),
    "missing targets": lambda t: t.assign(power=t["power"].where(t["wind"] > -0.5)),
    "infinite cells": lambda t: t.assign(wind=t["wind"].where(t["wind"] > -0.5, np.inf)),
    "truth values": lambda t: t.assign(on=t["wind"] > 0),
    "text": lambda t: t.assign(comment=[f"comment {i}" for i in range(len(t))]),
}


@pytest.mark.parametrize("name", TABLE_CHANGES)
def test_tables_in_many_forms_are_predicted(numbers_run: Run, ask: Ask, name: str) -> None:
    change = TABLE_CHANGES[name]
    new = change(table(5, seed=1)).drop(columns="power")
    predictions = ask(numbers_run, change(table()), new, "power").predictions()
    assert len(predictions) == len(new) and np.isfinite(predictions.to_numpy(float)).all()


def test_predictions_scale_with_the_units_of_a_table(numbers_run: Run, ask: Ask) -> None:
    scaled = TABLE_CHANGES["large scales"]
    plain = ask(numbers_run, table(), table(5, seed=1), "power").predictions()
    large = ask(numbers_run, scaled(table()), scaled(table(5, seed=1)), "power").predictions()
    np.testing.assert_allclose(large / 1e9, plain, rtol=1e-3, atol=1e-3)


def test_a_table_of_10000_rows_is_subsampled(numbers_run: Run, causal_run: Run, ask: Ask, capsys: Capture) -> None:
    big = table(10_000)
    assert len(ask(numbers_run, big, table(50, seed=1), "power").predictions()) == 50
    assert "1000 of the 10000 rows" in capsys.readouterr().err
    answer = ask(causal_run, big, table(50, seed=1), "power")
    assert list(answer.predictions().columns) == ["prediction"], "a run without a spread has no intervals"
    assert "20 of the 10000 rows" in capsys.readouterr().err
    text = answer.out.read_text()
    ask(causal_run, big, table(50, seed=1), "power")
    assert answer.out.read_text() == text, "the same seed gives the same predictions"
    ask(causal_run, big, table(50, seed=1), "power", "--seed", "1")
    assert answer.out.read_text() != text


def test_columns_are_selected_if_there_are_too_many_and_orders_are_averaged(
    numbers_run: Run, causal_run: Run, ask: Ask, capsys: Capture
) -> None:
    wide = TABLE_CHANGES["500 columns"]
    ask(numbers_run, wide(table()), wide(table(5, seed=1)), "power")
    err = capsys.readouterr().err
    assert "4 of the 503 encoded columns" in err
    assert "kind: category" in err, "columns of numbers are listed last"
    assert "488 further columns: number (488)" in err and len(err.splitlines()) < 25 and "--json" in err
    few = table(15)
    by_orders = [
        ask(causal_run, few, few, "power", *options).predictions()["prediction"]
        for options in ([], ["--permutations", "1"], ["--permutations", "4"])
    ]
    assert (by_orders[0] == by_orders[2]).all() and (by_orders[0] != by_orders[1]).any()
    assert "4 orders" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [lambda t: t.iloc[:1], lambda t: t.assign(power=3.0)],
    ids=["one row", "constant target"],
)
def test_a_target_with_only_one_distinct_value_is_refused(
    numbers_run: Run, ask: Ask, capsys: Capture, change: Callable[[Frame], Frame]
) -> None:
    answer = ask(numbers_run, change(table()), table(3, seed=1), "power")
    assert answer.code == 2 and not answer.out.exists()
    assert "power" in capsys.readouterr().err


def labels(answer: Answer) -> set[str]:
    """The classes of predictions, as written in the file."""
    assert answer.code == 0
    names = pd.read_csv(answer.out, dtype=str, keep_default_na=False).columns
    return {name.removeprefix("p_") for name in names[1:]}


@pytest.mark.parametrize("classes", [["01", "02"], ["1", "2"], ["1,5", "2,5"], ["12345678901234567", "2"]])
def test_labels_are_those_of_the_file(classes_run: Run, ask: Ask, classes: list[str]) -> None:
    train = table().assign(kind=np.tile(classes, 20))
    answer = ask(classes_run, train, table(3, seed=1), "kind")
    assert labels(answer) == {*classes}
    assert {line.rsplit(",", 2)[0].strip('"') for line in answer.out.read_text().splitlines()[1:]} <= {*classes}


def test_words_for_missing_values_are_labels_if_another_label_is_text(
    classes_run: Run, ask: Ask, capsys: Capture
) -> None:
    train = table().assign(kind=["weak", "NA", "None", ""] * 10)
    assert labels(ask(classes_run, train, table(3, seed=1), "kind")) == {"weak", "NA", "None"}
    err = capsys.readouterr().err
    assert all(word in err for word in ("NA (10 rows)", "None (10 rows)", "10 of 40 rows"))


def test_words_for_missing_values_are_missing_if_labels_are_numbers_or_truth_values(
    classes_run: Run, ask: Ask, capsys: Capture
) -> None:
    for classes in (["1", "2"], ["01", "02"], ["True", "False"]):
        train = table().assign(kind=[*classes, "NA", "None"] * 10)
        assert labels(ask(classes_run, train, table(3, seed=1), "kind")) == {*classes}
        assert "20 of 40 rows" in capsys.readouterr().err


def test_a_column_of_text_is_text_in_the_new_table(numbers_run: Run, ask: Ask, capsys: Capture) -> None:
    """`true` alone would be read as a truth value, and `1.0` as a number."""
    train = table().assign(flag=np.tile(["true", "false", "unknown", "1.0"], 10))
    ask(numbers_run, train, table(2, seed=1).assign(flag=["true", "false"]), "power").predictions()
    ask(numbers_run, train, table(2, seed=1).assign(flag=["1.0", "1.0"]), "power").predictions()
    assert "count as missing" not in capsys.readouterr().err


def test_cells_that_are_missing_only_in_the_new_table_are_reported(numbers_run: Run, ask: Ask, capsys: Capture) -> None:
    new = table(4, seed=1)
    new.loc[[0, 2], "wind"] = np.nan
    ask(numbers_run, table(), new, "power").predictions()
    assert "wind: 2 of 4" in capsys.readouterr().err


def test_unseen_categories_count_as_missing_and_are_reported(numbers_run: Run, ask: Ask, capsys: Capture) -> None:
    new = table(5, seed=1).assign(kind=["weak", "strong", "gale", "gale", "weak"])
    predictions = ask(numbers_run, table(), new, "power").predictions()
    assert np.isfinite(predictions.to_numpy(float)).all()
    err = capsys.readouterr().err
    assert "gale" in err and "2 of 5" in err


def test_unused_columns_and_rows_are_reported(numbers_run: Run, ask: Ask, capsys: Capture) -> None:
    train = table().assign(unit="kg", empty=np.nan, extra=1.5)
    train.loc[:4, "power"] = np.nan
    train["extra"] = np.arange(40)
    assert ask(numbers_run, train, train.assign(more=1), "power").code == 0
    err = capsys.readouterr().err
    assert all(word in err for word in ("unit", "empty", "extra", "more", "5 of 40 rows"))


def test_semicolons_and_decimal_commas_are_read(numbers_run: Run, ask: Ask) -> None:
    text = "wind;height;power\n" + "".join(f"{i % 7},5;{i % 3},25;{i}\n" for i in range(30))
    predictions = ask(numbers_run, text, "wind;height\n1,5;2,25\n", "power").predictions()
    assert np.isfinite(predictions.to_numpy(float)).all() and len(predictions) == 1


def test_tables_without_a_header_are_matched_by_position(numbers_run: Run, ask: Ask) -> None:
    train, new = table()[["wind", "power", "height"]], table(5, seed=1)[["wind", "height"]]
    expected = ask(numbers_run, train, new, "power").predictions()
    texts = [frame.to_csv(index=False, header=False) for frame in (train, new)]
    predictions = ask(numbers_run, *texts, "2").predictions()
    np.testing.assert_allclose(predictions, expected, rtol=1e-5)


def test_a_header_of_numbers_is_known_from_the_training_table(numbers_run: Run, ask: Ask) -> None:
    names = {"wind": "2019", "height": "2020"}
    train, new = (frame.drop(columns="kind").rename(columns=names) for frame in (table(), table(7, seed=1)))
    predictions = ask(numbers_run, train, new[["2020", "2019"]], "power").predictions()
    assert len(predictions) == 7
    np.testing.assert_allclose(predictions, ask(numbers_run, train, new, "power").predictions())


def test_two_tables_are_refused_if_only_one_has_a_header(numbers_run: Run, ask: Ask, capsys: Capture) -> None:
    frame = table()[["wind", "height", "power"]]
    rows = frame.to_csv(index=False, header=False)
    assert ask(numbers_run, frame, rows, "power").code == 2
    check_one_line(capsys.readouterr().err, "b.csv", "first line")
    assert ask(numbers_run, rows, frame, "3").code == 2
    check_one_line(capsys.readouterr().err, "a.csv", "first line")


def test_a_header_of_numbers_needs_the_option_header(numbers_run: Run, ask: Ask, capsys: Capture) -> None:
    train = table()[["wind", "height", "power"]].set_axis(["0", "1", "2"], axis=1)
    assert ask(numbers_run, train, train, "2").code == 2
    check_one_line(capsys.readouterr().err, "--header", "--no-header")
    assert len(ask(numbers_run, train, train, "2", "--header").predictions()) == 40


INVALID_REQUESTS: dict[str, tuple[Frame | str, Frame | str, str, list[str], tuple[str, ...]]] = {
    "other spelling": (table(), table().rename(columns={"wind": "WIND "}), "power", [], ("'WIND' to 'wind'",)),
    "other spaces": (
        table().rename(columns={"wind": "wind speed"}),
        table().rename(columns={"wind": "Wind_speed"}),
        *("power", [], ("'Wind_speed' to 'wind speed'",)),
    ),
    "lines of other lengths": ("a;b;power\n1;2;3\n1;2\n", table(), "power", [], ("line 3", "semicolons")),
    "target of words": (table().assign(power="NA"), table(), "power", [], ("power", "missing")),
    "missing column": (table(), table().drop(columns="height"), "power", [], ("height", "b.csv")),
    "unknown target": (table(), table(), "watts", [], ("watts", "power")),
    "text target": (table(), table(), "kind", [], ("kind", "text")),
    "empty new table": (table(), table().iloc[:0], "power", [], ("b.csv", "rows")),
    "empty table": ("", table(), "power", [], ("a.csv", "empty")),
    "only a target": (table()[["power"]], table(), "power", [], ("a.csv",)),
    "no targets": (table().assign(power=np.nan), table(), "power", [], ("power",)),
    "other task": (table(), table(), "power", ["--task", "classification"], ("numbers", "regression")),
    "unknown task": (table(), table(), "power", ["--task", "ranking"], ("classification", "regression")),
    "two names": ("a,a,power\n1,2,3\n", table(), "power", [], (" a;",)),
}


@pytest.mark.parametrize("name", INVALID_REQUESTS)
def test_invalid_requests_are_refused_in_one_line(numbers_run: Run, ask: Ask, name: str, capsys: Capture) -> None:
    train, new, target, options, words = INVALID_REQUESTS[name]
    answer = ask(numbers_run, train, new, target, *options)
    assert answer.code == 2 and not answer.out.exists()
    check_one_line(capsys.readouterr().err, *words)


def test_more_classes_than_the_run_predicts_are_refused(classes_run: Run, ask: Ask, capsys: Capture) -> None:
    train = table(60).assign(kind=[f"class {i % 12}" for i in range(60)])
    assert ask(classes_run, train, train, "kind").code == 2
    check_one_line(capsys.readouterr().err, "12", "5", "kind")


def test_a_file_without_predictions_is_not_overwritten(
    numbers_run: Run, ask: Ask, tmp_path: Path, capsys: Capture
) -> None:
    assert ask(numbers_run, table(), table(), "power", "--out", str(tmp_path / "a.csv")).code == 2
    check_one_line(capsys.readouterr().err, "a.csv")
    for out in (tmp_path, tmp_path / "p.parquet"):
        assert ask(numbers_run, table(), table(), "power", "--out", str(out)).code == 2
        check_one_line(capsys.readouterr().err, str(out))
    first = ask(numbers_run, table(), table(3), "power")
    assert len(first.predictions()) == 3
    assert len(ask(numbers_run, table(), table(4), "power").predictions()) == 4


def test_by_default_the_run_in_the_package_is_used(
    numbers_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(shipped, "shipped_folder", lambda: tmp_path / "package")
    table().to_csv(tmp_path / "a.csv", index=False)
    words = ["--train", str(tmp_path / "a.csv"), "--new", str(tmp_path / "a.csv"), "--target", "power"]
    words += ["--results", str(tmp_path / "empty"), "--device", "cpu"]
    assert main(["predict", *words]) == 2
    check_one_line(capsys.readouterr().err, "reference/cells-regression", "iclbench predict RUN")
    shipped.ship(numbers_run, "cells-regression")
    assert main(["predict", *words]) == 0
    by_default = capsys.readouterr().out
    assert main(["predict", "reference/cells-regression", *words]) == 0
    assert capsys.readouterr().out == by_default and by_default.count("\n") == 41
    assert not (tmp_path / "empty").exists(), "no results folder is created"
    assert np.isfinite(
        icl.InContextRegressor().fit(table()[["wind"]], table()["power"]).predict(table()[["wind"]])
    ).all()
    assert icl.load("reference/cells-regression").run.name == "cells-regression"
