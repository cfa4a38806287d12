"""Ridge regression after every token against least squares in NumPy and a loop over tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.layers import ridge_recurrence as module
from iclbench.layers.linear_recurrence import Terms, linear_recurrence
from iclbench.layers.ridge_recurrence import fork, peek, ridge_recurrence

B, H, K, V = 2, 3, 4, 5
PENALTY = 0.25 + torch.rand(H, K, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def terms(tokens: int, strength: float = 1.0, seed: int = 0) -> Terms:
    """Draw terms with keys of length 1, whose mean log decay is about -0.8 times the strength."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int) -> Tensor:
        return torch.randn(B, H, tokens, size, generator=generator, dtype=torch.float64)

    q, k = normal(K), F.normalize(normal(K), dim=-1)
    return Terms(q, normal(1).sigmoid() * k, k, -strength * F.softplus(normal(1)))


def state() -> Tensor:
    keys = torch.randn(B, H, K, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return keys @ keys.mT


def by_token(inputs: Terms, S: Tensor, penalty: Tensor = PENALTY) -> tuple[Tensor, Tensor]:
    """Compute H <- e^g H + k v^T and solve (H + Lambda) x = q token by token."""
    solutions = []
    for t in range(inputs.v.shape[2]):
        q, k, v, g = (tensor[:, :, t] for tensor in (inputs.q, inputs.k, inputs.v, inputs.g))
        S = g.exp().unsqueeze(-1) * S + torch.einsum("bhi,bhj->bhij", k, v)
        solutions.append(torch.linalg.solve(S + torch.diag_embed(penalty), q))
    return torch.stack(solutions, 2), S


@pytest.mark.parametrize("strength", [0.01, 1.0, 10.0])
def test_the_output_is_the_value_of_the_ridge_regression_of_all_tokens_so_far(strength: float) -> None:
    inputs, values = terms(70, strength), terms(70, seed=2).q
    zeros = torch.zeros(B, H, K, K, dtype=torch.float64)
    solutions, _ = ridge_recurrence(inputs, PENALTY, zeros)
    outputs, _ = linear_recurrence(replace(inputs, q=solutions, v=values), zeros)
    keys, betas = inputs.v[1, 2].numpy(), (inputs.k / inputs.v)[1, 2, :, 0].numpy()
    decays = inputs.g[1, 2, :, 0].numpy()
    for t in (0, 1, 30, 31, 32, 69):
        roots = np.sqrt(betas[: t + 1] * np.exp([decays[s + 1 : t + 1].sum() for s in range(t + 1)]))[:, None]
        # The penalty is a further example per channel, whose value is 0.
        rows = np.concatenate([roots * keys[: t + 1], np.diag(PENALTY[2].sqrt().numpy())])
        targets = np.concatenate([roots * values[1, 2, : t + 1].numpy(), np.zeros((K, K))])
        weights = np.linalg.lstsq(rows, targets, rcond=None)[0]
        np.testing.assert_allclose(outputs[1, 2, t].numpy(), inputs.q[1, 2, t].numpy() @ weights, atol=1e-10)


@pytest.mark.parametrize("strength", [0.01, 1.0, 10.0, 1000.0])
def test_chunks_equal_the_recurrence(strength: float) -> None:
    inputs, S = terms(70, strength), state()
    expected, expected_state = by_token(inputs, S)
    solutions, final_state = ridge_recurrence(inputs, PENALTY, S)
    torch.testing.assert_close(solutions, expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(final_state, expected_state, atol=1e-10, rtol=1e-10)
    segments, S = [], state()
    for start, end in ((0, 1), (1, 40), (40, 70)):
        segment, S = ridge_recurrence(inputs.map(lambda t, s=start, e=end: t[:, :, s:e]), PENALTY, S)
        segments.append(segment)
    torch.testing.assert_close(torch.cat(segments, 2), expected, atol=1e-10, rtol=1e-10)


def test_queries_do_not_change_the_state() -> None:
    inputs, queries, S = terms(70), terms(35, seed=3), state()
    solutions, answers, final_state = fork(inputs, queries, PENALTY, S)
    expected, expected_state = by_token(inputs, S)
    torch.testing.assert_close(solutions, expected)
    torch.testing.assert_close(final_state, expected_state)
    for n in (0, 1, 15, 16, 17, 34):
        before = S if n == 0 else by_token(inputs.map(lambda t, n=n: t[:, :, : 2 * n]), S)[1]
        query = queries.map(lambda t, n=n: t[:, :, n : n + 1])
        torch.testing.assert_close(answers[:, :, n : n + 1], by_token(query, before)[0])
        torch.testing.assert_close(peek(query, PENALTY, before), by_token(query, before)[0])


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(("strength", "is_saved"), [(0.01, True), (0.01, False), (1.0, True), (10.0, False)])
def test_gradients_equal_the_gradients_of_the_recurrence(
    strength: float, is_saved: bool, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients pass through the solutions at tokens and queries, and through the state after all tokens."""
    monkeypatch.setattr(module, "_MAX_SAVED_TOKENS", 1000 if is_saved else 0)
    leaves = {"state": state(), "penalty": PENALTY.clone()}
    for name, drawn in (("token", terms(40, strength)), ("query", terms(20, strength, seed=3))):
        parts = {"q": drawn.q, "key": drawn.v, "beta": (drawn.k / drawn.v)[..., :1], "decay": drawn.g}
        leaves |= {f"{part} of {name}": t for part, t in parts.items()}
    for t in leaves.values():
        t.requires_grad_()

    def terms_of(name: str) -> Terms:
        q, key, beta, g = (leaves[f"{part} of {name}"] for part in ("q", "key", "beta", "decay"))
        return Terms(q, beta * key, key, g)

    def naive() -> tuple[Tensor, ...]:
        inputs, queries, penalty = terms_of("token"), terms_of("query"), leaves["penalty"]
        answers, before = [], leaves["state"]
        for n in range(20):
            answers.append(by_token(queries.map(lambda t: t[:, :, n : n + 1]), before, penalty)[0])  # noqa: B023
            before = by_token(inputs.map(lambda t: t[:, :, 2 * n : 2 * n + 2]), before, penalty)[1]  # noqa: B023
        solutions, after = by_token(inputs, leaves["state"], penalty)
        return solutions, torch.cat(answers, 2), after

    def gradients(outputs: tuple[Tensor, ...]) -> list[Tensor]:
        generator = torch.Generator().manual_seed(2)
        weights = [scale * torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in outputs]
        # A state is symmetric, so only the sum of the gradients of an element and its mirror image matters.
        weights[2] = weights[2] + weights[2].mT
        total = sum((weight * t).sum() for weight, t in zip(weights, outputs, strict=True))
        state_gradient, *others = torch.autograd.grad(total, list(leaves.values()))
        return [(state_gradient + state_gradient.mT) / scale, *(gradient / scale for gradient in others)]

    actual = gradients(fork(terms_of("token"), terms_of("query"), leaves["penalty"], leaves["state"]))
    for name, one, other in zip(leaves, actual, gradients(naive()), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("kind", "tolerance"), [("equal", 3e-3), ("similar", 3e-3), ("random", 2e-6)])
def test_the_relative_error_in_single_precision_is_as_documented(kind: str, tolerance: float) -> None:
    """Without decay, the condition number for 1,000 equal keys is 4,000."""
    inputs = terms(1000)
    noise = {"equal": 0.0, "similar": 1e-3, "random": 1e3}[kind]
    keys = F.normalize(inputs.v[:, :, :1] + noise * inputs.v, dim=-1)
    inputs = Terms(inputs.q, keys, keys, torch.zeros_like(inputs.g))
    penalty, zeros = torch.full((H, K), 0.25, dtype=torch.float64), torch.zeros(B, H, K, K, dtype=torch.float64)
    expected, _ = ridge_recurrence(inputs, penalty, zeros)
    actual, _ = ridge_recurrence(inputs.to(dtype=torch.float32), penalty.float(), zeros.float())
    assert ((actual - expected).norm(dim=-1) < tolerance * expected.norm(dim=-1)).all()


def test_gates_that_are_shut_erase_all_earlier_tokens() -> None:
    inputs = terms(200).to(dtype=torch.float32)
    assert inputs.g is not None
    g = inputs.g.clone()
    g[:, :, ::3] = -1e30
    leaves = replace(inputs, g=g).map(lambda t: t.requires_grad_())
    zeros = torch.zeros(B, H, K, K)
    solutions, _ = ridge_recurrence(leaves, PENALTY.float(), zeros)
    expected, _ = ridge_recurrence(replace(inputs, g=g).map(lambda t: t[:, :, 99:]), PENALTY.float(), zeros)
    torch.testing.assert_close(solutions[:, :, 99:], expected, atol=1e-6, rtol=1e-5)
    solutions.square().sum().backward()
    assert all(t.grad is not None and bool(t.grad.isfinite().all()) for t in leaves.tensors().values())


def test_a_number_that_is_not_finite_changes_no_other_episode() -> None:
    """A diverged model gives NaN, and does not raise an error."""
    inputs, S = terms(40), state()
    keys = inputs.k.clone()
    keys[0, :, 20] = torch.nan
    solutions, after = ridge_recurrence(replace(inputs, k=keys), PENALTY, S)
    assert solutions[0, :, 20:].isnan().all() and after[0].isnan().all()
    assert torch.equal(solutions[1], ridge_recurrence(inputs, PENALTY, S)[0][1])


def test_long_sequences_need_less_memory_than_one_matrix_per_token() -> None:
    size = 48

    def peak(tokens: int) -> int:
        q, k = torch.randn(2, 1, 1, tokens, size)
        k = F.normalize(k, dim=-1)
        inputs = Terms(q, k, k, torch.zeros(1, 1, tokens, 1)).map(lambda t: t.requires_grad_())
        with LiveBytes() as live:
            solutions, _ = ridge_recurrence(inputs, torch.ones(1, size), torch.zeros(1, 1, size, size))
            solutions.backward(torch.ones_like(solutions))
        return live.peak

    assert peak(1024) - peak(512) < 512 * size * size * 4 / 2
