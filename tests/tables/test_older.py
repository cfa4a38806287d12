"""What older tables say in names and sentences stands in columns once they are read, and new tables keep their own."""

import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from iclbench import tables
from iclbench.config.resolution import resolve_task
from iclbench.evaluation import cells
from iclbench.evaluation.contestants import baselines
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scores import Line
from iclbench.tables import older
from tests.report import synthetic_language
from tests.tables.test_tables import ROW

ROOT = Path(__file__).parents[2]
NEW = [
    "model",
    "method",
    "distribution",
    "extrapolated_to",
    "related_from",
    "stratum",
    "score_of",
    "score_one",
    "demo_seed",
    "demo_order",
    "mean_of",
]


def without(values: pd.DataFrame) -> pd.DataFrame:
    """The rows as a version before schema 3 knew them, read again."""
    return tables.validate("values", values.drop(columns=NEW))


@pytest.fixture(scope="module")
def packed() -> pd.DataFrame:
    """Rows of version 0.1.0."""
    return tables.read_all("values", ROOT / "tests" / "fixtures" / "packed")


@pytest.fixture(scope="module")
def language() -> pd.DataFrame:
    return tables.frame("values", synthetic_language.rows_of(synthetic_language.ORDERED))


def test_results_of_0_1_0_are_read_with_the_columns_of_today(tmp_path: Path) -> None:
    with tarfile.open(ROOT / "tests" / "fixtures" / "v0_1_0" / "results.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    values = tables.read_all("values", tmp_path)
    assert tables.metadata(next(tables.files("values", tmp_path))).get("schema") is None
    assert values["model"].notna().all()
    of_length = values["distribution"].where(values["extrapolated_to"].isna())
    assert of_length.dropna().eq(values.loc[of_length.notna(), "shift"]).all() and set(
        values["extrapolated_to"].dropna()
    )
    scores = values[values["metric"].eq("score")]
    assert len(scores) and (scores["score_of"] + ": 1 is " + scores["score_one"]).eq(scores["reason"]).all()


def test_packed_results_are_read_with_the_columns_of_today(packed: pd.DataFrame) -> None:
    assert packed["model"].notna().all() and packed["distribution"].notna().all()
    scores = packed[packed["metric"].eq("score")]
    assert scores["score_one"].notna().all() and packed.loc[packed["metric"].ne("score"), "score_one"].isna().all()
    longer = packed["shift"].str.startswith("points-")
    assert longer.any() and packed["extrapolated_to"].notna().equals(longer.astype(bool))
    assert ("points-" + packed.loc[longer, "extrapolated_to"].astype("string")).eq(packed.loc[longer, "shift"]).all()
    backbones = set(packed.loc[packed["kind"].eq("backbone"), "contestant"])
    assert packed["context_order"].isna().all(), "a column that they have is left as it is"
    orders = older.context_orders(packed)
    assert orders.keys() == backbones and orders["s4"] == "causal" and orders["tnp"] == "set"


def test_demonstrations_and_methods_of_older_language_models_are_told_from_names(language: pd.DataFrame) -> None:
    cells = language[language["prompt_set"].notna()]
    assert cells["demo_seed"].isin(synthetic_language.SEEDS).all() and cells["demo_order"].gt(0).any()
    of_axis = cells[cells["axis"].eq("demo_seed").fillna(False)]
    assert of_axis["demo_seed"].eq(of_axis["axis_value"].astype(int)).all()
    ours = language[language["kind"].eq("backbone")]
    assert set(ours["model"]) == set(synthetic_language.MODELS) and synthetic_language.THOUGHT in set(ours["method"])
    assert set(language["mean_of"].dropna()) == {"sst2, sst5, trec"}


def test_columns_that_a_row_has_are_kept() -> None:
    """A plug-in may call things as it likes: what it says in columns is not read off names again."""
    own: dict[str, Any] = {"contestant": "a+b", "model": "a", "method": "+b", "kind": "backbone", "shift": "points-8"}
    own |= {"distribution": "mine", "extrapolated_to": None, "metric": "score", "reason": "x: 1 is y"}
    (row,) = tables.frame("values", [ROW | own]).dropna(axis=1).to_dict("records")
    assert row == ROW | {name: value for name, value in own.items() if value is not None}


def test_a_new_table_comes_back_as_it_was_written(language: pd.DataFrame, tmp_path: Path) -> None:
    tables.write("values", language, tmp_path / "a.values.parquet", {})
    before = (tmp_path / "a.values.parquet").read_bytes()
    found = tables.read("values", tmp_path / "a.values.parquet")
    pd.testing.assert_frame_equal(found, language)
    tables.write("values", found, tmp_path / "a.values.parquet", {})
    assert (tmp_path / "a.values.parquet").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "shift"),
    [
        ("linear", "none"),
        ("linear", "orthants"),
        ("linear", "points-12"),
        ("linear", "orthants+points-12"),
        ("gp-mixture", "mismatch-far+points-12"),
    ],
)
def test_what_an_evaluation_says_in_columns_is_what_names_say(name: str, shift: str) -> None:
    task = resolve_task(name, "smoke")[0]
    prompts = PromptSet(task, "smoke", task.build().parse_shift(shift).name)
    rows = [
        cells.row(who, prompts, "next") | {"metric": "auc", "value": value}
        for value, who in enumerate(baselines(prompts, ["zero", "knn-3", "ridge-1"]))
    ]
    found = tables.frame("values", rows)
    found = pd.concat([found, Line("squared_error", 2.0, 0.0, "knn-3 (the oracle lost failed)").of(found)])
    pd.testing.assert_frame_equal(without(found), tables.validate("values", found))
    assert found["extrapolated_to"].isna().all() == ("points" not in shift)
    assert set(found["related_from"].dropna()) == ({"far"} if "mismatch" in shift else set())


def test_what_errors_of_older_tables_say_behind_their_metric_stands_in_a_column() -> None:
    row = {"run": "zero", "prompt_set": "p", "episode": 0, "value": 1.0}
    rows = pd.DataFrame([row | {"metric": name} for name in ("squared_error", "squared_error/coarse")])
    found = tables.validate("errors", rows)
    assert found["metric"].eq("squared_error").all() and found["coarse"].tolist() == [pd.NA, True]
    pd.testing.assert_frame_equal(tables.validate("errors", found), found)
    named = tables.frame("errors", [row | {"metric": "mine/coarse"}])
    assert named["metric"].tolist() == ["mine/coarse"] and named["coarse"].isna().all(), "new tables say it in a column"


def test_packed_errors_are_read_with_the_columns_of_today() -> None:
    errors = tables.read_all("errors", ROOT / "tests" / "fixtures" / "packed")
    assert errors["coarse"].any() and not errors["metric"].str.contains("/").any()


def test_strata_and_processes_of_related_datasets_are_told_from_names() -> None:
    shifts = [{"axis": "stratum:rbf"}, {"axis": "n_context", "axis_value": 4.0, "shift": "mismatch-near+points-8"}]
    of_part, of_bin = tables.frame("values", [ROW | more for more in shifts]).to_dict("records")
    assert of_part["stratum"] == "rbf" and pd.isna(of_part["related_from"])
    assert pd.isna(of_bin["stratum"]) and of_bin["related_from"] == "near"


@pytest.mark.parametrize(
    ("kind", "name", "shift"),
    [
        ("backbone", "my+repeat-net", "none"),
        ("baseline", "tree-2nd-order-boost", "none"),
        ("backbone", "plain", "mismatch-foo-2"),
    ],
)
def test_what_a_row_of_today_says_is_not_read_off_its_names(kind: str, name: str, shift: str) -> None:
    own = {"run": name, "contestant": name, "kind": kind, "shift": shift, "model": name}
    row = tables.frame("values", [ROW | own]).iloc[0]
    assert row["model"] == name and pd.isna(row["method"]) and pd.isna(row["related_from"])


def test_rows_of_before_and_of_today_stand_together_each_with_its_own() -> None:
    rows = [
        ROW | {"run": "a", "contestant": "gpt2+repeat-2", "kind": "backbone"},
        ROW | {"run": "b", "contestant": "my+repeat-net", "kind": "backbone", "model": "my+repeat-net"},
    ]
    found = tables.frame("values", rows)
    assert found["run"].tolist() == ["a", "b"] and found["model"].tolist() == ["gpt2", "my+repeat-net"]


def test_baselines_of_today_say_their_model_themselves() -> None:
    task, _ = resolve_task("linear", "smoke")
    names = ["lasso-1e-2", "knn-3", "decision-tree-2", "mlp-50", "ridge", "gd-plus-plus"]
    asked = {each.name: each.model_name for each in baselines(PromptSet(task, "smoke"), names)}
    assert list(asked.values()) == ["lasso", "knn", "decision-tree", "mlp", "ridge", "gd-plus-plus"]
