"""N-grams, compared with counts in plain Python, and errors for other tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from iclbench.contracts import example_episodes
from iclbench.core.episodes import Points
from iclbench.core.settings import validate
from iclbench.core.task import TaskFacts
from iclbench.estimators import token_estimator
from iclbench.estimators.n_gram import NGram, NGramSettings, Uniform
from iclbench.families.request import Request
from iclbench.families.streams.markov import MarkovChains, MarkovParameters
from iclbench.families.streams.markov_oracles import BayesChain
from tests.refusals import refused

CLASSES = 4


def n_gram(**settings: float) -> NGram:
    return NGram(NGramSettings(**settings), TaskFacts(classes=CLASSES))


def random_points(episodes: int, length: int, seed: int = 0) -> Points:
    """Sample random tokens, of which 0 is the most frequent. Predictions for them are in float64."""
    uniform = torch.rand((episodes, length), generator=torch.Generator().manual_seed(seed))
    return Points.full(torch.empty((episodes, length, 0), dtype=torch.float64), (uniform**2 * CLASSES).long())


def count_frequencies(tokens: list[int], order: int, smoothing: float) -> list[float]:
    """Return the smoothed frequencies of tokens after earlier occurrences of the last `order` tokens."""
    counts = [smoothing] * CLASSES
    if len(tokens) >= order:
        last = tokens[len(tokens) - order :]
        for i in range(order, len(tokens)):
            if tokens[i - order : i] == last:
                counts[tokens[i]] += 1
    return [count / sum(counts) for count in counts]


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("smoothing", [1.0, 0.01])
def test_probabilities_are_smoothed_frequencies(order: int, smoothing: float) -> None:
    points = random_points(5, 40)
    predictor = n_gram(order=order, smoothing=smoothing)
    answers = predictor.predict_next(points).logits.exp().numpy()
    last = predictor.predict_targets(points, points.x[:, :2]).logits.exp().numpy()
    for b, tokens in enumerate(points.y.tolist()):
        expected = [count_frequencies(tokens[:n], order, smoothing) for n in range(41)]
        np.testing.assert_allclose(answers[b], expected[:-1], rtol=1e-12)
        np.testing.assert_allclose(last[b], expected[-1:] * 2, rtol=1e-12)
    np.testing.assert_allclose(answers[:, : order + 1][:, : max(order, 1)], 1 / CLASSES)


def test_a_bigram_is_bayes_optimal_for_markov_chains_with_a_uniform_prior() -> None:
    chains = MarkovChains(MarkovParameters(symbols=CLASSES))
    context = chains.sample(Request(6, 50, torch.Generator().manual_seed(0))).context.to(dtype=torch.float64)
    expected = BayesChain(facts=chains.facts()).predict_next(context).logits
    torch.testing.assert_close(n_gram(order=1).predict_next(context).logits, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_masked_tokens_are_not_counted(order: int) -> None:
    points = random_points(6, 30)
    mask = torch.rand(6, 30, generator=torch.Generator().manual_seed(1)) < 0.6
    answer = n_gram(order=order).predict_next(replace(points, y=points.y.masked_fill(~mask, 99), mask=mask))
    for b in range(6):
        expected = [
            count_frequencies(points.y[b, :n][mask[b, :n]].tolist(), order, 1.0) for n in range(30) if mask[b, n]
        ]
        np.testing.assert_allclose(answer.logits[b, mask[b]].exp(), expected, rtol=1e-12)


def test_predictions_do_not_depend_on_later_tokens() -> None:
    points = random_points(4, 30)
    changed = points.y.clone()
    changed[:, 20:] = CLASSES - 1 - changed[:, 20:]
    answer, other = (n_gram(order=1).predict_next(replace(points, y=y)).logits for y in (points.y, changed))
    assert torch.equal(answer[:, :21], other[:, :21]) and not torch.equal(answer, other)


def test_predictions_do_not_depend_on_the_number_of_episodes_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    points = random_points(4, 30)
    points = replace(points, mask=torch.rand(4, 30, generator=torch.Generator().manual_seed(1)) < 0.6)
    expected = n_gram(order=2).predict_next(points, prefixes=[0, 3, 29]).logits
    monkeypatch.setattr(token_estimator, "_MAX_ENTRIES", 1)
    assert torch.equal(n_gram(order=2).predict_next(points, prefixes=[0, 3, 29]).logits, expected)


def test_uniform_predicts_equal_probabilities() -> None:
    points = random_points(3, 10)
    predictor = Uniform(facts=TaskFacts(classes=CLASSES))
    for answer in (predictor.predict_next(points), predictor.predict_targets(points, points.x[:, :1])):
        torch.testing.assert_close(answer.logits.exp(), torch.full_like(answer.logits, 1 / CLASSES))


@pytest.mark.parametrize("cls", [NGram, Uniform])
def test_other_tasks_are_refused(cls: type[NGram] | type[Uniform]) -> None:
    """Tasks with numbers, labelled inputs, events or vectors are not streams of tokens."""
    for episodes, classes in (
        (example_episodes(), None),
        (example_episodes(classes=CLASSES), CLASSES),
        (example_episodes(marks=3), None),
        (example_episodes(dim=0), None),
        (example_episodes(dim=0), CLASSES),
    ):
        with refused("not-applicable", cls.__name__):
            cls(facts=TaskFacts(classes=classes)).predict_next(episodes.context)


def test_n_grams_refuse_labels_of_prefixes() -> None:
    tokens = example_episodes(dim=0, classes=CLASSES)
    facts = TaskFacts(classes=CLASSES, predicts_labels=True)
    with refused("not-applicable", "NGram"):
        NGram(facts=facts).predict_next(tokens.context)
    assert Uniform(facts=facts).predict_next(tokens.context).logits.shape[-1] == CLASSES


@pytest.mark.parametrize("token", [-1, CLASSES])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    points = random_points(2, 5)
    points.y[1, 3] = token
    with refused("bad-data", token, CLASSES - 1):
        n_gram().predict_next(points)


def test_invalid_settings_are_refused() -> None:
    for key, value in (("order", -1), ("order", 17), ("smoothing", 0.0)):
        with refused("bad-value", key, value):
            validate(NGramSettings, {key: value}, "baseline")
