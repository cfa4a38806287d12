"""Readers of examples: answers, directions, layouts, and one line for every bad file."""

import json
import os
import string
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from iclbench.config.cards import cards_folder
from iclbench.core.errors import DataError, UsageError
from iclbench.language.tasks.cards import LanguageCard, LanguageTask, shipped_tasks
from iclbench.language.tasks.pools import Example
from iclbench.language.tasks.readers.mapping import read_pairs
from iclbench.language.tasks.selection import language_tasks

SHIPPED = {task.name: task for task in shipped_tasks()}
OURS = sorted(name for name, task in SHIPPED.items() if not task.reader.needs_data)
MAPPINGS = sorted(name for name, task in SHIPPED.items() if task.card.reader == "mapping")
real = pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="ICLBENCH_DATA is not set: corpora are elsewhere")


def pool(name, data=None):
    return SHIPPED[name].pool(data)


def made(reader="classification", labels=None, answers="choice", **parameters):
    card = LanguageCard(
        family="own",
        summary="",
        reader=reader,
        parameters=parameters,
        labels=labels or {},
        template="{x}\n{y}",
        shots=1,
        answers=answers,
    )
    return LanguageTask("mine", card)


def message(task, data=None, subset=None):
    """The error of reading a pool; it is one line."""
    with pytest.raises(UsageError) as caught:
        LanguageTask(task.name, task.card, subset or task.subset, folder=task.folder).pool(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_generated_answers_are_those_of_plain_python():
    alphabet = string.ascii_lowercase
    follows = dict(pairwise(alphabet))
    for name, answers in {
        "to-upper": dict(zip(alphabet, string.ascii_uppercase, strict=True)),
        "to-lower": dict(zip(string.ascii_uppercase, alphabet, strict=True)),
        "next-letter": follows,
        "previous-letter": {b: a for a, b in follows.items()},
    }.items():
        assert {e.x: e.y for e in pool(name).queries} == answers
    for name, place in {"list-first": 0, "list-last": -1}.items():
        lists = {e.x: e.y for e in pool(name).queries}
        assert all(y == x.split(",")[place] for x, y in lists.items())
        assert Counter(x.count(",") + 1 for x in lists) == {2: 600, 3: 600, 4: 600}
        assert {letter for x in lists for letter in x.split(",")} == set(alphabet)


@pytest.mark.parametrize("name", OURS)
def test_our_own_pools_are_whole_and_always_the_same(name):
    first, again = pool(name), SHIPPED[name].pool()
    assert first == again
    assert len({e.x for e in first.queries}) == len(first.queries) >= 25
    assert first.queries == first.demonstrations
    assert all(part == part.strip() != "" for e in first.queries for part in (e.x, e.y))


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_have_40_to_80_pairs_and_no_dominant_answer(name):
    """An answer that is right for most inputs would make the majority look like a model that has learned."""
    outputs = Counter(e.y for e in pool(name).queries)
    assert 40 <= outputs.total() <= 80
    assert max(outputs.values()) <= 0.25 * outputs.total()


def test_translations_run_in_both_directions():
    for there, back in (("en-es", "es-en"), ("en-fr", "fr-en")):
        assert {(e.x, e.y) for e in pool(there).queries} == {(e.y, e.x) for e in pool(back).queries}
    words = {e.x: e.y for e in pool("fr-en").queries}
    assert (words["chien"], words["été"], words["œuf"]) == ("dog", "summer", "egg")


def test_word_forms_follow_the_spelling_rules_of_english():
    """A check of our lists against rules that are not ours: doubled consonants, silent e, y after a consonant."""
    for e in pool("present-simple-gerund").queries:
        stems = {e.x, e.x[:-1] if e.x.endswith("e") else e.x, e.x + e.x[-1], e.x[:-2] + "y"}
        assert e.y.removesuffix("ing") in stems
        assert e.y.endswith("ing")
    irregular = "child man woman foot tooth mouse goose wife wolf life knife"
    for e in pool("plural-singular").queries:
        plurals = {e.y + "s", e.y + "es", e.y[:-1] + "ies"}
        assert e.x in plurals or e.y in irregular.split()


def test_pairs_are_read_in_both_layouts(tmp_path):
    (tmp_path / "a.json").write_text('{"hot": "cold", "big": "small"}')
    (tmp_path / "b.json").write_text('[{"input": "hot", "output": "cold"}, {"input": "big", "output": " small "}]')
    assert read_pairs(tmp_path / "a.json") == read_pairs(tmp_path / "b.json") == [("hot", "cold"), ("big", "small")]
    task = made("mapping", answers="greedy", file=str(tmp_path / "a.json"), reversed=True)
    assert task.pool().queries == (Example("cold", "hot"), Example("small", "big"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": "b", "a": "c"}', "the input 'a' is listed twice"),
        ('{"a": 1, "b": "c"}', "pair 1: expected a text that is not empty, got 1"),
        ('{"a": "b", "c": " "}', "pair 2: expected a text that is not empty"),
        ('[{"input": "a", "output": "b"}, {"input": "c"}]', "pair 2: expected"),
        ('[["a", "b"]]', "pair 1: expected"),
        ('{"a": "b"}', "1 pairs, expected at least two"),
        ('"a"', "expected {"),
        ('{"a": ', "not valid JSON"),
        ("[" * 100_000, "not valid JSON (nested too deeply)"),
    ],
)
def test_bad_pairs_are_one_line_that_names_the_file(tmp_path, text, expected):
    (tmp_path / "bad.json").write_text(text)
    found = message(made("mapping", file=str(tmp_path / "bad.json")))
    assert expected in found
    assert "bad.json" in found


def test_pairs_that_are_ambiguous_backwards_or_nowhere_are_refused(tmp_path):
    (tmp_path / "p.json").write_text('{"a": "x", "b": "x"}')
    backwards = made("mapping", file=str(tmp_path / "p.json"), reversed=True)
    assert "twice when it is read backwards" in message(backwards)
    assert "no pairs of words in 'q.json'; looked in" in message(made("mapping", file="q.json"))
    assert "unknown key 'fil'; did you mean 'file'?" in message(made("mapping", fil="q.json"))


SST = "0 no movement .\n1 a stirring one \n0 crème brûlée\n1 fine\n"


def sst(folder, **changed):
    texts = {"train": SST, "dev": "1 great\n0 bad\n", "test": "0 dull\n"} | changed
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (folder / f"stsa.binary.{split}").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("below", ["", "language", "language/classification"])
def test_public_files_are_found_in_the_data_folder_and_below(tmp_path, below):
    """SST-2's development part is what is asked, as in the papers; its test part is for settings."""
    sst(tmp_path / below)
    found = pool("sst2", tmp_path)
    assert found.queries == (Example("great", "positive"), Example("bad", "negative"))
    assert found.development == (Example("dull", "negative"),)
    assert Example("crème brûlée", "negative") in found.demonstrations
    assert found.labels == ("negative", "positive")


def test_latin_1_is_read_and_only_line_feeds_end_lines(tmp_path):
    (tmp_path / "rt-polarity.all").write_bytes(b"0 the clich\xe9s\x85pile up \r\n1 fine\n\n1 good\n0 bad\n")
    found = pool("mr", tmp_path)
    texts = {e.x: e.y for e in every(found)}
    assert texts == {"the clichés…pile up": "negative", "fine": "positive", "good": "positive", "bad": "negative"}
    sst(tmp_path, test="1 one\x85and\u2028one\n0 two\n")
    assert [e.x for e in pool("sst2", tmp_path).development] == ["one\x85and\u2028one", "two"]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "latin-1"])
def test_json_in_another_encoding_than_utf_8_is_refused(tmp_path, encoding):
    """RFC 8259, section 8.1. A wrong guess would show a model letters that the file does not contain."""
    (tmp_path / "pairs.json").write_bytes('{"caf\u00e9": "th\u00e9", "a": "b"}'.encode(encoding))
    (tmp_path / "sst2.jsonl").write_bytes('{"text": "caf\u00e9", "label": "positive"}\n'.encode(encoding))
    for found in (message(made("mapping", file=str(tmp_path / "pairs.json"))), message(SHIPPED["sst2"], tmp_path)):
        assert "UTF-8" in found and str(tmp_path) in found
    (tmp_path / "pairs.json").write_bytes(b"\xef\xbb\xbf" + '{"caf\u00e9": "th\u00e9", "a": "b"}'.encode())
    assert read_pairs(tmp_path / "pairs.json")[0] == ("caf\u00e9", "th\u00e9")


def test_a_key_that_is_there_twice_in_json_is_refused(tmp_path):
    (tmp_path / "sst2.jsonl").write_text('{"text": "a", "label": "positive", "label": "negative"}\n')
    found = message(SHIPPED["sst2"], tmp_path)
    assert "'label'" in found and "line 1" in found and "twice" in found
    (tmp_path / "bad.json").write_text('[{"input": "a", "output": "b", "output": "c"}, {"input": "d", "output": "e"}]')
    found = message(made("mapping", file=str(tmp_path / "bad.json")))
    assert "pair 1" in found and "twice" in found


def test_a_number_of_thousands_of_digits_in_json_is_one_line(tmp_path):
    """Python refuses it by a `ValueError` that is not a `JSONDecodeError`."""
    (tmp_path / "sst2.jsonl").write_text('{"text": "a", "label": ' + "9" * 5000 + "}\n")
    assert "line 1: not valid JSON" in message(SHIPPED["sst2"], tmp_path)


def test_trec_goes_by_name_in_both_layouts(tmp_path):
    """The numbers of `TREC.*.all` and the names of the original files give the same pool."""
    names = {"0": "DESC:manner", "1": "ENTY:cremat", "2": "ABBR:exp", "3": "HUM:ind", "4": "LOC:other", "5": "NUM:date"}
    words = ["Description", "Entity", "Abbreviation", "Person", "Location", "Number"]
    pools = []
    for layout, files in {"a": ("TREC.train.all", "TREC.test.all"), "b": ("train_5500.label", "TREC_10.label")}.items():
        (tmp_path / layout).mkdir()
        for file in files:
            lines = [f"{i if layout == 'a' else names[i]} {file[:8] and 'what'} is {i} ?\n" for i in names]
            (tmp_path / layout / file).write_text("".join(lines))
        pools.append(pool("trec", tmp_path / layout))
    assert pools[0] == pools[1]
    assert [e.y for e in pools[0].queries] == words


def test_ag_news_has_title_and_description_and_classes_from_one(tmp_path):
    (tmp_path / "ag_news_csv").mkdir()
    rows = '"3","Wall St. Bears","Reuters - Short, ""green"" ones\\back"\n"4","A","B"\n'
    for file in ("train.csv", "test.csv"):
        (tmp_path / "ag_news_csv" / file).write_text(rows)
    expected = Example('Wall St. Bears Reuters - Short, "green" ones back', "Business")
    assert pool("ag-news", tmp_path).queries == (expected, Example("A B", "Technology"))


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_json_lines_stand_in_for_every_layout(tmp_path):
    """By the name of a class or by its word; a corpus without splits is always parted alike, and nothing is in two."""
    (tmp_path / "sst5.train.jsonl").write_text(lines({"text": "ugh", "label": "very negative"}))
    (tmp_path / "sst5.test.jsonl").write_text(lines({"text": "wow", "label": "great"}))
    found = pool("sst5", tmp_path)
    assert (found.demonstrations, found.queries) == ((Example("ugh", "terrible"),), (Example("wow", "great"),))
    rows = [{"text": f"t{i}", "label": ["positive", "negative"][i % 2]} for i in range(100)]
    (tmp_path / "mr.jsonl").write_text(lines(*rows, rows[0]))
    found = pool("mr", tmp_path)
    parts = (found.demonstrations, found.queries, found.development)
    assert [len(part) for part in parts] == [25, 50, 25]
    assert len({e.x for part in parts for e in part}) == 100


def test_labels_of_own_files_are_their_own_names(tmp_path):
    rows = [{"text": f"t{i}", "label": i % 3} for i in range(12)]
    (tmp_path / "mine.jsonl").write_text(lines(*rows))
    found = made(layout="jsonl", file="mine").pool(tmp_path)
    assert found.labels == ("0", "1", "2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 good\n7 bad\n", "stsa.binary.train, line 2: unknown label '7'; known: 0 to 1"),
        ("0 good\n\n1\n", "stsa.binary.train, line 3: there is no text"),
        ("a film\n", "stsa.binary.train, line 1: unknown label 'a'; known: negative, positive"),
        ("", "stsa.binary.train holds no labelled texts"),
    ],
)
def test_bad_lines_say_file_line_and_known_labels(tmp_path, text, expected):
    sst(tmp_path, train=text)
    assert expected in message(SHIPPED["sst2"], tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"text": "a"}\n', "line 1: 'label' is missing; there are 'text'"),
        ('{"text": "a", "label": "positive"}\n{"sentence": "a", "label": 1}\n', "line 2: 'text' is missing"),
        ('{"text": "a", "label": "glad"}\n', "line 1: unknown label 'glad'; known: negative, positive"),
        ('{"text": "a", "label": 1}\n', "line 1: unknown label '1'; known: negative, positive"),
        ('{"text": "a", "label": null}\n', "line 1: expected a name or a number as label, got None"),
        ('{"text": 3, "label": "positive"}\n', "line 1: expected a string as text, got 3"),
        ('{"text": " ", "label": "positive"}\n', "line 1: there is no text"),
        ('["a"]\n', "line 1: expected an object with 'text' and 'label'"),
        ('{"text": \n', "line 1: not valid JSON"),
        ('{"text": "a", "label": "positive"}\n', "1 different texts, expected at least four"),
        ("\x81", "not valid JSON"),
    ],
)
def test_bad_json_lines_say_file_and_line(tmp_path, text, expected):
    (tmp_path / "sst2.jsonl").write_text(text, encoding="utf-8")
    found = message(SHIPPED["sst2"], tmp_path)
    assert expected in found
    assert "sst2.jsonl" in found


def test_labels_that_are_no_classes_are_refused(tmp_path):
    for rows, expected in (
        ([{"text": f"t{i}", "label": "x"} for i in range(8)], "at least two different labels, got only 'x'"),
        ([{"text": f"t{i}", "label": str(i)} for i in range(8)], "8 different labels of 8 texts are no classes"),
    ):
        (tmp_path / "mine.jsonl").write_text(lines(*rows))
        assert expected in message(made(layout="jsonl", file="mine"), tmp_path)


def test_missing_files_say_what_is_looked_for_and_where(tmp_path):
    assert "'stsa.binary.train', 'stsa.binary.dev', 'stsa.binary.test' (or 'sst2.jsonl' or" in message(
        SHIPPED["sst2"], tmp_path
    )
    assert f"looked in {tmp_path}/classification" in message(SHIPPED["sst2"], tmp_path)
    assert "point --data-dir or ICLBENCH_DATA at" in message(SHIPPED["trec"], None)
    assert "'test/virology_test.csv' of MMLU are needed" in message(SHIPPED["mmlu-virology"], tmp_path)
    assert "('snarks.json') are needed" in message(SHIPPED["bbh-snarks"], tmp_path)
    sst(tmp_path)
    (tmp_path / "stsa.binary.dev").unlink()
    assert f"'stsa.binary.dev' is missing beside {tmp_path}/stsa.binary.train" in message(SHIPPED["sst2"], tmp_path)
    (tmp_path / "TREC.train.all").write_bytes(b"0 \x81\n")
    (tmp_path / "TREC.test.all").write_text("0 What ?\n")
    assert "it is text neither in UTF-8 nor in Latin-1" in message(SHIPPED["trec"], tmp_path)


def mmlu(folder, header=False, dev="What?,a,b,c,d,B\n", test='"Who, me?",e,f,g,h,A\n"Same?",7,7,8,9,B\n', val=None):
    head = "question,choice0,choice1,choice2,choice3,answer\n" if header else ""
    for split, text in {"dev": dev, "test": test, "val": val}.items():
        if text is not None:
            (folder / "mmlu" / split).mkdir(parents=True, exist_ok=True)
            (folder / "mmlu" / split / f"virology_{split}.csv").write_text(head + text)


def test_mmlu_is_the_same_with_a_header_and_without(tmp_path):
    """Answers are texts; where two choices are the same text, either is right."""
    mmlu(tmp_path / "a")
    mmlu(tmp_path / "b", True, "What?,a,b,c,d,1\n", '"Who, me?",e,f,g,h,0\n"Same?",7,7,8,9,1\n', "New?,a,b,c,d,3\n")
    plain, headed = pool("mmlu-virology", tmp_path / "a"), pool("mmlu-virology", tmp_path / "b")
    assert plain.demonstrations == headed.demonstrations == (Example("What?", "b", ("a", "b", "c", "d")),)
    assert plain.queries == headed.queries
    assert plain.queries[1] == Example("Same?", "7", ("7", "8", "9"))
    assert (plain.development, headed.development) == ((), (Example("New?", "d", ("a", "b", "c", "d")),))


@pytest.mark.parametrize(
    ("dev", "expected"),
    [
        ("What?,a,b,c,d,E\n", "virology_dev.csv, line 1: expected question, four choices and the answer"),
        ("What?,a,b,c,d,A\nWho?,a,b\n", "virology_dev.csv, line 2: expected question, four choices"),
        ("What?,a,,c,d,A\n", "line 1: the question or a choice is empty"),
        ("", "holds no questions"),
    ],
)
def test_bad_questions_say_file_and_line(tmp_path, dev, expected):
    mmlu(tmp_path, dev=dev)
    assert expected in message(SHIPPED["mmlu-virology"], tmp_path)


def bbh(folder, name, examples, **parameters):
    (folder / "bbh").mkdir(exist_ok=True)
    (folder / "bbh" / f"{name}.json").write_text(json.dumps({"canary": "", "examples": examples}))
    sizes = {"demonstrations": 1, "development": 1}
    return made("bbh", **(sizes | parameters))


def every(pool):
    return {*pool.demonstrations, *pool.queries, *pool.development}


def test_options_are_texts_or_letters(tmp_path):
    question = "Which?\nOptions:\n(A) one\n(B) two"
    raw = [{"input": f"{i} {question}", "target": f"({'AB'[i % 2]})"} for i in range(4)]
    raw.append({"input": "4 Which?\nOptions:\n(A) one\n(B) two\n(C) three", "target": "(C)"})
    task = bbh(tmp_path, "t", raw)
    by_text = LanguageTask("t", task.card, "t").pool(tmp_path)
    assert Example("1 Which?", "two", ("one", "two")) in every(by_text)
    assert Example("4 Which?", "three", ("one", "two", "three")) in every(by_text)
    card = bbh(tmp_path, "t", raw, options="letters").card
    by_letter = LanguageTask("t", card, "t").pool(tmp_path)
    assert Example(f"1 {question}", "(B)", ("(A)", "(B)")) in every(by_letter)
    assert [len(p) for p in (by_text.demonstrations, by_text.development, by_text.queries)] == [1, 1, 3]


def test_a_question_without_a_choice_is_left_out(tmp_path):
    raw = [{"input": f"{i}\nOptions:\n(A) one\n(B) two", "target": "(A)"} for i in range(4)]
    alone = [
        {"input": "4\nOptions:\n(A) one", "target": "(A)"},
        {"input": "5\nOptions:\n(A) a\n(B) a", "target": "(A)"},
    ]
    found = LanguageTask("t", bbh(tmp_path, "t", raw + alone).card, "t").pool(tmp_path)
    assert {e.x for e in every(found)} == {"0", "1", "2", "3"}


def test_the_same_question_with_other_options_is_another_one(tmp_path):
    """All of `hyperbaton` asks "Which sentence has the correct adjective order:"; none of them is dropped or leaks."""
    raw = [{"input": f"Which?\nOptions:\n(A) a {i}\n(B) b {i}", "target": "(A)"} for i in range(12)]
    task = LanguageTask("t", bbh(tmp_path, "t", [*raw, raw[0]]).card, "t")
    found = task.pool(tmp_path)
    assert len(every(found)) == len(found.queries) + 2 == 12
    assert [len(part) for part in found.apart] == [10, 1, 1]


def test_questions_on_one_paragraph_are_not_parted(tmp_path):
    """All three of a paragraph are demonstrated, kept for development or asked."""
    options = "\nOptions:\n(A) the {} is first\n(B) the {} is last"
    raw = [{"input": f"Paragraph {i // 3}." + options.format(i, i), "target": "(A)"} for i in range(30)]
    raw += [{"input": f"Alone {i}." + options.format(i, i), "target": "(A)"} for i in range(5)]
    for how in ("texts", "letters"):
        card = bbh(tmp_path, "t", raw, options=how, demonstrations=5, development=7).card
        found = LanguageTask("t", card, "t").pool(tmp_path)
        parts = (found.demonstrations, found.development, found.queries)
        assert [len(part) for part in parts] == [5, 7, 23]
        shown, kept, asked = ({e.x.partition(".")[0] for e in part} for part in parts)
        assert not (shown & kept or shown & asked or kept & asked)


def test_without_options_the_targets_are_the_candidates_unless_they_are_many(tmp_path):
    few = bbh(tmp_path, "few", [{"input": f"q{i}", "target": ["valid", "invalid"][i % 2]} for i in range(6)])
    listed = bbh(
        tmp_path, "listed", [{"input": f"q{i}\nOptions:\n- valid \n- invalid", "target": "valid"} for i in range(6)]
    )
    free = bbh(tmp_path, "free", [{"input": f"q{i}", "target": str(i)} for i in range(30)])
    assert LanguageTask("few", few.card, "few").pool(tmp_path).labels == ("invalid", "valid")
    found = LanguageTask("listed", listed.card, "listed").pool(tmp_path)
    assert found.labels == ("valid", "invalid")
    assert Example("q0", "valid") in every(found)
    assert LanguageTask("free", free.card, "free").pool(tmp_path).labels == ()


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        (
            [{"input": "q\nOptions:\n(A) a", "target": "(B)"}],
            "bad.json, example 1: the target '(B)' is none of the options",
        ),
        ([{"input": "q", "target": "a"}, {"input": "q"}], "bad.json, example 2: expected a text as 'target'"),
        ([{"input": "q", "target": "a"}], "1 examples, of which 2 are set aside: none is left"),
        ([], 'bad.json: expected {"examples":'),
    ],
)
def test_bad_examples_say_file_and_number(tmp_path, examples, expected):
    assert expected in message(bbh(tmp_path, "bad", examples), tmp_path, "bad")


@real
def test_real_corpora_have_the_published_sizes():
    """Table 4 of Deep-Thinking (873 and 7,601 count one more than there are) and table 5 for MMLU."""
    data = Path(os.environ["ICLBENCH_DATA"])
    sizes = {"sst2": (6911, 872), "sst5": (8534, 2210), "trec": (5381, 500), "mr": (8530, 1066)}
    for name, expected in sizes.items():
        found = pool(name, data)
        assert (len(found.demonstrations), len(found.queries)) == expected
    subjects = {"astronomy": 152, "college-physics": 102, "moral-scenarios": 895, "professional-law": 1534}
    for subject, expected in subjects.items():
        assert len(pool(f"mmlu-{subject}", data).queries) == expected
        assert len(pool(f"mmlu-{subject}", data).demonstrations) == 5
    # Label 4 of the test file is a place, 5 a number, 3 a person: read by a person.
    answers = {e.x: e.y for e in pool("trec", data).queries}
    assert answers["How far is it from Denver to Aspen ?"] == "Number"
    assert answers["Who was Galileo ?"] == "Person"


@real
def test_every_real_task_has_answers_among_its_candidates():
    data = Path(os.environ["ICLBENCH_DATA"])
    for task in language_tasks(["mmlu", "bbh", "sst2", "sst5", "mr", "trec"]):
        found = task.pool(data)
        assert all(e.y in (e.candidates or found.labels) for e in every(found))


def test_shipped_pairs_are_each_used():
    used = {task.card.parameters["file"] for task in SHIPPED.values() if task.card.reader == "mapping"}
    assert used == {f"pairs/{path.name}" for path in (cards_folder("tasks/language") / "pairs").glob("*.json")}


def test_a_reader_must_be_a_reader():
    with pytest.raises(UsageError, match="is no reader of examples"):
        made("iclbench.language.tasks.pools:Example").pool()
    assert issubclass(DataError, UsageError)
