"""Encoding users' tables as numbers."""

import json
from datetime import date

import numpy as np
import pandas as pd
import pytest

from iclbench.core.errors import DataError, UsageError
from iclbench.families.tabular.encoder import TableEncoder, encode_target, target_remarks, target_step

ROWS = 20
Frame = pd.DataFrame


def encode_column(values: object, new: object = None) -> tuple[np.ndarray, TableEncoder]:
    """Fit an encoder on a column, and encode the values in `new` (default: the column)."""
    encoder = TableEncoder().fit(Frame({"x": values}))
    return encoder.transform(Frame({"x": values if new is None else new})), encoder


def test_numbers_of_any_scale_are_not_changed() -> None:
    values = np.random.default_rng(0).normal(size=(ROWS, 3)) * [1e9, 1e-9, 1e300]
    encoder = TableEncoder().fit(Frame(values))
    np.testing.assert_array_equal(encoder.transform(Frame(values)), values)
    assert (encoder.names, encoder.source) == (("0", "1", "2"), (0, 1, 2))
    assert len(encoder.steps) == 3 and not encoder.remarks


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float32", "Int64", "Float64", "double[pyarrow]", object])
def test_all_types_of_numbers_are_read(dtype: str) -> None:
    values = pd.Series([3, 1, 4, 1, 5]).astype(dtype)
    assert encode_column(values)[0][:, 0].tolist() == [3, 1, 4, 1, 5]


@pytest.mark.parametrize("dtype", ["bool", "boolean", object])
def test_booleans_are_encoded_as_0_and_1(dtype: str) -> None:
    values, encoder = encode_column(pd.Series([True, False, True]).astype(dtype))
    assert values[:, 0].tolist() == [1, 0, 1]
    assert encoder.transform(Frame({"x": ["False", "TRUE"]}))[:, 0].tolist() == [0, 1]


def test_categories_are_encoded_as_their_index_in_sorted_order() -> None:
    assert encode_column(["b", "a", "c", "b", "a", "c"])[0][:, 0].tolist() == [1, 0, 2, 1, 0, 2]
    assert encode_column(pd.Series([10, 9, 9, 10]).astype("category"))[0][:, 0].tolist() == [1, 0, 0, 1]
    sizes = pd.Categorical(["small", "large"] * 3, categories=["small", "medium", "large"], ordered=True)
    assert encode_column(sizes)[0][:2, 0].tolist() == [0, 1], (
        "in the order of the categorical type, not of the alphabet"
    )


def test_an_unseen_category_is_encoded_as_a_missing_cell() -> None:
    cells = ["a", "b", "b", "b", None, "a"]
    values, encoder = encode_column(cells, ["a", "new", None])
    mean = 3 / 5
    np.testing.assert_allclose(values, [[0, 0], [mean, 1], [mean, 1]])
    (remark,) = encoder.unread(Frame({"x": ["a", "new", None]}))
    assert "new" in remark and "1 of 3" in remark


def test_missing_cells_get_the_mean_of_the_fitted_rows_and_an_indicator() -> None:
    values, encoder = encode_column([1.0, np.nan, 3.0, np.inf], [np.nan, 7.0, -np.inf])
    np.testing.assert_array_equal(values, [[2, 1], [7, 0], [2, 1]])
    assert encoder.names == ("x", "x is missing") and encoder.source == (0, 0)
    values, encoder = encode_column([1.0, 2.0, 3.0], [np.nan, 5.0])
    np.testing.assert_array_equal(values, [[2], [5]])


def test_a_constant_column_with_missing_cells_is_encoded_as_an_indicator_only() -> None:
    values, encoder = encode_column([4.0, np.nan, 4.0])
    assert values.tolist() == [[0], [1], [0]] and encoder.names == ("x is missing",)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1,234.5", "12", "1,000,000", "-3.25"], [1234.5, 12, 1_000_000, -3.25]),
        (["1.234,5", "12", "0,25", "1.000.000,0"], [1234.5, 12, 0.25, 1_000_000]),
        (["$1,200", "$ 7.50", "USD 3", "$0"], [1200, 7.5, 3, 0]),
        (["12 %", "7.5%", "0%", "100 %"], [12, 7.5, 0, 100]),
        (["1'000", "2'500.5", "3", "4"], [1000, 2500.5, 3, 4]),
        (["1 000", "2\u00a0500", "3\u202f000", "4"], [1000, 2500, 3000, 4]),
        (["0,123", "1,500", "2,750", "1,0"], [0.123, 1.5, 2.75, 1]),
    ],
)
def test_formatted_numbers_are_read_as_numbers(cells: list[str], expected: list[float]) -> None:
    values, encoder = encode_column(cells)
    np.testing.assert_allclose(values[:, 0], expected)
    assert "number" in encoder.steps[0]


def test_occasional_words_in_a_numeric_column_are_encoded_as_missing_cells() -> None:
    cells = [f"{i * 37:,}" for i in range(40)] + ["unknown"]
    values, encoder = encode_column(cells)
    assert values[-1].tolist() == [pytest.approx(np.mean(np.arange(40) * 37)), 1]
    assert "unknown" in encoder.unread(Frame({"x": cells}))[0]
    ratings = [str(i % 5 + 1) for i in range(39)] + ["unknown"]
    values, encoder = encode_column(ratings, ["2.5"])
    assert values.tolist() == [[2.5, 0]], "19 of 20 cells are numbers, though not as many of the different values"
    values, encoder = encode_column(ratings + ["unknown"] * 3)
    assert "category" in encoder.steps[0]


@pytest.mark.parametrize(
    "cells",
    [
        ["2020-01-03", "2020-01-01", "2020-02-01"],
        ["2020-01-03 00:00:00", "2020-01-01 00:00:00", "2020-02-01 00:00:00"],
        ["2020-01-03T00:00:00Z", "2020-01-01T00:00:00Z", "2020-02-01T00:00:00Z"],
        ["03.01.2020", "01.01.2020", "01.02.2020"],
        ["1/3/2020", "1/1/2020", "2/1/2020"],
        ["3 Jan 2020", "1 Jan 2020", "1 Feb 2020"],
        ["Jan 3, 2020", "Jan 1, 2020", "Feb 1, 2020"],
        [date(2020, 1, 3), date(2020, 1, 1), date(2020, 2, 1)],
        pd.to_datetime(["2020-01-03", "2020-01-01", "2020-02-01"]),
        pd.to_datetime(["2020-01-03", "2020-01-01", "2020-02-01"]).tz_localize("UTC"),
    ],
)
def test_dates_are_encoded_as_days_since_the_first_date(cells: list[object]) -> None:
    values, encoder = encode_column(cells)
    assert values[:, 0].tolist() == [2, 0, 31]
    assert "2020-01-01" in encoder.steps[0]
    assert np.isfinite(encoder.transform(Frame({"x": ["never", "yesterday"]}))).all()


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["03/04/2024", "05/06/2024", "05/06/2024"], ("'03/04/2024'", "2024-03-04", "YYYY-MM-DD")),
        (["03-04-24 10:00", "05-05-24 10:00"], ()),
        (["05-05-2024", "03-04-2024"], ("'03-04-2024'", "2024-04-03")),
        (["1/2/24 10:00", "5/6/24 11:30", None], ("'1/2/24 10:00'", "2024-01-02")),
        (["03/04/2024", "05/13/2024", "05/06/2024"], ()),
        (["03/03/2024", "05/05/2024", "05/05/2024"], ()),
        (["03.04.2024", "05.06.2024", "05.06.2024"], ()),
        (["2024-03-04", "2024-05-06", "2024-05-06"], ()),
    ],
)
def test_an_assumed_order_of_day_and_month_is_reported(cells: list[str | None], words: tuple[str, ...]) -> None:
    remarks = TableEncoder().fit(Frame({"day": cells, "x": np.arange(float(len(cells)))})).remarks
    assert len([remark for remark in remarks if remark.startswith("day: ")]) == bool(words)
    assert all(word in remarks[0] for word in words)


def test_many_columns_are_summarised_in_few_lines() -> None:
    frame = Frame(np.random.default_rng(0).normal(size=(ROWS, 40))).add_prefix("x")
    encoder = TableEncoder().fit(frame.assign(c=["a", "b"] * 10, d=[True, False] * 10))
    assert len(encoder.steps) == 42 and len(encoder.summary) == 16
    assert encoder.summary[0].startswith("c: ") and encoder.summary[-1] == "27 further columns: number (27)"
    assert TableEncoder().fit(frame.iloc[:, :15]).summary == TableEncoder().fit(frame.iloc[:, :15]).steps
    words = Frame({f"c{i}": ["a", "b"] * 10 for i in range(40)})
    assert len(TableEncoder().fit(words).unread(words.replace("a", "z"))) == 16


def test_columns_without_information_are_not_used() -> None:
    frame = Frame(
        {
            "id": np.random.default_rng(0).permutation(ROWS) + 500,
            "number": np.arange(ROWS) + 1,
            "unit": "kg",
            "empty": np.nan,
            "none": None,
            "comment": [f"text {i}" for i in range(ROWS)],
            "x": np.random.default_rng(1).normal(size=ROWS),
        }
    )
    encoder = TableEncoder().fit(frame)
    assert encoder.names == ("x",) and encoder.source == (6,)
    text = " ".join(encoder.remarks)
    assert all(name in text for name in ("id", "number", "unit", "empty", "none", "comment"))
    constant = TableEncoder().fit(frame[["unit", "empty"]])
    assert constant.names == () and constant.transform(frame).shape == (ROWS, 0) and len(constant.remarks) == 3
    with pytest.raises(DataError):
        TableEncoder().fit(frame.iloc[:0])


def test_a_column_like_a_row_index_is_used_if_it_is_the_only_column() -> None:
    values, encoder = encode_column(np.arange(ROWS), [100])
    assert values.tolist() == [[100]] and not encoder.remarks


def test_a_column_named_id_with_repeated_values_is_used() -> None:
    assert encode_column([1, 2, 1, 2])[1].names == ("x",)
    encoder = TableEncoder().fit(Frame({"id": [1, 2, 1, 2], "x": [1.5, 2.0, 3.0, 1.0]}))
    assert encoder.names == ("id", "x")


def test_columns_of_new_tables_are_matched_by_name() -> None:
    frame = Frame({"a": [1.0, 2.0, 4.0], "b": [5.0, 6.0, 8.0]})
    encoder = TableEncoder().fit(frame)
    new = Frame({"extra": ["?"], "b": [7.0], "a": [3.0]})
    assert encoder.transform(new).tolist() == [[3, 7]]
    with pytest.raises(UsageError) as error:
        encoder.transform(new.drop(columns="b"))
    assert " b;" in str(error.value)


def test_a_table_with_one_row_is_encoded_without_columns() -> None:
    encoder = TableEncoder().fit(Frame({"a": [1.0], "b": ["x"]}))
    assert encoder.transform(Frame({"a": [2.0, 3.0], "b": ["x", "y"]})).shape == (2, 0)


def test_an_encoder_can_be_restored_from_json() -> None:
    frame = Frame(
        {
            "number": [1.0, np.nan, 3.0] * 4,
            "text": ["1,5", "2,5", "3,0"] * 4,
            "flag": [True, False, True] * 4,
            "day": ["2020-01-03", "2020-01-01", "2020-02-01"] * 4,
            "colour": ["red", None, "blue"] * 4,
            "unit": "kg",
        }
    )
    encoder = TableEncoder().fit(frame)
    restored = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    np.testing.assert_array_equal(restored.transform(frame), encoder.transform(frame))
    assert (restored.names, restored.steps, restored.remarks) == (encoder.names, encoder.steps, encoder.remarks)


def test_refit_keeps_the_columns_and_uses_statistics_of_the_given_rows() -> None:
    frame = Frame({"x": [1.0, np.nan, 3.0, 5.0], "c": ["a", "b", "a", "b"], "d": ["2020-01-01", "2020-01-02"] * 2})
    rows = frame.iloc[2:]
    encoder = TableEncoder().fit(frame).refit(rows)
    assert encoder.columns == ("x", "c", "d")
    np.testing.assert_array_equal(encoder.transform(rows), [[3, 0, 0], [5, 1, 1]])
    np.testing.assert_array_equal(encoder.transform(frame.iloc[:2]), [[1, 0, 0], [4, 1, 1]])
    constant = TableEncoder().fit(Frame({"x": [1.0, np.nan, 1.0]}))
    np.testing.assert_array_equal(constant.refit(Frame({"x": [1.0, 1.0]})).transform(Frame({"x": [np.nan]})), [[1]])


@pytest.mark.parametrize(
    ("cells", "kind", "classes"),
    [
        (["no", "yes", "no"], "class", ("no", "yes")),
        ([True, False, True], "class", ("False", "True")),
        ([0, 1, 1] * 5, "class", ("0", "1")),
        ([0.0, 1.0, 1.0] * 5, "class", ("0", "1")),
        ([10, 9, 10] * 5, "class", ("9", "10")),
        ([1, 2, 3], "number", ()),
        (list(range(11)) * 9, "number", ()),
        ([0.5, 1.0, 1.5] * 9, "number", ()),
        (["1,000", "2,500", "3,000"], "number", ()),
    ],
)
def test_the_kind_of_a_target_is_inferred_from_its_values(
    cells: list[object], kind: str, classes: tuple[str, ...]
) -> None:
    target = encode_target(pd.Series(cells, name="y"))
    assert (target.kind, target.classes) == (kind, classes)
    assert "y" in target_step("y", target) and all(name in target_step("y", target) for name in classes)
    if classes:
        labels = [str(int(cell)) if isinstance(cell, float) else str(cell) for cell in cells]
        assert [classes[index] for index in target.values] == labels


def test_the_kind_of_a_target_can_be_set() -> None:
    assert encode_target(pd.Series([0, 1, 1] * 5), "number").values.tolist() == [0, 1, 1] * 5
    assert encode_target(pd.Series([1.5, 2.5, 1.5]), "class").classes == ("1.5", "2.5")
    with pytest.raises(DataError):
        encode_target(pd.Series(["a", "b"], name="y"), "number")


def test_missing_targets_are_marked() -> None:
    assert encode_target(pd.Series([1.5, None, 2.5])).known.tolist() == [True, False, True]
    assert encode_target(pd.Series(["a", None, "b"])).known.tolist() == [True, False, True]
    with pytest.raises(DataError):
        encode_target(pd.Series([None, None]))


@pytest.mark.parametrize(
    ("cells", "classes", "missing"),
    [
        (["NA", "EU", "n/a", "EU"], ("EU", "NA", "n/a"), 0),
        (["NA", "None", None], ("NA", "None"), 1),
        (["01", "02", "NA"] * 3, ("01", "02"), 3),
        (["1", "01", "None"] * 3, ("01", "1"), 3),
        (["1,5", "2,5", "NA"], ("1,5", "2,5"), 1),
        (pd.Categorical(["None", "x", "NA"]), ("NA", "None", "x"), 0),
    ],
)
def test_words_for_missing_values_in_a_text_target_are_classes(
    cells: list[object], classes: tuple[str, ...], missing: int
) -> None:
    target = encode_target(pd.Series(cells), "class")
    assert target.classes == classes and (~target.known).sum() == missing
    remarks = " ".join(target_remarks(target))
    words = [name for name in classes if name in ("NA", "None", "n/a")]
    assert all(f"{name} (1 row)" in remarks for name in words)
    assert (f"{missing} of {len(cells)} rows" in remarks) == (missing > 0)


def test_words_for_missing_values_in_a_numeric_target_are_missing() -> None:
    target = encode_target(pd.Series(["1,500", "NA", "2,500"]), "number")
    np.testing.assert_array_equal(target.values, [1500, np.nan, 2500])
