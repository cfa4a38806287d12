"""Episodes drawn from real tables."""

import gzip
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from iclbench.families.request import Request
from iclbench.families.tabular.table_file import Table
from iclbench.families.tabular.tabular import Tabular, distinct_rows
from tests.families.sampling import new_generator
from tests.refusals import refused
from tests.texts import numbers, words


def random_table(rows=60, features=3, seed=0, name="random"):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)) * 10.0 ** np.arange(features) + 5
    y = 1000 + 30 * (x @ rng.normal(size=features)) + rng.normal(size=rows)
    return Table(name, x, y, tuple(f"f{i}" for i in range(features)), "y")


def family(*tables, **parameters):
    return Tabular(Tabular.Parameters(**{"dim": 5, **parameters}), tables=tables or (random_table(),))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tabular").mkdir()
    for name, rows in (("large", 50), ("tiny", 8)):
        values = random_table(rows)
        lines = [",".join(repr(float(v)) for v in (*x, y)) for x, y in zip(values.x, values.y, strict=True)]
        (tmp_path / "tabular" / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "tabular" / "LICENSE.txt").write_text("not a table")
    return tmp_path


def test_episodes_have_distinct_standardised_and_padded_rows():
    data_table = random_table()
    episodes = family(data_table).sample(Request(40, 20, new_generator()))
    rows = episodes.truth["rows"].numpy()
    assert all(len(set(r)) == 20 for r in rows.tolist())
    standardised = (data_table.x - data_table.x.mean(0)) / data_table.x.std(0)
    np.testing.assert_allclose(episodes.context.x[..., :3], standardised[rows], rtol=1e-4, atol=1e-5)
    assert not episodes.context.x[..., 3:].any()
    opening_labels = data_table.y[rows[:, :10]]
    expected = (data_table.y[rows] - opening_labels.mean(1, keepdims=True)) / opening_labels.std(1, keepdims=True)
    np.testing.assert_allclose(episodes.context.y[..., 0], expected, rtol=1e-4, atol=1e-5)
    assert episodes.scored.tolist() == [[n >= 10 for n in range(20)]] * 40


def test_to_labels_agrees_with_sampled_labels_for_constant_openings():
    data_table = random_table(rows=200)
    zeros = np.where(np.arange(200) % 5 > 0, 0.0, data_table.y)
    episode_family = family(
        Table("random", data_table.x, zeros, data_table.features, "y"), random_table(seed=1), opening=3
    )
    episodes = episode_family.sample(Request(200, 12, new_generator()))
    table_index, rows = (episodes.truth[name].numpy() for name in ("table", "rows"))
    values = np.stack([episode_family.tables[index].y[row] for index, row in zip(table_index, rows, strict=True)])
    is_constant = (table_index == 0) & (values[:, :3] == 0).all(1)
    assert 20 < is_constant.sum() < 100
    labels = episodes.context.y[..., 0].numpy()
    np.testing.assert_allclose(episode_family.to_labels(values, table_index, rows), labels, rtol=1e-4, atol=1e-4)


def test_to_labels_detects_constant_openings_in_single_precision():
    data_table = random_table(rows=200)
    small = np.where(np.arange(200) % 5 > 0, data_table.y / 1e12, data_table.y)
    episode_family = family(Table("random", data_table.x, small, data_table.features, "y"), opening=3)
    episodes = episode_family.sample(Request(200, 12, new_generator()))
    table_index, rows = (episodes.truth[name].numpy() for name in ("table", "rows"))
    labels = episodes.context.y[..., 0].numpy()
    assert (labels[:, :3] == 0).all(1).sum() > 20
    np.testing.assert_allclose(episode_family.to_labels(small[rows], table_index, rows), labels, rtol=1e-4, atol=1e-4)


def test_labels_after_the_opening_do_not_affect_other_labels():
    data_table = random_table()
    changed = data_table.y.copy()
    changed[13] += 1e5
    before = family(data_table).sample(Request(200, 20, new_generator()))
    after = family(Table("random", data_table.x, changed, data_table.features, "y")).sample(
        Request(200, 20, new_generator())
    )
    is_changed_row = (before.truth["rows"] == 13).double()
    not_in_opening = is_changed_row[:, :10].sum(1) == 0
    changes_later = not_in_opening & (is_changed_row.sum(1) == 1)
    assert changes_later.sum() > 10
    difference = (before.context.y - after.context.y).abs()[..., 0]
    is_equal = difference < 1e-3 * before.context.y.abs()[..., 0] + 1e-2
    assert (is_equal[not_in_opening] | is_changed_row[not_in_opening].bool()).all()
    assert not is_equal[changes_later][is_changed_row[changes_later].bool()].any()


def test_labels_do_not_depend_on_units():
    data_table = random_table()
    other = Table("random", data_table.x * 1e-3 + 7, 1e-6 * data_table.y - 40, data_table.features, "y")
    context, other_context = (family(t).sample(Request(30, 20, new_generator())).context for t in (data_table, other))
    torch.testing.assert_close(context.y, other_context.y, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(context.x, other_context.x, atol=1e-4, rtol=1e-4)


def test_the_zero_predictor_has_the_documented_mean_error():
    rng = np.random.default_rng(0)
    data_table = Table("noise", rng.normal(size=(5000, 2)), rng.normal(size=5000), ("a", "b"), "y")
    y = family(data_table).sample(Request(20_000, 20, new_generator())).context.y[:, 10:, 0].double()
    errors = y.square().mean(1)
    assert abs(errors.mean() - 11 / 10 * 10 / 7) < 4 * errors.std() / math.sqrt(len(errors)) + 0.01


def test_the_parameter_variance_scales_the_labels():
    plain, scaled = (
        family().sample(Request(5, 20, new_generator())),
        family(variance=5.0).sample(Request(5, 20, new_generator())),
    )
    torch.testing.assert_close(scaled.context.y, math.sqrt(5) * plain.context.y)
    assert family(variance=5.0).normaliser == 5


def test_the_opening_is_at_most_half_of_the_points():
    assert family().sample(Request(2, 6, new_generator())).scored.sum(1).tolist() == [3, 3]
    for points in (1, 2, 3):
        assert family().sample(Request(2, points, new_generator())).context.y.isfinite().all()


def test_labels_with_constant_openings_use_the_scale_of_the_table():
    y = np.r_[np.zeros(199), 1.0]
    data_table = Table("rare", np.arange(200.0)[:, None], y, ("a",), "y")
    episodes = family(data_table).sample(Request(300, 20, new_generator()))
    assert episodes.context.y.isfinite().all()
    later = (episodes.truth["rows"][:, 10:] == 199).nonzero()
    step = 1 / y.std()
    for b, n in later.tolist():
        assert episodes.context.y[b, 10 + n, 0].item() == pytest.approx(step, rel=1e-4)
    assert len(later)


def test_the_encoding_pad_selects_a_random_subset_of_many_features():
    data_table = random_table(features=8)
    episodes = family(data_table).sample(Request(60, 10, new_generator()))
    standardised = (data_table.x - data_table.x.mean(0)) / data_table.x.std(0)
    subsets = set()
    for b in range(60):
        rows, x = standardised[episodes.truth["rows"][b].numpy()], episodes.context.x[b]
        features = [int(np.abs(rows - x[:, j : j + 1].numpy()).max(0).argmin()) for j in range(5)]
        assert features == sorted(set(features))
        np.testing.assert_allclose(x, rows[:, features], atol=1e-4)
        subsets.add(tuple(features))
    assert len(subsets) > 20, "there are 56 subsets of 5 of 8 features"


@pytest.mark.parametrize("features", [3, 8])
def test_the_projection_is_linear_in_all_features_and_has_variance_one(features):
    data_table = random_table(rows=400, features=features)
    episodes = family(data_table, encoding="project").sample(Request(300, 20, new_generator()))
    x = episodes.context.x.double()
    standardised = torch.from_numpy((data_table.x - data_table.x.mean(0)) / data_table.x.std(0))[episodes.truth["rows"]]
    fitted = standardised @ torch.linalg.lstsq(standardised, x).solution
    torch.testing.assert_close(fitted, x, atol=1e-4, rtol=0)
    variances = x.square().mean((1, 2))
    assert abs(variances.mean() - 1) < 4 * variances.std() / math.sqrt(300)


def test_tables_are_equally_likely():
    counts = torch.bincount(
        family(random_table(), random_table(500), random_table(features=7))
        .sample(Request(3000, 5, new_generator()))
        .truth["table"]
    )
    assert (counts - 1000).abs().max() < 4 * math.sqrt(3000 * 2 / 9)


def test_rows_of_an_episode_are_distinct_and_uniform_at_every_position():
    rows = distinct_rows(20_000, 3, 5, new_generator())
    assert (rows.sort(1).values.diff(dim=1) > 0).all()
    for position in range(3):
        share = torch.bincount(rows[:, position], minlength=5) / 20_000
        assert (share - 0.2).abs().max() < 4 * math.sqrt(0.16 / 20_000)
    subsets = rows.sort(1).values @ torch.tensor([25, 5, 1])
    _, counts = subsets.unique(return_counts=True)
    assert len(counts) == 10
    assert (counts - 2000).abs().max() < 4 * math.sqrt(20_000 * 0.09)
    assert (distinct_rows(10, 4, 4, new_generator()).sort(1).values == torch.arange(4)).all()


def test_tables_are_read_by_name_from_the_data_folder(folder):
    one_table = Tabular(Tabular.Parameters(dim=5, tables=["large"]), folder)
    assert [t.name for t in one_table.tables] == ["large"]
    all_tables = Tabular(Tabular.Parameters(dim=5), folder)
    assert [t.name for t in all_tables.tables] == ["large", "tiny"]
    assert one_table.fingerprint != all_tables.fingerprint
    assert one_table.fingerprint == Tabular(Tabular.Parameters(dim=5, tables=["large.csv.gz"]), folder).fingerprint
    assert one_table.sample(Request(3, 11, new_generator())).context.y.isfinite().all()


def test_missing_data_are_refused_on_first_use(tmp_path, folder):
    with refused("missing-data", "--data-dir", "ICLBENCH_DATA"):
        Tabular(Tabular.Parameters()).sample(Request(1, 5, new_generator()))
    with refused("missing-data", tmp_path / "nowhere" / "tabular", "ICLBENCH_DATA"):
        Tabular(Tabular.Parameters(), tmp_path / "nowhere").sample(Request(1, 5, new_generator()))
    with refused("unknown-name", "'larg'", "'large'", folder / "tabular"):
        Tabular(Tabular.Parameters(tables=["larg"]), folder).sample(Request(1, 5, new_generator()))
    with refused("not-applicable", "'tiny'", 8, 11):
        Tabular(Tabular.Parameters(), folder).sample(Request(1, 11, new_generator()))
    for file in (folder / "tabular").glob("*.gz"):
        file.unlink()
    with refused("missing-data", folder / "tabular", ".parquet"):
        Tabular(Tabular.Parameters(), folder).sample(Request(1, 5, new_generator()))


@pytest.mark.parametrize("name", ["../secret", "a/b", "/etc/passwd", "..", ""])
def test_table_names_that_refer_to_other_folders_are_refused(name):
    with pytest.raises(ValidationError, match="tables"):
        Tabular.Parameters.model_validate({"tables": [name]})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), min_size=2, max_size=12).filter(
        lambda rows: len({y for _, y in rows}) > 1
    )
)
def test_any_finite_table_gives_finite_inputs_and_labels(rows):
    values = np.array(rows)
    data_table = Table("any", values[:, :1], values[:, 1], ("a",), "y")
    context = family(data_table, dim=2).sample(Request(4, len(rows), new_generator())).context
    assert context.x.isfinite().all()
    assert context.y.isfinite().all()


@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="ICLBENCH_DATA, the folder of real tables, is not set")
def test_least_squares_beats_the_mean_on_a_real_table():
    """The target of the table airfoil is roughly linear in its features. Least squares is fitted on 30 rows."""
    real = Tabular(Tabular.Parameters(dim=5, tables=["airfoil"]), Path(os.environ["ICLBENCH_DATA"]))
    episodes = real.sample(Request(500, 31, new_generator()))
    x, y = episodes.context.x.double(), episodes.context.y.double()
    weights = torch.linalg.lstsq(x[:, :30], y[:, :30]).solution
    assert (x[:, 30:] @ weights - y[:, 30:]).square().mean() < 0.8 * y[:, 30:].square().mean()
    all_tables = Tabular(Tabular.Parameters(dim=5), Path(os.environ["ICLBENCH_DATA"]))
    assert all_tables.sample(Request(50, 21, new_generator())).context.y.isfinite().all()


def feature_names(remark):
    return re.findall(r"\bf\d+", remark)


def test_remarks_on_several_tables_do_not_name_targets():
    wide, narrow = random_table(rows=60, features=13, name="wide"), random_table(rows=40, features=5, name="narrow")
    remarks = family(wide, narrow, variance=5.0).remarks(9)
    assert [numbers(remark) for remark in remarks] == [[5, 13, 60], [5, 40], [10, 5, 2.24], [5, 9]]
    assert remarks[0].startswith("wide: ") and feature_names(remarks[0]) == [f"f{i}" for i in range(12)]
    assert remarks[1].startswith("narrow: ") and feature_names(remarks[1]) == [f"f{i}" for i in range(5)]
    assert "y" not in words(" ".join(remarks))


def test_remarks_describe_the_opening_and_the_projection():
    remarks = family(random_table(features=12), encoding="project", opening=4).remarks(10)
    assert remarks[0].startswith("random: ") and "projections" in words(remarks[0])
    assert feature_names(remarks[0]) == [f"f{i}" for i in range(12)] and numbers(remarks[0]) == [5, 12, 60]
    assert "'y'" in remarks[1] and numbers(remarks[1])[:2] == [11, 4]
    episodes = family(random_table(features=12), encoding="project", opening=4).sample(Request(3, 11, new_generator()))
    assert numbers(remarks[2]) == [4, 10] and episodes.scored.nonzero()[:, 1].unique().tolist() == list(range(4, 11))
