"""Attention with decays and transitions against an explicit product of matrices for every query and key."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench.layers.transition_attention import CHUNK, Cache, Terms, attend, fork, peek

B, H, C = 2, 3, 5
KINDS = ("decays", "transitions", "both", "neither")


def terms(tokens: int, kind: str = "both", seed: int = 0, strength: float = 1.0) -> Terms:
    """Draw terms with directions of length 1, beta between 0 and 2, and a mean log decay of about -0.8 times the
    strength."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(B, H, tokens, *size, generator=generator, dtype=torch.float64)

    q, k, v, g = normal(C), normal(C), normal(C), -strength * F.softplus(normal())
    w, beta = F.normalize(normal(C), dim=-1), 2 * normal(1).sigmoid()
    decays, transitions = kind in ("decays", "both"), kind in ("transitions", "both")
    return Terms(q, k, v, g if decays else None, w if transitions else None, beta if transitions else None)


def empty(inputs: Terms) -> Cache:
    k = inputs.k.new_zeros(B, H, 0, C)
    return Cache(k, k, torch.zeros(B, 0, dtype=torch.bool), None if inputs.g is None else k[..., 0])


def by_token(inputs: Terms) -> Tensor:
    """Compute the outputs token by token, with the product of the matrices and the sum of the log decays of all tokens
    after each key."""
    outputs = []
    identity = torch.eye(C, dtype=torch.float64).expand(B, H, 1, C, C)
    products, decays = identity[:, :, :0], inputs.v.new_zeros(B, H, 0)
    for t in range(inputs.v.shape[2]):
        if inputs.w is not None and inputs.beta is not None:
            w = inputs.w[:, :, t : t + 1]
            products = (identity - inputs.beta[:, :, t, :, None, None] * w.unsqueeze(-1) * w.unsqueeze(-2)) @ products
        if inputs.g is not None:
            decays = decays + inputs.g[:, :, t : t + 1]
        products, decays = torch.cat([products, identity], 2), F.pad(decays, (0, 1))
        logits = torch.einsum("bhi,bhjik,bhjk->bhj", inputs.q[:, :, t], products, inputs.k[:, :, : t + 1]) + decays
        outputs.append(torch.einsum("bhj,bhjc->bhc", logits.softmax(-1), inputs.v[:, :, : t + 1]))
    return torch.stack(outputs, 2)


def part(inputs: Terms, start: int, end: int) -> Terms:
    return Terms(**{name: t[:, :, start:end] for name, t in inputs.tensors().items()})


def followed_by(inputs: Terms, other: Terms) -> Terms:
    return Terms(**{name: torch.cat([t, other.tensors()[name]], 2) for name, t in inputs.tensors().items()})


def assert_equal(actual: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    torch.testing.assert_close(actual / scale, expected / scale, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_of_several_chunks_equal_the_products_of_matrices(kind: str, scale: float) -> None:
    inputs = terms(23, kind).map(lambda t: t.requires_grad_())
    leaves, upstream = list(inputs.tensors().values()), scale * terms(23, seed=1).q
    expected = by_token(inputs)
    gradients = torch.autograd.grad(expected, leaves, upstream)
    for chunk in (1, 4, CHUNK):
        actual, _ = attend(inputs, empty(inputs), chunk=chunk)
        assert_equal(actual, expected)
        for one, other in zip(torch.autograd.grad(actual, leaves, upstream), gradients, strict=True):
            assert_equal(one, other, scale)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_longer_than_a_chunk_equals_the_products_of_matrices(kind: str) -> None:
    inputs = terms(CHUNK + 9, kind)
    assert_equal(attend(inputs, empty(inputs))[0], by_token(inputs))


@pytest.mark.parametrize("chunk", [2, 4, CHUNK])
@pytest.mark.parametrize("kind", KINDS)
def test_queries_and_later_tokens_read_the_cache_as_in_one_sequence(kind: str, chunk: int) -> None:
    """The first 7 tokens are cached; 6 pairs follow, with a query before each pair."""
    inputs, queries = terms(19, kind), terms(6, kind, seed=2)
    expected = by_token(inputs)
    answers = [by_token(followed_by(part(inputs, 0, 7 + 2 * n), part(queries, n, n + 1)))[:, :, -1:] for n in range(6)]
    _, cache = attend(part(inputs, 0, 7), empty(inputs), chunk=chunk)
    outputs, forked, after = fork(part(inputs, 7, 19), queries, cache, chunk)
    assert_equal(outputs, expected[:, :, 7:])
    assert_equal(forked, torch.cat(answers, 2))
    for n in range(6):
        assert_equal(peek(part(queries, n, n + 1), cache), answers[n])
        assert_equal(peek(queries, cache)[:, :, n : n + 1], peek(part(queries, n, n + 1), cache))
        outputs, cache = attend(part(inputs, 7 + 2 * n, 9 + 2 * n), cache)
        assert_equal(outputs, expected[:, :, 7 + 2 * n : 9 + 2 * n])
    for name, tensor in after.tensors().items():
        torch.testing.assert_close(tensor, cache.tensors()[name])


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_tokens_are_not_read(kind: str) -> None:
    inputs, queries = terms(11, kind), terms(3, kind, seed=2)
    mask = torch.ones(B, 11, dtype=torch.bool)
    mask[:, :5] = False
    outputs, cache = attend(inputs, empty(inputs), mask, chunk=4)
    short = part(inputs, 5, 11)
    assert_equal(outputs[:, :, 5:], by_token(short))
    assert_equal(peek(queries, cache), peek(queries, attend(short, empty(inputs))[1]))
    assert bool(outputs.isfinite().all())


def test_a_decay_between_two_tokens_is_exact_after_many_strong_decays() -> None:
    """In single precision, the sum of 400 log decays of about -1,000 has a rounding error of more than 0.01."""
    inputs = terms(400, "decays", strength=1000.0)
    assert inputs.g is not None
    inputs = replace(inputs, g=torch.cat([inputs.g[..., :-4], torch.full((B, H, 4), -0.3, dtype=torch.float64)], -1))
    exact, single = (attend(t, empty(t))[0][:, :, -1] for t in (inputs, inputs.map(Tensor.float)))
    assert (single - exact).norm() < 1e-6 * exact.norm()
