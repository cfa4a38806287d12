"""The tables: validated on the way in and out, and never taken down by a bad file."""

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iclbench import tables
from iclbench.core import digests
from iclbench.tables import TableError

ROW: dict[str, Any] = {
    "run": "zero",
    "task": "linear",
    "family": "linear",
    "contestant": "zero",
    "kind": "baseline",
    "preset": "smoke",
    "shift": "none",
    "evaluator": "next",
    "n_context": 3,
    "metric": "squared_error",
    "value": 1.0,
    "low": 0.9,
    "high": 1.1,
    "n_episodes": 64,
    "normaliser": 5.0,
    "status": "ok",
    "prompt_set": "p",
    "card": "c",
    "version": "0",
}
COST: dict[str, Any] = {
    "run": "zero",
    "task": "linear",
    "contestant": "zero",
    "preset": "smoke",
    "phase": "evaluate",
    "n_points": 20,
    "metric": "seconds",
    "value": 1.5,
    "device": "cpu",
    "threads": 1,
    "version": "0",
}


def _write(folder: Path, rows: list[dict[str, Any]], name: str = "a") -> Path:
    path = folder / f"{name}.values.parquet"
    tables.write("values", rows, path, {"task": "linear"})
    return path


def test_rows_round_trip_with_their_types(tmp_path: Path) -> None:
    path = _write(tmp_path, [ROW, ROW | {"n_context": None, "metric": "auc", "value": 1 / 3}])
    read = tables.read("values", path)
    assert {c: str(t) for c, t in read.dtypes.items()} == {c: t for c, (t, _, _) in tables.VALUES.items()}
    assert read["value"].tolist() == [1.0, 1 / 3]
    assert read["n_context"].isna().tolist() == [False, True]
    assert tables.metadata(path) == {"table": "values", "schema": "3", "task": "linear"}


def test_columns_without_a_value_are_left_out_of_small_files_and_restored(tmp_path: Path) -> None:
    """Of joined files the first has no seed, and no float holds that of the second."""
    seed = 2**62 + 1
    small = _write(tmp_path, [ROW | {"seed": None}], "a")
    _write(tmp_path, [ROW | {"run": f"run-{n}", "seed": seed, "tuned": True} for n in range(100)], "b")
    assert {"seed", "tuned", "reason"}.isdisjoint(pq.read_schema(small).names)
    assert list(tables.read("values", small)) == list(tables.VALUES)
    rows = tables.read_all("values", tmp_path)
    assert {c: str(t) for c, t in rows.dtypes.items()} == {c: t for c, (t, _, _) in tables.VALUES.items()}
    assert rows["seed"].isna().tolist() == [True, *[False] * 100] and set(rows["seed"].dropna()) == {seed}
    assert tables.read_columns("values", small, ["run", "tuned"])["tuned"].isna().all()


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = _write(tmp_path, [ROW], "one"), _write(tmp_path, [ROW], "two")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": None}, "a row with status ok has no value"),
        ({"value": float("nan")}, "a row with status ok has no value"),
        ({"status": "failed"}, "a failed or skipped row has no reason"),
        ({"status": "maybe"}, "status must be ok, failed or skipped"),
        ({"kind": "rival"}, "kind must be one of"),
        ({"task": None}, "column 'task' has missing values"),
        ({"n_context": 2.5}, "table 'values'"),
        ({"value": "much"}, "table 'values'"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=message):
        _write(tmp_path, [ROW | change])
    assert not list(tmp_path.iterdir()), "neither a file nor a temporary one is left"


def test_a_nan_computed_in_a_nullable_column_is_refused() -> None:
    frame = tables.frame("values", [ROW])
    frame["value"] = pd.arrays.FloatingArray(np.array([np.nan]), np.array([False]))
    with pytest.raises(TableError, match="a row with status ok has no value"):
        tables.validate("values", frame)


def test_unknown_and_missing_columns_are_named() -> None:
    frame = tables.frame("values", [ROW]).drop(columns="card").assign(colour="red")
    with pytest.raises(TableError, match=r"missing columns \['card'\], unknown columns \['colour'\]"):
        tables.validate("values", frame)


def test_two_rows_for_one_measurement_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"two rows for .*zero"):
        _write(tmp_path, [ROW, ROW | {"value": 2.0}])


@pytest.mark.parametrize(
    "change",
    [{"contestant": "mean"}, {"task": "other"}, {"seed": 1}, {"shift": "noisy"}, {"axis": "layer", "axis_value": 1.0}],
)
def test_rows_that_differ_in_a_coordinate_are_two_measurements(change: dict[str, Any]) -> None:
    assert len(tables.frame("values", [ROW, ROW | change])) == 2


def test_costs_of_one_baseline_on_two_tasks_or_presets_are_two_measurements() -> None:
    assert len(tables.frame("costs", [COST, COST | {"task": "other"}, COST | {"preset": "small"}])) == 3
    with pytest.raises(TableError, match="two rows"):
        tables.frame("costs", [COST, COST | {"value": 2.0}])


def test_a_file_from_before_an_optional_column_is_read_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.values.parquet"
    with monkeypatch.context() as patch:
        patch.delitem(tables.SCHEMAS["values"], "commit")
        tables.write("values", [ROW | {"run": "old"}], path, {})
    tables.write("values", [ROW | {"run": "new", "commit": "abc"}], tmp_path / "new.values.parquet", {})
    assert "commit" not in pq.read_schema(path).names
    assert tables.read("values", path)["commit"].isna().all()
    read = tables.read_all("values", tmp_path)
    assert dict(zip(read["run"], read["commit"], strict=True)) == {"new": "abc", "old": pd.NA}
    assert read.dtypes["commit"] == "string"


def test_all_readable_files_are_read_and_the_others_named_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = _write(tmp_path / "deep", [ROW])
    bad = {
        "truncated": good.read_bytes()[:-40],
        "text": b"not parquet at all",
        "empty": b"",
    }
    for name, content in bad.items():
        (tmp_path / f"{name}.values.parquet").write_bytes(content)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "foreign.values.parquet")
    tables.write("costs", [COST], tmp_path / "wrong.values.parquet", {})
    skipped: list[TableError] = []
    with caplog.at_level(logging.WARNING, logger="iclbench"):
        read = tables.read_all("values", tmp_path, skipped)
    pd.testing.assert_frame_equal(read, tables.read("values", good))
    assert len(skipped) == 5
    for name in (*bad, "foreign", "wrong"):
        path = tmp_path / f"{name}.values.parquet"
        assert str(path) in caplog.text
        assert path.exists()
        assert path.read_bytes() == bad.get(name, path.read_bytes())
    assert all("\n" not in str(error) for error in skipped)


def test_a_file_with_bad_rows_does_not_take_the_others_along(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = _write(tmp_path, [ROW])
    own = pq.read_schema(good).metadata
    bad = {"nan": [ROW | {"run": "b", "value": None}], "twice": [ROW | {"run": "c"}, ROW | {"run": "c", "value": 2.0}]}
    for name, rows in bad.items():
        arrow = pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)
        pq.write_table(arrow.replace_schema_metadata(own), tmp_path / f"{name}.values.parquet")
    with caplog.at_level(logging.WARNING, logger="iclbench"):
        assert tables.read_all("values", tmp_path)["run"].tolist() == ["zero"]
    assert "nan.values.parquet cannot be read" in caplog.text
    assert "twice.values.parquet cannot be read" in caplog.text


def test_of_a_row_in_two_files_the_first_counts(tmp_path: Path) -> None:
    _write(tmp_path, [ROW | {"value": 1.0}], "a")
    _write(tmp_path, [ROW | {"value": 2.0}], "b")
    assert tables.read_all("values", tmp_path)["value"].tolist() == [1.0]


def test_of_a_row_that_is_packed_too_the_users_own_counts(tmp_path: Path) -> None:
    for folder, value in (("a-reference", 1.0), ("tables/p", 2.0)):
        (tmp_path / folder).mkdir(parents=True)
        _write(tmp_path / folder, [ROW | {"value": value}])
    asked = [tables.read_all("values", tmp_path, packed=packed)["value"].tolist() for packed in (None, False, True)]
    assert asked == [[2.0], [2.0], [1.0]]


def test_an_empty_folder_gives_an_empty_table_of_the_right_types(tmp_path: Path) -> None:
    for name in tables.SCHEMAS:
        empty = tables.read_all(name, tmp_path)
        assert empty.empty
        assert {c: str(t) for c, t in empty.dtypes.items()} == {c: t for c, (t, _, _) in tables.SCHEMAS[name].items()}


def test_temporary_files_of_a_writer_at_work_are_not_read(tmp_path: Path) -> None:
    path = _write(tmp_path, [ROW])
    path.rename(tmp_path / ".b.values.parquet")
    assert tables.read_all("values", tmp_path).empty


def test_metadata_of_what_is_no_table_is_empty(tmp_path: Path) -> None:
    (tmp_path / "x.values.parquet").write_bytes(b"PAR1")
    assert tables.metadata(tmp_path / "x.values.parquet") == {}
    assert tables.metadata(tmp_path / "none.parquet") == {}


@pytest.mark.slow
def test_one_flipped_bit_anywhere_in_a_table_is_noticed(tmp_path: Path) -> None:
    whole = _write(tmp_path, [ROW]).read_bytes()
    digests.check(whole)
    name = whole.rfind(digests.KEY.encode())
    data, entry = range(0, name, 7), range(name + len(digests.KEY), len(whole))  # without its name nothing else is lost
    dice = random.Random(0)
    for place in (*data, *entry):
        with pytest.raises(digests.DamagedError):
            digests.check(whole[:place] + bytes([whole[place] ^ 1 << dice.randrange(8)]) + whole[place + 1 :])


def test_a_flipped_bit_of_a_number_is_one_line_with_the_fix_and_takes_no_other_file_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Uncompressed, the number of a row can be found in the file: without a digest another one would be read."""
    bad, good = (_write(tmp_path, [ROW | {"run": name, "value": 0.123}], name) for name in ("a", "b"))
    number = np.float64(0.123).tobytes()
    whole = bad.read_bytes()
    assert number in whole
    bad.write_bytes(whole.replace(number, np.float64(0.124).tobytes()))
    assert not tables.is_intact(bad)
    with pytest.raises(TableError, match=f"{bad} cannot be read .*delete it.*digest"):
        tables.read("values", bad)
    with caplog.at_level(logging.WARNING):
        assert tables.read_all("values", tmp_path)["run"].tolist() == ["b"]
    assert str(bad) in caplog.text and str(good) not in caplog.text


def test_a_table_without_a_digest_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, [ROW])
    arrow = pq.read_table(path)
    metadata = {f"iclbench.{key}": text for key, text in tables.metadata(path).items()}
    pq.write_table(arrow.replace_schema_metadata(metadata), path, compression="zstd")
    assert not tables.is_intact(path)
    with pytest.raises(TableError, match=f"{path} cannot be read .*delete it.*no digest"):
        tables.read("values", path)


@pytest.mark.parametrize("other", [tables.SCHEMA - 1, tables.SCHEMA + 1])
def test_a_table_of_another_schema_is_refused_in_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    path = tmp_path / "costs.parquet"
    monkeypatch.setattr("iclbench.tables.parquet.SCHEMA", other)
    tables.write("costs", [], path, {})
    assert tables.read("costs", path).empty
    monkeypatch.undo()
    with pytest.raises(TableError, match=rf"schema {other}\b.* {tables.SCHEMA}; delete it and run") as refused:
        tables.read("costs", path)
    assert "\n" not in str(refused.value)
    tables.write("costs", [], path, {})
    assert tables.metadata(path)["schema"] == str(tables.SCHEMA)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    """No column is read off the name of a contestant or a shift."""
    own = {"contestant": "my+repeat-net", "model": None, "shift": "points-8", "metric": "score", "reason": "x: 1 is y"}
    path = _write(tmp_path, [ROW | own])
    before, found = path.read_bytes(), tables.read("values", path)
    (row,) = found.dropna(axis=1).to_dict("records")
    assert row == {name: value for name, value in (ROW | own).items() if value is not None}
    tables.write("values", found, path, {"task": "linear"})
    assert path.read_bytes() == before
