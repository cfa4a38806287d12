"""Result tables: validation on writing and reading, and folders with damaged files."""

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
from tests.refusals import refused

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


def test_rows_are_read_with_the_written_values_and_types(tmp_path: Path) -> None:
    path = _write(tmp_path, [ROW, ROW | {"n_context": None, "metric": "auc", "value": 1 / 3}])
    rows = tables.read("values", path)
    assert {c: str(t) for c, t in rows.dtypes.items()} == {c: t for c, (t, _, _) in tables.VALUES.items()}
    assert rows["value"].tolist() == [1.0, 1 / 3]
    assert rows["n_context"].isna().tolist() == [False, True]
    assert tables.metadata(path) == {"table": "values", "schema": "3", "task": "linear"}


def test_empty_columns_are_not_stored_in_files(tmp_path: Path) -> None:
    """The first file has no seed, and the seed of the second file cannot be represented as a float."""
    seed = 2**62 + 1
    small = _write(tmp_path, [ROW | {"seed": None}], "a")
    _write(tmp_path, [ROW | {"run": f"run-{n}", "seed": seed, "tuned": True} for n in range(100)], "b")
    assert {"seed", "tuned", "reason"}.isdisjoint(pq.read_schema(small).names)
    assert list(tables.read("values", small)) == list(tables.VALUES)
    rows = tables.read_all("values", tmp_path)
    assert {c: str(t) for c, t in rows.dtypes.items()} == {c: t for c, (t, _, _) in tables.VALUES.items()}
    assert rows["seed"].isna().tolist() == [True, *[False] * 100] and set(rows["seed"].dropna()) == {seed}
    assert tables.read_columns("values", small, ["run", "tuned"])["tuned"].isna().all()


def test_equal_rows_give_identical_files(tmp_path: Path) -> None:
    one, two = _write(tmp_path, [ROW], "one"), _write(tmp_path, [ROW], "two")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"value": None}, ["status", "value"]),
        ({"value": float("nan")}, ["status", "value"]),
        ({"status": "failed"}, ["failed", "reason"]),
        ({"status": "maybe"}, ["status", "ok, failed or skipped"]),
        ({"kind": "rival"}, ["kind", "backbone"]),
        ({"task": None}, ["'task'"]),
        ({"n_context": 2.5}, ["'n_context'"]),
        ({"value": "much"}, ["'value'"]),
    ],
)
def test_invalid_rows_are_refused(tmp_path: Path, change: dict[str, Any], names: list[str]) -> None:
    with refused("bad-data", "'values'", *names, exit_code=1):
        _write(tmp_path, [ROW | change])
    assert not list(tmp_path.iterdir()), "neither a file nor a temporary file remains"


def test_an_unmasked_nan_in_a_nullable_column_is_refused() -> None:
    frame = tables.frame("values", [ROW])
    frame["value"] = pd.arrays.FloatingArray(np.array([np.nan]), np.array([False]))
    with refused("bad-data", "'values'", "status", "value", exit_code=1):
        tables.validate("values", frame)


def test_unknown_and_missing_columns_are_refused() -> None:
    frame = tables.frame("values", [ROW]).drop(columns="card").assign(colour="red")
    with refused("bad-data", "'card'", "'colour'", exit_code=1):
        tables.validate("values", frame)


def test_two_rows_for_the_same_measurement_are_refused(tmp_path: Path) -> None:
    with refused("duplicate", "'values'", "'zero'", exit_code=1):
        _write(tmp_path, [ROW, ROW | {"value": 2.0}])


@pytest.mark.parametrize(
    "change",
    [{"contestant": "mean"}, {"task": "other"}, {"seed": 1}, {"shift": "noisy"}, {"axis": "layer", "axis_value": 1.0}],
)
def test_rows_with_different_keys_are_different_measurements(change: dict[str, Any]) -> None:
    assert len(tables.frame("values", [ROW, ROW | change])) == 2


def test_costs_on_different_tasks_or_presets_are_different_measurements() -> None:
    assert len(tables.frame("costs", [COST, COST | {"task": "other"}, COST | {"preset": "small"}])) == 3
    with refused("duplicate", "'costs'", exit_code=1):
        tables.frame("costs", [COST, COST | {"value": 2.0}])


def test_a_file_written_before_an_optional_column_was_added_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.values.parquet"
    with monkeypatch.context() as patch:
        patch.delitem(tables.SCHEMAS["values"], "commit")
        tables.write("values", [ROW | {"run": "old"}], path, {})
    tables.write("values", [ROW | {"run": "new", "commit": "abc"}], tmp_path / "new.values.parquet", {})
    assert "commit" not in pq.read_schema(path).names
    assert tables.read("values", path)["commit"].isna().all()
    rows = tables.read_all("values", tmp_path)
    assert dict(zip(rows["run"], rows["commit"], strict=True)) == {"new": "abc", "old": pd.NA}
    assert rows.dtypes["commit"] == "string"


def test_unreadable_files_are_skipped_with_a_warning_and_not_changed(
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
    (tmp_path / "folder.values.parquet").mkdir()
    skipped: list[TableError] = []
    with caplog.at_level(logging.WARNING, logger="iclbench"):
        rows = tables.read_all("values", tmp_path, skipped)
    pd.testing.assert_frame_equal(rows, tables.read("values", good))
    assert len(skipped) == 6
    for name in (*bad, "foreign", "wrong", "folder"):
        path = tmp_path / f"{name}.values.parquet"
        assert str(path) in caplog.text
        assert path.exists()
    for name, content in bad.items():
        assert (tmp_path / f"{name}.values.parquet").read_bytes() == content
    assert all("\n" not in str(error) and error.code == "unreadable-file" for error in skipped)


def test_files_with_invalid_rows_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = _write(tmp_path, [ROW])
    metadata = pq.read_schema(good).metadata
    bad = {
        "nan": [ROW | {"run": "b", "value": None}],
        "duplicate": [ROW | {"run": "c"}, ROW | {"run": "c", "value": 2.0}],
    }
    for name, rows in bad.items():
        arrow = pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)
        pq.write_table(arrow.replace_schema_metadata(metadata), tmp_path / f"{name}.values.parquet")
    with caplog.at_level(logging.WARNING, logger="iclbench"):
        assert tables.read_all("values", tmp_path)["run"].tolist() == ["zero"]
    assert "nan.values.parquet" in caplog.text
    assert "duplicate.values.parquet" in caplog.text


def test_if_two_files_have_rows_with_equal_keys_the_first_row_is_used(tmp_path: Path) -> None:
    _write(tmp_path, [ROW | {"value": 1.0}], "a")
    _write(tmp_path, [ROW | {"value": 2.0}], "b")
    assert tables.read_all("values", tmp_path)["value"].tolist() == [1.0]


def test_unpacked_rows_replace_packed_rows(tmp_path: Path) -> None:
    for folder, value in (("a-reference", 1.0), ("tables/p", 2.0)):
        (tmp_path / folder).mkdir(parents=True)
        _write(tmp_path / folder, [ROW | {"value": value}])
    values = [tables.read_all("values", tmp_path, packed=packed)["value"].tolist() for packed in (None, False, True)]
    assert values == [[2.0], [2.0], [1.0]]


def test_long_names_in_packed_files_are_cut_and_escaped(tmp_path: Path) -> None:
    name, reason = f"<b>\x1b[31m{100 * 'x'}", 100 * "y"
    for folder in ("a-reference", "tables/p"):
        (tmp_path / folder).mkdir(parents=True)
        _write(tmp_path / folder, [ROW | {"run": name, "reason": reason}, ROW])
    packed = tables.read_all("values", tmp_path, packed=True)
    cut, short = packed["run"].sort_values()
    assert short == ROW["run"] and len(cut) <= 64 and cut.startswith("<b>\\x1b[31mx")
    assert reason in packed["reason"].tolist(), "texts for readers are longer than names"
    assert name in tables.read_all("values", tmp_path, packed=False)["run"].tolist()


def test_an_empty_folder_gives_an_empty_table_with_the_correct_types(tmp_path: Path) -> None:
    for name in tables.SCHEMAS:
        empty = tables.read_all(name, tmp_path)
        assert empty.empty
        assert {c: str(t) for c, t in empty.dtypes.items()} == {c: t for c, (t, _, _) in tables.SCHEMAS[name].items()}


def test_temporary_files_are_not_read(tmp_path: Path) -> None:
    path = _write(tmp_path, [ROW])
    path.rename(tmp_path / ".b.values.parquet")
    assert tables.read_all("values", tmp_path).empty


def test_the_metadata_of_a_missing_or_invalid_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "x.values.parquet").write_bytes(b"PAR1")
    assert tables.metadata(tmp_path / "x.values.parquet") == {}
    assert tables.metadata(tmp_path / "none.parquet") == {}


@pytest.mark.slow
def test_every_flipped_bit_of_a_table_is_detected(tmp_path: Path) -> None:
    content = _write(tmp_path, [ROW]).read_bytes()
    digests.check(content)
    key = content.rfind(digests.KEY.encode())
    # Skip the key of the digest, because a file without this key has no digest.
    positions = (*range(0, key, 7), *range(key + len(digests.KEY), len(content)))
    random_bits = random.Random(0)
    for i in positions:
        with pytest.raises(digests.DamagedError):
            digests.check(content[:i] + bytes([content[i] ^ 1 << random_bits.randrange(8)]) + content[i + 1 :])


def test_a_file_with_a_changed_number_is_refused_but_other_files_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Small files are not compressed, so without a digest the changed number would be read."""
    bad, good = (_write(tmp_path, [ROW | {"run": name, "value": 0.123}], name) for name in ("a", "b"))
    number = np.float64(0.123).tobytes()
    content = bad.read_bytes()
    assert number in content
    bad.write_bytes(content.replace(number, np.float64(0.124).tobytes()))
    assert not tables.is_intact(bad)
    with refused("unreadable-file", bad, exit_code=1):
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
    with refused("unreadable-file", path, "digest", exit_code=1):
        tables.read("values", path)


@pytest.mark.parametrize("schema", [tables.SCHEMA_VERSION - 1, tables.SCHEMA_VERSION + 1])
def test_a_table_with_a_different_schema_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: int
) -> None:
    path = tmp_path / "costs.parquet"
    monkeypatch.setattr("iclbench.tables.parquet.SCHEMA_VERSION", schema)
    tables.write("costs", [], path, {})
    assert tables.read("costs", path).empty
    monkeypatch.undo()
    with refused("not-supported", path, f"schema {schema}", f"schema {tables.SCHEMA_VERSION}", exit_code=1):
        tables.read("costs", path)
    tables.write("costs", [], path, {})
    assert tables.metadata(path)["schema"] == str(tables.SCHEMA_VERSION)


def test_a_table_is_read_exactly_as_written(tmp_path: Path) -> None:
    """Columns are not inferred from the name of a contestant or a shift."""
    values = {"contestant": "my+repeat-net", "model": None, "shift": "points-8", "metric": "score"}
    expected = ROW | values | {"reason": "x: 1 is y"}
    path = _write(tmp_path, [expected])
    content, rows = path.read_bytes(), tables.read("values", path)
    (row,) = rows.dropna(axis=1).to_dict("records")
    assert row == {name: value for name, value in expected.items() if value is not None}
    tables.write("values", rows, path, {"task": "linear"})
    assert path.read_bytes() == content


def test_equal_strings_in_a_table_share_one_python_object() -> None:
    strings = pd.DataFrame({"name": pd.array(["a", None, "b", "a"], dtype="string"), "n": [1, 2, 3, 4]})
    converted = tables.with_python_strings(strings)
    assert converted["name"].dtype == pd.StringDtype("python")
    assert converted["name"].isna().tolist() == [False, True, False, False]
    assert converted["name"].dropna().tolist() == ["a", "b", "a"] and converted["n"].tolist() == [1, 2, 3, 4]
    assert converted["name"].array[0] is converted["name"].array[3]
    assert strings["name"].dtype.storage == "pyarrow", "the original frame does not change"
