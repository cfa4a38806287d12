"""State tracking: labels against products of permutation matrices, and predictors against enumeration of all words."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
import torch
from scipy import stats

from iclbench.backbones.sequence import SequenceBackbone
from iclbench.config.resolution import resolve_run
from iclbench.contracts import CONTRACTS, Tolerance
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Categorical
from iclbench.core.settings import validate
from iclbench.core.task import TaskFacts
from iclbench.evaluation.curves import learning_curve
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.linear import Linear
from iclbench.families.request import Request
from iclbench.families.streams.permutations import word_distributions
from iclbench.families.streams.state_tracking import StateTracking, StateTrackingParameters
from iclbench.families.streams.state_tracking_predictors import ProductOracle, TokenCount
from tests.contracts.cases import check_contracts
from tests.families.streams.masks import assert_masked_tokens_are_not_read
from tests.refusals import refused

OBJECTS = {"Z2": 2, "S3": 3, "S5": 5}
CASES = [(group, generators) for group in OBJECTS for generators in ("all", "adjacent")]
SMALLEST_P = 1e-3


def family(group: str = "S3", generators: str = "all") -> StateTracking:
    return StateTracking(validate(StateTrackingParameters, {"group": group, "generators": generators}, "task"))


def draw(words: StateTracking, episodes: int, points: int, seed: int = 0) -> Episodes:
    return words.sample(Request(episodes, points, torch.Generator().manual_seed(seed)))


@cache
def matrices(group: str) -> np.ndarray:
    """Return the permutation matrices of a group in lexicographic order. A matrix moves entry i of a vector to place
    p[i]."""
    objects = OBJECTS[group]
    return np.stack([np.eye(objects, dtype=int)[list(p)].T for p in permutations(range(objects))])


def number_of(matrix: np.ndarray, group: str) -> int:
    return int((matrices(group) == matrix).all((1, 2)).argmax())


def labels_by_matrices(tokens: list[int], group: str) -> list[int]:
    """Return the numbers of the products of 0, 1, ..., N tokens. Later tokens are factors on the left."""
    matrix = np.eye(OBJECTS[group], dtype=int)
    numbers = [number_of(matrix, group)]
    for token in tokens:
        matrix = matrices(group)[token] @ matrix
        numbers.append(number_of(matrix, group))
    return numbers


def predictor(cls: type[ProductOracle] | type[TokenCount], words: StateTracking) -> ProductOracle | TokenCount:
    return cls(facts=words.facts())


@pytest.mark.parametrize(("group", "generators"), CASES)
def test_labels_are_the_products_of_the_tokens_so_far(group: str, generators: str) -> None:
    words = family(group, generators)
    episodes = draw(words, 6, 40)
    assert episodes.targets is not None and episodes.classes == math.factorial(OBJECTS[group])
    for b, tokens in enumerate(episodes.context.y.tolist()):
        expected = labels_by_matrices(tokens, group)
        assert episodes.targets.y[b].tolist() == expected[:-1]
        assert episodes.truth["products"][b].tolist() == expected
    assert not episodes.scored[:, 0].any() and episodes.scored[:, 1:].all()


def test_labels_of_bits_are_their_parities() -> None:
    episodes = draw(family("Z2"), 50, 40)
    bits = episodes.context.y.numpy()
    assert (episodes.targets.y[:, 1:].numpy() == bits.cumsum(1)[:, :-1] % 2).all()


@pytest.mark.parametrize(("group", "generators"), CASES)
def test_tokens_are_uniform_over_the_generators(group: str, generators: str) -> None:
    words = family(group, generators)
    tokens = draw(words, 400, 100).context.y
    counts = torch.bincount(tokens.flatten(), minlength=words.classes)
    allowed = set(range(words.classes))
    if generators == "adjacent":
        identity = np.eye(OBJECTS[group], dtype=int)
        swaps = [np.r_[:i, i + 1, i, i + 2 : OBJECTS[group]] for i in range(OBJECTS[group] - 1)]
        allowed = {number_of(identity[swap], group) for swap in swaps}
    assert set(counts.nonzero().flatten().tolist()) == allowed
    assert stats.chisquare(counts[counts > 0]).pvalue > SMALLEST_P or len(allowed) == 1


def test_tokens_are_independent() -> None:
    tokens = draw(family("Z2"), 2000, 33).context.y.numpy()
    pairs = np.bincount((2 * tokens[:, :-1] + tokens[:, 1:]).ravel())
    assert stats.chi2_contingency(pairs.reshape(2, 2)).pvalue > SMALLEST_P
    assert stats.chi2_contingency(np.histogram2d(tokens[:, 3], tokens[:, 20], 2)[0]).pvalue > SMALLEST_P


def test_longer_words_start_with_the_tokens_of_shorter_words() -> None:
    words = family("S5")
    short, long = draw(words, 8, 33), draw(words, 8, 257)
    assert torch.equal(long.context.y[:, :33], short.context.y)
    assert torch.equal(long.targets.y[:, :33], short.targets.y)


def test_only_the_generator_of_the_request_is_used() -> None:
    before = torch.get_rng_state()
    first, second = (draw(family(), 4, 30, seed).context.y for seed in (1, 2))
    assert torch.equal(torch.get_rng_state(), before) and not torch.equal(first, second)


@pytest.mark.parametrize("parameters", [{"group": "A5"}, {"group": "s3"}, {"generators": "swaps"}])
def test_unknown_groups_and_generators_are_refused(parameters: dict[str, str]) -> None:
    with refused("bad-value", f"task: {next(iter(parameters))}"):
        validate(StateTrackingParameters, parameters, "task")


def test_other_shifts_are_refused() -> None:
    assert family().parse_shift("points-256").examples == 256
    with refused("not-applicable", "noisy"):
        family().parse_shift("noisy-1")


@pytest.mark.parametrize("name", ["gru", "gpt2", "mamba2"])
def test_products_are_never_inputs_of_a_model(name: str) -> None:
    """The loss depends on the labels, but predictions do not change if all labels change. They also do not change if
    later tokens change."""
    run = resolve_run("state-tracking-s3", name, "smoke")
    task = run.task.build()
    model = run.backbone.build(run.shape(task)).eval()
    assert isinstance(model, SequenceBackbone)
    episodes = draw(task, 4, 12)
    targets = episodes.targets
    assert targets is not None and not torch.equal(targets.y, episodes.context.y)
    other = replace(episodes, targets=replace(targets, y=(targets.y + 1) % 6), truth={})
    with torch.no_grad():
        answer, changed = model.ask(episodes, "next").logits, model.ask(other, "next").logits
        losses = [float(model.loss(batch, 0.0, torch.Generator())[0]) for batch in (episodes, other)]
        tokens = episodes.context.y.clone()
        tokens[:, 7:] = (tokens[:, 7:] + 1) % 6
        later = replace(episodes, context=replace(episodes.context, y=tokens))
        after = model.ask(later, "next").logits
    assert torch.equal(answer, changed) and losses[0] != losses[1]
    torch.testing.assert_close(after[:, :8], answer[:, :8], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(after[:, 8:], answer[:, 8:])


def test_the_loss_of_a_model_is_its_cross_entropy_on_the_products() -> None:
    run = resolve_run("state-tracking-s3", "gru", "smoke")
    task = run.task.build()
    model = run.backbone.build(run.shape(task)).eval()
    episodes = draw(task, 4, 12)
    with torch.no_grad():
        log_probabilities = model.predict_next(episodes.context).logits.double().log_softmax(-1).numpy()
        loss = float(model.loss(episodes, 0.0, torch.Generator())[0])
    losses = [
        -log_probabilities[b, n, label]
        for b, tokens in enumerate(episodes.context.y.tolist())
        for n, label in enumerate(labels_by_matrices(tokens, "S3")[:-1])
        if n
    ]
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(("group", "generators"), CASES)
def test_the_oracle_is_certain_of_the_product(group: str, generators: str) -> None:
    words = family(group, generators)
    episodes = draw(words, 5, 60)
    answer = predictor(ProductOracle, words).ask(episodes.without_truth(), "next")
    assert torch.equal(answer.point()[episodes.scored], episodes.targets.y[episodes.scored])
    assert float(answer.loss(episodes.targets.y).max()) == 0


def probabilities_by_enumeration(group: str, tokens: list[int], length: int) -> np.ndarray:
    """Return the frequencies of the products of all words of this length."""
    table = matrices(group)
    counts = np.zeros(len(table))
    for word in product(tokens, repeat=length):
        matrix = np.eye(OBJECTS[group], dtype=int)
        for token in word:
            matrix = table[token] @ matrix
        counts[number_of(matrix, group)] += 1
    return counts / counts.sum()


@pytest.mark.parametrize(
    ("group", "generators", "length"),
    [("Z2", "all", 6), ("Z2", "adjacent", 6), ("S3", "all", 4), ("S3", "adjacent", 8), ("S5", "adjacent", 5)],
)
def test_the_distribution_given_the_number_of_tokens_equals_the_frequencies_in_all_words(
    group: str, generators: str, length: int
) -> None:
    words = family(group, generators)
    points = in_float64(draw(words, 2, length + 1))
    answer = predictor(TokenCount, words).predict_next(points).logits.exp().numpy()
    for n in range(length + 1):
        expected = probabilities_by_enumeration(group, sorted(set(words.generators)), n)
        np.testing.assert_allclose(answer[:, n], np.tile(expected, (2, 1)), rtol=0, atol=1e-12)


def test_the_distribution_of_products_is_right_for_generators_without_their_inverses() -> None:
    """The generators are a swap and a cycle of three objects. The inverse of the cycle is not a generator."""
    tokens = [2, 3]
    rows = word_distributions(tokens, 5, 3).numpy()
    for n in range(6):
        np.testing.assert_allclose(rows[n], probabilities_by_enumeration("S3", tokens, n), rtol=0, atol=1e-12)


def test_the_sign_of_a_product_of_many_transpositions_is_known_from_their_number() -> None:
    """For long words, half of the K elements are equally likely and the others are impossible, so the loss is ln(K / 2)
    and the accuracy is 2 / K."""
    for group, length in (("S3", 80), ("S5", 250)):
        words = family(group, "adjacent")
        signs = np.round(np.linalg.det(matrices(group)))
        episodes = draw(words, 3000, length)
        products = episodes.truth["products"].numpy()
        assert (signs[products] == (-1.0) ** np.arange(length + 1)).all()
        answer = predictor(TokenCount, words).predict_next(in_float64(episodes[:2])).logits[:, -1].exp().numpy()
        expected = np.where(signs == (-1) ** (length - 1), 2 / len(signs), 0)
        np.testing.assert_allclose(answer, np.tile(expected, (2, 1)), rtol=0, atol=1e-6)
        frequencies = np.bincount(products[:, -2], minlength=len(signs))[expected > 0]
        assert stats.chisquare(frequencies).pvalue > SMALLEST_P


def in_float64(episodes: Episodes) -> Points:
    """Return the tokens with x in float64, so that predictions are in float64, too."""
    y = episodes.context.y
    return Points.full(torch.empty((*y.shape, 0), dtype=torch.float64), y)


@pytest.mark.parametrize("cls", [ProductOracle, TokenCount])
@pytest.mark.parametrize(("group", "generators"), [("Z2", "all"), ("S3", "adjacent"), ("S5", "all")])
def test_predictors_pass_the_contracts(
    cls: type[ProductOracle] | type[TokenCount], group: str, generators: str
) -> None:
    words = family(group, generators)
    drawn = draw(words, 3, 12)
    targets = drawn.context.span(9)
    episodes = replace(drawn, context=drawn.context.span(0, 9), targets=targets, scored=targets.mask)
    checked_predictor = predictor(cls, words)
    contracts = [contract for contract in CONTRACTS if contract.is_checkable(checked_predictor, episodes)]
    assert len(contracts) > 10
    check_contracts(contracts, checked_predictor, episodes, Tolerance())


@pytest.mark.parametrize("cls", [ProductOracle, TokenCount])
def test_masked_tokens_are_not_read(cls: type[ProductOracle] | type[TokenCount]) -> None:
    words = family("S5", "adjacent")
    assert_masked_tokens_are_not_read(predictor(cls, words), in_float64(draw(words, 8, 30)), 7)


def test_other_families_are_refused() -> None:
    for cls in (ProductOracle, TokenCount):
        with refused("not-applicable", cls.__name__, "state-tracking"):
            cls(facts=TaskFacts(family=Linear(Linear.Parameters())))


def test_curves_score_the_labels_after_each_number_of_tokens() -> None:
    run = resolve_run("state-tracking-s3-adjacent", "gru", "smoke")
    prompts = PromptSet(run.task, "smoke", "points-64")
    words = prompts.family
    assert isinstance(words, StateTracking)

    class LastToken(ProductOracle):
        """Predicts the last token instead of the product."""

        def predict_next(self, points: Points, *args: object, **kwargs: object) -> Categorical:
            before = torch.nn.functional.pad(points.y[:, :-1], (1, 0))
            return Categorical(10 * torch.nn.functional.one_hot(before, 6).float())

    curve = learning_curve(LastToken(facts=words.facts()), prompts)
    assert curve.prefixes == tuple(range(65)) and curve.is_in_area.tolist() == [False] + 64 * [True]
    accuracy = curve.scores["accuracy"]
    for b, tokens in enumerate(prompts.episodes.context.y.tolist()):
        labels = labels_by_matrices(tokens, "S3")
        assert accuracy[b, 1:].tolist() == [float(labels[n] == tokens[n - 1]) for n in range(1, 65)]
    assert (accuracy[:, 1] == 1).all() and (accuracy[:, 2] == 0).all()
