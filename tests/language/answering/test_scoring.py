"""Scores of candidates against a plain loop, which runs transformers on the complete text of each candidate and
computes the softmax in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from iclbench.deep_thinking.methods import method
from iclbench.language.answering.answers import Answers, judge_candidates
from iclbench.language.answering.rounds import run_rounds
from iclbench.language.answering.scoring import candidate_scores
from iclbench.language.models.batches import Batches
from iclbench.language.prompting.prompts import LanguageEpisode
from iclbench.language.prompting.text import Prompt, prompt
from iclbench.language.prompting.tokenised import questions
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.pools import Example
from tests.language.tiny_models import RECURRENT, WITH_MEMORY

SST2 = load_language_card("sst2")[1]
DEMONSTRATIONS = [Example("a fine film", "good"), Example("dull", "bad")]
# Candidates with one or several tokens, a prefix of another candidate, and a non-ASCII character.
CANDIDATES = [" good", " bad", " g", " positive", " é"]


def prompts() -> list[Prompt]:
    texts = [prompt(SST2, DEMONSTRATIONS, x) for x in ("fine", "so so, naïve", "a film that is not at all bad")]
    return [Prompt(p.demonstrations, p.query, tuple(CANDIDATES)) for p in texts]


def reply(model, batches):
    return lambda part, memory, on_prompt_end: candidate_scores(model, part, batches, memory, on_prompt_end)


def scores(model, shared: bool, size: int = 64, name: str = "icl", **settings: float) -> list[np.ndarray]:
    batches, batch_questions = Batches(size), questions(model.tokens, prompts(), shared)
    used_method = method(name, settings)
    rounds = run_rounds(
        model,
        used_method,
        batch_questions,
        reply(model, batches),
        batches,
        shared=shared,
        pass_counts=range(1, used_method.passes + 1),
    )
    return rounds[used_method.passes].replies


@torch.no_grad()
def plain_scores(folder) -> list[list[float]]:
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    all_scores = []
    for text in prompts():
        all_scores.append([])
        for answer in text.answers:
            encoding = tokenizer(text.text + answer, return_offsets_mapping=True)
            ids = encoding["input_ids"]
            logits = module(torch.tensor([ids])).logits[0].double().numpy()
            log_probabilities = (
                logits
                - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
                - logits.max(-1, keepdims=True)
            )
            answer_places = [i for i, (_, end) in enumerate(encoding["offset_mapping"]) if end > len(text.text)]
            all_scores[-1].append(sum(log_probabilities[i - 1, ids[i]] for i in answer_places))
    return all_scores


@pytest.mark.parametrize("architecture", [*WITH_MEMORY, *RECURRENT, "mistral"])
def test_scores_equal_a_plain_loop(architecture: str, folder, model) -> None:
    expected = plain_scores(folder(architecture))
    assert np.ptp(expected, axis=0).max() > 0.01  # the scores depend on the query
    for shared in (True, False):
        np.testing.assert_allclose(scores(model(architecture), shared), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "rwkv"])
def test_scores_do_not_depend_on_the_batch_size(architecture: str, model) -> None:
    expected = scores(model(architecture), True)
    for size in (1, 2):
        np.testing.assert_allclose(scores(model(architecture), True, size), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_deep_thinking_has_the_same_scores_with_shared_and_separate_demonstrations(architecture: str, model) -> None:
    shared, separate = (
        scores(model(architecture), is_shared, name="deep-thinking", eta=0.3, passes=3) for is_shared in (True, False)
    )
    np.testing.assert_allclose(separate, shared, rtol=1e-5, atol=1e-5)
    assert np.abs(np.array(shared) - scores(model(architecture), True)).max() > 1e-4


def test_every_query_is_scored_after_its_own_demonstrations(model) -> None:
    llama, thinking, batches = model("llama"), method("deep-thinking", {"eta": 0.3, "passes": 3}), Batches(64)
    fine, dull = (lambda y: Example("a fine film", y)), (lambda y: Example("dull", y))
    demonstrations = [[fine("good"), dull("bad")], [fine("bad"), dull("good")], [dull("bad"), fine("good")]]
    texts = [
        Prompt(p.demonstrations, p.query, tuple(CANDIDATES))
        for p in (prompt(SST2, examples, "so") for examples in demonstrations)
    ]
    tokenised = questions(llama.tokens, texts, False)
    # The questions must be rows of one memory.
    assert len({len(question.demonstrations) for question in tokenised}) == 1
    batched = run_rounds(llama, thinking, tokenised, reply(llama, batches), batches, shared=False, pass_counts={1, 3})[
        3
    ].replies
    for question, examples in zip(tokenised, batched, strict=True):
        alone = run_rounds(
            llama, thinking, [question], reply(llama, batches), batches, shared=True, pass_counts={1, 3}
        )[3].replies
        np.testing.assert_allclose(examples, alone[0], rtol=1e-5, atol=1e-5)
    assert np.ptp(batched, axis=0).max() > 1e-2


def test_tokens_shared_by_candidates_are_read_once(model, monkeypatch) -> None:
    """Three of the five candidates have one token, and one is a prefix of another, so two rows suffice."""
    llama, batch_rows = model("llama"), []
    plain_logits = llama.logits
    monkeypatch.setattr(llama, "logits", lambda ids, *rest: batch_rows.append(len(ids)) or plain_logits(ids, *rest))
    tokenised = questions(llama.tokens, prompts()[:1], True)
    inputs = {c.inputs for c in tokenised[0].continuations}
    longest = [i for i in inputs if not any(o != i and o[: len(i)] == i for o in inputs)]
    candidate_scores(llama, [tokenised[0].merge_demonstrations()], Batches(64))
    assert batch_rows == [len(longest)] and len(longest) < len(CANDIDATES)


def test_the_distribution_after_the_prompt_is_recorded_for_every_question(model) -> None:
    llama, next_tokens = model("llama"), {}
    tokenised = [q.merge_demonstrations() for q in questions(llama.tokens, prompts(), True)]
    candidate_scores(
        llama,
        tokenised,
        Batches(2),
        None,
        lambda numbers, log_probabilities: next_tokens.update(zip(numbers, log_probabilities, strict=True)),
    )
    assert sorted(next_tokens) == [0, 1, 2]
    for number, question in enumerate(tokenised):
        ids = torch.tensor([question.continuations[0].ids[: question.continuations[0].start]])
        expected = llama.logits(ids, torch.ones_like(ids, dtype=torch.bool))[0, -1].log_softmax(-1)
        torch.testing.assert_close(next_tokens[number], expected, rtol=0, atol=1e-5)


def test_scores_per_token_character_or_byte_are_divided_by_the_length_of_the_answer() -> None:
    """The score -6 is divided by 1 token, 3 characters or 4 bytes, and -8 by 4 tokens, 4 characters or 4 bytes."""
    from iclbench.language.prompting.tokenised import Continuation, Question

    episode = LanguageEpisode((), Example("x", "abé"), ("abé", "abcd"))
    query = tuple(range(9))  # the query is long, so that counting its tokens would change the result
    question = Question((), (Continuation((*query, 1), 9), Continuation((*query, 1, 2, 3, 4), 9)))
    answer = judge_candidates(episode, question, np.array([-6.0, -8.0]))
    assert answer.scores == {
        "accuracy": 1.0,
        "accuracy_per_token": 0.0,
        "accuracy_per_character": 1.0,
        "accuracy_per_byte": 1.0,
        "log_likelihood": pytest.approx(np.log(1 / (1 + np.exp(-2)))),
    }
    assert judge_candidates(episode, question, np.array([-6.0, -5.9])).scores["accuracy"] == 0.0
    per_character = judge_candidates(episode, question, np.array([-6.0, -7.9])).scores
    assert per_character["accuracy_per_character"] == 0.0 and per_character["accuracy_per_byte"] == 1.0
    assert Answers.of([answer, None]).scores["accuracy"].tolist()[0] == 1.0
