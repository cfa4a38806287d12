"""Deep-Thinking with language models, compared with forward passes of the transformers library over doubled
demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from iclbench.deep_thinking.memory import Memory
from iclbench.deep_thinking.passes import Thought, think
from iclbench.deep_thinking.settings import DeepThinking, slots_needed
from iclbench.language.answering.rounds import make_reader
from iclbench.language.models.model import load
from tests.language.tiny_models import CONTEXT_LENGTH, WITH_MEMORY, cache_argument, save_tiny_model, scale_weights

LEARNED_POSITIONS = ("gpt2", "opt", "gpt_neo")
L, N = 14, 5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimpleNamespace]:
    """Return a function that maps an architecture to a loaded model and the transformers module from the same
    files.
    """

    @cache
    def pair(architecture: str) -> SimpleNamespace:
        folder = save_tiny_model(architecture, tmp_path_factory.mktemp("models") / architecture)
        bare = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        scale_weights(bare)  # then logits have a range of a few units, as in a trained model
        bare.save_pretrained(folder)
        return SimpleNamespace(model=load(str(folder)), bare=bare)

    return pair


def draw(length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 290, (1, length), generator=torch.Generator().manual_seed(seed))


DEMONSTRATIONS, QUERY = draw(L), draw(N, 1)


@torch.no_grad()
def forward(bare: Any, ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Any:
    """Run one forward pass of transformers. Return logits, and the keys and values of all layers."""
    mask = torch.ones_like(ids) if mask is None else mask
    positions = torch.arange(ids.shape[1])[None] if positions is None else positions
    past = DynamicCache()
    out = bare(input_ids=ids, attention_mask=mask, position_ids=positions, **cache_argument(bare, past))
    return SimpleNamespace(logits=out.logits, kv=[t for layer in past.layers for t in (layer.keys, layer.values)])


def thoughts(model: Any, ids: Tensor = DEMONSTRATIONS, passes: int = 2, **settings: Any) -> list[Thought]:
    thinking = DeepThinking(**settings)
    return list(think(make_reader(model, ids, thinking.positions), thinking, passes))


def flat(memory: Memory) -> list[Tensor]:
    """Return the keys and values in the order of `forward`."""
    return [t for pair in zip(memory.keys, memory.values, strict=True) for t in pair]


def answer(model: Any, memory: Memory, query: Tensor = QUERY) -> Tensor:
    return model.logits(query, torch.ones_like(query, dtype=torch.bool), memory)


def distance(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected entry."""
    return float((actual - expected).abs().max() / expected.abs().max())


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Check that tensors are equal up to rounding in float32."""
    assert distance(actual, expected) < 2e-6


@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_one_pass_equals_plain_in_context_learning_for_every_eta(architecture: str, models) -> None:
    pair = models(architecture)
    expected = forward(pair.bare, torch.cat([DEMONSTRATIONS, QUERY], 1)).logits[:, L:]
    for eta in (0.0, 0.01, 1.0):
        (first,) = thoughts(pair.model, passes=1, eta=eta)
        assert_same(answer(pair.model, first.memory), expected)
        assert first.passes == 1 and first.change.isnan().all()


@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_a_closed_gate_does_not_change_the_memory(architecture: str, models) -> None:
    first, *_, last = thoughts(models(architecture).model, passes=4, eta=0.0, momentum=0.5)
    assert all(torch.equal(a, b) for a, b in zip(flat(first.memory), flat(last.memory), strict=True))


@pytest.mark.parametrize("positions", ["continue", "reuse"])
@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_two_passes_equal_a_mixture_of_the_two_halves_of_doubled_demonstrations(
    architecture: str, positions: str, models
) -> None:
    pair, eta = models(architecture), 0.3
    position_ids = torch.arange(2 * L) if positions == "continue" else torch.arange(L).repeat(2)
    doubled = forward(pair.bare, torch.cat([DEMONSTRATIONS] * 2, 1), position_ids[None])
    *_, last = thoughts(pair.model, eta=eta, positions=positions)
    for actual, kv in zip(flat(last.memory), doubled.kv, strict=True):
        assert_same(actual, (1 - eta) * kv[:, :, :L] + eta * kv[:, :, L:])
    changes = [(kv[:, :, L:] - kv[:, :, :L]).norm() / kv[:, :, :L].norm() for kv in doubled.kv]
    assert float(last.change) == pytest.approx(float(torch.stack(changes).mean()), rel=1e-5)


@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_an_open_gate_keeps_only_the_second_copy_of_the_demonstrations(architecture: str, models) -> None:
    """In the reference pass, the query does not attend to the first copy, and its positions begin after one copy."""
    pair = models(architecture)
    visible = torch.ones(2 * L + N, 2 * L + N, dtype=torch.bool).tril()
    visible[2 * L :, :L] = False
    hidden = torch.where(visible, 0.0, torch.finfo(torch.float32).min)  # finite because GPT-Neo adds two masks
    prompt = torch.cat([DEMONSTRATIONS, DEMONSTRATIONS, QUERY], 1)
    positions = torch.cat([torch.arange(2 * L), torch.arange(L, L + N)])[None]
    expected = forward(pair.bare, prompt, positions, hidden[None, None]).logits[:, 2 * L :]
    *_, last = thoughts(pair.model, eta=1.0)
    actual = answer(pair.model, last.memory)
    assert_same(actual, expected)
    plain = forward(pair.bare, torch.cat([DEMONSTRATIONS, QUERY], 1)).logits[:, L:]
    repeated = forward(pair.bare, prompt).logits[:, 2 * L :]
    assert distance(actual, plain) > 1e-2
    assert distance(actual, repeated) > 1e-2


@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_first_layer_values_change_only_if_positions_are_added_to_the_tokens(architecture: str, models) -> None:
    """First-layer values depend only on the token and its added position. Rotary positions do not affect values."""
    first, *_, last = thoughts(models(architecture).model, passes=4, eta=0.5)
    change = distance(last.memory.values[0], first.memory.values[0])
    assert (change > 1e-2) == (architecture in LEARNED_POSITIONS)
    assert change < 1e-6 or architecture in LEARNED_POSITIONS
    assert distance(last.memory.values[1], first.memory.values[1]) > 1e-3


@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_the_memory_is_causal_after_one_pass_and_not_after_two(architecture: str, models) -> None:
    other = DEMONSTRATIONS.clone()
    other[0, -1] = (other[0, -1] + 1) % 290
    ours, theirs = (thoughts(models(architecture).model, ids, eta=0.3) for ids in (DEMONSTRATIONS, other))
    earlier = [
        max(distance(a[:, :, :-1], b[:, :, :-1]) for a, b in zip(flat(x.memory), flat(y.memory), strict=True))
        for x, y in zip(ours, theirs, strict=True)
    ]
    assert earlier[0] < 2e-6
    assert earlier[1] > 1e-3


@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_padded_queries_with_a_shared_memory_equal_single_queries(architecture: str, models) -> None:
    model = models(architecture).model
    *_, last = thoughts(model, passes=3, eta=0.1)
    queries = [draw(n, n) for n in (3, 7, 1)]
    mask = torch.tensor([[i < q.shape[1] for i in range(7)] for q in queries])
    padded = torch.cat([torch.nn.functional.pad(q, (0, 7 - q.shape[1]), value=5) for q in queries])
    logits = model.logits(padded, mask, last.memory)
    for row, query in zip(logits, queries, strict=True):
        assert_same(row[None, : query.shape[1]], answer(model, last.memory, query))


@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_the_divergence_from_plain_answers_grows_with_every_pass(architecture: str, models) -> None:
    pair = models(architecture)
    plain = forward(pair.bare, torch.cat([DEMONSTRATIONS, QUERY], 1)).logits[:, -1].double().log_softmax(-1)
    kl = []
    for thought in thoughts(pair.model, passes=5, eta=0.1):
        log_probabilities = answer(pair.model, thought.memory)[:, -1].double().log_softmax(-1)
        kl.append(float((plain.exp() * (plain - log_probabilities)).sum()))
    assert abs(kl[0]) < 1e-6
    assert kl[-1] > 1e-3
    assert all(a < b for a, b in pairwise(kl))


@torch.no_grad()
def reference_memory(bare: Any, passes: int, eta: float, momentum: float, precision: torch.dtype) -> list[Tensor]:
    """Return the memory after the updates of the released code, m = g + mu m and K = K + eta m, computed in a loop over
    tensors.
    """
    memory, step = [t.to(precision) for t in forward(bare, DEMONSTRATIONS).kv], None
    for _ in range(passes - 1):
        past = DynamicCache()
        for layer in range(len(memory) // 2):
            past.update(memory[2 * layer].float(), memory[2 * layer + 1].float(), layer)
        bare(
            input_ids=DEMONSTRATIONS,
            attention_mask=torch.ones(1, 2 * L),
            position_ids=torch.arange(L, 2 * L)[None],
            **cache_argument(bare, past),
        )
        present = [t[:, :, L:] for layer in past.layers for t in (layer.keys, layer.values)]
        gradients = [new.to(precision) - old for new, old in zip(present, memory, strict=True)]
        step = gradients if step is None else [g + momentum * m for g, m in zip(gradients, step, strict=True)]
        memory = [old + eta * m for old, m in zip(memory, step, strict=True)]
    return memory


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_updates_with_momentum_agree_with_the_released_code(architecture: str, momentum: float, models) -> None:
    pair = models(architecture)
    *_, last = thoughts(pair.model, passes=6, eta=0.05, momentum=momentum)
    reference = reference_memory(pair.bare, 6, 0.05, momentum, torch.float32)
    for actual, expected in zip(flat(last.memory), reference, strict=True):
        assert_same(actual, expected)


def test_the_released_setting_adds_in_bfloat16_where_many_updates_round_to_zero(models) -> None:
    pair = models("gpt2")
    settings = DeepThinking(setting="released")
    assert (settings.momentum, settings.passes, settings.pass_limit) == (0.9, "best", 15)
    released, ours = (thoughts(pair.model, setting=setting) for setting in ("released", "paper"))
    reference = reference_memory(pair.bare, 2, 0.01, 0.9, torch.bfloat16)
    for actual, expected in zip(flat(released[-1].memory), reference, strict=True):
        assert actual.dtype == torch.bfloat16
        assert torch.equal(actual, expected)
    unchanged = [
        torch.cat([(a == b).flatten() for a, b in zip(flat(x.memory), flat(y.memory), strict=True)]).float().mean()
        for x, y in (released, ours)
    ]
    assert unchanged[0] > 0.1 and unchanged[1] < 0.05


def test_the_memory_of_a_bfloat16_model_is_updated_in_float32() -> None:
    dtypes = []

    def read(history: Memory | None) -> Memory:
        dtypes.append(None if history is None else history.dtype)
        return Memory(*2 * ((torch.full((2, 1, 3, 4), 1.0 if history is None else 2.0, dtype=torch.bfloat16),),))

    *_, last = think(read, DeepThinking(eta=0.001), 3)
    assert dtypes == [None, torch.bfloat16, torch.bfloat16]
    assert last.memory.dtype == torch.float32
    assert last.memory.keys[0].unique().tolist() == pytest.approx([2 - 0.999**2])
    assert last.change.tolist() == pytest.approx([0.999 / 1.001] * 2)


def test_demonstrations_may_take_at_most_half_of_the_context_length(models) -> None:
    model = models("gpt2").model
    assert slots_needed(80, 30, passes=1) == 110
    assert slots_needed(80, 100, passes=5) == 180
    half = CONTEXT_LENGTH // 2
    assert slots_needed(half, 1, passes=2) == CONTEXT_LENGTH == model.longest
    assert len(thoughts(model, draw(half))) == 2
    assert slots_needed(half + 1, 1, passes=2) > CONTEXT_LENGTH
    with pytest.raises(Exception, match=f"{CONTEXT_LENGTH + 2}"):
        thoughts(model, draw(half + 1))
