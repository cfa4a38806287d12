"""Language cards: shipped cards are valid, and names select the right tasks."""

import subprocess
import sys
from collections import defaultdict

import pytest

from iclbench.config.cards import card_names, cards_folder
from iclbench.core.errors import UsageError
from iclbench.language.prompting.text import example
from iclbench.language.tasks.cards import (
    LanguageCard,
    load_language_card,
    load_suite,
    shipped_tasks,
    task_groups,
    tasks_of,
)
from iclbench.language.tasks.selection import language_tasks
from tests.refusals import refused

CARDS = {name: load_language_card(name)[1] for name in card_names("tasks/language")}
SUITES = {name: load_suite(name)[1] for name in card_names("tasks/language/suites")}
PLAIN = {"family": "own", "summary": "", "reader": "mapping", "template": "{x}>{y}", "shots": 1}


@pytest.mark.parametrize("name", CARDS)
def test_every_shipped_card_is_valid(name):
    """The template has input and output, classes have different words, and the reader accepts the parameters."""
    card = CARDS[name]
    text = example(card, "QUESTION", "ANSWER")
    assert text.index("QUESTION") < text.index("ANSWER")
    assert (text + card.separator).rstrip("\n") != text + card.separator, "examples end in a line break"
    assert len(set(card.labels.values())) == len(card.labels)
    assert card.source
    assert card.summary
    task = tasks_of(name, card)[0]
    task.reader.Parameters.model_validate(card.parameters)


@pytest.mark.parametrize("name", [*CARDS, *SUITES])
def test_published_numbers_are_fractions_without_duplicates(name):
    rows = (CARDS | SUITES)[name].published
    assert all(0 <= row.value <= 1 and row.metric == "accuracy" for row in rows)
    assert all(row.source and row.read and row.evaluator in ("choice", "greedy") for row in rows)
    keys = [(row.contestant, row.n_context) for row in rows]
    assert len(set(keys)) == len(keys)


def test_numbers_published_for_different_pairs_name_their_data():
    mapping_cards = {name for name, card in CARDS.items() if card.reader == "mapping"}
    assert len(mapping_cards) == 12
    for name in mapping_cards:
        assert CARDS[name].data == {"pairs": "iclbench"}
        assert all(row.data == {"pairs": "Hendel et al. 2023"} for row in CARDS[name].published)
    assert all(row.data for row in SUITES["simple"].published), "its mean includes these tasks"


def test_published_means_equal_the_means_of_published_numbers():
    """Tables 1 and 2 of Deep-Thinking have averages of their five columns, which reveal transcription errors."""
    columns = defaultdict(list)
    for task in SUITES["deep-thinking"].tasks:
        for row in CARDS[task].published:
            assert row.n_context == CARDS[task].shots
            columns[row.contestant].append(row.value)
    for row in SUITES["deep-thinking"].published:
        assert len(columns[row.contestant]) == 5
        assert row.value == pytest.approx(sum(columns[row.contestant]) / 5, abs=6e-4)
    assert len(SUITES["deep-thinking"].published) == 15 + 16


def test_the_suites_have_as_many_tasks_as_in_the_papers():
    assert len(SUITES["simple"].tasks) == len(set(SUITES["simple"].tasks)) == 18
    assert set(SUITES["simple"].tasks) <= CARDS.keys()
    assert {row.n_context for row in SUITES["simple"].published} == {0, 5}
    groups = {group: len(subjects) for group, subjects in CARDS["mmlu"].subsets.items()}
    assert groups == {"stem": 18, "humanities": 13, "social-sciences": 12, "other": 14}
    assert sum(len(tasks) for tasks in CARDS["bbh"].subsets.values()) == 27


def test_names_select_tasks_without_duplicates():
    assert [task.name for task in language_tasks(["sst2,trec", "SST2", "to_upper"])] == ["sst2", "trec", "to-upper"]
    assert len(language_tasks(["mmlu"])) == 57
    assert {task.family for task in language_tasks(["mmlu-stem"])} == {"mmlu-stem"}
    assert len(language_tasks(["knowledge", "location-religion"])) == 4
    assert language_tasks(["mmlu-college-physics"])[0].subset == "college_physics"
    task_names = [task.name for task in shipped_tasks()]
    assert len(set(task_names)) == len(task_names)
    assert not set(task_names) & task_groups().keys()


def test_omitted_subsets_are_selected_only_by_name():
    """Table 6 of Deep-Thinking has 20 of the 27 tasks. Appendix C names five of the omitted tasks."""
    subsets = {task.subset for task in language_tasks(["bbh"])}
    assert len(subsets) == 20
    left_out = "dyck_languages multistep_arithmetic_two object_counting word_sorting reasoning_about_colored_objects"
    assert not subsets & set(left_out.split())
    assert all(CARDS["bbh"].left_out[task] for task in left_out.split())
    assert len(language_tasks([str(cards_folder("tasks/language") / "bbh.toml")])) == 20
    assert "appendix C" in language_tasks(["bbh-word-sorting"])[0].left_out


@pytest.mark.parametrize(("name", "match"), [("ss2", "sst2"), ("mmul", "mmlu")])
def test_errors_for_unknown_names_suggest_similar_names(name, match):
    with refused("unknown-name", f"'{name}'", f"'{match}'"):
        language_tasks([name])


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"template": "{y} is {x}"}, ("template", "{x}", "{y}")),
        ({"template": "{x}{x}{y}"}, ("template", "{x}", "{y}")),
        ({"reader": "maping"}, ("'maping'", "'mapping'")),
        ({"subsets": {"a": ["s"], "b": ["s"]}}, ("subsets", "'s'")),
        ({"subsets": {"a": ["s"]}, "left_out": {"t": "why"}}, ("left_out", "'t'")),
        ({"answer": "choice"}, ("'answer'", "'answers'")),
    ],
)
def test_a_bad_card_is_refused(tmp_path, change, names):
    import tomli_w

    (tmp_path / "mine.toml").write_text(tomli_w.dumps(PLAIN | change))
    with pytest.raises(UsageError) as error:
        load_language_card(str(tmp_path / "mine.toml"))
    message = str(error.value)
    assert all(name in message for name in names) and "\n" not in message


def test_files_named_on_a_card_in_another_folder_are_read_from_that_folder(tmp_path):
    import tomli_w

    (tmp_path / "mine.toml").write_text(tomli_w.dumps(PLAIN | {"parameters": {"file": "words.json"}}))
    (tmp_path / "words.json").write_text('{"a": "b", "c": "d"}')
    (task,) = language_tasks([str(tmp_path / "mine.toml")])
    assert [e.x for e in task.pool().queries] == ["a", "c"]
    assert task.hash == tasks_of("mine", LanguageCard(**PLAIN, parameters={"file": "words.json"}))[0].hash


def test_listing_tasks_does_not_import_large_packages():
    code = (
        "import sys; from iclbench.language.tasks import cards, selection; "
        "from iclbench.language.prompting import text; "
        "cards.task_groups(); "
        "print(len([task.reader for task in selection.language_tasks(['simple', 'mmlu', 'bbh', 'sst2'])])); "
        "print([m for m in ('torch', 'pandas', 'numpy', 'transformers') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == [str(18 + 57 + 20 + 1), "[]"]


def test_descriptions_and_published_numbers_do_not_affect_the_hash_of_a_task():
    (task,) = tasks_of("mine", LanguageCard(**PLAIN))
    number = {"contestant": "gpt2", "metric": "accuracy", "value": 0.5, "source": "a paper, table 1", "read": "exact"}
    described = LanguageCard(**PLAIN | {"summary": "other", "source": "a book", "notes": "long", "published": [number]})
    assert tasks_of("mine", described)[0].hash == task.hash
    for change in ({"separator": "; "}, {"shots": 7}, {"labels": {"0": "no"}}):
        assert tasks_of("mine", LanguageCard(**PLAIN | change))[0].hash != task.hash, change
