"""Random splits of real tables: standardisation by the context, all types of columns, and folders of tables."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from iclbench.core.episodes import Episodes
from iclbench.families.request import Request
from iclbench.families.tabular.openml_suites import CC18, TABARENA
from iclbench.families.tabular.real_tables import LIMIT, RealTables, standardise_by_context, table_hashes
from iclbench.families.tabular.table_set import LabelledTable, bundled_tables, read_labelled_table
from iclbench.sweep.grids import load_grid
from tests.refusals import refused


def numeric_table(rows: int = 60, name: str = "numeric", seed: int = 0, **columns: object) -> LabelledTable:
    """Build a table with three numeric columns, the given `columns`, and a target that depends on the first column."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)) * [1, 10, 100] + 5
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], **columns})
    return LabelledTable.of(name, frame, pd.Series(1000 + 30 * x[:, 0] + rng.normal(size=rows), name="y"), "number")


def class_table(rows: int = 60, classes: int = 3, name: str = "labelled") -> LabelledTable:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, 4)), columns=list("abcd"))
    return LabelledTable.of(name, frame, pd.Series([f"class {i % classes}" for i in range(rows)], name="y"), "class")


def family(*tables: LabelledTable, **parameters: object) -> RealTables:
    kind = tables[0].kind if tables else parameters.pop("kind", "number")
    return RealTables(RealTables.Parameters(**{"dim": 5, "kind": kind, **parameters}), tables=tables or None)


def request(episodes: int = 20, points: int = 20, seed: int = 0, **options: object) -> Request:
    return Request(episodes, points, torch.Generator().manual_seed(seed), **options)  # type: ignore[arg-type]


def inputs(episodes: Episodes) -> np.ndarray:
    assert episodes.targets is not None
    return torch.cat([episodes.context.x, episodes.targets.x], 1).numpy()


def outputs(episodes: Episodes) -> np.ndarray:
    assert episodes.targets is not None
    return torch.cat([episodes.context.y, episodes.targets.y], 1).numpy()


def test_rows_are_distinct_and_standardised_by_the_context() -> None:
    source = numeric_table()
    episodes = family(source).sample(request())
    rows = episodes.truth["rows"].numpy()
    assert rows.shape == (20, 60) and all(len(set(episode)) == 60 for episode in rows)
    raw, y = source.frame.to_numpy()[rows], np.asarray(source.y)[rows]
    mean, std = raw[:, :20].mean(1, keepdims=True), raw[:, :20].std(1, keepdims=True)
    np.testing.assert_allclose(inputs(episodes)[..., :3], (raw - mean) / std, rtol=1e-4, atol=1e-5)
    assert not inputs(episodes)[..., 3:].any(), "unused inputs are 0"
    expected = (y - y[:, :20].mean(1, keepdims=True)) / y[:, :20].std(1, keepdims=True)
    np.testing.assert_allclose(outputs(episodes)[..., 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("missing", [False, True])
def test_values_of_target_rows_do_not_affect_the_context(missing: bool) -> None:
    """The inputs and outputs of target rows are changed, and the same split is drawn again."""
    colour = np.random.default_rng(1).choice(["red", "blue", "green"], 60).astype(object)
    other = {"colour": colour, "gap": np.where(np.arange(60) % 5, np.arange(60.0), np.nan)} if missing else {}
    source = numeric_table(**other)  # type: ignore[arg-type]
    episodes = family(source, dim=8).sample(request(episodes=1))
    targets = episodes.truth["rows"][0, 20:].numpy()
    frame, y = source.frame.copy(), np.asarray(source.y).copy()
    frame.loc[targets, "a"] = frame.loc[targets, "a"] * 1e6 + 1
    y[targets] *= -1e3
    if missing:
        frame.loc[targets, "colour"] = "violet"
    changed = LabelledTable(source.name, frame, source.kind, y, source.class_names, source.encoder)
    after = family(changed, dim=8).sample(request(episodes=1))
    assert torch.equal(episodes.context.x, after.context.x) and torch.equal(episodes.context.y, after.context.y)
    assert not np.array_equal(outputs(episodes), outputs(after))


def test_episodes_use_random_columns_of_tables_with_more_columns_than_inputs() -> None:
    wide = numeric_table(**{f"n{i}": np.arange(60.0) ** (1 + i / 50) % 7 for i in range(20)})  # type: ignore[arg-type]
    episodes = family(wide).sample(request(episodes=30))
    raw = wide.frame.to_numpy()[episodes.truth["rows"][:, :20].numpy()]
    standard = (raw - raw.mean(1, keepdims=True)) / raw.std(1, keepdims=True)
    distance = np.abs(episodes.context.x.numpy()[:, :, :, None] - standard[:, :, None, :]).max(1)
    selected_columns = distance.argmin(-1)
    assert (distance.min(-1) < 1e-4).all()
    assert all(len(set(columns)) == 5 and list(columns) == sorted(columns) for columns in selected_columns)
    assert set(selected_columns.ravel()) == set(range(23))


def test_prompts_alternate_between_tables_and_continue_the_previous_set() -> None:
    tables = family(
        numeric_table(name="one"), numeric_table(rows=50, name="two"), numeric_table(rows=22, name="small"), splits=4
    )
    assert tables.prompt_limit(20) == 8 and tables.max_prompts == 12
    first = tables.sample_prompts(request(5))
    second = tables.sample_prompts(request(3, before=5))
    assert first.truth["table"].tolist() == [0, 1, 0, 1, 0] and second.truth["table"].tolist() == [1, 0, 1]
    assert first.scored.sum(1).tolist() == [40, 30, 40, 30, 40]
    assert {name: mask.tolist() for name, mask in tables.strata(second).items()} == {
        "one": [False, True, False],
        "two": [True, False, True],
    }
    assert torch.equal(tables.clusters(second), second.truth["table"])
    assert family(numeric_table()).strata(family(numeric_table()).sample(request(2))) == {}


def test_labels_belong_to_their_rows_and_only_labels_of_the_table_are_choices() -> None:
    source = class_table()
    episodes = family(source).sample(request(6))
    np.testing.assert_array_equal(outputs(episodes), episodes.truth["rows"].numpy() % 3)
    assert episodes.classes == 10 and episodes.choices is not None
    assert episodes.choices.tolist() == [[True] * 3 + [False] * 7] * 6
    with refused("not-applicable", "labelled", 12, "task.classes"):
        family(class_table(classes=12)).sample(request(1))
    assert [table.classes for table in family(class_table(), class_table(classes=12)).tables] == [3]
    assert family(class_table(classes=12), classes=12).sample(request(1)).context.y.max() <= 11


def test_outputs_are_finite_for_constant_contexts_and_few_points() -> None:
    np.testing.assert_allclose(standardise_by_context(np.array([4.0, 4.0, 6.0]), 2), [0, 0, 0.5])
    np.testing.assert_allclose(standardise_by_context(np.array([0.0, 0.0, 3.0]), 2), [0, 0, 3])
    np.testing.assert_allclose(standardise_by_context(np.array([1.0, 3.0, 5.0]), 2), [-1, 1, 3])
    for points in (1, 2, 50):
        assert family(numeric_table()).sample(request(2, points)).context.y.isfinite().all()
    with refused("not-applicable", "numeric", 60, 51):
        family(numeric_table()).sample(request(2, 51))


DATES = pd.date_range("2020-01-01", periods=60).astype(str).to_list()


@pytest.mark.parametrize(
    ("columns", "used"),
    [
        ({"constant": np.ones(60)}, 3),
        ({"large": np.linspace(-1e9, 1e9, 60)}, 4),
        ({"huge": np.linspace(1e300, 1e305, 60)}, 4),
        ({"empty": [None] * 60}, 3),
        ({"index": np.arange(60)}, 3),
        ({"day": DATES[::-1]}, 4),
        ({"price": [f"{1000 * (7 * i % 60)},000.5" for i in range(60)]}, None),
        ({"flag": [True, False, None] * 20}, 5),
        ({f"n{i}": np.sin(np.arange(60.0) * (i + 1)) for i in range(500)}, 503),
    ],
)
def test_irregular_columns_give_finite_inputs(columns: dict[str, object], used: int | None) -> None:
    source = numeric_table(**columns)
    if used is not None:
        assert len(source.encoder.names) == used
    episodes = family(source).sample(request(10))
    assert np.isfinite(inputs(episodes)).all() and np.abs(inputs(episodes)).max() <= LIMIT
    assert np.isfinite(outputs(episodes)).all()


def test_duplicate_rows_and_a_single_class_in_the_context_give_finite_inputs() -> None:
    frame = pd.DataFrame({"a": [1.0] * 59 + [2.0], "b": [3.0] * 60})
    rare = LabelledTable.of("rare", frame, pd.Series(["no"] * 59 + ["yes"], name="y"), "class")
    episodes = family(rare).sample(request(30))
    assert (episodes.context.y == 0).all(1).any() and np.isfinite(inputs(episodes)).all()


def test_the_bundled_tables_are_the_datasets_of_scikit_learn() -> None:
    shapes = {table.name: (table.rows, table.classes) for table in bundled_tables("class")}
    assert shapes == {"iris": (150, 3), "wine": (178, 3), "breast-cancer": (569, 2), "digits": (1797, 10)}
    assert [table.name for table in family(kind="number").tables][:2] == ["diabetes", "linnerud-weight"]
    assert [table.name for table in family(kind="class", tables=["wine"]).tables] == ["wine"]
    with refused("unknown-name", "iri", "iris", "task.path"):
        _ = family(kind="class", tables=["iri"]).tables


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "tables").mkdir()
    numbers = pd.DataFrame({"x": rng.normal(size=40), "z": rng.normal(size=40), "price": rng.normal(size=40)})
    numbers.to_csv(tmp_path / "tables" / "31_prices.csv", index=False)
    classes = numbers.assign(Class=rng.choice(["a", "b"], 40)).iloc[:, [3, 0, 1, 2]]
    classes.to_parquet(tmp_path / "tables" / "363612.parquet")
    lines = ["@relation r", "@attribute x numeric", "@attribute c {u,v}", "@attribute k {yes,no}", "@data"]
    lines += [f"{i},{'uv'[i % 2]},{('yes', 'no')[i % 2]}" for i in range(40)]
    (tmp_path / "tables" / "3.arff").write_text("\n".join(lines))
    (tmp_path / "tables" / "notes.txt").write_text("not a table")
    return tmp_path


def read(folder: Path, **parameters: object) -> RealTables:
    return RealTables(RealTables.Parameters(**parameters), folder)  # type: ignore[arg-type]


def test_tables_in_a_folder_are_selected_by_kind_of_target_and_name(folder: Path) -> None:
    def names(**parameters: object) -> list[str]:
        return [table.name for table in read(folder, **parameters).tables]

    assert names(path="tables") == ["31_prices"]
    assert names(path=str(folder / "tables"), kind="class") == ["3", "363612"]
    assert names(kind="class", suite="cc18") == ["3"] and names(kind="class", suite="tabarena") == ["363612"]
    assert names(tables=["31_prices", "diabetes"]) == ["31_prices", "diabetes"]
    assert names(kind="class", tables=["wine", "3.arff"]) == ["wine", "3"]
    (folder / "tables" / "empty.csv").write_text("")
    assert names(path="tables") == ["31_prices"]
    with refused("bad-data", "empty.csv"):
        names(tables=["empty"])
    with refused("missing-data", "nowhere", "task.path"):
        names(path="nowhere")
    with refused("unknown-name", "prices", "31_prices"):
        names(tables=["prices"])
    with refused("bad-data", "task.tables"):
        names(kind="number", suite="tabarena")


def test_the_target_is_the_column_named_class_or_the_last_column(folder: Path) -> None:
    classes = read_labelled_table(folder / "tables" / "363612.parquet")
    assert classes.kind == "class" and list(classes.frame) == ["x", "z", "price"]
    assert list(read_labelled_table(folder / "tables" / "31_prices.csv").frame) == ["x", "z"]


def test_the_fingerprint_depends_on_the_values_and_not_on_the_path(folder: Path) -> None:
    first = read(folder, path="tables").fingerprint
    assert first == read(folder, path=str(folder / "tables")).fingerprint
    path = folder / "tables" / "31_prices.csv"
    path.write_text(path.read_text().replace("0.", "1.", 1))
    assert read(folder, path="tables").fingerprint != first
    assert read(folder, path="tables").needs_data and not read(folder).needs_data


def test_rows_without_a_target_are_removed() -> None:
    source = LabelledTable.of("gaps", pd.DataFrame({"a": np.arange(8.0) ** 2}), pd.Series([1.0, None] * 4), "number")
    assert source.rows == 4 and source.frame["a"].tolist() == [0, 4, 16, 36]


def test_the_openml_suites_have_the_published_sizes() -> None:
    assert len(set(CC18)) == 72 and len(set(TABARENA)) == 51


def test_the_bundled_tables_have_the_hashes_in_the_notes_of_the_grid() -> None:
    """The notes also list tables that users must download, which are not checked."""
    notes = load_grid("tables")[1].notes
    hashes = dict(re.findall(r"([a-z.-]+) ([0-9a-f]{12})\b", notes))
    assert len(hashes) == 23 and not {"airfoil", "bike", "elevators", "pol"} & hashes.keys()
    bundled = {**table_hashes(family(kind="class")), **table_hashes(family(kind="number"))}
    assert len(bundled) == 8 and bundled.items() <= hashes.items()
