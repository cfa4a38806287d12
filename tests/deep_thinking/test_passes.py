"""Deep-Thinking against ordinary forward passes of a bare transformers model: of one over the demonstrations and the
demonstrations once more, which needs none of our code."""

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
from iclbench.language.answering.rounds import reader
from iclbench.language.models.model import load
from tests.language.tiny_models import LENGTH, MEMORY, as_memory, enlarge, tiny

LEARNED = ("gpt2", "opt", "gpt_neo")
L, N = 14, 5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimpleNamespace]:
    """By architecture: the model as it is loaded, and the bare module from the same files."""

    @cache
    def both(kind: str) -> SimpleNamespace:
        folder = tiny(kind, tmp_path_factory.mktemp("models") / kind)
        bare = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        enlarge(bare)  # logits that spread over a few units, as those of a trained model do
        bare.save_pretrained(folder)
        return SimpleNamespace(model=load(str(folder)), bare=bare)

    return both


def draw(length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 290, (1, length), generator=torch.Generator().manual_seed(seed))


DEMONSTRATIONS, QUERY = draw(L), draw(N, 1)


@torch.no_grad()
def forward(bare: Any, ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Any:
    """One ordinary forward pass: logits, and the keys and values of all layers."""
    given = torch.ones_like(ids) if mask is None else mask
    positions = torch.arange(ids.shape[1])[None] if positions is None else positions
    read = DynamicCache()
    out = bare(input_ids=ids, attention_mask=given, position_ids=positions, **as_memory(bare, read))
    return SimpleNamespace(logits=out.logits, kv=[t for layer in read.layers for t in (layer.keys, layer.values)])


def thoughts(model: Any, ids: Tensor = DEMONSTRATIONS, passes: int = 2, **settings: Any) -> list[Thought]:
    chosen = DeepThinking(**settings)
    return list(think(reader(model, ids, chosen.positions), chosen, passes))


def flat(memory: Memory) -> list[Tensor]:
    """In the order of `forward`."""
    return [t for pair in zip(memory.keys, memory.values, strict=True) for t in pair]


def answer(model: Any, memory: Memory, query: Tensor = QUERY) -> Tensor:
    return model.logits(query, torch.ones_like(query, dtype=torch.bool), memory)


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Float32 rounding, relative to the largest entry."""
    assert distance(found, expected) < 2e-6


@pytest.mark.parametrize("kind", MEMORY)
def test_one_pass_is_plain_in_context_learning_whatever_eta(kind: str, models) -> None:
    both = models(kind)
    expected = forward(both.bare, torch.cat([DEMONSTRATIONS, QUERY], 1)).logits[:, L:]
    for eta in (0.0, 0.01, 1.0):
        (first,) = thoughts(both.model, passes=1, eta=eta)
        assert_same(answer(both.model, first.memory), expected)
        assert first.passes == 1 and first.change.isnan().all()


@pytest.mark.parametrize("kind", MEMORY)
def test_a_closed_gate_leaves_the_memory_bit_for_bit(kind: str, models) -> None:
    first, *_, last = thoughts(models(kind).model, passes=4, eta=0.0, momentum=0.5)
    assert all(torch.equal(a, b) for a, b in zip(flat(first.memory), flat(last.memory), strict=True))


@pytest.mark.parametrize("positions", ["continue", "reuse"])
@pytest.mark.parametrize("kind", MEMORY)
def test_two_passes_mix_the_two_copies_of_one_ordinary_pass(kind: str, positions: str, models) -> None:
    both, eta = models(kind), 0.3
    again = torch.arange(2 * L) if positions == "continue" else torch.arange(L).repeat(2)
    doubled = forward(both.bare, torch.cat([DEMONSTRATIONS] * 2, 1), again[None])
    *_, last = thoughts(both.model, eta=eta, positions=positions)
    for found, kv in zip(flat(last.memory), doubled.kv, strict=True):
        assert_same(found, (1 - eta) * kv[:, :, :L] + eta * kv[:, :, L:])
    changes = [(kv[:, :, L:] - kv[:, :, :L]).norm() / kv[:, :, :L].norm() for kv in doubled.kv]
    assert float(last.change) == pytest.approx(float(torch.stack(changes).mean()), rel=1e-5)


@pytest.mark.parametrize("kind", MEMORY)
def test_an_open_gate_leaves_the_second_copy_alone(kind: str, models) -> None:
    """A query after it is one of an ordinary pass that cannot see the first copy and stands where it ends."""
    both = models(kind)
    visible = torch.ones(2 * L + N, 2 * L + N, dtype=torch.bool).tril()
    visible[2 * L :, :L] = False
    hidden = torch.where(visible, 0.0, torch.finfo(torch.float32).min)  # GPT-Neo adds its masks up
    written = torch.cat([DEMONSTRATIONS, DEMONSTRATIONS, QUERY], 1)
    positions = torch.cat([torch.arange(2 * L), torch.arange(L, L + N)])[None]
    expected = forward(both.bare, written, positions, hidden[None, None]).logits[:, 2 * L :]
    *_, last = thoughts(both.model, eta=1.0)
    found = answer(both.model, last.memory)
    assert_same(found, expected)
    plain = forward(both.bare, torch.cat([DEMONSTRATIONS, QUERY], 1)).logits[:, L:]
    twice = forward(both.bare, written).logits[:, 2 * L :]
    assert distance(found, plain) > 1e-2
    assert distance(found, twice) > 1e-2


@pytest.mark.parametrize("kind", MEMORY)
def test_the_first_layer_moves_only_where_positions_are_added_to_the_tokens(kind: str, models) -> None:
    """Its values are a function of token and added position; rotations do not touch them."""
    first, *_, last = thoughts(models(kind).model, passes=4, eta=0.5)
    moved = distance(last.memory.values[0], first.memory.values[0])
    assert (moved > 1e-2) == (kind in LEARNED)
    assert moved < 1e-6 or kind in LEARNED
    assert distance(last.memory.values[1], first.memory.values[1]) > 1e-3


@pytest.mark.parametrize("kind", MEMORY)
def test_the_memory_is_causal_after_one_pass_and_not_after_two(kind: str, models) -> None:
    other = DEMONSTRATIONS.clone()
    other[0, -1] = (other[0, -1] + 1) % 290
    ours, theirs = (thoughts(models(kind).model, ids, eta=0.3) for ids in (DEMONSTRATIONS, other))
    before = [
        max(distance(a[:, :, :-1], b[:, :, :-1]) for a, b in zip(flat(x.memory), flat(y.memory), strict=True))
        for x, y in zip(ours, theirs, strict=True)
    ]
    assert before[0] < 2e-6
    assert before[1] > 1e-3


@pytest.mark.parametrize("kind", MEMORY)
def test_padded_queries_of_one_memory_get_the_answers_of_single_ones(kind: str, models) -> None:
    model = models(kind).model
    *_, last = thoughts(model, passes=3, eta=0.1)
    queries = [draw(n, n) for n in (3, 7, 1)]
    mask = torch.tensor([[i < q.shape[1] for i in range(7)] for q in queries])
    padded = torch.cat([torch.nn.functional.pad(q, (0, 7 - q.shape[1]), value=5) for q in queries])
    together = model.logits(padded, mask, last.memory)
    for row, query in zip(together, queries, strict=True):
        assert_same(row[None, : query.shape[1]], answer(model, last.memory, query))


@pytest.mark.parametrize("kind", MEMORY)
def test_answers_go_away_from_plain_ones_pass_by_pass(kind: str, models) -> None:
    both = models(kind)
    plain = forward(both.bare, torch.cat([DEMONSTRATIONS, QUERY], 1)).logits[:, -1].double().log_softmax(-1)
    kl = []
    for each in thoughts(both.model, passes=5, eta=0.1):
        thought = answer(both.model, each.memory)[:, -1].double().log_softmax(-1)
        kl.append(float((plain.exp() * (plain - thought)).sum()))
    assert abs(kl[0]) < 1e-6
    assert kl[-1] > 1e-3
    assert all(a < b for a, b in pairwise(kl))


@torch.no_grad()
def by_hand(bare: Any, passes: int, eta: float, momentum: float, precision: torch.dtype) -> list[Tensor]:
    """Memory by a loop over lists of tensors, as the released code has it: m = g + mu m, K = K + eta m."""
    memory, step = [t.to(precision) for t in forward(bare, DEMONSTRATIONS).kv], None
    for _ in range(passes - 1):
        past = DynamicCache()
        for layer in range(len(memory) // 2):
            past.update(memory[2 * layer].float(), memory[2 * layer + 1].float(), layer)
        bare(
            input_ids=DEMONSTRATIONS,
            attention_mask=torch.ones(1, 2 * L),
            position_ids=torch.arange(L, 2 * L)[None],
            **as_memory(bare, past),
        )
        present = [t[:, :, L:] for layer in past.layers for t in (layer.keys, layer.values)]
        pull = [new.to(precision) - old for new, old in zip(present, memory, strict=True)]
        step = pull if step is None else [g + momentum * m for g, m in zip(pull, step, strict=True)]
        memory = [old + eta * m for old, m in zip(memory, step, strict=True)]
    return memory


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_is_that_of_the_released_code(kind: str, momentum: float, models) -> None:
    both = models(kind)
    *_, last = thoughts(both.model, passes=6, eta=0.05, momentum=momentum)
    for found, expected in zip(flat(last.memory), by_hand(both.bare, 6, 0.05, momentum, torch.float32), strict=True):
        assert_same(found, expected)


def test_the_released_setting_adds_up_in_bfloat16_where_many_a_step_is_none(models) -> None:
    both = models("gpt2")
    settings = DeepThinking(setting="released")
    assert (settings.momentum, settings.passes, settings.most) == (0.9, "best", 15)
    released, ours = (thoughts(both.model, setting=setting) for setting in ("released", "paper"))
    for found, expected in zip(
        flat(released[-1].memory), by_hand(both.bare, 2, 0.01, 0.9, torch.bfloat16), strict=True
    ):
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, expected)
    stayed = [
        torch.cat([(a == b).flatten() for a, b in zip(flat(x.memory), flat(y.memory), strict=True)]).float().mean()
        for x, y in (released, ours)
    ]
    assert stayed[0] > 0.1 and stayed[1] < 0.05


def test_the_memory_is_added_up_in_float32_under_a_model_of_half_the_precision() -> None:
    seen = []

    def read(history: Memory | None) -> Memory:
        seen.append(None if history is None else history.dtype)
        return Memory(*2 * ((torch.full((2, 1, 3, 4), 1.0 if history is None else 2.0, dtype=torch.bfloat16),),))

    *_, last = think(read, DeepThinking(eta=0.001), 3)
    assert seen == [None, torch.bfloat16, torch.bfloat16]
    assert last.memory.dtype == torch.float32
    assert last.memory.keys[0].unique().tolist() == pytest.approx([2 - 0.999**2])
    assert last.change.tolist() == pytest.approx([0.999 / 1.001] * 2)


def test_what_is_said_to_fit_fits_and_one_token_more_does_not(models) -> None:
    model = models("gpt2").model
    assert slots_needed(80, 30, passes=1) == 110
    assert slots_needed(80, 100, passes=5) == 180
    half = LENGTH // 2
    assert slots_needed(half, 1, passes=2) == LENGTH == model.longest
    assert len(thoughts(model, draw(half))) == 2
    assert slots_needed(half + 1, 1, passes=2) > LENGTH
    with pytest.raises(Exception, match=f"{LENGTH + 2}"):
        thoughts(model, draw(half + 1))
