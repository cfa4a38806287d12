"""Language cards: all that are shipped load, and names lead to the tasks that they should."""

import subprocess
import sys
from collections import defaultdict

import pytest

from iclbench.config.cards import cards_folder, names
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.language.prompting.text import example
from iclbench.language.tasks.cards import LanguageCard, load_language_card, load_suite, shipped_tasks, suites, tasks_of
from iclbench.language.tasks.selection import language_tasks

CARDS = {name: load_language_card(name)[1] for name in names("tasks/language")}
SUITES = {name: load_suite(name)[1] for name in names("tasks/language/suites")}
PLAIN = {"family": "own", "summary": "", "reader": "mapping", "template": "{x}>{y}", "shots": 1}


@pytest.mark.parametrize("name", CARDS)
def test_every_shipped_card_says_what_a_reader_needs(name):
    """Its template holds both texts; classes have different words; the reader takes the parameters."""
    card = CARDS[name]
    written = example(card, "QUESTION", "ANSWER")
    assert written.index("QUESTION") < written.index("ANSWER")
    assert (written + card.separator).rstrip("\n") != written + card.separator, "examples end in a line break"
    assert len(set(card.labels.values())) == len(card.labels)
    assert card.source
    assert card.summary
    task = tasks_of(name, card)[0]
    task.reader.Parameters.model_validate(card.parameters)


@pytest.mark.parametrize("name", [*CARDS, *SUITES])
def test_published_numbers_are_fractions_and_each_stands_once(name):
    rows = (CARDS | SUITES)[name].published
    assert all(0 <= row.value <= 1 and row.metric == "accuracy" for row in rows)
    assert all(row.source and row.read and row.evaluator in ("choice", "greedy") for row in rows)
    keys = [(row.contestant, row.n_context) for row in rows]
    assert len(set(keys)) == len(keys)


def test_published_numbers_of_tasks_with_pairs_of_our_own_say_that_theirs_are_others():
    own = {name for name, card in CARDS.items() if card.reader == "mapping"}
    assert len(own) == 12 == sum("Our own" in card.notes for card in CARDS.values())
    for name in own:
        assert CARDS[name].data == {"pairs": "iclbench"}
        assert all(row.data == {"pairs": "Hendel et al. 2023"} for row in CARDS[name].published)
    assert all(row.data for row in SUITES["simple"].published), "its mean is over those, too"


def test_published_means_agree_with_the_numbers_they_are_means_of():
    """Tables 1 and 2 of Deep-Thinking print the average of their five columns: a slip of the pen shows."""
    columns = defaultdict(list)
    for task in SUITES["deep-thinking"].tasks:
        for row in CARDS[task].published:
            assert row.n_context == CARDS[task].shots
            columns[row.contestant].append(row.value)
    for row in SUITES["deep-thinking"].published:
        assert len(columns[row.contestant]) == 5
        assert row.value == pytest.approx(sum(columns[row.contestant]) / 5, abs=6e-4)
    assert len(SUITES["deep-thinking"].published) == 15 + 16


def test_the_suites_hold_what_the_papers_hold():
    assert len(SUITES["simple"].tasks) == len(set(SUITES["simple"].tasks)) == 18
    assert set(SUITES["simple"].tasks) <= CARDS.keys()
    assert {row.n_context for row in SUITES["simple"].published} == {0, 5}
    groups = {group: len(subjects) for group, subjects in CARDS["mmlu"].subsets.items()}
    assert groups == {"stem": 18, "humanities": 13, "social-sciences": 12, "other": 14}
    assert sum(len(tasks) for tasks in CARDS["bbh"].subsets.values()) == 27


def test_names_lead_to_tasks_each_once():
    assert [task.name for task in language_tasks(["sst2,trec", "SST2", "to_upper"])] == ["sst2", "trec", "to-upper"]
    assert len(language_tasks(["mmlu"])) == 57
    assert {task.family for task in language_tasks(["mmlu-stem"])} == {"mmlu-stem"}
    assert len(language_tasks(["knowledge", "location-religion"])) == 4
    assert language_tasks(["mmlu-college-physics"])[0].subset == "college_physics"
    every = [task.name for task in shipped_tasks()]
    assert len(set(every)) == len(every)
    assert not set(every) & suites().keys()


def test_what_appendix_c_leaves_out_is_asked_only_by_name():
    """Table 6 of Deep-Thinking lists 20 tasks; the five that appendix C names are not among them."""
    asked = {task.subset for task in language_tasks(["bbh"])}
    assert len(asked) == 20
    named = "dyck_languages multistep_arithmetic_two object_counting word_sorting reasoning_about_colored_objects"
    assert not asked & set(named.split())
    assert all(CARDS["bbh"].left_out[task] for task in named.split())
    assert len(language_tasks([str(cards_folder("tasks/language") / "bbh.toml")])) == 20
    assert language_tasks(["bbh-word-sorting"])[0].left_out.startswith("omitted by name in appendix C")


def test_unknown_names_show_near_ones():
    with pytest.raises(UnknownNameError, match="unknown language task 'ss2'; did you mean 'sst2'"):
        language_tasks(["ss2"])
    with pytest.raises(UnknownNameError, match="unknown language task 'mmul'; did you mean 'mmlu'"):
        language_tasks(["mmul"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"template": "{y} is {x}"}, "expected {x} once and {y} once after it"),
        ({"template": "{x}{x}{y}"}, "expected {x} once and {y} once after it"),
        ({"reader": "maping"}, "unknown reader 'maping'; did you mean 'mapping'"),
        ({"subsets": {"a": ["s"], "b": ["s"]}}, "'s' is listed twice"),
        ({"subsets": {"a": ["s"]}, "left_out": {"t": "why"}}, "left_out names 't', which is no subset"),
        ({"answer": "choice"}, "unknown key 'answer'; did you mean 'answers'"),
    ],
)
def test_a_bad_card_is_one_line(tmp_path, change, expected):
    import tomli_w

    (tmp_path / "mine.toml").write_text(tomli_w.dumps(PLAIN | change))
    with pytest.raises(UsageError) as caught:
        load_language_card(str(tmp_path / "mine.toml"))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_card_by_path_names_files_beside_it(tmp_path):
    import tomli_w

    (tmp_path / "mine.toml").write_text(tomli_w.dumps(PLAIN | {"parameters": {"file": "words.json"}}))
    (tmp_path / "words.json").write_text('{"a": "b", "c": "d"}')
    (task,) = language_tasks([str(tmp_path / "mine.toml")])
    assert [e.x for e in task.pool().queries] == ["a", "c"]
    assert task.hash == tasks_of("mine", LanguageCard(**PLAIN, parameters={"file": "words.json"}))[0].hash


def test_listing_tasks_imports_nothing_heavy():
    code = (
        "import sys; from iclbench.language.tasks import cards, chosen; from iclbench.language.prompting import text; "
        "cards.suites(); "
        "print(len([task.reader for task in chosen.language_tasks(['simple', 'mmlu', 'bbh', 'sst2'])])); "
        "print([m for m in ('torch', 'pandas', 'numpy', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(18 + 57 + 20 + 1), "[]"]
