"""Language models against plain models in transformers that read the complete text in one pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from iclbench.language.models import caches, checks
from iclbench.language.models.model import LanguageModel, load
from tests.language.tiny_models import CONTEXT_LENGTH, RECURRENT, WITH_MEMORY, cache_argument, save_tiny_model
from tests.refusals import refused

# Bloom uses ALiBi, so it has no explicit positions.
ALL_WITH_MEMORY = (*WITH_MEMORY, "bloom")
ARCHITECTURES = (*ALL_WITH_MEMORY, *RECURRENT, "mistral")


@pytest.fixture(scope="module")
def plain_module(folder):
    return cache(
        lambda architecture: AutoModelForCausalLM.from_pretrained(folder(architecture), dtype=torch.float32).eval()
    )


def draw(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 290, (rows, length), generator=torch.Generator().manual_seed(seed))


def pad(queries: list[Tensor]) -> tuple[Tensor, Tensor]:
    mask = torch.tensor([[i < len(q) for i in range(max(map(len, queries)))] for q in queries])
    return torch.nn.utils.rnn.pad_sequence(queries, batch_first=True), mask


def full_mask(ids: Tensor) -> Tensor:
    return torch.ones_like(ids, dtype=torch.bool)


@torch.no_grad()
def plain_logits(module, ids: Tensor) -> Tensor:
    """Compute logits by one forward pass without a mask, positions or a cache."""
    return module(input_ids=ids, use_cache=False).logits


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ALL_WITH_MEMORY)
def test_logits_of_a_query_after_a_memory_equal_one_plain_pass(architecture: str, model, plain_module) -> None:
    demonstrations, query = draw(1, 23), draw(1, 9, seed=1)
    logits = model(architecture).logits(query, full_mask(query), model(architecture).read(demonstrations))
    assert_close(logits, plain_logits(plain_module(architecture), torch.cat([demonstrations, query], 1))[:, 23:])


@pytest.mark.parametrize("architecture", ALL_WITH_MEMORY)
def test_queries_of_different_lengths_share_a_memory_and_do_not_see_each_other(
    architecture: str, model, plain_module
) -> None:
    demonstrations = draw(1, 17)
    queries = [draw(1, length, seed=length)[0] for length in (9, 4, 1, 7, 9)]
    memory = model(architecture).read(demonstrations)
    logits = model(architecture).logits(*pad(queries), memory)
    first_four = torch.cat([model(architecture).logits(*pad(queries[:4])[:2], memory), logits[4:]])
    for row, query in enumerate(queries):
        expected = plain_logits(plain_module(architecture), torch.cat([demonstrations[0], query])[None])[:, 17:]
        assert_close(logits[row : row + 1, : len(query)], expected)
        assert_close(first_four[row : row + 1, : len(query)], expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_of_padded_prompts_equal_logits_of_single_prompts(architecture: str, model, plain_module) -> None:
    prompts = [draw(1, length, seed=length)[0] for length in (21, 12, 3)]
    logits = model(architecture).logits(*pad(prompts))
    for row, prompt in enumerate(prompts):
        assert_close(logits[row : row + 1, : len(prompt)], plain_logits(plain_module(architecture), prompt[None]))


@pytest.mark.parametrize("architecture", ("gpt2", "llama", "bloom"))
def test_each_row_can_have_a_separate_memory(architecture: str, model, plain_module) -> None:
    demonstrations, queries = draw(3, 14), draw(3, 5, seed=1)
    memory = model(architecture).read(demonstrations)
    assert (memory.batch, memory.length) == (3, 14)
    expected = plain_logits(plain_module(architecture), torch.cat([demonstrations, queries], 1))
    assert_close(model(architecture).logits(queries, full_mask(queries), memory), expected[:, 14:])
    single_row = model(architecture).logits(queries[1:2], full_mask(queries[1:2]), memory.rows([1]))
    assert_close(single_row, expected[1:2, 14:])


@pytest.mark.parametrize("architecture", ALL_WITH_MEMORY)
def test_keys_and_values_read_in_two_steps_equal_one_pass(architecture: str, model, plain_module) -> None:
    ids, cached = draw(1, 12), DynamicCache()
    with torch.no_grad():
        plain_module(architecture)(
            input_ids=torch.cat([ids, ids], 1), use_cache=True, **cache_argument(plain_module(architecture), cached)
        )
    first = model(architecture).read(ids)
    second = model(architecture).read(ids, after=first)
    for layer, memory in enumerate((cached.layers[0], cached.layers[1])):
        assert_close(first.keys[layer], memory.keys[:, :, :12])
        assert_close(second.keys[layer], memory.keys[:, :, 12:])
        assert_close(second.values[layer], memory.values[:, :, 12:])


@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_tokens_can_be_read_twice_at_the_same_positions(architecture: str, model, plain_module) -> None:
    ids, cached = draw(1, 12), DynamicCache()
    repeated_ids = torch.cat([ids, ids], 1)
    with torch.no_grad():
        plain_module(architecture)(
            input_ids=repeated_ids,
            attention_mask=torch.ones_like(repeated_ids),
            use_cache=True,
            position_ids=torch.arange(12).repeat(2)[None],
            **cache_argument(plain_module(architecture), cached),
        )
    second = model(architecture).read(ids, after=model(architecture).read(ids), first=0)
    for layer in range(2):
        assert_close(second.keys[layer], cached.layers[layer].keys[:, :, 12:])


def test_setting_positions_is_refused_for_a_model_without_explicit_positions(model) -> None:
    memory = model("bloom").read(draw(1, 5))
    assert not model("bloom").uses_positions
    with refused("not-applicable", "'bloom'", "-o method.positions=continue"):
        model("bloom").read(draw(1, 5), after=memory, first=0)


@pytest.mark.parametrize("architecture", ("gpt2", "llama"))
def test_queries_do_not_change_the_memory(architecture: str, model) -> None:
    memory = model(architecture).read(draw(1, 11))
    copies = [t.clone() for t in memory.tensors().values()]
    query = draw(4, 6)
    first, second = (model(architecture).logits(query, full_mask(query), memory) for _ in range(2))
    assert torch.equal(first, second)
    model(architecture).read(draw(1, 11), after=memory)
    assert all(torch.equal(a, b) for a, b in zip(copies, memory.tensors().values(), strict=True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_logits_at_selected_positions_are_computed(architecture: str, model) -> None:
    ids, mask = pad([draw(1, length, seed=length)[0] for length in (12, 8, 10)])
    keep = torch.tensor([[11, 3], [7, 0], [2, 2]])
    head_lengths: list[int] = []
    head = model(architecture)._module.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, inputs, __: head_lengths.append(inputs[0].shape[1]))
    try:
        selected, all_logits = model(architecture).logits(ids, mask, keep=keep), model(architecture).logits(ids, mask)
    finally:
        hook.remove()
    assert head_lengths == [2, 12]
    assert_close(selected, torch.stack([all_logits[row, places] for row, places in enumerate(keep)]))


def test_without_a_known_head_logits_at_selected_positions_are_taken_from_all_logits(
    model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = draw(2, 6)
    keep = torch.tensor([[5], [1]])
    expected = model("gpt2").logits(ids, full_mask(ids), keep=keep)
    monkeypatch.setattr(model("gpt2"), "_head", None)
    assert_close(model("gpt2").logits(ids, full_mask(ids), keep=keep), expected)


@pytest.mark.parametrize(("architecture", "name"), [("mamba", "mamba"), ("rwkv", "rwkv"), ("mistral", "window of 8")])
def test_models_without_a_memory_give_a_reason(architecture: str, name: str, model) -> None:
    assert not model(architecture).has_memory
    assert name in model(architecture).memory_obstacle
    with refused("not-applicable", name):
        model(architecture).read(draw(1, 4))
    with refused("not-applicable", name):
        model(architecture).logits(draw(1, 4), full_mask(draw(1, 4)), model("llama").read(draw(1, 4)))


def test_a_mistral_model_without_a_sliding_window_has_a_memory(tmp_path: Path) -> None:
    assert load(str(save_tiny_model("mistral", tmp_path / "wide", sliding_window=None))).has_memory


@pytest.mark.parametrize(
    "wrong",
    [lambda past, new: torch.cat([0 * past, new], -2), lambda past, new: new],
    ids=("zeros", "dropped"),
)
def test_a_model_that_gives_wrong_logits_with_a_memory_has_no_memory(
    wrong: Callable[[Tensor, Tensor], Tensor], folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not load(str(folder("llama"))).memory_obstacle

    def update(layer: caches.OnePassLayer, keys: Tensor, values: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        layer.new = keys, values
        return layer.new if layer.past is None else (wrong(layer.past[0], keys), wrong(layer.past[1], values))

    monkeypatch.setattr(caches.OnePassLayer, "update", update)
    assert "llama" in load(str(folder("llama"))).memory_obstacle


@pytest.mark.parametrize("architecture", ("gpt2", "llama"))
def test_a_text_longer_than_the_context_length_is_refused(architecture: str, model) -> None:
    language_model: LanguageModel = model(architecture)
    assert language_model.longest == CONTEXT_LENGTH
    memory = language_model.read(draw(1, CONTEXT_LENGTH - 3))
    last_tokens = draw(2, 3)
    assert language_model.logits(last_tokens, full_mask(last_tokens), memory).isfinite().all()
    with refused("too-large", CONTEXT_LENGTH + 1, CONTEXT_LENGTH, architecture):
        language_model.logits(draw(2, 4), full_mask(draw(2, 4)), memory)
    with refused("too-large", CONTEXT_LENGTH, architecture):
        language_model.read(draw(1, CONTEXT_LENGTH - 3), after=memory)


def test_context_lengths_are_read_from_the_configuration(model) -> None:
    limits = {architecture: model(architecture).longest for architecture in ARCHITECTURES}
    assert {architecture for architecture, limit in limits.items() if limit is None} == {"bloom", "mamba"}
    assert {limit for limit in limits.values() if limit is not None} == {CONTEXT_LENGTH}


def test_a_model_in_half_precision_has_a_memory_in_half_precision_and_logits_in_float32(folder) -> None:
    half = load(str(folder("llama")), dtype="bfloat16")
    memory = half.read(draw(1, 8))
    query = draw(2, 4)
    logits = half.logits(query, full_mask(query), memory)
    assert (half.dtype, memory.dtype, logits.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert half.has_memory
    assert torch.equal(half.logits(query, full_mask(query), memory.to(dtype=torch.float32)), logits)


def test_logits_of_the_tiny_models_depend_on_earlier_tokens(model) -> None:
    for architecture in ARCHITECTURES:
        query = draw(1, 6)
        first, second = (
            checks.plain_logits(model(architecture), torch.cat([draw(1, 9, seed=s), query], 1))[:, -1] for s in (1, 2)
        )
        assert float((first - second).abs().max()) > 0.01 * float(first.abs().max())
