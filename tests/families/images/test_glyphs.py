"""Procedural characters: identical in all subsets and processes, with distinct classes and as much ink as Omniglot."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from iclbench.families.images.glyphs import glyphs
from iclbench.families.images.glyphs.counters import normal, uniform
from iclbench.families.images.glyphs.programs import ALPHABETS, alphabet_of, programs, stroke_counts
from iclbench.families.images.glyphs.raster import PEN_WIDTH, ink
from iclbench.families.images.glyphs.strokes import POINTS, Strokes, trace

FULL = glyphs(3, 60, 8)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 59), min_size=1, max_size=9), st.lists(st.integers(0, 7), min_size=1, max_size=5))
def test_subsets_are_identical_to_parts_of_the_full_set(classes, drawings):
    assert np.array_equal(glyphs(3, classes, drawings), FULL[np.ix_(classes, drawings)])


def test_smaller_sets_are_the_beginning_of_larger_ones():
    assert np.array_equal(glyphs(3, 5, 2), FULL[:5, :2])
    assert np.array_equal(glyphs(3, [10**6]), glyphs(3, range(10**6 - 3, 10**6 + 2))[3:4]), (
        "the number of classes is unlimited"
    )


@pytest.mark.slow
def test_another_process_draws_bit_identical_characters():
    program = "import hashlib; from iclbench.families.images.glyphs import glyphs; "
    program += "print(hashlib.sha256(glyphs(3, 60, 8).tobytes()).hexdigest())"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == hashlib.sha256(FULL.tobytes()).hexdigest()


@pytest.mark.parametrize("size", [8, 12, 28, 64, 105])
def test_characters_are_the_same_at_all_image_sizes(size):
    small, large = glyphs(0, 12, 4, size), glyphs(0, 12, 4, 168)
    assert small.shape == (12, 4, size, size)
    assert small.dtype == np.uint8
    assert 0.03 < small.mean() / 255 < 0.12
    # When reduced to 4 x 4 pixels, images may differ only in the width of the pen.
    coarse = [
        images[..., : n // 4 * 4, : n // 4 * 4].reshape(48, 4, n // 4, 4, n // 4).mean((2, 4)).ravel()
        for images, n in ((small, size), (large, 168))
    ]
    assert np.corrcoef(*coarse)[0, 1] > 0.93


def test_images_of_all_seeds_classes_and_drawings_differ():
    other = glyphs(4, 60, 8)
    images = np.concatenate([FULL, other]).reshape(-1, 28 * 28)
    assert len(np.unique(images, axis=0)) == len(images)
    assert glyphs(0, 5, 6, jitter=0.0).std(axis=1).max() == 0, "without jitter the drawings of a class are equal"


def test_classes_can_be_distinguished():
    """The nearest of 20 class means, each computed from separate drawings, is usually the right one. Chance is 0.05."""
    pixels = glyphs(0, 20, 20).reshape(20, 20, -1).astype(float)
    hits = 0
    for d in range(20):
        means = np.delete(pixels, d, axis=1).mean(1)
        distance = ((pixels[:, d, None] - means) ** 2).sum(-1)
        hits += (distance.argmin(1) == np.arange(20)).sum()
    assert hits / 400 > 0.6


def test_the_amount_of_ink_is_similar_to_omniglot():
    """In Omniglot, ink covers 8.1 % of an image."""
    images = glyphs(0, 200, 5) / 255
    assert 0.05 < images.mean() < 0.09
    share = images.mean((1, 2, 3))
    assert share.min() > 0.005
    assert share.max() < 0.25


def test_uniform_and_normal_numbers_have_their_distributions():
    index = np.arange(200_000)
    u, z = uniform(0, "u", index), normal(0, "z", index)
    assert stats.kstest(u[:20_000], "uniform").pvalue > 1e-3
    assert abs(z.mean()) < 4 / len(z) ** 0.5
    assert abs(z.std() - 1) < 4 / (2 * len(z)) ** 0.5
    # A sum of four uniform numbers has the excess kurtosis -6/5 / 4.
    assert abs(stats.kurtosis(z) + 0.3) < 0.05
    pairs = [(u, uniform(0, "v", index)), (u, uniform(1, "u", index)), (u, uniform(0, "u", index, np.array([1])))]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / len(u) ** 0.5


def test_the_sequence_of_alphabet_sizes_repeats():
    classes = np.arange(2 * sum(ALPHABETS))
    assert np.bincount(alphabet_of(classes)).tolist() == [*ALPHABETS, *ALPHABETS]


def test_programs_have_one_to_five_strokes_attached_to_earlier_strokes():
    classes = np.arange(500)
    assert set(stroke_counts(0, classes)) == {1, 2, 3, 4, 5}
    program = programs(0, classes, 5)
    assert (program.parent <= np.maximum(np.arange(5) - 1, 0)).all()
    assert (program.parent >= 0).all()
    assert ((program.joint >= 0) & (program.joint < POINTS)).all()


def two_strokes(**parameters):
    """Return two horizontal strokes. The second starts at the centre of the first. `parameters` replace fields."""
    fields = {
        name: np.zeros((1, 2), int if name in ("parent", "joint", "pivot") else float) for name in Strokes._fields
    }
    fields["floating"] = np.zeros((1, 2), bool)
    fields["length"] = np.ones((1, 2))
    fields["joint"] = np.full((1, 2), POINTS // 2)
    return Strokes(**{**fields, **{name: np.asarray(value) for name, value in parameters.items()}})


def test_a_trace_follows_its_heading_profile():
    t = (np.arange(POINTS) + 0.5) / POINTS
    x, y = trace(two_strokes(heading=np.full((1, 2), 0.125), arc=np.full((1, 2), 0.5)))
    heading = 2 * np.pi * (0.125 + 0.5 * t)
    np.testing.assert_allclose(np.diff(x[0, 0]), np.cos(heading[1:]) / POINTS, atol=1e-4)
    np.testing.assert_allclose(np.diff(y[0, 0]), np.sin(heading[1:]) / POINTS, atol=1e-4)


def test_a_stroke_starts_at_its_joint_plus_its_slip():
    x, y = trace(two_strokes(heading=np.array([[0.0, 0.25]])), np.array([[0.0, 0.3]]), np.array([[0.0, -0.1]]))
    assert x[0, 1, 0] == pytest.approx(x[0, 0, POINTS // 2] + 0.3)
    assert y[0, 1, 0] == pytest.approx(y[0, 0, POINTS // 2] - 0.1)
    floating = two_strokes(
        floating=np.array([[False, True]]), away_x=np.array([[0.0, 0.2]]), away_y=np.array([[0.0, 0.4]])
    )
    x, y = trace(floating)
    assert x[0, 1, 0] == pytest.approx((x[0, 0].min() + x[0, 0].max()) / 2 + 0.2)
    assert y[0, 1, 0] == pytest.approx(0.4)


@pytest.mark.parametrize("size", [28, 105])
def test_a_straight_stroke_covers_its_length_times_the_pen_width(size):
    x = np.linspace(0.2, 0.8, 36)
    image = ink(x[None, None], np.full((1, 1, 36), 0.5), size)
    assert image.sum() / 255 / size**2 == pytest.approx(0.6 * PEN_WIDTH, rel=0.15)
    rows = image[0].sum(1)
    assert (rows * np.arange(size)).sum() / rows.sum() == pytest.approx(size / 2 - 0.5, abs=0.1)


def test_negative_class_numbers_are_refused():
    with pytest.raises(ValueError, match="-1"):
        glyphs(0, [-1])
