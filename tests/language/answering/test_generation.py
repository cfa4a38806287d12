"""Greedy answers against transformers, which generates them for one prompt at a time."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from iclbench.deep_thinking.methods import method
from iclbench.language.answering.answers import is_correct
from iclbench.language.answering.generation import generate, read_up_to
from iclbench.language.answering.rounds import run_rounds
from iclbench.language.models.batches import Batches
from iclbench.language.models.model import LanguageModel, load
from iclbench.language.prompting.text import endings, prompt
from iclbench.language.prompting.tokenised import questions
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.pools import Example
from tests.language.scripted import Scripted
from tests.language.tiny_models import RECURRENT, WITH_MEMORY, save_tiny_model

UPPER = load_language_card("to-upper")[1]
DEMONSTRATIONS = [Example("paris", "france"), Example("a, b", "a")]
INPUTS = ["rome", "é", "a long one, of which there are more tokens", "naïve", "oslo"]
TOKENS = 6
UNUSED_ENDINGS = ("\N{SNOWMAN}",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return cache(
        lambda architecture: save_tiny_model(
            architecture, tmp_path_factory.mktemp("models") / architecture, seed=int(architecture == "qwen2")
        )
    )


def generate_all(model, shared: bool, tokens: int = TOKENS, size: int = 64) -> list[tuple[int, ...]]:
    batches = Batches(size)
    batch_questions = questions(model.tokens, [prompt(UPPER, DEMONSTRATIONS, x) for x in INPUTS], shared)

    def reply(part, memory, on_prompt_end):
        return generate(model, part, batches, tokens, UNUSED_ENDINGS, memory, on_prompt_end)

    return run_rounds(model, method("icl"), batch_questions, reply, batches, shared=shared, pass_counts={1})[1].replies


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [*WITH_MEMORY, *RECURRENT, "mistral"])
def test_generated_tokens_equal_generation_with_transformers(architecture: str, folder, model) -> None:
    module = AutoModelForCausalLM.from_pretrained(folder(architecture), dtype=torch.float32).eval()
    expected = []
    for x in INPUTS:
        ids = torch.tensor([model(architecture).tokens(prompt(UPPER, DEMONSTRATIONS, x).text).ids])
        sequences = module.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
        expected.append(tuple(sequences[0, ids.shape[1] :].tolist()))
    assert len(set(expected)) > 1
    for shared in (True, False):
        assert generate_all(model(architecture), shared) == expected


@pytest.mark.parametrize("architecture", ["mamba", "mistral"])
def test_a_model_without_a_memory_reads_every_token_once(architecture: str, folder, model) -> None:
    """The model's generation settings have no effect, not even a repetition penalty, which `module.generate` would
    apply."""
    expected = generate_all(model(architecture), shared=False, size=2)
    penalised = load(str(folder(architecture)))
    module, sizes = penalised._module, []
    module.generation_config.repetition_penalty = 5.0
    module.register_forward_pre_hook(
        lambda _, __, arguments: sizes.append(arguments["input_ids"].numel()), with_kwargs=True
    )
    assert generate_all(penalised, shared=False, size=2) == expected
    lengths = [len(model(architecture).tokens(prompt(UPPER, DEMONSTRATIONS, x).text).ids) for x in INPUTS]
    assert sum(sizes) == sum(lengths) + len(INPUTS) * (TOKENS - 1)


def test_models_that_generate_wrong_tokens_with_their_cache_are_marked(folder) -> None:
    """RWKV mixes up the rows of a batch in its cache. The damaged module reads only the last token."""
    assert not load(str(folder("rwkv"))).can_generate
    module = AutoModelForCausalLM.from_pretrained(folder("mistral"), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder("mistral"))
    assert LanguageModel(module, tokenizer, "sound", "0").can_generate
    module.prepare_inputs_for_generation = lambda ids, **_: {"input_ids": ids[:, -1:]}
    assert not LanguageModel(module, tokenizer, "damaged", "0").can_generate


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mamba"])
def test_answers_do_not_depend_on_the_batch_size(architecture: str, model) -> None:
    assert (
        generate_all(model(architecture), True, size=1)
        == generate_all(model(architecture), False, size=2)
        == generate_all(model(architecture), True)
    )


def test_generation_stops_at_an_ending_an_end_token_or_the_limit() -> None:
    answers = {"a->": "one\ntwo", "b->": "three", "c->": "a much too long answer"}
    model = Scripted(answers)
    tokenised = [q.merge_demonstrations() for q in questions(model.tokens, [prompt(UPPER, (), x) for x in "abc"], True)]
    generated = generate(model, tokenised, Batches(8), 10, endings(UPPER))
    assert [model.text(ids) for ids in generated] == ["one\n", "three", "a much too"]
    assert [ids[-1] for ids in generated] == [ord("\n"), 0, ord("o")]
    tokens_before = model.tokens_read
    generate(model, tokenised[:1], Batches(8), 10, endings(UPPER))
    assert model.tokens_read - tokens_before == len(tokenised[0].continuations[0].ids) + len("one")


def test_answers_are_cut_at_the_first_ending_and_stripped() -> None:
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
def test_correct_answers_equal_or_begin_with_the_target(
    match: str, predicted: str, target: str, expected: bool
) -> None:
    assert is_correct(UPPER.model_copy(update={"match": match}), predicted, target) is expected


def test_first_token_accuracy_requires_a_target_of_one_token() -> None:
    from iclbench.language.answering.answers import judge_text as judge

    text = {(1,): " A", (1, 2): " AB"}.__getitem__
    assert judge(UPPER, "A", (1,), text, True).scores == {"accuracy": 1.0, "accuracy_first_token": 1.0}
    assert judge(UPPER, "A", (1, 2), text, True).scores == {"accuracy": 0.0, "accuracy_first_token": 1.0}
    assert judge(UPPER, "AB", (1, 2), text, False).scores == {"accuracy": 1.0}
    prefix_card = UPPER.model_copy(update={"match": "prefix"})
    assert judge(prefix_card, "ABC", (1, 2), text, True).scores == {"accuracy": 0.0, "accuracy_first_token": 1.0}


def test_every_query_is_answered_after_its_own_demonstrations(model) -> None:
    llama, thinking, batches = model("llama"), method("deep-thinking", {"eta": 0.3, "passes": 3}), Batches(8)
    names = ("paris", "rome", "oslo")
    demonstrations = [
        [Example(names[i], "a"), Example(names[i - 1], "b"), Example(names[i - 2], "c")] for i in range(3)
    ]
    queries = questions(llama.tokens, [prompt(UPPER, examples, "x") for examples in demonstrations], False)
    # Demonstrations of equal length are processed as one batch.
    assert len({len(question.demonstrations) for question in queries}) == 1

    def reply(part, memory, on_prompt_end):
        return generate(llama, part, batches, TOKENS, UNUSED_ENDINGS, memory, on_prompt_end)

    batched = run_rounds(llama, thinking, queries, reply, batches, shared=False, pass_counts={1, 3})[3].replies
    for question, answer in zip(queries, batched, strict=True):
        assert run_rounds(llama, thinking, [question], reply, batches, shared=True, pass_counts={1, 3})[3].replies == [
            answer
        ]
    assert len(set(batched)) == 3


@pytest.mark.parametrize("eta", [0.5, 0.001])
def test_the_divergence_compares_next_token_distributions_with_the_first_pass(eta: float, model) -> None:
    """The divergence KL(first || later) equals a sum in NumPy. With eta = 0.001, the divergence is near the rounding
    error of float32."""
    llama, batches = model("llama"), Batches(8)
    queries = questions(llama.tokens, [prompt(UPPER, DEMONSTRATIONS, x) for x in INPUTS], True)
    log_probabilities: dict[int, dict[int, np.ndarray]] = {}

    def reply(part, memory, on_prompt_end):
        call_log_probabilities = log_probabilities.setdefault(len(log_probabilities) + 1, {})

        def record(numbers, next_token):
            call_log_probabilities.update(zip(numbers, next_token.double().log_softmax(-1).numpy(), strict=True))
            on_prompt_end(numbers, next_token)

        return generate(llama, part, batches, 1, UNUSED_ENDINGS, memory, record)

    thinking = method("deep-thinking", {"eta": eta, "passes": 3})
    rounds = run_rounds(llama, thinking, queries, reply, batches, shared=True, pass_counts={1, 2, 3})
    for passes in (1, 2, 3):
        first, later = (np.array([log_probabilities[p][i] for i in range(len(INPUTS))]) for p in (1, passes))
        expected = (np.exp(first) * (first - later)).sum(-1)
        np.testing.assert_allclose(rounds[passes].divergence, expected, rtol=1e-3, atol=1e-12)
    assert (rounds[3].divergence > (1e-5 if eta == 0.5 else 1e-11)).all()
