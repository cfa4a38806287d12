"""A user's own files as tasks."""

import json

import pytest

from iclbench.core.errors import UsageError
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.prompting.text import prompt
from iclbench.language.tasks.selection import language_tasks
from iclbench.language.tasks.user_files import own_task


def rows(count):
    return "".join(json.dumps({"text": f"t{i}", "label": "ab"[i % 2]}) + "\n" for i in range(count))


def test_a_mapping_is_asked_like_ours(tmp_path):
    (tmp_path / "My_Pairs.json").write_text(json.dumps({f"x{i}": f"y{i}" for i in range(8)}))
    (task,) = language_tasks([str(tmp_path / "My_Pairs.json")])
    assert (task.name, task.family, task.card.answers) == ("my-pairs", "own", "greedy")
    drawn = LanguagePrompts(task, task.card.shots, 10).drawn
    assert len(drawn) == 10
    made = prompt(task.card, drawn[0].demonstrations, drawn[0].query.x)
    assert made.text.count("->") == 6
    assert made.text.endswith(f"example:{drawn[0].query.x}->")


@pytest.mark.parametrize("given", ["reviews.jsonl", "reviews.train.jsonl", "reviews.test.jsonl"])
def test_labelled_texts_are_a_choice_among_their_labels(tmp_path, given):
    names = ["reviews.jsonl"] if given == "reviews.jsonl" else ["reviews.train.jsonl", "reviews.test.jsonl"]
    for i, name in enumerate(names):
        (tmp_path / name).write_text(rows(60).replace(': "t', f': "{i}t'))
    task = own_task(tmp_path / given)
    assert (task.name, task.card.answers, task.card.shots) == ("reviews", "choice", 8)
    (episode, *_) = LanguagePrompts(task, 8, 5).drawn
    assert episode.candidates == ("a", "b")
    assert len(episode.demonstrations) == 8


def test_where_a_file_lies_does_not_change_the_task(tmp_path):
    """Rows of the same data in another folder are rows of the same card and the same prompts."""
    made = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.jsonl").write_text(rows(60))
        task = own_task(tmp_path / folder / "mine.jsonl")
        made.append((task.hash, LanguagePrompts(task, 4, 5).id))
    assert made[0] == made[1]


def test_two_files_of_one_name_are_not_one_task(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({f"x{i}": f"y{i}" for i in range(8)}))
    (tmp_path / "mine.jsonl").write_text(rows(60))
    pairs, texts = str(tmp_path / "mine.json"), str(tmp_path / "mine.jsonl")
    with pytest.raises(UsageError, match=r"two different tasks are called 'mine': .*mine.jsonl and one before it"):
        language_tasks([pairs, texts])
    assert len(language_tasks([texts, texts])) == 1


def test_answers_of_several_lines_are_refused_since_none_can_be_read(tmp_path):
    (tmp_path / "poems.json").write_text(json.dumps({f"x{i}": f"y{i}\nz" for i in range(8)}))
    (task,) = language_tasks([str(tmp_path / "poems.json")])
    with pytest.raises(UsageError) as caught:
        LanguagePrompts(task, 2, 5).drawn  # noqa: B018
    assert "since a free one is read up to '\\n'; give answers of one line" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere.jsonl", "nowhere.jsonl: no such file"),
        ("sst2.jsonl", "'sst2' is the name of a task that comes with iclbench; give the file another name"),
        ("my words.json", "a card's file name must be letters, digits and hyphens"),
        (".jsonl", "a card's file name must be letters, digits and hyphens"),
    ],
)
def test_files_that_can_be_no_task_are_one_line(tmp_path, name, expected):
    if name != "nowhere.jsonl":
        (tmp_path / name).write_text(rows(8))
    with pytest.raises(UsageError) as caught:
        own_task(tmp_path / name)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
