"""Theory of the CoQE paper: linear self-attention, softmax attention and CoQE as inner products <task, sample>.

The tests check proposition 3.9 and theorem 3.10 numerically, with attention layers from the equations in section 2 of
the paper.
"""

import numpy as np
import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.backbones.coqe import CoQE, CoQESettings
from iclbench.backbones.gpt2 import GPT2, GPT2Settings
from iclbench.core.episodes import Points

# Singular values below this fraction of the largest one are rounding errors in float64.
TOLERANCE = 1e-9
CONTEXTS = [4, 8, 16, 32, 64]


def linear_attention(z: np.ndarray, value: np.ndarray, key_query: np.ndarray) -> float:
    """Return the bottom-right entry of Z + 1/n W_OV Z Z^T W_KQ Z for the n columns (phi(x_i), y_i) and the query
    (phi(x_q), 0).
    """
    n = z.shape[1] - 1
    return float((z + value @ z @ z.T @ key_query @ z / n)[-1, -1])


def softmax_attention(z: np.ndarray, value: np.ndarray, key_query: np.ndarray) -> float:
    """Return the bottom-right entry of W_OV Z softmax(Z^T W_KQ Z), with a softmax per column. The residual term Z is
    omitted.
    """
    scores = np.exp(z.T @ key_query @ z)
    return float((value @ z @ (scores / scores.sum(0)))[-1, -1])


def prompt(phi: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return the matrix `(d + 1, n + 1)` with the columns (phi(x_i), y_i) and (phi(x_q), 0)."""
    return np.vstack([np.column_stack([phi.T, query]), np.append(y, 0.0)])


def attention_weights(d: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weights of proposition 3.9, with random values for the free entries (*): W_OV, W_KQ and an asymmetric
    Theta.
    """
    value, key_query = generator.normal(size=(d + 1, d + 1)), np.zeros((d + 1, d + 1))
    value[-1] = np.append(np.zeros(d), 1.0)
    theta = key_query[:d, :d] = generator.normal(size=(d, d))
    key_query[-1, -1] = generator.normal()
    return value, key_query, theta


def encode(model: CoQE, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model.represent(torch.from_numpy(x)[None])[0].numpy()


def coqe(x_dim: int, sample_dim: int) -> CoQE:
    torch.manual_seed(0)
    settings = CoQESettings(width=16, layers=2, heads=2, init_std=0.3, sample_dim=sample_dim)
    return CoQE(settings, TaskShape(x_dim=x_dim, points=8)).double().eval()


@pytest.mark.parametrize("n", [1, 2, 9])
def test_linear_attention_is_the_inner_product_of_a_task_vector_and_the_encoded_query(n: int) -> None:
    """Proposition 3.9: omega = 1/n sum_i y_i Theta^T phi(x_i), with the factor 1/n, not 1/(n + 1), for all free
    entries (*).
    """
    generator, d = np.random.default_rng(n), 5
    value, key_query, theta = attention_weights(d, generator)
    phi = encode(coqe(3, d), generator.normal(size=(n + 1, 3)))
    y = generator.normal(size=n)
    omega = sum(y[i] * theta.T @ phi[i] for i in range(n)) / n
    np.testing.assert_allclose(linear_attention(prompt(phi[:-1], y, phi[-1]), value, key_query), omega @ phi[-1])
    symmetric = sum(y[i] * theta @ phi[i] for i in range(n)) / n
    assert not np.isclose(symmetric @ phi[-1], omega @ phi[-1]), "Theta must be transposed"


def ranks(matrix: np.ndarray) -> list[int]:
    """Return the ranks of the matrices of the first 4, 8, ... rows."""
    assert matrix.shape[0] == CONTEXTS[-1]
    largest = [np.linalg.norm(matrix[:m], 2) for m in CONTEXTS]
    return [int(np.linalg.matrix_rank(matrix[:m], tol=TOLERANCE * s)) for m, s in zip(CONTEXTS, largest, strict=True)]


def test_the_rank_of_linear_attention_is_the_dimension_of_the_encoder() -> None:
    generator, d = np.random.default_rng(0), 3
    value, key_query, _ = attention_weights(d, generator)
    phi = encode(coqe(2, d), generator.normal(size=(64 * 5 + 80, 2)))
    contexts, queries = phi[: 64 * 5].reshape(64, 5, d), phi[64 * 5 :]
    y = generator.normal(size=(64, 5))
    answers = [[linear_attention(prompt(contexts[c], y[c], q), value, key_query) for q in queries] for c in range(64)]
    assert ranks(np.array(answers)) == [d] * 5


def test_the_rank_of_softmax_attention_grows_with_the_number_of_contexts() -> None:
    """Theorem 3.10 for d_x = 1 and n = 1, where linear attention has rank 1. The functions 1 / (1 + t e^(-a x)) of the
    query are linearly independent for different t, so the rank grows with the number of contexts, up to the
    precision of float64."""
    generator = np.random.default_rng(0)
    value, key_query, _ = attention_weights(1, generator)
    x, y, queries = generator.normal(size=64), generator.normal(size=64), np.linspace(-3, 3, 80)

    def matrix(attention: object) -> np.ndarray:
        assert callable(attention)
        rows = [
            [attention(prompt(x[c, None, None], y[c, None], q[None]), value, key_query) for q in queries]
            for c in range(64)
        ]
        return np.array(rows)

    assert ranks(matrix(linear_attention)) == [1] * 5
    growing_ranks = ranks(matrix(softmax_attention))
    assert growing_ranks == sorted(growing_ranks) and growing_ranks[0] > 1 and growing_ranks[-1] > 10, growing_ranks


def answers_of(model: Backbone, x_dim: int, n: int) -> np.ndarray:
    """Return the predictions for 64 contexts and 80 queries."""
    generator = torch.Generator().manual_seed(1)
    context = Points.full(
        torch.randn(64, n, x_dim, generator=generator, dtype=torch.float64),
        torch.randn(64, n, 1, generator=generator, dtype=torch.float64),
    )
    queries = 2 * torch.randn(80, x_dim, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        return model.predict_targets(context, queries.expand(64, -1, -1)).mean[..., 0].numpy()


@pytest.mark.parametrize("sample_dim", [1, 3, 8])
def test_the_rank_of_coqe_is_the_dimension_of_its_sample_representation(sample_dim: int) -> None:
    assert ranks(answers_of(coqe(2, sample_dim), 2, 6)) == [min(sample_dim, m) for m in CONTEXTS]


def test_the_rank_of_a_transformer_with_one_layer_grows_with_the_number_of_contexts() -> None:
    torch.manual_seed(0)
    model = GPT2(GPT2Settings(width=16, layers=1, heads=1, init_std=0.5), TaskShape(x_dim=1, points=4))
    growing_ranks = ranks(answers_of(model.double().eval(), 1, 1))
    assert growing_ranks == sorted(growing_ranks) and growing_ranks[-1] > 16, growing_ranks
