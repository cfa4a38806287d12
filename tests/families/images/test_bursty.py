"""Bursty sequences: who is in them, under which labels, and what each test asks; against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import Episodes
from iclbench.core.errors import DataError, UnknownNameError, UsageError
from iclbench.core.settings import validate
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.images.bursty import Bursty
from iclbench.families.images.bursty_parameters import BurstyParameters
from iclbench.families.images.glyphs import glyphs
from iclbench.families.request import Request

MANY = 6000
TESTS = ["icl", "icl_paired", "flip", "iwl", "iwl_macro", "iwl_common", "iwl_rare", "iwl_new_drawings"]


def family(classes=60, holdout=10, common=5, image_size=8, **parameters):
    return Bursty(
        BurstyParameters(classes=classes, holdout=holdout, common=common, image_size=image_size, **parameters)
    )


def published_size(**parameters):
    """The papers' split: 1,613 classes to train on, ten common ones, ten held out."""
    return family(1623, 10, 10, **parameters)


def draw(bursty, test="", episodes=MANY, points=8, seed=0):
    """Labels by sequence, the query last; classes by their number in the split; the episodes."""
    generator = torch.Generator().manual_seed(seed)
    found = (
        bursty.sample_test(test, episodes, generator) if test else bursty.sample(Request(episodes, points, generator))
    )
    labels = torch.cat([found.context.y, found.targets.y], 1)
    number_of = torch.empty(bursty.classes, dtype=torch.long)
    number_of[bursty.split().glyph] = torch.arange(bursty.classes)
    return labels.numpy(), number_of[found.truth["class"]].numpy(), found


def zipf(classes, alpha):
    weights = np.arange(1, classes + 1.0) ** -alpha
    return weights / weights.sum()


def ranks(bursty, classes):
    rank_of = np.full(bursty.classes, -1)
    rank_of[bursty.split().ranked.numpy()] = np.arange(bursty.split().training)
    return rank_of[classes]


def assert_share(hits, expected):
    """A share within three standard errors of its expectation."""
    error = math.sqrt(expected * (1 - expected) / len(hits))
    assert abs(np.mean(hits) - expected) <= 3 * error, f"{np.mean(hits):.4f}, expected {expected:.4f} ± {error:.4f}"


def assert_frequencies(drawn, expected):
    counts = np.bincount(drawn, minlength=len(expected))
    assert stats.chisquare(counts, expected * len(drawn)).pvalue > 0.0027, "not the expected frequencies"


@pytest.mark.parametrize(("alpha", "printed"), [(0.0, 0.006), (1.0, 0.37), (2.0, 0.94)])
def test_share_of_queries_from_the_ten_common_classes(alpha, printed):
    bursty = published_size(alpha=alpha)
    expected = zipf(1613, alpha)[:10].sum()
    assert expected == pytest.approx(printed, abs=0.005)
    assert_share(ranks(bursty, draw(bursty, "iwl")[1][:, -1]) < 10, expected)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.7])
def test_classes_of_sequences_that_are_not_bursty_have_zipf_frequencies(alpha):
    bursty = family(alpha=alpha, p_bursty=0.0)
    labels, classes, _ = draw(bursty, episodes=3000)
    assert np.array_equal(labels, classes), "the label of a training class is its number"
    for place in (0, 8):
        assert_frequencies(ranks(bursty, classes[:, place]), zipf(50, alpha))


def test_both_classes_of_a_bursty_sequence_are_drawn_without_replacement():
    """P(query = c) = (p_c + sum over a != c of p_a p_c / (1 - p_a)) / 2."""
    bursty = family(alpha=1.2, p_bursty=1.0)
    p = zipf(50, 1.2)
    beside = (p / (1 - p)).sum() - p / (1 - p)
    assert_frequencies(ranks(bursty, draw(bursty)[1][:, -1]), (p + p * beside) / 2)


def _either(p):
    """Probability that one of two independent draws hits what has the weight p."""
    return 1 - (1 - p) ** 2


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_copies_and_coincidences_in_bursty_sequences(alpha):
    """Three images of two classes; each of two free ones is of one of them with the sum of their weights."""
    bursty, p = family(alpha=alpha, p_bursty=1.0), zipf(50, alpha)
    classes = draw(bursty)[1]
    context, query = classes[:, :8], classes[:, 8:]
    copies = (context == query).sum(1)
    assert copies.min() == 3
    pairs = p[:, None] * p / (1 - p[:, None]) * (1 - np.eye(50))
    assert_share(copies > 3, (pairs * (_either(p)[:, None] + _either(p)) / 2).sum())
    kinds = [sorted(np.unique(row, return_counts=True)[1])[::-1] for row in context]
    assert all(counts[1] >= 3 for counts in kinds), "three of each of two classes"
    assert_share([sum(counts[:2]) > 6 for counts in kinds], (pairs * _either(p[:, None] + p)).sum())


def test_contexts_of_bursty_sequences_are_shuffled():
    """Of 28 pairs of places 6 are of one class, two free images add 3 with probability 2/50 each, 1 with 1/50."""
    classes = draw(family(p_bursty=1.0))[1]
    for one, other in ((0, 1), (2, 3), (0, 7), (6, 7)):
        assert_share(classes[:, one] == classes[:, other], (6 + 2 * 3 * 2 / 50 + 1 / 50) / 28)


def test_the_share_of_bursty_sequences():
    """Of 1,613 equally frequent classes three of one kind are bursty, but for one sequence in ten thousand."""
    _, classes, _ = draw(published_size(p_bursty=0.3))
    assert_share((classes[:, :8] == classes[:, 8:]).sum(1) >= 3, 0.3)


@pytest.mark.parametrize("test", ["", *TESTS])
def test_no_image_stands_twice_in_a_sequence(test):
    """At alpha = 2 a class often comes more often than in a bursty sequence of two."""
    bursty = family(alpha=2.0, train_drawings=15)
    _, classes, found = draw(bursty, test, 600)
    images = 20 * classes + found.truth["drawing"].numpy()
    assert all(len(set(row)) == 9 for row in images)
    assert found.truth["drawing"].max() == (14 if test in ("", "flip", *TESTS[3:7]) else 19)


def test_a_query_never_stands_in_a_context_that_has_gone_round_its_drawings():
    bursty = family(alpha=3.0, train_drawings=5)
    _, classes, found = draw(bursty, episodes=300, points=30)
    drawings = found.truth["drawing"].numpy()
    own = (classes[:, :-1] == classes[:, -1:]) & (drawings[:, :-1] == drawings[:, -1:])
    assert not own.any()
    assert ((classes == classes[:, -1:]).sum(1) > 20).any(), "some classes do go round"
    assert_frequencies(drawings[:, -1], np.full(5, 1 / 5))


def test_drawings_of_different_classes_are_independent():
    """Drawing i of all classes is by drawer i, so equal numbers would tell where the query belongs."""
    _, classes, found = draw(family(), "icl")
    drawings, other = found.truth["drawing"].numpy(), classes != classes[:, -1:]
    first = other.argmax(1)
    assert_share(drawings[np.arange(MANY), first] == drawings[:, -1], 1 / 20)
    assert_frequencies(drawings[np.arange(MANY), first], np.full(20, 1 / 20))


def test_pixels_are_those_of_the_class_and_the_drawing():
    bursty = family(image_size=12, jitter=0.5)
    _, _, found = draw(bursty, episodes=5)
    expected = glyphs(0, 60, 20, 12, jitter=0.5)[found.truth["class"], found.truth["drawing"]].reshape(5, 9, 144) / 255
    assert np.allclose(torch.cat([found.context.x, found.targets.x], 1), expected)
    assert bursty.x_shape == (12, 12)


@pytest.mark.parametrize("test", TESTS[3:])
def test_iwl_never_shows_the_class_of_the_query_in_context(test):
    bursty = family(alpha=1.0, train_drawings=15)
    labels, classes, found = draw(bursty, test)
    assert not (classes[:, :8] == classes[:, 8:]).any()
    assert np.array_equal(labels, classes)
    assert found.choices.sum(1).unique().tolist() == [50]
    rank, p = ranks(bursty, classes), zipf(50, 1.0)
    expected = {
        "iwl_macro": np.full(50, 1 / 50),
        "iwl_common": np.repeat([1 / 5, 0], [5, 45]),
        "iwl_rare": np.repeat([0, 1 / 45], [5, 45]),
    }.get(test, p)
    here = expected > 0
    assert set(rank[:, 8]) <= set(np.flatnonzero(here))
    assert stats.chisquare(np.bincount(rank[:, 8], minlength=50)[here], expected[here] * MANY).pvalue > 0.0027
    # The context given a query of rank q: the weights without q.
    beside = np.where(np.eye(50, dtype=bool), 0, p) / (1 - p[:, None])
    assert_frequencies(rank[:, 3], expected @ beside)
    if test == "iwl_new_drawings":
        drawings = found.truth["drawing"]
        assert drawings[:, :8].max() == 14
        assert sorted(drawings[:, 8].unique().tolist()) == [15, 16, 17, 18, 19]


def test_icl_shows_four_images_of_each_of_two_held_out_classes_under_two_labels():
    bursty = family()
    labels, classes, found = draw(bursty, "icl")
    assert classes.min() == 50 and classes.max() == 59
    assert (labels[:, :8].sum(1) == 4).all()
    own = labels[:, :8] == labels[:, 8:]
    assert np.array_equal(own, classes[:, :8] == classes[:, 8:]), "one label for one class"
    assert (own.sum(1) == 4).all()
    assert_share(labels[:, 8], 0.5)
    assert_share(labels[:, 8][classes[:, 8] == 53], 0.5)
    assert_share(classes[:, 0] == classes[:, 1], 3 / 7)
    assert_frequencies(classes[:, 8] - 50, np.full(10, 0.1))
    assert np.array_equal(found.choices.numpy(), np.tile(np.arange(60) < 2, (MANY, 1)))


@pytest.mark.parametrize("which", ["rarest", "common", "random", [7, 59]])
def test_the_labels_of_icl_are_a_choice(which):
    bursty = family(alpha=1.0, icl_labels=which)
    labels, _, found = draw(bursty, "icl", 400)
    pairs = {tuple(np.unique(row)) for row in labels}
    ranked = bursty.split().ranked.tolist()
    if which == "random":
        assert len(pairs) > 250 and {v for pair in pairs for v in pair} == set(range(50))
    else:
        expected = which if isinstance(which, list) else {"rarest": ranked[-2:], "common": ranked[:2]}[which]
        assert pairs == {tuple(sorted(expected))}
    assert found.choices.sum(1).unique().tolist() == [2]
    assert found.choices.gather(1, torch.from_numpy(labels)).all()


@pytest.mark.parametrize("which", ["first", "random"])
def test_pairs_differ_in_nothing_but_exchanged_labels(which):
    bursty = family(icl_labels=which)
    _, _, found = draw(bursty, "icl_paired", 200)
    first, second = found[0::2], found[1::2]
    for name in ("x", "mask"):
        assert torch.equal(getattr(first.context, name), getattr(second.context, name))
    assert torch.equal(first.targets.x, second.targets.x) and torch.equal(first.choices, second.choices)
    for one, other in ((first.context.y, second.context.y), (first.targets.y, second.targets.y)):
        assert (one != other).all()
        assert first.choices.gather(1, one).all() and first.choices.gather(1, other).all()
    assert bursty.evaluators()["icl_paired"].group_size == 2


def test_flip_gives_two_trained_classes_each_others_label():
    bursty = family(alpha=1.0)
    labels, classes, found = draw(bursty, "flip")
    assert (labels != classes).all() and classes.max() < 50
    assert np.array_equal(np.sort(np.unique(labels[0])), np.sort(np.unique(classes[0])))
    assert (labels + classes == (labels + classes)[:, :1]).all()
    assert found.choices.gather(1, torch.from_numpy(classes)).all(), "the weights' answer is admitted"
    p = zipf(50, 1.0)
    beside = (p / (1 - p)).sum() - p / (1 - p)
    assert_frequencies(ranks(bursty, classes[:, 8]), (p + p * beside) / 2)


def test_the_code_of_the_papers_draws_classes_with_replacement():
    """Of ten held-out classes every tenth sequence has one under two labels: nobody can have more than 0.95 there."""
    bursty = family(anchor_compat=True)
    labels, classes, _ = draw(bursty, "icl")
    same = np.array([len(set(row)) == 1 for row in classes[:, :8]])
    assert_share(same, 1 / 10)
    votes = np.where(classes[:, :8] == classes[:, 8:], 2 * labels[:, :8] - 1, 0).sum(1)
    right = np.where(votes == 0, 0.5, (votes > 0) == (labels[:, 8] == 1))
    assert right.mean() == pytest.approx(0.95, abs=3 * math.sqrt(0.1 * 0.9 / 4 / MANY))


@pytest.mark.parametrize("test", TESTS)
def test_the_code_of_the_papers_draws_images_of_a_class_without_replacement(test):
    """`replace=False` in the code of Chan et al.: no image stands twice in a sequence that is drawn in one go."""
    _, classes, found = draw(family(alpha=2.0, train_drawings=15, anchor_compat=True), test, 600)
    images = 20 * classes + found.truth["drawing"].numpy()
    assert all(len(set(row)) == 9 for row in images)


def test_only_the_free_images_of_a_bursty_sequence_may_repeat_one_in_the_code_of_the_papers():
    """Its seven others are drawn in one go, the two free ones in another: each is the query's with p_q / 20."""
    bursty, p = family(alpha=2.0, p_bursty=1.0, anchor_compat=True), zipf(50, 2.0)
    _, classes, found = draw(bursty)
    drawings = found.truth["drawing"].numpy()
    own = ((classes[:, :8] == classes[:, 8:]) & (drawings[:, :8] == drawings[:, 8:])).sum(1)
    assert own.max() == 1
    assert_share(own, 2 * np.square(p).sum() / 20)
    _, classes, found = draw(family(alpha=2.0, p_bursty=0.0, anchor_compat=True), episodes=600)
    assert all(len(set(row)) == 9 for row in 20 * classes + found.truth["drawing"].numpy())


def test_labels_zero_and_one_are_the_two_rarest_classes_in_the_code_of_the_papers():
    """Its weights of the labels are 1/1613, ..., 1/2, 1 to the power of alpha, the common classes last."""
    bursty = published_size(alpha=1.0, p_bursty=0.0, anchor_compat=True)
    assert bursty.split().ranked.tolist() == list(range(1612, -1, -1))
    labels, classes, _ = draw(bursty, episodes=3000)
    assert np.array_equal(labels, classes)
    assert_frequencies(np.minimum(1612 - labels[:, 8], 40), np.append(zipf(1613, 1.0)[:40], zipf(1613, 1.0)[40:].sum()))
    assert set(np.unique(draw(bursty, "icl", 50)[0])) == {0, 1}
    assert torch.equal(bursty.split().glyph, published_size().split().glyph), "the same classes are held out"


def test_at_alpha_two_the_code_of_the_papers_shows_one_class_in_four_of_ten_bursty_sequences():
    bursty = published_size(alpha=2.0, p_bursty=1.0, anchor_compat=True)
    p = zipf(1613, 2.0)
    assert np.square(p).sum() == pytest.approx(0.40, abs=0.005)
    context = draw(bursty)[1][:, :8]
    most = np.array([np.unique(row, return_counts=True)[1].max() for row in context])
    # Of two different classes, coincidences make five images of one at most.
    assert_share(most >= 6, np.square(p).sum())


def test_flip_is_about_two_classes_also_where_sequences_may_show_one():
    labels, classes, _ = draw(family(alpha=2.0, anchor_compat=True), "flip")
    assert (labels != classes).all(), "no class stands under its own label"


def test_the_split_depends_on_its_seed_alone():
    one, other = family(alpha=0.0), family(alpha=2.0, image_size=14, p_bursty=0.1, icl_labels="random")
    assert torch.equal(one.split().glyph, other.split().glyph) and torch.equal(one.split().ranked, other.split().ranked)
    assert not torch.equal(one.split().glyph, family(split_seed=1).split().glyph)
    split = published_size().split()
    assert sorted(split.glyph.tolist()) == list(range(1623)) and sorted(split.ranked.tolist()) == list(range(1613))
    assert set(split.ranked[:10].tolist()) == set(range(1603, 1613)), "labels 0 and 1 are not common"


def test_held_out_classes_are_never_trained_on():
    bursty = family()
    trained = set(draw(bursty)[2].truth["class"].flatten().tolist())
    held_out = set(draw(bursty, "icl")[2].truth["class"].flatten().tolist())
    assert len(trained) == 50 and len(held_out) == 10 and not trained & held_out


def test_characters_held_out_to_choose_by_are_in_no_test_of_the_prompts():
    own, other = family(), family().validation()
    asked = [each.sample_test("icl", 500, torch.Generator().manual_seed(0)) for each in (own, other)]
    classes = [set(each.truth["class"].flatten().tolist()) for each in asked]
    assert classes[1] == set(range(60, 70)) and not classes[0] & classes[1]
    known = [each.sample_test("iwl", 100, torch.Generator().manual_seed(0)) for each in (own, other)]
    assert torch.equal(known[0].context.x, known[1].context.x), "what is trained is the same"
    omniglot = family(1613, glyphs="omniglot")
    used, new = omniglot.split().glyph.tolist(), omniglot.validation().split().glyph.tolist()
    assert used[:-10] == new[:-10] and not {*used} & {*new[-10:]} and len({*new}) == 1613
    with pytest.raises(UsageError, match=r"9 are unused.* takes 10: choose it at a smaller preset"):
        family(1614, glyphs="omniglot").validation()


@pytest.mark.parametrize("test", ["", "icl_paired", "iwl"])
def test_frozen_prompts_are_saved_and_loaded_whole(test, tmp_path):
    task, _ = resolve_task("bursty", "smoke")
    prompts = PromptSet(task, "smoke", evaluator=test)
    found = prompts.episodes
    assert len(found) == 64 and torch.equal(
        PromptSet(task, "smoke", evaluator=test).episodes.context.x, found.context.x
    )
    found.save(tmp_path / "episodes.safetensors")
    again = Episodes.load(tmp_path / "episodes.safetensors").to("cpu")
    assert all(torch.equal(t, again.tensors()[name]) for name, t in found.tensors().items())
    assert again.classes == 50


def test_another_set_of_characters_has_another_fingerprint():
    prints = {family().fingerprint, family(jitter=0.5).fingerprint, family(image_size=9).fingerprint}
    assert len(prints) == 3 and family(alpha=2.0).fingerprint in prints


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holdout": 1}, "holdout: expected greater than or equal to 2, got 1"),
        ({"alpha": -0.5}, "alpha: expected greater than or equal to 0, got -0.5"),
        ({"p_bursty": 1.2}, "p_bursty: expected less than or equal to 1, got 1.2"),
        ({"p_bursty": -0.1}, "p_bursty: expected greater than or equal to 0, got -0.1"),
        ({"icl_labels": [0, 2000]}, "icl_labels: the head has labels 0 to 1622, got 2000"),
        ({"icl_labels": [0, -1]}, "icl_labels: the head has labels 0 to 1622, got -1"),
        ({"icl_labels": [3, 3]}, r"icl_labels: expected first, .* or two different labels like \[0, 1\], got \[3, 3\]"),
        ({"icl_labels": "last"}, "icl_labels: expected first, rarest, common, random or two"),
        ({"classes": 111}, "of 111, 100 held-out and 10 common ones leave 1 rare, expected at least 2"),
        ({"glyphs": "omniglot", "classes": 1624}, "classes: Omniglot has 1623, got 1624"),
        ({"image_size": 7}, "image_size: expected greater than or equal to 8, got 7"),
        ({"image_size": 106}, "image_size: expected less than or equal to 105, got 106"),
        ({"train_drawings": 4}, "train_drawings: expected greater than or equal to 5, got 4"),
        ({"train_drawings": 21}, "train_drawings: expected less than or equal to 20, got 21"),
        ({"common": 0}, "common: expected greater than or equal to 1, got 0"),
    ],
)
def test_parameters_that_cannot_be_are_one_clear_line(changes, message):
    with pytest.raises(UsageError, match=message) as error:
        validate(BurstyParameters, changes, "-o task")
    assert "\n" not in str(error.value)


def test_tests_that_cannot_be_asked_are_one_clear_line():
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(UsageError, match=r"of 20, 20 are; lower task.train_drawings"):
        family().sample_test("iwl_new_drawings", 4, generator)
    with pytest.raises(UsageError, match=r"of 20, 20 are; lower task.train_drawings"):
        resolve_task("bursty", "smoke")[0].tests(family(), ["iwl_new_drawings"])
    with pytest.raises(UsageError, match=r"pairs of episodes, got 5; make task.episodes even"):
        family().sample_test("icl_paired", 5, generator)
    with pytest.raises(UnknownNameError, match="unknown evaluator 'icll'; did you mean 'icl'"):
        family().sample_test("icll", 4, generator)
    with pytest.raises(DataError, match="point --data-dir or ICLBENCH_DATA at the folder that holds 'omniglot'"):
        draw(family(glyphs="omniglot"), episodes=1)


def test_of_images_a_curriculum_shows_the_leading_pixels_alone():
    """The same draw with and without: thirty pixels of 64 are as they were, the others 0, the query's too."""
    bursty = family()
    whole, part = (
        bursty.sample(Request(20, 8, torch.Generator().manual_seed(3), active_dims=dims)) for dims in (None, 30)
    )
    assert torch.equal(whole.context.y, part.context.y)
    for one, other in ((whole.context.x, part.context.x), (whole.targets.x, part.targets.x)):
        assert torch.equal(one[..., :30], other[..., :30]) and one[..., 29].any()
        assert one[..., 30].any() and not other[..., 30:].any()


def test_what_every_test_can_be_answered_from_and_by_chance():
    """By hand: two labels; two of them, both right; all fifty trained ones, which only the weights tell."""
    found = family().evaluators()
    assert set(found) == set(TESTS)
    said = {name: (each.chance, each.group_size, each.knows) for name, each in found.items()}
    assert said.pop("icl") == (1 / 2, 1, "context")
    assert said.pop("icl_paired") == (1 / 4, 2, "context")
    assert said.pop("flip") == (1 / 2, 1, "either")
    assert set(said.values()) == {(1 / 50, 1, "weights")}
