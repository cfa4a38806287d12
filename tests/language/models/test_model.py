"""Pretrained models against a bare transformers model that reads the whole text in one pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from iclbench.core.errors import UsageError
from iclbench.language.models import caches, checks
from iclbench.language.models.model import LanguageModel, load
from tests.language.tiny_models import LENGTH, MEMORY, RECURRENT, as_memory, tiny

# ALiBi comes besides: a model that is given no positions.
REMEMBERS = (*MEMORY, "bloom")
ALL = (*REMEMBERS, *RECURRENT, "mistral")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return cache(lambda kind: tiny(kind, tmp_path_factory.mktemp("models") / kind))


@pytest.fixture(scope="module")
def model(folder):
    return cache(lambda kind: load(str(folder(kind))))


@pytest.fixture(scope="module")
def bare(folder):
    return cache(lambda kind: AutoModelForCausalLM.from_pretrained(folder(kind), dtype=torch.float32).eval())


def draw(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 290, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(queries: list[Tensor]) -> tuple[Tensor, Tensor]:
    mask = torch.tensor([[i < len(q) for i in range(max(map(len, queries)))] for q in queries])
    return torch.nn.utils.rnn.pad_sequence(queries, batch_first=True), mask


def everything(ids: Tensor) -> Tensor:
    return torch.ones_like(ids, dtype=torch.bool)


@torch.no_grad()
def plain(module, ids: Tensor) -> Tensor:
    """Logits of one forward pass without anything."""
    return module(input_ids=ids, use_cache=False).logits


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", REMEMBERS)
def test_a_query_after_the_memory_has_the_logits_of_one_plain_pass(kind: str, model, bare) -> None:
    demonstrations, query = draw(1, 23), draw(1, 9, seed=1)
    found = model(kind).logits(query, everything(query), model(kind).read(demonstrations))
    assert_same(found, plain(bare(kind), torch.cat([demonstrations, query], 1))[:, 23:])


@pytest.mark.parametrize("kind", REMEMBERS)
def test_queries_of_different_lengths_share_a_memory_and_do_not_see_each_other(kind: str, model, bare) -> None:
    demonstrations = draw(1, 17)
    queries = [draw(1, length, seed=length)[0] for length in (9, 4, 1, 7, 9)]
    memory = model(kind).read(demonstrations)
    found = model(kind).logits(*padded(queries), memory)
    two = torch.cat([model(kind).logits(*padded(queries[:4])[:2], memory), found[4:]])
    for row, query in enumerate(queries):
        alone = plain(bare(kind), torch.cat([demonstrations[0], query])[None])[:, 17:]
        assert_same(found[row : row + 1, : len(query)], alone)
        assert_same(two[row : row + 1, : len(query)], alone)


@pytest.mark.parametrize("kind", ALL)
def test_whole_prompts_padded_on_the_right_are_read_as_if_alone(kind: str, model, bare) -> None:
    prompts = [draw(1, length, seed=length)[0] for length in (21, 12, 3)]
    found = model(kind).logits(*padded(prompts))
    for row, prompt in enumerate(prompts):
        assert_same(found[row : row + 1, : len(prompt)], plain(bare(kind), prompt[None]))


@pytest.mark.parametrize("kind", ("gpt2", "llama", "bloom"))
def test_each_row_may_have_a_memory_of_its_own(kind: str, model, bare) -> None:
    demonstrations, queries = draw(3, 14), draw(3, 5, seed=1)
    memory = model(kind).read(demonstrations)
    assert (memory.batch, memory.length) == (3, 14)
    whole = plain(bare(kind), torch.cat([demonstrations, queries], 1))
    assert_same(model(kind).logits(queries, everything(queries), memory), whole[:, 14:])
    one = model(kind).logits(queries[1:2], everything(queries[1:2]), memory.rows([1]))
    assert_same(one, whole[1:2, 14:])


@pytest.mark.parametrize("kind", REMEMBERS)
def test_reading_on_gives_the_present_slots_of_one_long_pass(kind: str, model, bare) -> None:
    ids, cached = draw(1, 12), DynamicCache()
    with torch.no_grad():
        bare(kind)(input_ids=torch.cat([ids, ids], 1), use_cache=True, **as_memory(bare(kind), cached))
    first = model(kind).read(ids)
    second = model(kind).read(ids, after=first)
    for layer, memory in enumerate((cached.layers[0], cached.layers[1])):
        assert_same(first.keys[layer], memory.keys[:, :, :12])
        assert_same(second.keys[layer], memory.keys[:, :, 12:])
        assert_same(second.values[layer], memory.values[:, :, 12:])


@pytest.mark.parametrize("kind", MEMORY)
def test_tokens_can_be_read_again_at_the_positions_they_had(kind: str, model, bare) -> None:
    ids, cached = draw(1, 12), DynamicCache()
    twice = torch.cat([ids, ids], 1)
    with torch.no_grad():
        bare(kind)(
            input_ids=twice,
            attention_mask=torch.ones_like(twice),
            use_cache=True,
            position_ids=torch.arange(12).repeat(2)[None],
            **as_memory(bare(kind), cached),
        )
    again = model(kind).read(ids, after=model(kind).read(ids), first=0)
    for layer in range(2):
        assert_same(again.keys[layer], cached.layers[layer].keys[:, :, 12:])


def test_positions_that_a_model_is_not_told_cannot_be_chosen(model) -> None:
    memory = model("bloom").read(draw(1, 5))
    assert not model("bloom").placed
    with pytest.raises(UsageError, match=r"-o method\.positions=continue"):
        model("bloom").read(draw(1, 5), after=memory, first=0)


@pytest.mark.parametrize("kind", ("gpt2", "llama"))
def test_asking_leaves_the_memory_as_it_was(kind: str, model) -> None:
    memory = model(kind).read(draw(1, 11))
    before = [t.clone() for t in memory.tensors().values()]
    query = draw(4, 6)
    once, again = (model(kind).logits(query, everything(query), memory) for _ in range(2))
    assert torch.equal(once, again)
    model(kind).read(draw(1, 11), after=memory)
    assert all(torch.equal(a, b) for a, b in zip(before, memory.tensors().values(), strict=True))


@pytest.mark.parametrize("kind", ALL)
def test_logits_at_chosen_places_are_those_of_all_and_the_others_are_not_computed(kind: str, model) -> None:
    ids, mask = padded([draw(1, length, seed=length)[0] for length in (12, 8, 10)])
    keep = torch.tensor([[11, 3], [7, 0], [2, 2]])
    asked: list[int] = []
    head = model(kind)._module.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, given, __: asked.append(given[0].shape[1]))
    try:
        kept, whole = model(kind).logits(ids, mask, keep=keep), model(kind).logits(ids, mask)
    finally:
        hook.remove()
    assert asked == [2, 12]
    assert_same(kept, torch.stack([whole[row, places] for row, places in enumerate(keep)]))


def test_places_are_cut_out_where_the_head_cannot_be_asked_at_them(model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = draw(2, 6)
    keep = torch.tensor([[5], [1]])
    expected = model("gpt2").logits(ids, everything(ids), keep=keep)
    monkeypatch.setattr(model("gpt2"), "_head", None)
    assert_same(model("gpt2").logits(ids, everything(ids), keep=keep), expected)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("mamba", "keeps no keys and values"),
        ("rwkv", "keeps no keys and values"),
        ("mistral", "sliding window of 8 tokens"),
    ],
)
def test_models_without_a_memory_say_why(kind: str, why: str, model) -> None:
    assert not model(kind).remembers
    assert why in model(kind).forgets
    with pytest.raises(UsageError, match=why):
        model(kind).read(draw(1, 4))
    with pytest.raises(UsageError, match=why):
        model(kind).logits(draw(1, 4), everything(draw(1, 4)), model("llama").read(draw(1, 4)))


def test_the_same_architecture_remembers_without_its_window(tmp_path: Path) -> None:
    assert load(str(tiny("mistral", tmp_path / "wide", sliding_window=None))).remembers


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda past, present: torch.cat([0 * past, present], -2), "predicts something else"),
        (lambda past, present: present, "cannot go on from keys and values"),
    ],
    ids=("emptied", "dropped"),
)
def test_a_memory_that_does_not_work_is_seen_when_the_model_is_loaded(
    wrong: Callable[[Tensor, Tensor], Tensor], why: str, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(layer: caches.Layer, keys: Tensor, values: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        layer.present = keys, values
        return layer.present if layer.past is None else (wrong(layer.past[0], keys), wrong(layer.past[1], values))

    monkeypatch.setattr(caches.Layer, "update", update)
    assert why in load(str(folder("llama"))).forgets


@pytest.mark.parametrize("kind", ("gpt2", "llama"))
def test_a_text_beyond_the_context_is_refused_with_the_numbers(kind: str, model) -> None:
    asked: LanguageModel = model(kind)
    assert asked.longest == LENGTH
    memory = asked.read(draw(1, LENGTH - 3))
    fits = draw(2, 3)
    assert asked.logits(fits, everything(fits), memory).isfinite().all()
    with pytest.raises(UsageError, match=f"{LENGTH + 1} tokens is longer than the {LENGTH}"):
        asked.logits(draw(2, 4), everything(draw(2, 4)), memory)
    with pytest.raises(UsageError, match=f"longer than the {LENGTH}"):
        asked.read(draw(1, LENGTH - 3), after=memory)


def test_limits_are_those_of_the_architecture(model) -> None:
    limits = {kind: model(kind).longest for kind in ALL}
    assert {kind for kind, limit in limits.items() if limit is None} == {"bloom", "mamba"}
    assert {limit for limit in limits.values() if limit is not None} == {LENGTH}


def test_half_precision_keeps_its_memory_and_answers_in_float32(folder) -> None:
    half = load(str(folder("llama")), dtype="bfloat16")
    memory = half.read(draw(1, 8))
    query = draw(2, 4)
    answers = half.logits(query, everything(query), memory)
    assert (half.dtype, memory.dtype, answers.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert half.remembers
    assert torch.equal(half.logits(query, everything(query), memory.to(dtype=torch.float32)), answers)


def test_random_models_do_depend_on_what_they_read(model) -> None:
    for kind in ALL:
        query = draw(1, 6)
        one, other = (checks.plain(model(kind), torch.cat([draw(1, 9, seed=s), query], 1))[:, -1] for s in (1, 2))
        assert float((one - other).abs().max()) > 0.01 * float(one.abs().max())
