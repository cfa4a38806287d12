"""Markov chains: tokens against transition rows, distributions of rows, switches and invalid parameters."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from iclbench.core.episodes import Episodes
from iclbench.core.limits import VARIABLE
from iclbench.core.settings import validate
from iclbench.families.request import Request
from iclbench.families.streams.markov import MarkovChains, MarkovParameters
from tests.refusals import refused

SMALLEST_P = 1e-3


def family(**parameters: object) -> MarkovChains:
    return MarkovChains(validate(MarkovParameters, parameters, "task"))


def draw(chains: MarkovChains, episodes: int, points: int, shift: str = "none", seed: int = 0) -> Episodes:
    return chains.sample(Request(episodes, points, torch.Generator().manual_seed(seed), shift=shift))


def tokens_rows_switches(episodes: Episodes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens `(B, N)`, and the true rows and switches, `(B, N + 1, ...)`."""
    return (episodes.context.y.numpy(), episodes.truth["rows"].numpy(), episodes.truth["is_switch"].numpy())


def context_of(tokens: np.ndarray, position: int, order: int) -> tuple[int, ...]:
    return tuple(tokens[position - order : position].tolist())


@pytest.mark.parametrize(("symbols", "order"), [(3, 1), (2, 2), (5, 2), (64, 1)])
def test_a_chain_has_one_transition_row_per_context(symbols: int, order: int) -> None:
    tokens, rows, _ = tokens_rows_switches(draw(family(symbols=symbols, order=order), 6, 300))
    seen: dict[tuple[int, ...], np.ndarray] = {}
    for b in range(6):
        for n in range(order, 301):
            context = (b, *context_of(tokens[b], n, order))
            assert (seen.setdefault(context, rows[b, n]) == rows[b, n]).all()
    # Rows differ between contexts and between episodes.
    assert len(np.unique(np.stack(list(seen.values())), axis=0)) == len(seen)
    assert len(seen) > 0.8 * 6 * symbols**order
    np.testing.assert_allclose(rows.sum(-1), 1)


@pytest.mark.parametrize(("symbols", "order", "switch"), [(3, 1, 0.0), (2, 2, 0.0), (3, 1, 0.05)])
def test_token_frequencies_after_each_context_agree_with_the_transition_row(
    symbols: int, order: int, switch: float
) -> None:
    """Pearson's chi-squared test is applied to the counts of one token after each context.

    With switches, an expected count is a sum over the rows of many chains, so positions are grouped by context.
    """
    tokens, rows, _ = tokens_rows_switches(draw(family(symbols=symbols, order=order, switch=switch), 20, 4000))
    statistic, freedom = 0.0, 0
    for b in range(20):
        groups: dict[tuple[int, ...], list[int]] = {}
        for n in range(order, 4000):
            groups.setdefault(context_of(tokens[b], n, order), []).append(n)
        for positions in groups.values():
            p, is_token = rows[b, positions, 0], tokens[b, positions] == 0
            variance = (p * (1 - p)).sum()
            if variance > 5:
                statistic += (is_token - p).sum() ** 2 / variance
                freedom += 1
    assert freedom > 20 * symbols**order / 2
    assert SMALLEST_P < stats.chi2(freedom).cdf(statistic) < 1 - SMALLEST_P


def test_token_frequencies_are_calibrated() -> None:
    """Positions are binned by the probability of a token. In each bin, the share of this token is near the mean
    probability."""
    tokens, rows, _ = tokens_rows_switches(draw(family(symbols=4, order=2), 400, 100))
    for token in range(4):
        p, is_token = rows[:, :-1, token].ravel(), tokens.ravel() == token
        for low in np.arange(0, 1, 0.1):
            group = (p >= low) & (p < low + 0.1)
            error = np.sqrt((p * (1 - p))[group].sum()) / group.sum()
            assert abs(is_token[group].mean() - p[group].mean()) < 4.5 * error


@pytest.mark.parametrize("order", [1, 2])
def test_the_first_tokens_are_uniform(order: int) -> None:
    tokens, rows, _ = tokens_rows_switches(draw(family(order=order, concentration=0.1), 9000, 4))
    counts = [(tokens[:, :order] == first).all(1).sum() for first in product(range(3), repeat=order)]
    assert stats.chisquare(counts).pvalue > SMALLEST_P
    assert (rows[:, :order] == 1 / 3).all() and (rows[:, order] != 1 / 3).any()


@pytest.mark.parametrize(
    ("concentration", "symbols"), [(0.01, 3), (0.3, 3), (1.0, 2), (1.0, 3), (4.0, 5)], ids=lambda v: str(v)
)
def test_rows_have_a_dirichlet_distribution(concentration: float, symbols: int) -> None:
    """Each probability in a row has a Beta distribution, whether a parameter or a shift sets the concentration."""
    for chains, shift in (
        (family(symbols=symbols, concentration=concentration), "none"),
        (family(symbols=symbols), f"concentration-{concentration}"),
    ):
        _, rows, _ = tokens_rows_switches(draw(chains, 4000, 1, shift))
        probabilities = rows[:, 1]
        expected = stats.beta(concentration, (symbols - 1) * concentration)
        for token in range(symbols):
            # At the smallest concentration many probabilities are rounded to 1, so only low quantiles are tested.
            for level in (0.1, 0.3, 0.5):
                below = (probabilities[:, token] < expected.ppf(level)).sum()
                assert stats.binomtest(int(below), 4000, level).pvalue > SMALLEST_P
            if concentration > 0.1:
                assert stats.kstest(probabilities[:, token], expected.cdf).pvalue > SMALLEST_P
        # Two probabilities have the covariance of a Dirichlet distribution.
        pairs = probabilities[:, 0] * probabilities[:, 1]
        mean = concentration / (symbols * (symbols * concentration + 1))
        assert abs(pairs.mean() - mean) < 4 * pairs.std() / np.sqrt(len(pairs))


@pytest.mark.parametrize("shift", ["none", "switch-0.1"])
def test_only_a_switch_replaces_the_chain(shift: str) -> None:
    chains = family(symbols=2, switch=0.0 if shift != "none" else 0.1)
    tokens, rows, is_switch = tokens_rows_switches(draw(chains, 100, 200, shift))
    count = is_switch.sum()
    assert stats.binomtest(int(count), is_switch.size, 0.1).pvalue > SMALLEST_P
    # Switches are independent, so a switch is as likely right after a switch as elsewhere.
    after = is_switch[:, 1:][is_switch[:, :-1]]
    assert stats.binomtest(int(after.sum()), after.size, 0.1).pvalue > SMALLEST_P
    all_rows = set()
    for b in range(100):
        current: dict[int, np.ndarray] = {}
        for n in range(1, 201):
            if is_switch[b, n]:
                current = {}
            context = int(tokens[b, n - 1])
            if context not in current:
                current[context] = rows[b, n]
                assert rows[b, n].tobytes() not in all_rows, "every chain is new"
                all_rows.add(rows[b, n].tobytes())
            assert (rows[b, n] == current[context]).all()


def test_new_chains_are_independent_of_the_replaced_ones() -> None:
    _, rows, is_switch = tokens_rows_switches(draw(family(symbols=2, switch=1.0), 300, 50))
    assert is_switch.all()
    p = rows[:, 1:, 0]
    assert stats.kstest(p.ravel(), "uniform").pvalue > SMALLEST_P
    assert stats.spearmanr(p[:, :-1].ravel(), p[:, 1:].ravel()).pvalue > SMALLEST_P


def test_without_switches_no_chain_is_replaced() -> None:
    assert not draw(family(), 20, 50).truth["is_switch"].any()


def test_the_first_chain_depends_neither_on_the_length_nor_on_switches() -> None:
    """Tokens and rows of two draws agree up to the first switch."""
    chains = family(order=2)
    long, short, switching = (
        tokens_rows_switches(draw(chains, 8, points, shift))
        for points, shift in ((60, "none"), (20, "none"), (60, "switch-0.05"))
    )
    assert (long[0][:, :20] == short[0]).all() and (long[1][:, :21] == short[1]).all()
    is_first = ~np.logical_or.accumulate(switching[2], 1)
    assert is_first[:, 10].any() and not is_first.all()
    assert (switching[1][is_first] == long[1][is_first]).all()
    assert not (switching[1] == long[1]).all()


def test_the_truth_has_one_transition_row_more_than_tokens() -> None:
    for order, points in ((1, 1), (2, 1), (2, 2), (2, 3)):
        episodes = draw(family(order=order), 5, points)
        assert episodes.context.y.shape == (5, points) and episodes.context.x.shape == (5, points, 0)
        assert episodes.truth["rows"].shape == (5, points + 1, 3)
        assert episodes.scored.all() and episodes.classes == 3


@pytest.mark.parametrize("switch", [0.0, 0.1])
def test_only_the_generator_of_the_request_is_used(switch: float) -> None:
    chains = family(switch=switch)
    tokens = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        tokens.append(draw(chains, 4, 30).context.y)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*tokens)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("order", 0),
        ("order", 3),
        ("symbols", 1),
        ("symbols", 65),
        ("concentration", 0.0),
        ("concentration", -1.0),
        ("switch", -0.1),
        ("switch", 1.1),
    ],
)
def test_bad_parameters_are_refused(key: str, value: float) -> None:
    with refused("bad-value", f"task: {key}", value):
        family(**{key: value})


@pytest.mark.parametrize(
    ("shift", "code"),
    [
        ("switch", "missing-value"),
        ("switch-0", "bad-value"),
        ("switch-1.5", "bad-value"),
        ("concentration", "missing-value"),
        ("concentration-0.001", "bad-value"),
        ("concentration-2000", "bad-value"),
        ("noisy-1", "not-applicable"),
    ],
)
def test_bad_shifts_are_refused(shift: str, code: str) -> None:
    with refused(code, shift.partition("-")[0]):
        draw(family(), 2, 5, shift)


def test_shifts_of_switch_and_concentration_can_be_combined() -> None:
    chains = family()
    assert chains.prior() == (1.0, 0.0)
    assert chains.prior("switch-0.2+concentration-3+points-40") == (3.0, 0.2)
    assert chains.parse_shift("switch-0.20+concentration-3").name == "concentration-3+switch-0.2"


def test_chains_larger_than_the_memory_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "16M")
    with refused("too-large", "--max-bytes"):
        draw(family(symbols=64, order=2), 64, 10)
    draw(family(symbols=64, order=2), 2, 10)
