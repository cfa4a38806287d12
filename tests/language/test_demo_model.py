"""The demo model, which is trained on the tasks of the algorithmic cards and saved as an ordinary checkpoint."""

import random
from pathlib import Path

import pytest
import torch

from iclbench.language import demo_model
from iclbench.language.prompting.text import prompt
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.selection import language_tasks
from tests.refusals import refused


def test_the_demo_model_is_trained_on_the_tasks_of_the_algorithmic_cards():
    assert {task.name for task in language_tasks(["algorithmic"])} == set(demo_model.TASKS)


@pytest.mark.parametrize("name", ["to-upper", "to-lower", "next-letter", "previous-letter"])
def test_drawn_letter_examples_cover_the_pool_of_the_card(name):
    pool = {e.x: e.y for e in language_tasks([name])[0].pool().queries}
    rng = random.Random(0)
    drawn = dict(demo_model.draw(name, rng) for _ in range(1000))
    assert drawn == pool


@pytest.mark.parametrize(("name", "index"), [("list-first", 0), ("list-last", -1)])
def test_drawn_lists_have_lengths_and_answers_as_on_the_card(name, index):
    rng = random.Random(0)
    drawn = [demo_model.draw(name, rng) for _ in range(200)]
    assert all(y == x.split(",")[index] for x, y in drawn)
    lengths = {len(e.x.split(",")) for e in language_tasks([name])[0].pool().queries}
    assert {len(x.split(",")) for x, _ in drawn} == lengths


@pytest.mark.parametrize("name", demo_model.TASKS)
def test_the_tokenizer_decodes_prompts_of_its_tasks_exactly(name):
    tokenizer = demo_model.make_tokenizer()
    task = language_tasks([name])[0]
    pool = task.pool()
    text = prompt(task.card, pool.demonstrations[:5], pool.queries[-1].x).text
    ids = tokenizer(text)["input_ids"]
    assert demo_model.VOCABULARY[ids[0]] == "<s>"
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids[1:]) == text


def test_the_answer_mask_covers_answers_and_the_ends_of_their_lines():
    tokenizer = demo_model.make_tokenizer()
    text = "example:a,b->a\nexample:c->C\nexample:d->"
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    mask = demo_model.answer_mask(ids)[0]
    assert [demo_model.VOCABULARY[i] for i in ids[0][mask]] == ["a", "\n", "C", "\n"]


def test_late_accuracy_counts_only_answers_in_the_second_half_of_a_sequence():
    ids = torch.tensor(
        [demo_model.make_tokenizer()("example:a->A\nexample:b->B\nexample:c->C\nexample:d->D\n")["input_ids"]]
    )
    letters = [i for i in range(ids.shape[1]) if demo_model.VOCABULARY[ids[0, i]] in "ABCD"]
    logits = torch.zeros(1, ids.shape[1], len(demo_model.VOCABULARY))
    for position in (letters[0], letters[2]):  # one of the last two answers is right
        logits[0, position - 1, ids[0, position]] = 1.0
    assert demo_model.late_accuracy(logits, ids) == 0.5


def test_every_sequence_has_full_length_and_answers():
    _, card = load_language_card("to-upper")
    ids = demo_model._batch(demo_model.make_tokenizer(), card, random.Random(0))
    assert ids.shape == (demo_model.BATCH, demo_model.LENGTH)
    assert (ids == demo_model.VOCABULARY.index("<unk>")).sum() == 0
    assert demo_model.answer_mask(ids).any(1).all()


def test_weights_depend_only_on_the_seed(tmp_path: Path):
    for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
        demo_model.train(tmp_path / name, seed, steps=2)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"]
    assert weights["a"] != weights["c"]


def test_a_nonempty_folder_is_not_overwritten(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with refused("exists", tmp_path):
        demo_model.train(tmp_path, steps=1)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def _accuracy(folder: Path, task: str, shots: int, queries: int = 40) -> float:
    """Compute the accuracy of the model with plain transformers for one prompt at a time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    _, card = load_language_card(task)
    rng, correct = random.Random(7), 0
    for _ in range(queries):
        lines = "".join("example:{}->{}\n".format(*demo_model.draw(task, rng)) for _ in range(shots))
        x, y = demo_model.draw(task, rng)
        ids = torch.tensor([tokenizer(lines + prompt(card, [], x).text)["input_ids"]])
        with torch.no_grad():
            correct += tokenizer.decode([int(model(ids).logits[0, -1].argmax())]) == y
    return correct / queries


@pytest.mark.slow
def test_a_short_run_learns_upper_case_from_demonstrations(tmp_path: Path):
    losses = []
    demo = demo_model.train(tmp_path / "demo", steps=100, report=lambda step, loss: losses.append(loss))
    assert demo.parameters < 200_000
    assert losses[-1] < 0.5 * losses[0]
    assert _accuracy(demo.path, "to-upper", 5) > _accuracy(demo.path, "to-upper", 0) + 0.3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_after_complete_training_accuracy_is_high_with_demonstrations_and_low_without(tmp_path: Path, seed: int):
    demo = demo_model.train(tmp_path / "demo", seed)
    with_demonstrations, without_demonstrations = (
        [_accuracy(demo.path, task, shots, 100) for task in demo_model.TASKS] for shots in (5, 0)
    )
    assert sum(with_demonstrations) / len(with_demonstrations) >= 0.9
    assert sum(without_demonstrations) / len(without_demonstrations) <= 0.45
