"""Scores of candidates against a plain loop: one forward pass of a bare transformers model over the whole text of every
candidate, and a softmax in NumPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from iclbench.deep_thinking.methods import method
from iclbench.language.answering.answers import Answers, best_candidate
from iclbench.language.answering.asking import ask
from iclbench.language.answering.scoring import candidate_scores
from iclbench.language.models.batches import Batches
from iclbench.language.models.model import load
from iclbench.language.prompting.prompts import LanguageEpisode
from iclbench.language.prompting.text import Prompt, prompt
from iclbench.language.prompting.tokenised import questions
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.pools import Example
from tests.language.tiny_models import MEMORY, RECURRENT, tiny

SST2 = load_language_card("sst2")[1]
SHOWN = [Example("a fine film", "good"), Example("dull", "bad")]
# One token, several, one that begins another, one that is not ASCII.
CANDIDATES = [" good", " bad", " g", " positive", " é"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return cache(lambda kind: tiny(kind, tmp_path_factory.mktemp("models") / kind))


@pytest.fixture(scope="module")
def model(folder):
    return cache(lambda kind: load(str(folder(kind))))


def prompts() -> list[Prompt]:
    asked = [prompt(SST2, SHOWN, x) for x in ("fine", "so so, naïve", "a film that is not at all bad")]
    return [Prompt(p.demonstrations, p.query, tuple(CANDIDATES)) for p in asked]


def reply(model, batches):
    return lambda some, memory, at_end: candidate_scores(model, some, batches, memory, at_end)


def scores(model, shared: bool, size: int = 64, name: str = "icl", **settings: float) -> list[np.ndarray]:
    batches, asked = Batches(size), questions(model.tokens, prompts(), shared)
    how = method(name, settings)
    found = ask(model, how, asked, reply(model, batches), batches, shared=shared, wanted=range(1, how.passes + 1))
    return found[how.passes].replies


@torch.no_grad()
def plain(folder) -> list[list[float]]:
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for asked in prompts():
        found.append([])
        for answer in asked.answers:
            whole = tokenizer(asked.text + answer, return_offsets_mapping=True)
            ids = whole["input_ids"]
            logits = module(torch.tensor([ids])).logits[0].double().numpy()
            logs = (
                logits
                - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
                - logits.max(-1, keepdims=True)
            )
            own = [i for i, (_, end) in enumerate(whole["offset_mapping"]) if end > len(asked.text)]
            found[-1].append(sum(logs[i - 1, ids[i]] for i in own))
    return found


@pytest.mark.parametrize("kind", [*MEMORY, *RECURRENT, "mistral"])
def test_scores_are_those_of_a_plain_loop(kind: str, folder, model) -> None:
    expected = plain(folder(kind))
    assert np.ptp(expected, axis=0).max() > 0.01  # they depend on the query
    for shared in (True, False):
        np.testing.assert_allclose(scores(model(kind), shared), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "rwkv"])
def test_scores_do_not_depend_on_the_batch_size(kind: str, model) -> None:
    whole = scores(model(kind), True)
    for size in (1, 2):
        np.testing.assert_allclose(scores(model(kind), True, size), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_deep_thinking_scores_alike_with_shared_and_with_own_demonstrations(kind: str, model) -> None:
    shared, own = (scores(model(kind), each, name="deep-thinking", eta=0.3, passes=3) for each in (True, False))
    np.testing.assert_allclose(own, shared, rtol=1e-5, atol=1e-5)
    assert np.abs(np.array(shared) - scores(model(kind), True)).max() > 1e-4


def test_every_question_is_asked_after_its_own_demonstrations(model) -> None:
    llama, how, batches = model("llama"), method("deep-thinking", {"eta": 0.3, "passes": 3}), Batches(64)
    fine, dull = (lambda y: Example("a fine film", y)), (lambda y: Example("dull", y))
    shown = [[fine("good"), dull("bad")], [fine("bad"), dull("good")], [dull("bad"), fine("good")]]
    asked = [Prompt(p.demonstrations, p.query, tuple(CANDIDATES)) for p in (prompt(SST2, own, "so") for own in shown)]
    found = questions(llama.tokens, asked, False)
    assert len({len(question.demonstrations) for question in found}) == 1  # and so they are rows of one memory
    together = ask(llama, how, found, reply(llama, batches), batches, shared=False, wanted={1, 3})[3].replies
    for question, own in zip(found, together, strict=True):
        alone = ask(llama, how, [question], reply(llama, batches), batches, shared=True, wanted={1, 3})[3].replies
        np.testing.assert_allclose(own, alone[0], rtol=1e-5, atol=1e-5)
    assert np.ptp(together, axis=0).max() > 1e-2


def test_what_candidates_share_is_read_once(model, monkeypatch) -> None:
    """Of five candidates three have one token, and one begins another: two rows are enough."""
    llama, read = model("llama"), []
    plain_logits = llama.logits
    monkeypatch.setattr(llama, "logits", lambda ids, *rest: read.append(len(ids)) or plain_logits(ids, *rest))
    asked = questions(llama.tokens, prompts()[:1], True)
    inputs = {c.inputs for c in asked[0].continuations}
    longest = [i for i in inputs if not any(o != i and o[: len(i)] == i for o in inputs)]
    candidate_scores(llama, [asked[0].unsplit()], Batches(64))
    assert read == [len(longest)] and len(longest) < len(CANDIDATES)


def test_the_distribution_after_the_prompt_is_told_for_every_question(model) -> None:
    llama, told = model("llama"), {}
    asked = [q.unsplit() for q in questions(llama.tokens, prompts(), True)]
    candidate_scores(llama, asked, Batches(2), None, lambda some, next_: told.update(zip(some, next_, strict=True)))
    assert sorted(told) == [0, 1, 2]
    for number, question in enumerate(asked):
        ids = torch.tensor([question.continuations[0].ids[: question.continuations[0].start]])
        alone = llama.logits(ids, torch.ones_like(ids, dtype=torch.bool))[0, -1].log_softmax(-1)
        torch.testing.assert_close(told[number], alone, rtol=0, atol=1e-5)


def test_normalisations_choose_each_by_its_own_measure() -> None:
    """Worked by hand: -6 over 1 token, 3 characters and 4 bytes; -8 over 4 tokens, 4 characters and 4 bytes."""
    from iclbench.language.prompting.tokenised import Continuation, Question

    episode = LanguageEpisode((), Example("x", "abé"), ("abé", "abcd"))
    query = tuple(range(9))  # long, so that it decides if it counts
    question = Question((), (Continuation((*query, 1), 9), Continuation((*query, 1, 2, 3, 4), 9)))
    answer = best_candidate(episode, question, np.array([-6.0, -8.0]))
    assert answer.scores == {
        "accuracy": 1.0,
        "accuracy_per_token": 0.0,
        "accuracy_per_character": 1.0,
        "accuracy_per_byte": 1.0,
        "log_likelihood": pytest.approx(np.log(1 / (1 + np.exp(-2)))),
    }
    assert best_candidate(episode, question, np.array([-6.0, -5.9])).scores["accuracy"] == 0.0
    per_character = best_candidate(episode, question, np.array([-6.0, -7.9])).scores
    assert per_character["accuracy_per_character"] == 0.0 and per_character["accuracy_per_byte"] == 1.0
    assert Answers.of([answer, None]).scores["accuracy"].tolist()[0] == 1.0
