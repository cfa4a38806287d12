"""Greedy answers against transformers' own generation, one prompt at a time."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from iclbench.deep_thinking.methods import method
from iclbench.language.answering.answers import right
from iclbench.language.answering.asking import ask
from iclbench.language.answering.generation import generate, read_up_to
from iclbench.language.models.batches import Batches
from iclbench.language.models.model import LanguageModel, load
from iclbench.language.prompting.text import endings, prompt
from iclbench.language.prompting.tokenised import questions
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.pools import Example
from tests.language.scripted import Scripted
from tests.language.tiny_models import MEMORY, RECURRENT, tiny

UPPER = load_language_card("to-upper")[1]
SHOWN = [Example("paris", "france"), Example("a, b", "a")]
ASKED = ["rome", "é", "a long one, of which there are more tokens", "naïve", "oslo"]
TOKENS = 6
NEVER = ("\N{SNOWMAN}",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return cache(lambda kind: tiny(kind, tmp_path_factory.mktemp("models") / kind, seed=int(kind == "qwen2")))


@pytest.fixture(scope="module")
def model(folder):
    return cache(lambda kind: load(str(folder(kind))))


def written(model, shared: bool, tokens: int = TOKENS, size: int = 64) -> list[tuple[int, ...]]:
    batches = Batches(size)
    asked = questions(model.tokens, [prompt(UPPER, SHOWN, x) for x in ASKED], shared)

    def reply(some, memory, at_end):
        return generate(model, some, batches, tokens, NEVER, memory, at_end)

    return ask(model, method("icl"), asked, reply, batches, shared=shared, wanted={1})[1].replies


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*MEMORY, *RECURRENT, "mistral"])
def test_tokens_are_those_of_transformers(kind: str, folder, model) -> None:
    module = AutoModelForCausalLM.from_pretrained(folder(kind), dtype=torch.float32).eval()
    expected = []
    for x in ASKED:
        ids = torch.tensor([model(kind).tokens(prompt(UPPER, SHOWN, x).text).ids])
        found = module.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
        expected.append(tuple(found[0, ids.shape[1] :].tolist()))
    assert len(set(expected)) > 1
    for shared in (True, False):
        assert written(model(kind), shared) == expected


@pytest.mark.parametrize("kind", ["mamba", "mistral"])
def test_a_model_without_a_memory_reads_every_token_once(kind: str, folder, model) -> None:
    """Whatever its checkpoint says of generation: a penalty would change the answers."""
    expected = written(model(kind), shared=False, size=2)
    again = load(str(folder(kind)))
    module, read = again._module, []
    module.generation_config.repetition_penalty = 5.0
    module.register_forward_pre_hook(lambda _, __, given: read.append(given["input_ids"].numel()), with_kwargs=True)
    assert written(again, shared=False, size=2) == expected
    lengths = [len(model(kind).tokens(prompt(UPPER, SHOWN, x).text).ids) for x in ASKED]
    assert sum(read) == sum(lengths) + len(ASKED) * (TOKENS - 1)


def test_a_cache_that_is_wrong_is_not_used(folder) -> None:
    """RWKV's mixes up the rows of a batch; another module looks at the last token alone."""
    assert not load(str(folder("rwkv"))).generates
    module = AutoModelForCausalLM.from_pretrained(folder("mistral"), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder("mistral"))
    assert LanguageModel(module, tokenizer, "sound", "0").generates
    module.prepare_inputs_for_generation = lambda ids, **_: {"input_ids": ids[:, -1:]}
    assert not LanguageModel(module, tokenizer, "damaged", "0").generates


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mamba"])
def test_answers_do_not_depend_on_the_batch_size(kind: str, model) -> None:
    assert written(model(kind), True, size=1) == written(model(kind), False, size=2) == written(model(kind), True)


def test_an_answer_ends_with_its_example_its_line_or_the_text() -> None:
    known = {"a->": "one\ntwo", "b->": "three", "c->": "a much too long answer"}
    model = Scripted(known)
    asked = [q.unsplit() for q in questions(model.tokens, [prompt(UPPER, (), x) for x in "abc"], True)]
    found = generate(model, asked, Batches(8), 10, endings(UPPER))
    assert [model.text(ids) for ids in found] == ["one\n", "three", "a much too"]
    assert [ids[-1] for ids in found] == [ord("\n"), 0, ord("o")]
    before = model.tokens_read
    generate(model, asked[:1], Batches(8), 10, endings(UPPER))
    assert model.tokens_read - before == len(asked[0].continuations[0].ids) + len("one")


def test_a_written_answer_is_read_up_to_the_first_ending_and_stripped() -> None:
    assert read_up_to(" Paris \nexample:", ("\n\n", "\n")) == "Paris"
    assert read_up_to("Paris; Rome", (";", "\n")) == "Paris"
    assert read_up_to("Paris", ("\n",)) == "Paris"


@pytest.mark.parametrize(
    ("match", "predicted", "target", "expected"),
    [
        ("equal", "A", "A", True),
        ("equal", "Ab", "A", False),
        ("equal", "", "A", False),
        ("equal", "a", "A", False),
        ("prefix", "Par", "Paris", False),
        ("prefix", "A", "Africa", False),
        ("prefix", "Paris, France", "Paris", True),
        ("prefix", "", "Paris", False),
        ("prefix", "Pa", "Berlin", False),
        ("equal", "A", " A", True),
    ],
)
def test_what_counts_as_right(match: str, predicted: str, target: str, expected: bool) -> None:
    assert right(UPPER.model_copy(update={"match": match}), predicted, target) is expected


def test_the_first_token_counts_where_the_answer_is_one_token() -> None:
    from iclbench.language.answering.answers import written as judged

    text = {(1,): " A", (1, 2): " AB"}.__getitem__
    assert judged(UPPER, "A", (1,), text, True).scores == {"accuracy": 1.0, "accuracy_first_token": 1.0}
    assert judged(UPPER, "A", (1, 2), text, True).scores == {"accuracy": 0.0, "accuracy_first_token": 1.0}
    assert judged(UPPER, "AB", (1, 2), text, False).scores == {"accuracy": 1.0}
    begun = UPPER.model_copy(update={"match": "prefix"})
    assert judged(begun, "ABC", (1, 2), text, True).scores == {"accuracy": 0.0, "accuracy_first_token": 1.0}


def test_every_query_is_answered_after_its_own_demonstrations(model) -> None:
    llama, how, batches = model("llama"), method("deep-thinking", {"eta": 0.3, "passes": 3}), Batches(8)
    names = ("paris", "rome", "oslo")
    shown = [[Example(names[i], "a"), Example(names[i - 1], "b"), Example(names[i - 2], "c")] for i in range(3)]
    asked = questions(llama.tokens, [prompt(UPPER, own, "x") for own in shown], False)
    assert len({len(question.demonstrations) for question in asked}) == 1  # and so they are rows of one memory

    def reply(some, memory, at_end):
        return generate(llama, some, batches, TOKENS, NEVER, memory, at_end)

    together = ask(llama, how, asked, reply, batches, shared=False, wanted={1, 3})[3].replies
    for question, answer in zip(asked, together, strict=True):
        assert ask(llama, how, [question], reply, batches, shared=True, wanted={1, 3})[3].replies == [answer]
    assert len(set(together)) == 3


@pytest.mark.parametrize("eta", [0.5, 0.001])
def test_the_next_token_after_more_passes_is_compared_with_that_after_one(eta: float, model) -> None:
    """KL(first || later) of the next token, against a sum in NumPy over two separate evaluations; also where it is no
    more than what float32 makes of a sum of 1."""
    llama, batches = model("llama"), Batches(8)
    asked = questions(llama.tokens, [prompt(UPPER, SHOWN, x) for x in ASKED], True)
    told: dict[int, dict[int, np.ndarray]] = {}

    def reply(some, memory, at_end):
        seen = told.setdefault(len(told) + 1, {})

        def both(numbers, next_token):
            seen.update(zip(numbers, next_token.double().log_softmax(-1).numpy(), strict=True))
            at_end(numbers, next_token)

        return generate(llama, some, batches, 1, NEVER, memory, both)

    how = method("deep-thinking", {"eta": eta, "passes": 3})
    found = ask(llama, how, asked, reply, batches, shared=True, wanted={1, 2, 3})
    for passes in (1, 2, 3):
        first, later = (np.array([told[p][i] for i in range(len(ASKED))]) for p in (1, passes))
        expected = (np.exp(first) * (first - later)).sum(-1)
        np.testing.assert_allclose(found[passes].divergence, expected, rtol=1e-3, atol=1e-12)
    assert (found[3].divergence > (1e-5 if eta == 0.5 else 1e-11)).all()
