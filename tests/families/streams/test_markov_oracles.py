"""The oracles of Markov chains against integration over chains and enumeration of all switches."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy import special

from iclbench.contracts import CONTRACTS, Tolerance
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Categorical
from iclbench.core.task import TaskFacts
from iclbench.families.linear import Linear
from iclbench.families.streams import chain_posterior
from iclbench.families.streams.chain_posterior import ChainPrior, rows_with_switches
from iclbench.families.streams.markov import MarkovChains
from iclbench.families.streams.markov_oracles import BayesChain, ChainOracle
from tests.contracts.cases import check_contracts
from tests.families.streams.masks import assert_masked_tokens_are_not_read
from tests.families.streams.test_markov import draw, family
from tests.refusals import refused

EXACT = {"rtol": 0, "atol": 1e-10}


def bayes(chains: MarkovChains, shift: str = "none") -> BayesChain:
    return BayesChain(facts=chains.facts(shift))


def chain_oracle(chains: MarkovChains, episodes: Episodes) -> ChainOracle:
    return ChainOracle(facts=chains.facts()).informed(episodes.truth)


def as_points(tokens: np.ndarray | list[list[int]]) -> Points:
    """Convert tokens to points in float64, so that predictions are in float64, too."""
    y = torch.as_tensor(tokens)
    return Points.full(torch.empty((*y.shape, 0), dtype=torch.float64), y)


def in_float64(episodes: Episodes) -> Points:
    return as_points(episodes.context.y)


def probabilities(answer: Categorical) -> np.ndarray:
    return answer.logits.softmax(-1).numpy()


def dirichlet_nodes(symbols: int, concentration: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a Gauss quadrature over a Dirichlet distribution.

    The nodes are built by stick-breaking: the shares of the remaining stick have Beta distributions.
    """
    nodes, weights = np.zeros((1, 0)), np.ones(1)
    for rest in range(symbols - 1, 0, -1):
        x, w = special.roots_jacobi(count, rest * concentration - 1, concentration - 1)
        share, w = (x + 1) / 2, w / w.sum()
        remaining = 1 - nodes.sum(1)
        nodes = np.concatenate(
            [np.repeat(nodes, count, 0), (remaining[:, None] * share).reshape(-1, 1)],
            1,
        )
        weights = (weights[:, None] * w).ravel()
    return np.concatenate([nodes, 1 - nodes.sum(1, keepdims=True)], 1), weights


def probabilities_by_integration(
    tokens: list[int], symbols: int, order: int, concentration: float, count: int
) -> np.ndarray:
    """Compute the probabilities of the next token after every prefix by integrating the likelihood over all chains."""
    row_nodes, row_weights = dirichlet_nodes(symbols, concentration, count)
    contexts = list(product(range(symbols), repeat=order))
    grid = np.stack(np.meshgrid(*[np.arange(len(row_nodes))] * len(contexts), indexing="ij"), -1)
    grid = grid.reshape(-1, len(contexts))
    chains, posterior = row_nodes[grid], row_weights[grid].prod(1)
    answers = []
    for n in range(len(tokens) + 1):
        if n < order:
            answers.append(np.full(symbols, 1 / symbols))
            continue
        row = chains[:, contexts.index(tuple(tokens[n - order : n]))]
        answers.append(posterior @ row / posterior.sum())
        if n < len(tokens):
            posterior = posterior * row[:, tokens[n]]
    return np.stack(answers)


@pytest.mark.parametrize(
    ("symbols", "order", "concentration", "count", "length"),
    [(2, 1, 1.0, 16, 24), (2, 1, 0.3, 16, 24), (2, 1, 2.5, 16, 24), (2, 2, 1.0, 8, 12), (3, 1, 0.5, 4, 6)],
)
def test_without_switches_the_bayes_oracle_equals_integration_over_all_chains(
    symbols: int, order: int, concentration: float, count: int, length: int
) -> None:
    chains = family(symbols=symbols, order=order, concentration=concentration)
    points = in_float64(draw(chains, 4, length))
    predictor = bayes(chains)
    answers = probabilities(predictor.predict_next(points))
    last = probabilities(predictor.predict_targets(points, points.x[:, :1]))
    for b, tokens in enumerate(points.y.tolist()):
        expected = probabilities_by_integration(tokens, symbols, order, concentration, count)
        np.testing.assert_allclose(answers[b], expected[:-1], **EXACT)
        np.testing.assert_allclose(last[b, 0], expected[-1], **EXACT)


def joint_probability(tokens: tuple[int, ...], order: int, concentration: float, switch: float) -> float:
    """Compute the probability of binary tokens: the sum of products of Beta functions over all sets of switches."""
    total = 0.0
    for switches in product((False, True), repeat=len(tokens)):
        p = math.prod(switch if is_switch else 1 - switch for is_switch in switches) * 0.5 ** min(order, len(tokens))
        counts: dict[tuple[int, ...], list[int]] = {}
        chain = 0
        for n, is_switch in enumerate(switches):
            chain += is_switch
            if n >= order:
                counts.setdefault((chain, *tokens[n - order : n]), [0, 0])[tokens[n]] += 1
        for a, b in counts.values():
            p *= special.beta(concentration + a, concentration + b) / special.beta(concentration, concentration)
        total += p
    return total


@pytest.mark.parametrize(
    ("order", "concentration", "switch"), [(1, 1.0, 0.1), (1, 0.4, 0.5), (2, 1.0, 0.2), (1, 1.0, 1.0)]
)
def test_with_switches_the_bayes_oracle_equals_enumeration_of_all_switches(
    order: int, concentration: float, switch: float
) -> None:
    chains = family(symbols=2, order=order, concentration=concentration, switch=switch)
    points = in_float64(draw(chains, 2, 9, seed=3))
    answers = probabilities(bayes(chains).predict_next(points))
    for b, tokens in enumerate(points.y.tolist()):
        for n in range(9):
            joint = [joint_probability((*tokens[:n], token), order, concentration, switch) for token in (0, 1)]
            np.testing.assert_allclose(answers[b, n], np.array(joint) / sum(joint), rtol=0, atol=1e-12)


def test_the_algorithms_with_and_without_switches_agree_at_switch_probability_0() -> None:
    tokens = draw(family(symbols=4, order=2), 5, 80).context.y
    rows = rows_with_switches(tokens, 2, 4, ChainPrior(0.7, 0.0))
    expected = probabilities(bayes(family(symbols=4, order=2, concentration=0.7)).predict_next(as_points(tokens)))
    np.testing.assert_allclose(rows[:, :-1], expected, **EXACT)


@pytest.mark.parametrize(
    ("shift", "parameters"),
    [
        ("concentration-0.2", {"concentration": 0.2}),
        ("switch-0.05", {"switch": 0.05}),
        ("concentration-3+switch-0.05", {"concentration": 3.0, "switch": 0.05}),
    ],
)
def test_the_bayes_oracle_uses_the_prior_of_the_shift(shift: str, parameters: dict[str, float]) -> None:
    chains, shifted = family(), family(**parameters)
    points = in_float64(draw(chains, 10, 40, shift))
    answer = bayes(chains, shift).predict_next(points)
    assert torch.equal(answer.logits, bayes(shifted).predict_next(points).logits)
    assert not torch.allclose(answer.logits, bayes(chains).predict_next(points).logits)
    assert chains.is_oracle_optimal("oracle-bayes-chain", shift)


@pytest.mark.parametrize("switch", [0.0, 0.05])
def test_mean_losses_of_oracles_agree_with_their_definitions(switch: float) -> None:
    """After one token, the loss of the chain oracle is the expected entropy of a row, psi(k + 1) - psi(2) = 5/6 nats
    for k = 3 tokens, and the Bayes oracle assigns equal probabilities. Later, the Bayes oracle is calibrated, and has a
    higher loss than the chain oracle and a lower one than equal probabilities."""
    chains = family(switch=switch)
    episodes = draw(chains, 4000, 60)
    points = in_float64(episodes)
    oracles = chain_oracle(chains, episodes), bayes(chains)
    chain_answer, bayes_answer = (oracle.predict_next(points) for oracle in oracles)
    losses, bayes_losses = chain_answer.loss(points.y), bayes_answer.loss(points.y)
    assert losses[:, 0].mean() == pytest.approx(math.log(3))
    error = losses[:, 1].std() / math.sqrt(len(losses))
    assert abs(losses[:, 1].mean() - 5 / 6) < 4 * error
    np.testing.assert_allclose(bayes_losses[:, :2], math.log(3))
    for n in (10, 59):
        gap = bayes_losses[:, n] - losses[:, n]
        assert gap.mean() > 4 * gap.std() / math.sqrt(len(gap))
        assert bayes_losses[:, n].mean() < math.log(3) - 0.05
    p = probabilities(bayes_answer)[:, 2:, 0].ravel()
    is_token = (points.y[:, 2:] == 0).numpy().ravel()
    for low in np.arange(0, 1, 0.1):
        group = (p >= low) & (p < low + 0.1)
        # Deviations within an episode are martingale differences, so the variances of all positions add up.
        error = np.sqrt((p * (1 - p))[group].sum())
        assert abs((is_token - p)[group].sum()) < 4.5 * error


def test_the_chain_oracle_predicts_the_true_rows() -> None:
    """Tokens with probability 0 have finite logits, and masked tokens do not affect the prediction."""
    chains = family(switch=0.1, concentration=0.01)
    episodes = draw(chains, 500, 6)
    oracle, points, rows = chain_oracle(chains, episodes), in_float64(episodes), episodes.truth["rows"]
    answer = oracle.predict_next(points)
    np.testing.assert_allclose(probabilities(answer), rows[:, :-1], **EXACT)
    assert answer.logits.isfinite().all() and (rows == 0).any()
    x = points.x[:, :2]
    np.testing.assert_allclose(
        probabilities(oracle.predict_targets(points, x)), rows[:, -1:].expand(-1, 2, -1), **EXACT
    )
    state = oracle.condition(points.span(0, 2))
    masked = replace(points, mask=torch.zeros_like(points.mask).index_fill(1, torch.tensor([1]), True))
    np.testing.assert_allclose(probabilities(oracle.query(oracle.update(state, masked), x)), rows[:, [3, 3]], **EXACT)
    with refused("missing-value", "oracle-chain", "informed"):
        ChainOracle(facts=chains.facts()).predict_next(points)


@pytest.mark.parametrize(("order", "switch"), [(1, 0.0), (2, 0.0), (1, 0.1)])
def test_both_oracles_pass_the_contracts(order: int, switch: float) -> None:
    chains = family(order=order, switch=switch)
    drawn = draw(chains, 3, 12)
    targets = drawn.context.span(9)
    episodes = replace(drawn, context=drawn.context.span(0, 9), targets=targets, scored=targets.mask)
    bayes_contracts = [contract for contract in CONTRACTS if contract.is_checkable(bayes(chains), episodes)]
    check_contracts(bayes_contracts, bayes(chains), episodes, Tolerance())
    oracle = chain_oracle(chains, episodes)
    # An oracle has the truth of one complete batch, so contracts that split the batch do not apply.
    chain_contracts = [
        contract
        for contract in CONTRACTS
        if contract.is_checkable(oracle, episodes) and contract.name != "batch_neighbours_change_nothing"
    ]
    assert len(chain_contracts) > 10
    check_contracts(chain_contracts, oracle, episodes, Tolerance())


@pytest.mark.parametrize("switch", [0.0, 0.1])
def test_predictions_depend_on_neither_later_tokens_nor_other_episodes(
    switch: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions are identical if later tokens change, and equal up to 1e-14 if episodes are processed one by one."""
    chains = family(order=2, switch=switch)
    points, predictor = in_float64(draw(chains, 6, 40)), bayes(chains)
    answer = predictor.predict_next(points).logits
    changed = points.y.clone()
    changed[:, 25:] = 2 - changed[:, 25:]
    changed_answer = predictor.predict_next(replace(points, y=changed)).logits
    assert torch.equal(changed_answer[:, :26], answer[:, :26]) and not torch.equal(changed_answer, answer)
    monkeypatch.setattr(chain_posterior, "_MAX_ENTRIES", 1)
    torch.testing.assert_close(predictor.predict_next(points).logits, answer, rtol=0, atol=1e-14)
    torch.testing.assert_close(predictor.predict_next(points[2:3]).logits, answer[2:3], rtol=0, atol=1e-14)


def test_masked_tokens_are_not_read() -> None:
    chains = family(switch=0.1)
    assert_masked_tokens_are_not_read(bayes(chains), in_float64(draw(chains, 8, 30)), 77)


def test_other_families_are_refused() -> None:
    for oracle in (ChainOracle, BayesChain):
        with refused("not-applicable", oracle.__name__, "markov"):
            oracle(facts=TaskFacts(family=Linear(Linear.Parameters())))
