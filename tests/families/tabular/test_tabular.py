"""Real tables as episodes."""

import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iclbench.core.errors import DataError, UnknownNameError, UsageError
from iclbench.core.settings import validate
from iclbench.families.request import Request
from iclbench.families.tabular.table_file import Table
from iclbench.families.tabular.tabular import Tabular, distinct_rows


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def table(rows=60, features=3, seed=0, name="made"):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)) * 10.0 ** np.arange(features) + 5
    y = 1000 + 30 * (x @ rng.normal(size=features)) + rng.normal(size=rows)
    return Table(name, x, y, tuple(f"f{i}" for i in range(features)), "y")


def family(*tables, **parameters):
    return Tabular(Tabular.Parameters(**{"dim": 5, **parameters}), tables=tables or (table(),))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tabular").mkdir()
    for name, rows in (("large", 50), ("tiny", 8)):
        made = table(rows)
        lines = [",".join(repr(float(v)) for v in (*x, y)) for x, y in zip(made.x, made.y, strict=True)]
        (tmp_path / "tabular" / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "tabular" / "LICENSE.txt").write_text("not a table")
    return tmp_path


def test_an_episode_holds_distinct_rows_of_the_table_standardised_and_padded():
    made = table()
    episodes = family(made).sample(Request(40, 20, stream()))
    rows = episodes.truth["rows"].numpy()
    assert all(len(set(r)) == 20 for r in rows.tolist())
    standard = (made.x - made.x.mean(0)) / made.x.std(0)
    np.testing.assert_allclose(episodes.context.x[..., :3], standard[rows], rtol=1e-4, atol=1e-5)
    assert not episodes.context.x[..., 3:].any()
    opening = made.y[rows[:, :10]]
    expected = (made.y[rows] - opening.mean(1, keepdims=True)) / opening.std(1, keepdims=True)
    np.testing.assert_allclose(episodes.context.y[..., 0], expected, rtol=1e-4, atol=1e-5)
    assert episodes.scored.tolist() == [[n >= 10 for n in range(20)]] * 40


def test_values_in_the_units_of_the_file_are_labels_also_where_the_opening_is_flat():
    made = table(rows=200)
    zeros = np.where(np.arange(200) % 5 > 0, 0.0, made.y)
    here = family(Table("made", made.x, zeros, made.features, "y"), table(seed=1), opening=3)
    episodes = here.sample(Request(200, 12, stream()))
    which, rows = (episodes.truth[name].numpy() for name in ("table", "rows"))
    values = np.stack([here.tables[at].y[of] for at, of in zip(which, rows, strict=True)])
    flat = (which == 0) & (values[:, :3] == 0).all(1)
    assert 20 < flat.sum() < 100
    labels = episodes.context.y[..., 0].numpy()
    np.testing.assert_allclose(here.in_episodes(values, which, rows), labels, rtol=1e-4, atol=1e-4)


def test_an_opening_that_is_flat_in_single_precision_is_flat_for_values_in_the_units_of_the_file_too():
    made = table(rows=200)
    dwarfed = np.where(np.arange(200) % 5 > 0, made.y / 1e12, made.y)
    here = family(Table("made", made.x, dwarfed, made.features, "y"), opening=3)
    episodes = here.sample(Request(200, 12, stream()))
    which, rows = (episodes.truth[name].numpy() for name in ("table", "rows"))
    labels = episodes.context.y[..., 0].numpy()
    assert (labels[:, :3] == 0).all(1).sum() > 20
    np.testing.assert_allclose(here.in_episodes(dwarfed[rows], which, rows), labels, rtol=1e-4, atol=1e-4)


def test_no_label_after_the_opening_enters_another_points_label():
    made = table()
    changed = made.y.copy()
    changed[13] += 1e5
    one = family(made).sample(Request(200, 20, stream()))
    two = family(Table("made", made.x, changed, made.features, "y")).sample(Request(200, 20, stream()))
    where = (one.truth["rows"] == 13).double()
    outside = where[:, :10].sum(1) == 0
    moved = outside & (where.sum(1) == 1)
    assert moved.sum() > 10
    same = (one.context.y - two.context.y).abs()[..., 0] < 1e-3 * one.context.y.abs()[..., 0] + 1e-2
    assert (same[outside] | where[outside].bool()).all()
    assert not same[moved][where[moved].bool()].any()


def test_labels_do_not_depend_on_their_unit():
    made = table()
    other = Table("made", made.x * 1e-3 + 7, 1e-6 * made.y - 40, made.features, "y")
    one, two = (family(t).sample(Request(30, 20, stream())).context for t in (made, other))
    torch.testing.assert_close(one.y, two.y, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(one.x, two.x, atol=1e-4, rtol=1e-4)


def test_the_zero_predictors_score_is_that_of_the_docstring():
    rng = np.random.default_rng(0)
    made = Table("noise", rng.normal(size=(5000, 2)), rng.normal(size=5000), ("a", "b"), "y")
    y = family(made).sample(Request(20_000, 20, stream())).context.y[:, 10:, 0].double()
    each = y.square().mean(1)
    assert abs(each.mean() - 11 / 10 * 10 / 7) < 4 * each.std() / math.sqrt(len(each)) + 0.01


def test_labels_can_be_brought_to_the_scale_of_the_trained_task():
    plain, scaled = family().sample(Request(5, 20, stream())), family(variance=5.0).sample(Request(5, 20, stream()))
    torch.testing.assert_close(scaled.context.y, math.sqrt(5) * plain.context.y)
    assert family(variance=5.0).normaliser == 5


def test_the_opening_is_at_most_half_of_the_points():
    assert family().sample(Request(2, 6, stream())).scored.sum(1).tolist() == [3, 3]
    for points in (1, 2, 3):
        assert family().sample(Request(2, points, stream())).context.y.isfinite().all()


def test_a_flat_opening_keeps_the_tables_scale():
    y = np.r_[np.zeros(199), 1.0]
    made = Table("rare", np.arange(200.0)[:, None], y, ("a",), "y")
    episodes = family(made).sample(Request(300, 20, stream()))
    assert episodes.context.y.isfinite().all()
    later = (episodes.truth["rows"][:, 10:] == 199).nonzero()
    step = 1 / y.std()
    for b, n in later.tolist():
        assert episodes.context.y[b, 10 + n, 0].item() == pytest.approx(step, rel=1e-4)
    assert len(later)


def test_more_features_than_dimensions_give_a_random_subset_per_episode_in_pad():
    made = table(features=8)
    x = family(made).sample(Request(60, 10, stream()))
    standard = (made.x - made.x.mean(0)) / made.x.std(0)
    subsets = set()
    for b in range(60):
        rows = standard[x.truth["rows"][b].numpy()]
        found = [int(np.abs(rows - x.context.x[b, :, j : j + 1].numpy()).max(0).argmin()) for j in range(5)]
        assert found == sorted(set(found))
        np.testing.assert_allclose(x.context.x[b], rows[:, found], atol=1e-4)
        subsets.add(tuple(found))
    assert len(subsets) > 20, "out of 56"


@pytest.mark.parametrize("features", [3, 8])
def test_projection_mixes_all_features_linearly_with_variance_one(features):
    made = table(rows=400, features=features)
    episodes = family(made, encoding="project").sample(Request(300, 20, stream()))
    x = episodes.context.x.double()
    standard = torch.from_numpy((made.x - made.x.mean(0)) / made.x.std(0))[episodes.truth["rows"]]
    fitted = standard @ torch.linalg.lstsq(standard, x).solution
    torch.testing.assert_close(fitted, x, atol=1e-4, rtol=0)
    each = x.square().mean((1, 2))
    assert abs(each.mean() - 1) < 4 * each.std() / math.sqrt(300)


def test_every_table_is_equally_likely():
    counts = torch.bincount(
        family(table(), table(500), table(features=7)).sample(Request(3000, 5, stream())).truth["table"]
    )
    assert (counts - 1000).abs().max() < 4 * math.sqrt(3000 * 2 / 9)


def test_distinct_rows_are_uniform_in_every_place():
    drawn = distinct_rows(20_000, 3, 5, stream())
    assert (drawn.sort(1).values.diff(dim=1) > 0).all()
    for place in range(3):
        share = torch.bincount(drawn[:, place], minlength=5) / 20_000
        assert (share - 0.2).abs().max() < 4 * math.sqrt(0.16 / 20_000)
    subsets = drawn.sort(1).values @ torch.tensor([25, 5, 1])
    _, counts = subsets.unique(return_counts=True)
    assert len(counts) == 10
    assert (counts - 2000).abs().max() < 4 * math.sqrt(20_000 * 0.09)
    assert (distinct_rows(10, 4, 4, stream()).sort(1).values == torch.arange(4)).all()


def test_tables_are_found_by_name_in_the_data_folder(folder):
    named = Tabular(Tabular.Parameters(dim=5, tables=["large"]), folder)
    assert [t.name for t in named.tables] == ["large"]
    everything = Tabular(Tabular.Parameters(dim=5), folder)
    assert [t.name for t in everything.tables] == ["large", "tiny"]
    assert named.fingerprint != everything.fingerprint
    assert named.fingerprint == Tabular(Tabular.Parameters(dim=5, tables=["large.csv.gz"]), folder).fingerprint
    assert named.sample(Request(3, 11, stream())).context.y.isfinite().all()


def test_missing_data_is_one_clear_line_and_only_on_use(tmp_path, folder):
    with pytest.raises(DataError, match="--data-dir or ICLBENCH_DATA"):
        Tabular(Tabular.Parameters()).sample(Request(1, 5, stream()))
    with pytest.raises(DataError, match=r"cannot read .*tabular: No such file.*ICLBENCH_DATA"):
        Tabular(Tabular.Parameters(), tmp_path / "nowhere").sample(Request(1, 5, stream()))
    with pytest.raises(UnknownNameError, match="unknown table 'larg'; did you mean 'large'"):
        Tabular(Tabular.Parameters(tables=["larg"]), folder).sample(Request(1, 5, stream()))
    with pytest.raises(DataError, match="'tiny' has 8 rows, fewer than the 11 points"):
        Tabular(Tabular.Parameters(), folder).sample(Request(1, 11, stream()))
    for file in (folder / "tabular").glob("*.gz"):
        file.unlink()
    with pytest.raises(DataError, match="holds no table"):
        Tabular(Tabular.Parameters(), folder).sample(Request(1, 5, stream()))


@pytest.mark.parametrize("name", ["../secret", "a/b", "/etc/passwd", "..", ""])
def test_table_names_cannot_leave_the_folder(name):
    with pytest.raises(UsageError, match=r"tables.0"):
        validate(Tabular.Parameters, {"tables": [name]}, "card")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), min_size=2, max_size=12).filter(
        lambda rows: len({y for _, y in rows}) > 1
    )
)
def test_any_finite_table_gives_finite_inputs_and_labels(rows):
    values = np.array(rows)
    made = Table("any", values[:, :1], values[:, 1], ("a",), "y")
    context = family(made, dim=2).sample(Request(4, len(rows), stream())).context
    assert context.x.isfinite().all()
    assert context.y.isfinite().all()


@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="ICLBENCH_DATA is not set: real tables are elsewhere")
def test_real_tables_are_learnable_in_context():
    """Least squares from 30 rows beats the mean of the labels on airfoil, a table known to be roughly linear."""
    real = Tabular(Tabular.Parameters(dim=5, tables=["airfoil"]), Path(os.environ["ICLBENCH_DATA"]))
    episodes = real.sample(Request(500, 31, stream()))
    x, y = episodes.context.x.double(), episodes.context.y.double()
    weights = torch.linalg.lstsq(x[:, :30], y[:, :30]).solution
    assert (x[:, 30:] @ weights - y[:, 30:]).square().mean() < 0.8 * y[:, 30:].square().mean()
    everything = Tabular(Tabular.Parameters(dim=5), Path(os.environ["ICLBENCH_DATA"]))
    assert everything.sample(Request(50, 21, stream())).context.y.isfinite().all()


def test_remarks_of_several_tables_name_none_of_their_targets():
    wide, narrow = table(rows=60, features=13, name="wide"), table(rows=40, features=5, name="narrow")
    told = family(wide, narrow, variance=5.0).remarks(9)
    named = ", ".join(f"f{i}" for i in range(12))
    assert told == [
        f"wide: a random 5 of 13 features ({named}, ...), others in every episode, of 60 rows",
        "narrow: all 5 features (f0, f1, f2, f3, f4), of 40 rows",
        "an episode: 10 rows of one table drawn at random, in random order; features standardised over the whole "
        "table; the target by mean and deviation of its first 5 rows, times 2.24, which are not scored",
        "every contestant, XGBoost too, sees the n rows before the one it predicts: 5 to 9",
    ]


def test_remarks_say_what_is_not_scored_and_how_features_are_mixed():
    told = family(table(features=12), encoding="project", opening=4).remarks(10)
    named = ", ".join(f"f{i}" for i in range(12))
    assert told[0] == f"made: 5 random projections of 12 features ({named}), others in every episode, of 60 rows"
    assert "; 'y' by mean and deviation of its first 4 rows, which are not scored" in told[1]
    episodes = family(table(features=12), encoding="project", opening=4).sample(Request(3, 11, stream()))
    assert told[2].endswith(": 4 to 10") and episodes.scored.nonzero()[:, 1].unique().tolist() == list(range(4, 11))
