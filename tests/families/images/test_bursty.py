"""Classes, labels and images of bursty sequences and of their tests, against closed forms."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import Episodes
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.images.bursty import Bursty
from iclbench.families.images.bursty_parameters import BurstyParameters
from iclbench.families.images.glyphs import glyphs
from iclbench.families.request import Request
from tests.refusals import refused

EPISODES = 6000
TESTS = ["icl", "icl_paired", "flip", "iwl", "iwl_macro", "iwl_common", "iwl_rare", "iwl_new_drawings"]


def family(classes=60, holdout=10, common=5, image_size=8, **parameters):
    return Bursty(
        BurstyParameters(classes=classes, holdout=holdout, common=common, image_size=image_size, **parameters)
    )


def published_family(**parameters):
    """Build the family with the split in the papers: 1,613 training classes, ten of them common, and ten held out."""
    return family(1623, 10, 10, **parameters)


def draw(bursty, test="", episodes=EPISODES, points=8, seed=0):
    """Return labels and class numbers of drawn sequences, with the query last, and the episodes."""
    generator = torch.Generator().manual_seed(seed)
    sampled = (
        bursty.sample_test(test, episodes, generator) if test else bursty.sample(Request(episodes, points, generator))
    )
    labels = torch.cat([sampled.context.y, sampled.targets.y], 1)
    number_of = torch.empty(bursty.classes, dtype=torch.long)
    number_of[bursty.split().data_classes] = torch.arange(bursty.classes)
    return labels.numpy(), number_of[sampled.truth["class"]].numpy(), sampled


def zipf(classes, alpha):
    weights = np.arange(1, classes + 1.0) ** -alpha
    return weights / weights.sum()


def ranks(bursty, classes):
    rank_of = np.full(bursty.classes, -1)
    rank_of[bursty.split().labels_by_rank.numpy()] = np.arange(bursty.split().n_training)
    return rank_of[classes]


def assert_share(hits, expected):
    """Assert that the share of hits is within three standard errors of `expected`."""
    error = math.sqrt(expected * (1 - expected) / len(hits))
    assert abs(np.mean(hits) - expected) <= 3 * error, f"{np.mean(hits):.4f}, expected {expected:.4f} ± {error:.4f}"


def assert_frequencies(numbers, expected):
    counts = np.bincount(numbers, minlength=len(expected))
    assert stats.chisquare(counts, expected * len(numbers)).pvalue > 0.0027, "not the expected frequencies"


@pytest.mark.parametrize(("alpha", "published"), [(0.0, 0.006), (1.0, 0.37), (2.0, 0.94)])
def test_the_ten_common_classes_have_the_published_share_of_queries(alpha, published):
    bursty = published_family(alpha=alpha)
    expected = zipf(1613, alpha)[:10].sum()
    assert expected == pytest.approx(published, abs=0.005)
    assert_share(ranks(bursty, draw(bursty, "iwl")[1][:, -1]) < 10, expected)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.7])
def test_classes_of_sequences_without_bursts_have_zipf_frequencies(alpha):
    bursty = family(alpha=alpha, p_bursty=0.0)
    labels, classes, _ = draw(bursty, episodes=3000)
    assert np.array_equal(labels, classes), "the label of a training class is its number"
    for position in (0, 8):
        assert_frequencies(ranks(bursty, classes[:, position]), zipf(50, alpha))


def test_both_classes_of_a_bursty_sequence_are_drawn_without_replacement():
    """P(query = c) = (p_c + sum over a != c of p_a p_c / (1 - p_a)) / 2."""
    bursty = family(alpha=1.2, p_bursty=1.0)
    p = zipf(50, 1.2)
    as_second = (p / (1 - p)).sum() - p / (1 - p)
    assert_frequencies(ranks(bursty, draw(bursty)[1][:, -1]), (p + p * as_second) / 2)


def probability_in_two_draws(p):
    """Return the probability that a class of probability p is drawn at least once in two independent draws."""
    return 1 - (1 - p) ** 2


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_remaining_images_of_bursty_sequences_are_drawn_independently(alpha):
    """A bursty context has three images of each of two classes a and b, and two remaining images. Each remaining image
    belongs to a or b with probability p_a + p_b."""
    bursty, p = family(alpha=alpha, p_bursty=1.0), zipf(50, alpha)
    classes = draw(bursty)[1]
    context, query = classes[:, :8], classes[:, 8:]
    query_class_counts = (context == query).sum(1)
    assert query_class_counts.min() == 3
    pairs = p[:, None] * p / (1 - p[:, None]) * (1 - np.eye(50))
    assert_share(
        query_class_counts > 3, (pairs * (probability_in_two_draws(p)[:, None] + probability_in_two_draws(p)) / 2).sum()
    )
    class_counts = [sorted(np.unique(row, return_counts=True)[1])[::-1] for row in context]
    assert all(counts[1] >= 3 for counts in class_counts), "three images of each of two classes"
    assert_share(
        [sum(counts[:2]) > 6 for counts in class_counts], (pairs * probability_in_two_draws(p[:, None] + p)).sum()
    )


def test_contexts_of_bursty_sequences_are_shuffled():
    """Of the 28 pairs of positions, six share one of the two repeated classes. Each of the two remaining images adds
    three pairs with probability 2/50, and the two remaining images share a class with probability 1/50."""
    classes = draw(family(p_bursty=1.0))[1]
    for first, second in ((0, 1), (2, 3), (0, 7), (6, 7)):
        assert_share(classes[:, first] == classes[:, second], (6 + 2 * 3 * 2 / 50 + 1 / 50) / 28)


def test_the_share_of_bursty_sequences_is_p_bursty():
    """With 1,613 equally frequent classes, three images of one class identify a bursty sequence."""
    _, classes, _ = draw(published_family(p_bursty=0.3))
    assert_share((classes[:, :8] == classes[:, 8:]).sum(1) >= 3, 0.3)


@pytest.mark.parametrize("test", ["", *TESTS])
def test_images_of_a_sequence_are_distinct(test):
    """At alpha = 2, classes often repeat within a sequence."""
    bursty = family(alpha=2.0, train_drawings=15)
    _, classes, episodes = draw(bursty, test, 600)
    images = 20 * classes + episodes.truth["drawing"].numpy()
    assert all(len(set(row)) == 9 for row in images)
    assert episodes.truth["drawing"].max() == (14 if test in ("", "flip", *TESTS[3:7]) else 19)


def test_the_query_is_never_in_the_context_even_if_the_context_repeats_drawings():
    bursty = family(alpha=3.0, train_drawings=5)
    _, classes, episodes = draw(bursty, episodes=300, points=30)
    drawings = episodes.truth["drawing"].numpy()
    is_query = (classes[:, :-1] == classes[:, -1:]) & (drawings[:, :-1] == drawings[:, -1:])
    assert not is_query.any()
    assert ((classes == classes[:, -1:]).sum(1) > 20).any(), "some classes repeat drawings"
    assert_frequencies(drawings[:, -1], np.full(5, 1 / 5))


def test_drawings_of_different_classes_are_independent():
    """Person i drew drawing i of every class, so equal drawing numbers would reveal the class of the query."""
    _, classes, episodes = draw(family(), "icl")
    drawings, is_other_class = episodes.truth["drawing"].numpy(), classes != classes[:, -1:]
    first = is_other_class.argmax(1)
    assert_share(drawings[np.arange(EPISODES), first] == drawings[:, -1], 1 / 20)
    assert_frequencies(drawings[np.arange(EPISODES), first], np.full(20, 1 / 20))


def test_inputs_are_the_pixels_of_the_class_and_drawing_in_the_truth():
    bursty = family(image_size=12, jitter=0.5)
    _, _, episodes = draw(bursty, episodes=5)
    expected = (
        glyphs(0, 60, 20, 12, jitter=0.5)[episodes.truth["class"], episodes.truth["drawing"]].reshape(5, 9, 144) / 255
    )
    assert np.allclose(torch.cat([episodes.context.x, episodes.targets.x], 1), expected)
    assert bursty.x_shape == (12, 12)


@pytest.mark.parametrize("test", TESTS[3:])
def test_iwl_contexts_do_not_contain_the_class_of_the_query(test):
    bursty = family(alpha=1.0, train_drawings=15)
    labels, classes, episodes = draw(bursty, test)
    assert not (classes[:, :8] == classes[:, 8:]).any()
    assert np.array_equal(labels, classes)
    assert episodes.choices.sum(1).unique().tolist() == [50]
    rank, p = ranks(bursty, classes), zipf(50, 1.0)
    expected = {
        "iwl_macro": np.full(50, 1 / 50),
        "iwl_common": np.repeat([1 / 5, 0], [5, 45]),
        "iwl_rare": np.repeat([0, 1 / 45], [5, 45]),
    }.get(test, p)
    is_possible = expected > 0
    assert set(rank[:, 8]) <= set(np.flatnonzero(is_possible))
    counts = np.bincount(rank[:, 8], minlength=50)[is_possible]
    assert stats.chisquare(counts, expected[is_possible] * EPISODES).pvalue > 0.0027
    # Probabilities of context classes given the class of the query, which is excluded.
    given_query = np.where(np.eye(50, dtype=bool), 0, p) / (1 - p[:, None])
    assert_frequencies(rank[:, 3], expected @ given_query)
    if test == "iwl_new_drawings":
        drawings = episodes.truth["drawing"]
        assert drawings[:, :8].max() == 14
        assert sorted(drawings[:, 8].unique().tolist()) == [15, 16, 17, 18, 19]


def test_icl_contexts_have_four_images_each_of_two_held_out_classes():
    bursty = family()
    labels, classes, episodes = draw(bursty, "icl")
    assert classes.min() == 50 and classes.max() == 59
    assert (labels[:, :8].sum(1) == 4).all()
    has_query_label = labels[:, :8] == labels[:, 8:]
    assert np.array_equal(has_query_label, classes[:, :8] == classes[:, 8:]), "one label per class"
    assert (has_query_label.sum(1) == 4).all()
    assert_share(labels[:, 8], 0.5)
    assert_share(labels[:, 8][classes[:, 8] == 53], 0.5)
    assert_share(classes[:, 0] == classes[:, 1], 3 / 7)
    assert_frequencies(classes[:, 8] - 50, np.full(10, 0.1))
    assert np.array_equal(episodes.choices.numpy(), np.tile(np.arange(60) < 2, (EPISODES, 1)))


@pytest.mark.parametrize("icl_labels", ["rarest", "common", "random", [7, 59]])
def test_the_parameter_icl_labels_sets_the_labels_of_the_test_icl(icl_labels):
    bursty = family(alpha=1.0, icl_labels=icl_labels)
    labels, _, episodes = draw(bursty, "icl", 400)
    pairs = {tuple(np.unique(row)) for row in labels}
    ranked = bursty.split().labels_by_rank.tolist()
    if icl_labels == "random":
        assert len(pairs) > 250 and {v for pair in pairs for v in pair} == set(range(50))
    else:
        labels_by_option = {"rarest": ranked[-2:], "common": ranked[:2]}
        expected = icl_labels if isinstance(icl_labels, list) else labels_by_option[icl_labels]
        assert pairs == {tuple(sorted(expected))}
    assert episodes.choices.sum(1).unique().tolist() == [2]
    assert episodes.choices.gather(1, torch.from_numpy(labels)).all()


@pytest.mark.parametrize("icl_labels", ["first", "random"])
def test_sequences_of_a_pair_differ_only_in_their_labels(icl_labels):
    bursty = family(icl_labels=icl_labels)
    _, _, episodes = draw(bursty, "icl_paired", 200)
    first, second = episodes[0::2], episodes[1::2]
    for name in ("x", "mask"):
        assert torch.equal(getattr(first.context, name), getattr(second.context, name))
    assert torch.equal(first.targets.x, second.targets.x) and torch.equal(first.choices, second.choices)
    for labels, exchanged in ((first.context.y, second.context.y), (first.targets.y, second.targets.y)):
        assert (labels != exchanged).all()
        assert first.choices.gather(1, labels).all() and first.choices.gather(1, exchanged).all()
    assert bursty.evaluators()["icl_paired"].group_size == 2


def test_flip_exchanges_the_labels_of_two_trained_classes():
    bursty = family(alpha=1.0)
    labels, classes, episodes = draw(bursty, "flip")
    assert (labels != classes).all() and classes.max() < 50
    assert np.array_equal(np.sort(np.unique(labels[0])), np.sort(np.unique(classes[0])))
    assert (labels + classes == (labels + classes)[:, :1]).all()
    assert episodes.choices.gather(1, torch.from_numpy(classes)).all(), "the trained label is one of the choices"
    p = zipf(50, 1.0)
    as_second = (p / (1 - p)).sum() - p / (1 - p)
    assert_frequencies(ranks(bursty, classes[:, 8]), (p + p * as_second) / 2)


def test_anchor_compat_draws_classes_with_replacement():
    """With ten held-out classes, one in ten sequences has a single class under two labels, so accuracy is at most
    0.95."""
    bursty = family(anchor_compat=True)
    labels, classes, _ = draw(bursty, "icl")
    has_one_class = np.array([len(set(row)) == 1 for row in classes[:, :8]])
    assert_share(has_one_class, 1 / 10)
    votes = np.where(classes[:, :8] == classes[:, 8:], 2 * labels[:, :8] - 1, 0).sum(1)
    accuracies = np.where(votes == 0, 0.5, (votes > 0) == (labels[:, 8] == 1))
    assert accuracies.mean() == pytest.approx(0.95, abs=3 * math.sqrt(0.1 * 0.9 / 4 / EPISODES))


@pytest.mark.parametrize("test", TESTS)
def test_anchor_compat_draws_images_of_a_class_without_replacement(test):
    """Images that are drawn in one step are distinct, as with `replace=False` in the code of Chan et al."""
    _, classes, episodes = draw(family(alpha=2.0, train_drawings=15, anchor_compat=True), test, 600)
    images = 20 * classes + episodes.truth["drawing"].numpy()
    assert all(len(set(row)) == 9 for row in images)


def test_anchor_compat_repeats_only_the_remaining_images_of_a_bursty_sequence():
    """The remaining images are drawn in a separate step, so each is the query image with probability p_q / 20."""
    bursty, p = family(alpha=2.0, p_bursty=1.0, anchor_compat=True), zipf(50, 2.0)
    _, classes, episodes = draw(bursty)
    drawings = episodes.truth["drawing"].numpy()
    query_counts = ((classes[:, :8] == classes[:, 8:]) & (drawings[:, :8] == drawings[:, 8:])).sum(1)
    assert query_counts.max() == 1
    assert_share(query_counts, 2 * np.square(p).sum() / 20)
    _, classes, episodes = draw(family(alpha=2.0, p_bursty=0.0, anchor_compat=True), episodes=600)
    assert all(len(set(row)) == 9 for row in 20 * classes + episodes.truth["drawing"].numpy())


def test_anchor_compat_gives_labels_zero_and_one_to_the_two_rarest_classes():
    """Labels have the weights 1/1613, ..., 1/2, 1 to the power of alpha."""
    bursty = published_family(alpha=1.0, p_bursty=0.0, anchor_compat=True)
    assert bursty.split().labels_by_rank.tolist() == list(range(1612, -1, -1))
    labels, classes, _ = draw(bursty, episodes=3000)
    assert np.array_equal(labels, classes)
    assert_frequencies(np.minimum(1612 - labels[:, 8], 40), np.append(zipf(1613, 1.0)[:40], zipf(1613, 1.0)[40:].sum()))
    assert set(np.unique(draw(bursty, "icl", 50)[0])) == {0, 1}
    split, published_split = bursty.split(), published_family().split()
    assert torch.equal(split.data_classes, published_split.data_classes), "the same classes are held out"


def test_anchor_compat_at_alpha_two_draws_one_class_twice_in_40_percent_of_bursty_sequences():
    bursty = published_family(alpha=2.0, p_bursty=1.0, anchor_compat=True)
    p = zipf(1613, 2.0)
    assert np.square(p).sum() == pytest.approx(0.40, abs=0.005)
    context = draw(bursty)[1][:, :8]
    largest_counts = np.array([np.unique(row, return_counts=True)[1].max() for row in context])
    # Sequences of two different classes have at most five images of one class.
    assert_share(largest_counts >= 6, np.square(p).sum())


def test_flip_never_uses_trained_labels_even_with_anchor_compat():
    labels, classes, _ = draw(family(alpha=2.0, anchor_compat=True), "flip")
    assert (labels != classes).all(), "no class has its trained label"


def test_the_split_depends_only_on_its_seed():
    split = family(alpha=0.0).split()
    changed = family(alpha=2.0, image_size=14, p_bursty=0.1, icl_labels="random").split()
    assert torch.equal(split.data_classes, changed.data_classes)
    assert torch.equal(split.labels_by_rank, changed.labels_by_rank)
    assert not torch.equal(split.data_classes, family(split_seed=1).split().data_classes)
    split = published_family().split()
    assert sorted(split.data_classes.tolist()) == list(range(1623))
    assert sorted(split.labels_by_rank.tolist()) == list(range(1613))
    assert set(split.labels_by_rank[:10].tolist()) == set(range(1603, 1613)), "the last labels are common"


def test_held_out_classes_are_not_trained_on():
    bursty = family()
    trained_classes = set(draw(bursty)[2].truth["class"].flatten().tolist())
    held_out_classes = set(draw(bursty, "icl")[2].truth["class"].flatten().tolist())
    assert len(trained_classes) == 50 and len(held_out_classes) == 10 and not trained_classes & held_out_classes


def test_validation_sequences_and_prompts_have_different_held_out_characters():
    families = (family(), family().validation())
    icl = [bursty.sample_test("icl", 500, torch.Generator().manual_seed(0)) for bursty in families]
    prompt_classes, validation_classes = (set(episodes.truth["class"].flatten().tolist()) for episodes in icl)
    assert validation_classes == set(range(60, 70)) and not prompt_classes & validation_classes
    iwl = [bursty.sample_test("iwl", 100, torch.Generator().manual_seed(0)) for bursty in families]
    assert torch.equal(iwl[0].context.x, iwl[1].context.x), "training classes are the same"
    omniglot = family(1613, glyphs="omniglot")
    classes, new_classes = omniglot.split().data_classes.tolist(), omniglot.validation().split().data_classes.tolist()
    assert classes[:-10] == new_classes[:-10] and not {*classes} & {*new_classes[-10:]}
    assert len({*new_classes}) == 1613
    with refused("not-applicable", "Omniglot", 9, 10, "task.classes"):
        family(1614, glyphs="omniglot").validation()


@pytest.mark.parametrize("test", ["", "icl_paired", "iwl"])
def test_frozen_prompts_are_saved_and_loaded_without_loss(test, tmp_path):
    task, _ = resolve_task("bursty", "smoke")
    prompts = PromptSet(task, "smoke", evaluator=test)
    episodes = prompts.episodes
    assert len(episodes) == 64 and torch.equal(
        PromptSet(task, "smoke", evaluator=test).episodes.context.x, episodes.context.x
    )
    episodes.save(tmp_path / "episodes.safetensors")
    loaded = Episodes.load(tmp_path / "episodes.safetensors").to("cpu")
    assert all(torch.equal(t, loaded.tensors()[name]) for name, t in episodes.tensors().items())
    assert loaded.classes == 50


def test_fingerprints_depend_only_on_the_characters():
    fingerprints = {family().fingerprint, family(jitter=0.5).fingerprint, family(image_size=9).fingerprint}
    assert len(fingerprints) == 3 and family(alpha=2.0).fingerprint in fingerprints


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"holdout": 1}, "holdout"),
        ({"alpha": -0.5}, "alpha"),
        ({"p_bursty": 1.2}, "p_bursty"),
        ({"p_bursty": -0.1}, "p_bursty"),
        ({"icl_labels": [0, 2000]}, "icl_labels: .*1622.*2000"),
        ({"icl_labels": [0, -1]}, "icl_labels: .*1622.*-1"),
        ({"icl_labels": [3, 3]}, r"icl_labels"),
        ({"icl_labels": "last"}, "rarest, common"),
        ({"classes": 111}, "classes: .*111.*100.*10"),
        ({"glyphs": "omniglot", "classes": 1624}, "classes: .*1623.*1624"),
        ({"image_size": 7}, "image_size"),
        ({"image_size": 106}, "image_size"),
        ({"train_drawings": 4}, "train_drawings"),
        ({"train_drawings": 21}, "train_drawings"),
        ({"common": 0}, "common"),
    ],
)
def test_invalid_parameters_are_refused(changes, name):
    with pytest.raises(ValidationError, match=name):
        BurstyParameters.model_validate(changes)


def test_evaluators_that_do_not_apply_are_refused():
    generator = torch.Generator().manual_seed(0)
    with refused("not-applicable", "iwl_new_drawings", 20, "task.train_drawings"):
        family().sample_test("iwl_new_drawings", 4, generator)
    with refused("not-applicable", "iwl_new_drawings", 20, "task.train_drawings"):
        resolve_task("bursty", "smoke")[0].evaluator_names(family(), ["iwl_new_drawings"])
    with refused("bad-value", "icl_paired", 5, "task.episodes"):
        family().sample_test("icl_paired", 5, generator)
    with refused("unknown-name", "'icll'", "'icl'"):
        family().sample_test("icll", 4, generator)
    with refused("missing-data", "--data-dir", "ICLBENCH_DATA", "'omniglot'"):
        draw(family(glyphs="omniglot"), episodes=1)


def test_a_curriculum_sets_all_but_the_leading_pixels_to_zero():
    """With `active_dims=30`, only the first 30 of 64 pixels keep their values, in the context and in the query."""
    bursty = family()
    full, reduced = (
        bursty.sample(Request(20, 8, torch.Generator().manual_seed(3), active_dims=dims)) for dims in (None, 30)
    )
    assert torch.equal(full.context.y, reduced.context.y)
    for full_x, reduced_x in ((full.context.x, reduced.context.x), (full.targets.x, reduced.targets.x)):
        assert torch.equal(full_x[..., :30], reduced_x[..., :30]) and full_x[..., 29].any()
        assert full_x[..., 30].any() and not reduced_x[..., 30:].any()


def test_evaluators_have_their_chance_levels_and_answer_sources():
    """Chance is one of two labels, one of four pairs of labels, or, if the answer is only in the weights, one of 50
    labels."""
    evaluators = family().evaluators()
    assert set(evaluators) == set(TESTS)
    facts = {name: (test.chance, test.group_size, test.answer_source) for name, test in evaluators.items()}
    assert facts.pop("icl") == (1 / 2, 1, "context")
    assert facts.pop("icl_paired") == (1 / 4, 2, "context")
    assert facts.pop("flip") == (1 / 2, 1, "either")
    assert set(facts.values()) == {(1 / 50, 1, "weights")}
