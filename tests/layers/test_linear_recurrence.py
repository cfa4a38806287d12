"""The chunked recurrence against a loop over tokens."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.layers import linear_recurrence as module
from iclbench.layers.linear_recurrence import Terms, fork, full_pass, linear_recurrence, peek

B, H, K, V = 2, 3, 4, 5
RECURRENCES = [(decay, delta) for decay in ("none", "head", "row") for delta in (False, True)]


def with_strengths(*strengths: Any) -> list[tuple[str, bool, Any]]:
    """Combine every recurrence with every decay strength. Recurrences without decay get only the first strength."""
    return [
        (*recurrence, strength)
        for recurrence in RECURRENCES
        for strength in (strengths[:1] if recurrence[0] == "none" else strengths)
    ]


def terms(tokens: int, decay: str, delta: bool, strength: float = 1.0, seed: int = 0) -> Terms:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(B, H, tokens, *size, generator=generator, dtype=torch.float64)

    q, k, v = normal(K), F.normalize(normal(K), dim=-1), normal(V)
    g = {"none": None, "head": -strength * F.softplus(normal(1)), "row": -strength * F.softplus(normal(K))}[decay]
    beta = 2 * normal(1).sigmoid()
    return Terms(q, beta * k, v, g, k if delta else None, -beta * k if delta else None)


def concatenated(batches: list[Terms]) -> Terms:
    """Concatenate terms along the batch axis."""
    tensors = [batch.tensors() for batch in batches]
    return replace(batches[0], **{name: torch.cat([t[name] for t in tensors]) for name in tensors[0]})


def state(seed: int = 1) -> Tensor:
    return torch.randn(B, H, K, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_token(inputs: Terms, S: Tensor) -> tuple[Tensor, Tensor]:
    """Compute S <- (diag(e^g) + b a^T) S + k v^T and o = S^T q token by token."""
    outputs = []
    for t in range(inputs.v.shape[2]):
        q, k, v = (tensor[:, :, t] for tensor in (inputs.q, inputs.k, inputs.v))
        decayed = S if inputs.g is None else inputs.g[:, :, t].exp().unsqueeze(-1) * S
        if inputs.a is not None and inputs.b is not None:
            read = torch.einsum("bhk,bhkv->bhv", inputs.a[:, :, t], S)
            decayed = decayed + torch.einsum("bhk,bhv->bhkv", inputs.b[:, :, t], read)
        S = decayed + torch.einsum("bhk,bhv->bhkv", k, v)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q, S))
    return torch.stack(outputs, 2), S


@pytest.mark.parametrize(("decay", "delta", "strength"), with_strengths(0.1, 10.0, 1000.0))
def test_chunks_equal_the_recurrence(decay: str, delta: bool, strength: float) -> None:
    inputs, S = terms(67, decay, delta, strength), state()
    expected, expected_state = by_token(inputs, S)
    for chunk in (1, 7, 16, 64):
        outputs, final_state = linear_recurrence(inputs, S, chunk)
        torch.testing.assert_close(outputs, expected, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(final_state, expected_state, atol=1e-10, rtol=1e-10)
        outputs, final_state = linear_recurrence(inputs.to(dtype=torch.float32), S.float(), chunk)
        assert (outputs - expected).norm() < 1e-5 * expected.norm(), chunk
        assert (final_state - expected_state).norm() < 1e-5 * expected_state.norm(), chunk


# Strengths with equal chunk sizes share a batch.
@pytest.mark.parametrize(("decay", "delta", "strengths"), with_strengths([1.0], [10.0], [100.0, 1000.0]))
def test_gradients_equal_the_gradients_of_the_recurrence(decay: str, delta: bool, strengths: list[float]) -> None:
    inputs = concatenated([terms(45, decay, delta, strength) for strength in strengths])
    S = state().repeat(len(strengths), 1, 1, 1)
    leaves = {name: t.requires_grad_() for name, t in inputs.tensors().items()} | {"state": S.requires_grad_()}
    weight = torch.randn(B, H, 45, V, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weight = weight.repeat(len(strengths), 1, 1, 1)

    def gradients(outputs: Tensor, final_state: Tensor, retain_graph: bool = False) -> tuple[Tensor, ...]:
        loss = (outputs * weight.to(outputs)).sum() + final_state.square().sum()
        return torch.autograd.grad(loss, list(leaves.values()), retain_graph=retain_graph)

    expected = gradients(*by_token(inputs, S))
    for chunk in (1, 7, 16, 64):
        actual = gradients(*linear_recurrence(inputs, S, chunk))
        actual_float32 = gradients(*linear_recurrence(inputs.to(dtype=torch.float32), S.float(), chunk))
        for name, one, one_float32, other in zip(leaves, actual, actual_float32, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10, msg=f"{name}, chunks of {chunk}")
            for n, (a, b) in enumerate(zip(one_float32.split(B), other.split(B), strict=True)):
                # The gradient of a decay is a small difference of terms of size `scale`, and the gradient of the state
                # can be e^-18 times as small as these terms.
                scale = (inputs.q * expected[0]).split(B)[n].norm() if name in ("g", "state") else 0.0
                assert (a - b).norm() < 1e-5 * b.norm() + 1e-6 * scale + 1e-12, f"{name}, chunks of {chunk}"
    # The first backward pass uses the saved chunks. The second one recomputes them.
    outputs, final_state = linear_recurrence(inputs, S)
    first, second = (gradients(outputs, final_state, retain_graph=True) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("decay", "delta", "strength"), with_strengths(1.0, 100.0))
def test_a_full_pass_equals_the_recurrence_from_a_zero_state(
    decay: str, delta: bool, shared: bool, strength: float
) -> None:
    """The sequence is a single chunk (without products with a state) or many chunks."""
    inputs = terms(45, decay, delta, strength)
    if shared:
        inputs = replace(inputs, q=inputs.q[:, :1], k=inputs.k[:, :1])
    leaves = [t.requires_grad_() for t in inputs.tensors().values()]
    expanded = replace(inputs, q=inputs.q.expand(-1, H, -1, -1), k=inputs.k.expand(-1, H, -1, -1))
    weight = torch.randn(B, H, 45, V, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected, _ = by_token(expanded, torch.zeros_like(state()))
    expected_grads = torch.autograd.grad((expected * weight).sum(), leaves)
    for chunk in (1, 16, 64):
        actual = full_pass(inputs, chunk)
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)
        for one, other in zip(torch.autograd.grad((actual * weight).sum(), leaves), expected_grads, strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("strength", [1.0, 100.0])
@pytest.mark.parametrize("decay", ["head", "row"])
def test_fixed_decays_have_no_gradient_and_do_not_change_other_gradients(
    decay: str, strength: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, S = terms(45, decay, True, strength), state().requires_grad_()
    assert inputs.g is not None
    learned = {name: t.requires_grad_() for name, t in inputs.tensors().items() if name != "g"} | {"state": S}

    def gradients(g: Tensor) -> tuple[Tensor, ...]:
        outputs, final_state = linear_recurrence(replace(inputs, g=g), S)
        return torch.autograd.grad(outputs.square().sum() + final_state.sum(), list(learned.values()))

    expected = gradients(inputs.g.clone().requires_grad_())
    # The computation of decay gradients must not run.
    for chunk_class in (module._Chunk, module._HeadDecays, module._RowDecays):
        monkeypatch.setattr(chunk_class, "add_slope", None)
    for one, other in zip(gradients(inputs.g.detach()), expected, strict=True):
        assert torch.equal(one, other)


def test_the_state_can_require_a_gradient_if_the_inputs_do_not() -> None:
    inputs, S = terms(45, "head", True), state().requires_grad_()
    expected = torch.autograd.grad(by_token(inputs, S)[0].square().sum(), S)
    actual = torch.autograd.grad(linear_recurrence(inputs, S)[0].square().sum(), S)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(("decay", "delta"), RECURRENCES)
def test_a_sequence_can_be_processed_in_segments(decay: str, delta: bool) -> None:
    inputs, S = terms(50, decay, delta), state()
    expected, expected_state = by_token(inputs, S)
    outputs = []
    for start, end in ((0, 1), (1, 14), (14, 33), (33, 50)):
        segment_outputs, S = linear_recurrence(inputs.map(lambda t, a=start, b=end: t[:, :, a:b]), S, 16)
        outputs.append(segment_outputs)
    torch.testing.assert_close(torch.cat(outputs, 2), expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(S, expected_state, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("decay", ["head", "row"])
@pytest.mark.parametrize("g", [[-1.0] * 15 + [-18.0] + [-4.75] * 15, [-0.5] * 4 + [-50.0] * 5], ids=["31", "9"])
def test_the_longer_half_of_an_odd_chunk_does_not_underflow(decay: str, g: list[float]) -> None:
    inputs = terms(len(g), decay, delta=False)
    inputs = replace(inputs, g=torch.tensor(g, dtype=torch.float64)[:, None].expand_as(inputs.g)).to(
        dtype=torch.float32
    )
    outputs, final_state = linear_recurrence(inputs, state().float())
    expected, expected_state = by_token(inputs.to(dtype=torch.float64), state())
    torch.testing.assert_close(outputs.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(final_state.double(), expected_state, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize(("decay", "delta"), [recurrence for recurrence in RECURRENCES if recurrence[0] != "none"])
def test_chunks_are_as_long_as_their_decays_allow(decay: str, delta: bool, scale: float) -> None:
    """The expected spans are two chunks, one chunk, half a chunk and so on. In each span, decays are just weak enough
    for its length. Results are accurate at small and large scales."""
    strengths = (-0.5, -1.1, -2.2, -4.4, -8.8 if scale != 1.0 else -100.0)
    g = torch.cat([torch.full((64,), strength) for strength in strengths]).double()[:-44]
    inputs, S = terms(len(g), decay, delta), scale * state()
    g = (g[:, None] * (1 - 1e-3 * inputs.q[:, :, :, :1].sigmoid())).expand_as(inputs.g)
    leaves = replace(inputs, g=g, v=scale * inputs.v).map(lambda t: t.detach().clone().requires_grad_())
    leaves_float32 = leaves.to(dtype=torch.float32)
    assert leaves_float32.g is not None
    plan = [(chunk.tokens, chunk.span) for chunk in module.plan(leaves_float32.g, leaves_float32.v)]
    spans = 2 * [32] + 4 * [16] + 2 * [8] + [4]
    assert plan == 2 * [(32, 64), (32, 0)] + [(n, n) for n in spans]
    outputs, final_state = linear_recurrence(leaves_float32, S.float())
    expected, expected_state = by_token(leaves, S)
    assert (outputs - expected).norm() < 1e-5 * expected.norm()
    assert (final_state - expected_state).norm() < 1e-5 * expected_state.norm()
    weight = scale * torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    actual = torch.autograd.grad((outputs * weight.float()).sum(), list(leaves.tensors().values()))
    expected_grads = torch.autograd.grad((expected * weight).sum(), list(leaves.tensors().values()))
    for name, one, other in zip(leaves.tensors(), actual, expected_grads, strict=True):
        assert (one - other).norm() < 1e-5 * other.norm(), name


@pytest.mark.parametrize(("decay", "delta"), RECURRENCES)
def test_queries_do_not_change_the_state(decay: str, delta: bool) -> None:
    """The answer to a query is its output if it were the next token: after a given state (`peek`), or after each pair
    of tokens except the last one (`fork`)."""
    inputs, S = terms(70, decay, delta), state()
    queries = terms(35, decay, delta, seed=3)
    outputs, answers, final_state = fork(inputs, queries, S)
    expected, expected_state = by_token(inputs, S)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(final_state, expected_state)
    for n in (0, 1, 15, 16, 17, 34):
        before = S if n == 0 else by_token(inputs.map(lambda t, n=n: t[:, :, : 2 * n]), S)[1]
        query = queries.map(lambda t, n=n: t[:, :, n : n + 1])
        expected_answer = by_token(query, before)[0]
        torch.testing.assert_close(answers[:, :, n : n + 1], expected_answer)
        torch.testing.assert_close(peek(query, before), expected_answer)


@pytest.mark.parametrize("chunk", [16, 2])  # chunks are saved at size 16 and recomputed at size 2
@pytest.mark.parametrize(("decay", "delta", "strength"), with_strengths(1.0, 1000.0))
def test_gradients_through_queries_equal_the_gradients_of_the_recurrence(
    decay: str, delta: bool, chunk: int, strength: float
) -> None:
    inputs, S, queries = terms(24, decay, delta, strength), state(), terms(12, decay, delta, strength, seed=3)
    leaves = [t.requires_grad_() for t in (*inputs.tensors().values(), *queries.tensors().values(), S)]

    def naive() -> Tensor:
        answers, before = [], S
        for n in range(12):
            answers.append(by_token(queries.map(lambda t: t[:, :, n : n + 1]), before)[0])  # noqa: B023
            before = by_token(inputs.map(lambda t: t[:, :, 2 * n : 2 * n + 2]), before)[1]  # noqa: B023
        return torch.cat(answers, 2)

    weight = torch.randn(B, H, 12, V, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = torch.autograd.grad((naive() * weight).sum(), leaves, materialize_grads=True)
    actual = torch.autograd.grad((fork(inputs, queries, S, chunk)[1] * weight).sum(), leaves)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("strength", [1.0, 1e3])
@pytest.mark.parametrize("decay", ["none", "head", "row"])
def test_heads_may_share_queries_and_keys(decay: str, strength: float) -> None:
    delta, S = False, state()
    inputs = terms(40, decay, delta)
    if inputs.g is not None:
        inputs = replace(inputs, g=inputs.g * strength)
    leaves = [t.requires_grad_() for t in (*inputs.tensors().values(), S)]
    shared = replace(inputs, q=inputs.q[:, :1], k=inputs.k[:, :1])
    expanded = replace(inputs, q=shared.q.expand_as(inputs.q), k=shared.k.expand_as(inputs.k))
    queries = terms(20, decay, delta, seed=3)
    shared_queries = replace(queries, q=queries.q[:, :1], k=queries.k[:, :1])
    expanded_queries = replace(
        queries, q=shared_queries.q.expand_as(queries.q), k=shared_queries.k.expand_as(queries.k)
    )
    one = (*linear_recurrence(shared, S), fork(shared, shared_queries, S)[1])
    other = (*linear_recurrence(expanded, S), fork(expanded, expanded_queries, S)[1])
    torch.testing.assert_close(one, other)
    gradients = (torch.autograd.grad(sum(out.square().sum() for out in outs), leaves) for outs in (one, other))
    for one_gradient, other_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(one_gradient, other_gradient)


# Gates with equal chunk sizes share a batch.
@pytest.mark.slow
@pytest.mark.parametrize("gates", [[0.0], [-torch.inf, "in turn"]], ids=["open", "shut"])
@pytest.mark.parametrize(("decay", "delta"), [recurrence for recurrence in RECURRENCES if recurrence[0] != "none"])
def test_open_and_closed_gates_are_accurate_over_thousands_of_tokens(
    decay: str, delta: bool, gates: list[float | str]
) -> None:
    """A decay to 0 erases all earlier tokens. It must not reduce the precision for later tokens."""
    inputs, S = terms(2000, decay, delta), state().repeat(len(gates), 1, 1, 1)
    assert inputs.g is not None
    g = inputs.g * 1e-3
    g[:, :, ::3] = -1e30
    logs = [g if gate == "in turn" else torch.full_like(inputs.g, gate) for gate in gates]
    inputs = concatenated([replace(inputs, g=log) for log in logs])
    # With keys of length 1 and beta up to 2, the state is bounded.
    expected, expected_states = (t.split(B) for t in by_token(inputs, S))
    leaves = inputs.to(dtype=torch.float32).map(lambda t: t.requires_grad_())
    outputs, final_states = linear_recurrence(leaves, S.float())
    for n, (out, final_state) in enumerate(zip(outputs.split(B), final_states.split(B), strict=True)):
        assert (out - expected[n]).norm() < 1e-5 * expected[n].norm(), gates[n]
        assert (final_state - expected_states[n]).norm() < 1e-5 * expected_states[n].norm() + 1e-6, gates[n]
    outputs.square().mean().backward()
    assert all(t.grad is not None and bool(t.grad.isfinite().all()) for t in leaves.tensors().values())


@pytest.mark.slow
@pytest.mark.parametrize(("decay", "delta"), RECURRENCES)
def test_only_inputs_outputs_and_states_need_memory_that_grows_with_the_sequence(decay: str, delta: bool) -> None:
    def extra_bytes(tokens: int) -> float:
        inputs = terms(tokens, decay, delta).to(dtype=torch.float32).map(lambda t: t.requires_grad_())
        S = state().float()
        with LiveBytes() as live:
            outputs, _ = linear_recurrence(inputs, S)
            outputs.backward(torch.ones_like(outputs))
        states = -(-tokens // module.CHUNK) * S.nbytes
        # Subtract the outputs and their gradient, and the gradients of all inputs.
        return live.peak - 2 * outputs.nbytes - inputs.nbytes - states

    longest = 4000 if (decay, delta) == RECURRENCES[-1] else 1500
    assert extra_bytes(longest) < 1.1 * extra_bytes(500)
