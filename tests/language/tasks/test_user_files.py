"""Tasks from data files of the user."""

import json

import pytest

from iclbench.core.errors import UsageError
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.prompting.text import prompt
from iclbench.language.tasks.selection import language_tasks
from iclbench.language.tasks.user_files import task_from_file
from tests.refusals import refused


def rows(count):
    return "".join(json.dumps({"text": f"t{i}", "label": "ab"[i % 2]}) + "\n" for i in range(count))


def test_a_file_of_pairs_gives_a_mapping_task(tmp_path):
    (tmp_path / "My_Pairs.json").write_text(json.dumps({f"x{i}": f"y{i}" for i in range(8)}))
    (task,) = language_tasks([str(tmp_path / "My_Pairs.json")])
    assert (task.name, task.family, task.card.answers) == ("my-pairs", "own", "greedy")
    episodes = LanguagePrompts(task, task.card.shots, 10).drawn_episodes
    assert len(episodes) == 10
    rendered = prompt(task.card, episodes[0].demonstrations, episodes[0].query.x)
    assert rendered.text.count("->") == 6
    assert rendered.text.endswith(f"example:{episodes[0].query.x}->")


@pytest.mark.parametrize("file", ["reviews.jsonl", "reviews.train.jsonl", "reviews.test.jsonl"])
def test_labelled_texts_give_a_choice_task(tmp_path, file):
    names = ["reviews.jsonl"] if file == "reviews.jsonl" else ["reviews.train.jsonl", "reviews.test.jsonl"]
    for i, name in enumerate(names):
        (tmp_path / name).write_text(rows(60).replace(': "t', f': "{i}t'))
    task = task_from_file(tmp_path / file)
    assert (task.name, task.card.answers, task.card.shots) == ("reviews", "choice", 8)
    (episode, *_) = LanguagePrompts(task, 8, 5).drawn_episodes
    assert episode.candidates == ("a", "b")
    assert len(episode.demonstrations) == 8


def test_a_task_does_not_depend_on_the_folder_of_its_file(tmp_path):
    """The same data in two folders give the same card and the same prompts."""
    identities = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.jsonl").write_text(rows(60))
        task = task_from_file(tmp_path / folder / "mine.jsonl")
        identities.append((task.hash, LanguagePrompts(task, 4, 5).id))
    assert identities[0] == identities[1]


def test_two_files_with_the_same_name_are_refused(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({f"x{i}": f"y{i}" for i in range(8)}))
    (tmp_path / "mine.jsonl").write_text(rows(60))
    pairs, texts = str(tmp_path / "mine.json"), str(tmp_path / "mine.jsonl")
    with refused("duplicate", "'mine'", texts):
        language_tasks([pairs, texts])
    assert len(language_tasks([texts, texts])) == 1


def test_answers_with_several_lines_are_refused(tmp_path):
    (tmp_path / "poems.json").write_text(json.dumps({f"x{i}": f"y{i}\nz" for i in range(8)}))
    (task,) = language_tasks([str(tmp_path / "poems.json")])
    with refused("bad-data", "'poems'", "'\\n'"):
        LanguagePrompts(task, 2, 5).drawn_episodes  # noqa: B018


def test_a_missing_file_is_refused(tmp_path):
    with refused("missing-file", tmp_path / "nowhere.jsonl"):
        task_from_file(tmp_path / "nowhere.jsonl")


def test_a_file_that_is_named_like_a_card_is_refused(tmp_path):
    (tmp_path / "sst2.jsonl").write_text(rows(8))
    with refused("duplicate", tmp_path / "sst2.jsonl", "'sst2'"):
        task_from_file(tmp_path / "sst2.jsonl")


@pytest.mark.parametrize("name", ["my words.json", ".jsonl"])
def test_file_names_that_cannot_be_task_names_are_refused(tmp_path, name):
    (tmp_path / name).write_text(rows(8))
    with pytest.raises(UsageError):
        task_from_file(tmp_path / name)
