"""Readers of examples: generated answers, reversed pairs, file formats and errors."""

import json
import os
import string
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from iclbench.config.cards import cards_folder
from iclbench.core.errors import UsageError
from iclbench.language.tasks.cards import LanguageCard, LanguageTask, shipped_tasks
from iclbench.language.tasks.pools import Example
from iclbench.language.tasks.readers.mapping import read_pairs
from iclbench.language.tasks.selection import language_tasks
from tests.refusals import refused

SHIPPED = {task.name: task for task in shipped_tasks()}
WITHOUT_DATA = sorted(name for name, task in SHIPPED.items() if not task.reader.needs_data)
MAPPINGS = sorted(name for name, task in SHIPPED.items() if task.card.reader == "mapping")
needs_real_corpora = pytest.mark.skipif(
    "ICLBENCH_DATA" not in os.environ, reason="needs real corpora: ICLBENCH_DATA is not set"
)


def shipped_pool(name, data_dir=None):
    return SHIPPED[name].pool(data_dir)


def make_task(reader="classification", labels=None, answers="choice", **parameters):
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


def assert_refused(task, code, *names, data_dir=None, subset=None):
    """Assert that reading the pool raises an error with this code that contains these names."""
    with refused(code, *names):
        LanguageTask(task.name, task.card, subset or task.subset, folder=task.folder).pool(data_dir)


def assert_error_names(task, *names, data_dir=None):
    """Assert that reading the pool raises a one-line error that contains these names, whatever its code."""
    with pytest.raises(UsageError) as error:
        task.pool(data_dir)
    message = str(error.value)
    assert all(str(name) in message for name in names) and "\n" not in message, message


def test_generated_answers_equal_plain_python():
    alphabet = string.ascii_lowercase
    follows = dict(pairwise(alphabet))
    for name, answers in {
        "to-upper": dict(zip(alphabet, string.ascii_uppercase, strict=True)),
        "to-lower": dict(zip(string.ascii_uppercase, alphabet, strict=True)),
        "next-letter": follows,
        "previous-letter": {b: a for a, b in follows.items()},
    }.items():
        assert {e.x: e.y for e in shipped_pool(name).queries} == answers
    for name, place in {"list-first": 0, "list-last": -1}.items():
        lists = {e.x: e.y for e in shipped_pool(name).queries}
        assert all(y == x.split(",")[place] for x, y in lists.items())
        assert Counter(x.count(",") + 1 for x in lists) == {2: 600, 3: 600, 4: 600}
        assert {letter for x in lists for letter in x.split(",")} == set(alphabet)


@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_pools_without_data_files_are_deterministic_and_without_duplicates(name):
    first, second = shipped_pool(name), SHIPPED[name].pool()
    assert first == second
    assert len({e.x for e in first.queries}) == len(first.queries) >= 25
    assert first.queries == first.demonstrations
    assert all(part == part.strip() != "" for e in first.queries for part in (e.x, e.y))


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_have_40_to_80_pairs_and_no_dominant_answer(name):
    """A dominant answer would give the majority baseline a high accuracy."""
    outputs = Counter(e.y for e in shipped_pool(name).queries)
    assert 40 <= outputs.total() <= 80
    assert max(outputs.values()) <= 0.25 * outputs.total()


def test_reversed_translations_swap_inputs_and_outputs():
    for forward, backward in (("en-es", "es-en"), ("en-fr", "fr-en")):
        assert {(e.x, e.y) for e in shipped_pool(forward).queries} == {
            (e.y, e.x) for e in shipped_pool(backward).queries
        }
    words = {e.x: e.y for e in shipped_pool("fr-en").queries}
    assert (words["chien"], words["été"], words["œuf"]) == ("dog", "summer", "egg")


def test_word_forms_follow_the_spelling_rules_of_english():
    """Spelling rules, such as doubling a consonant or dropping a silent e, are an independent check of the pairs."""
    for e in shipped_pool("present-simple-gerund").queries:
        stems = {e.x, e.x[:-1] if e.x.endswith("e") else e.x, e.x + e.x[-1], e.x[:-2] + "y"}
        assert e.y.removesuffix("ing") in stems
        assert e.y.endswith("ing")
    irregular = "child man woman foot tooth mouse goose wife wolf life knife"
    for e in shipped_pool("plural-singular").queries:
        plurals = {e.y + "s", e.y + "es", e.y[:-1] + "ies"}
        assert e.x in plurals or e.y in irregular.split()


def test_pairs_are_read_from_both_json_layouts(tmp_path):
    (tmp_path / "a.json").write_text('{"hot": "cold", "big": "small"}')
    (tmp_path / "b.json").write_text('[{"input": "hot", "output": "cold"}, {"input": "big", "output": " small "}]')
    assert read_pairs(tmp_path / "a.json") == read_pairs(tmp_path / "b.json") == [("hot", "cold"), ("big", "small")]
    task = make_task("mapping", answers="greedy", file=str(tmp_path / "a.json"), reversed=True)
    assert task.pool().queries == (Example("cold", "hot"), Example("small", "big"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"a": "b", "a": "c"}', "'a'"),
        ('{"a": 1, "b": "c"}', "pair 1"),
        ('{"a": "b", "c": " "}', "pair 2"),
        ('[{"input": "a", "output": "b"}, {"input": "c"}]', "pair 2"),
        ('[["a", "b"]]', "pair 1"),
        ('{"a": "b"}', "1 pairs"),
        ('"a"', "input"),
    ],
)
def test_bad_pairs_are_refused(tmp_path, text, name):
    (tmp_path / "bad.json").write_text(text)
    assert_refused(make_task("mapping", file=str(tmp_path / "bad.json")), "bad-data", tmp_path / "bad.json", name)


@pytest.mark.parametrize("text", ['{"a": ', "[" * 100_000])
def test_invalid_json_is_refused(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    assert_error_names(make_task("mapping", file=str(tmp_path / "bad.json")), tmp_path / "bad.json", "JSON")


def test_reversed_pairs_with_duplicate_inputs_are_refused(tmp_path):
    (tmp_path / "p.json").write_text('{"a": "x", "b": "x"}')
    assert_refused(make_task("mapping", file=str(tmp_path / "p.json"), reversed=True), "bad-data", "p.json", "'x'")


def test_missing_pairs_and_unknown_parameters_are_refused():
    assert_refused(make_task("mapping", file="q.json"), "missing-file", "'q.json'", cards_folder("tasks/language"))
    assert_error_names(make_task("mapping", fil="q.json"), "'fil'", "'file'")


SST = "0 no movement .\n1 a stirring one \n0 crème brûlée\n1 fine\n"


def write_sst(folder, **changed):
    texts = {"train": SST, "dev": "1 great\n0 bad\n", "test": "0 dull\n"} | changed
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (folder / f"stsa.binary.{split}").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("below", ["", "language", "language/classification"])
def test_public_files_are_found_in_the_data_folder_or_its_subfolders(tmp_path, below):
    """As in the papers, queries of SST-2 come from its development split, and settings are tuned on its test split."""
    write_sst(tmp_path / below)
    task_pool = shipped_pool("sst2", tmp_path)
    assert task_pool.queries == (Example("great", "positive"), Example("bad", "negative"))
    assert task_pool.development == (Example("dull", "negative"),)
    assert Example("crème brûlée", "negative") in task_pool.demonstrations
    assert task_pool.labels == ("negative", "positive")


def test_latin_1_is_read_and_only_line_feeds_end_lines(tmp_path):
    (tmp_path / "rt-polarity.all").write_bytes(b"0 the clich\xe9s\x85pile up \r\n1 fine\n\n1 good\n0 bad\n")
    task_pool = shipped_pool("mr", tmp_path)
    texts = {e.x: e.y for e in all_examples(task_pool)}
    assert texts == {"the clichés…pile up": "negative", "fine": "positive", "good": "positive", "bad": "negative"}
    write_sst(tmp_path, test="1 one\x85and\u2028one\n0 two\n")
    assert [e.x for e in shipped_pool("sst2", tmp_path).development] == ["one\x85and\u2028one", "two"]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "latin-1"])
def test_json_that_is_not_utf_8_is_refused(tmp_path, encoding):
    """RFC 8259 (section 8.1) requires UTF-8. A wrong guess of the encoding would change letters."""
    (tmp_path / "pairs.json").write_bytes('{"caf\u00e9": "th\u00e9", "a": "b"}'.encode(encoding))
    (tmp_path / "sst2.jsonl").write_bytes('{"text": "caf\u00e9", "label": "positive"}\n'.encode(encoding))
    assert_refused(make_task("mapping", file=str(tmp_path / "pairs.json")), "unreadable-file", tmp_path, "UTF-8")
    assert_refused(SHIPPED["sst2"], "unreadable-file", tmp_path, "UTF-8", data_dir=tmp_path)
    (tmp_path / "pairs.json").write_bytes(b"\xef\xbb\xbf" + '{"caf\u00e9": "th\u00e9", "a": "b"}'.encode())
    assert read_pairs(tmp_path / "pairs.json")[0] == ("caf\u00e9", "th\u00e9")


def test_duplicate_keys_in_json_are_refused(tmp_path):
    (tmp_path / "sst2.jsonl").write_text('{"text": "a", "label": "positive", "label": "negative"}\n')
    assert_error_names(SHIPPED["sst2"], "'label'", "line 1", data_dir=tmp_path)
    (tmp_path / "bad.json").write_text('[{"input": "a", "output": "b", "output": "c"}, {"input": "d", "output": "e"}]')
    assert_refused(make_task("mapping", file=str(tmp_path / "bad.json")), "bad-data", "bad.json", "pair 1")


def test_a_json_number_with_thousands_of_digits_is_refused(tmp_path):
    """For such a number, Python raises a `ValueError` that is not a `JSONDecodeError`."""
    (tmp_path / "sst2.jsonl").write_text('{"text": "a", "label": ' + "9" * 5000 + "}\n")
    assert_error_names(SHIPPED["sst2"], "sst2.jsonl", "line 1", data_dir=tmp_path)


def test_both_file_formats_of_trec_give_the_same_pool(tmp_path):
    """Labels are numbers in `TREC.*.all` and names in the original files."""
    names = {"0": "DESC:manner", "1": "ENTY:cremat", "2": "ABBR:exp", "3": "HUM:ind", "4": "LOC:other", "5": "NUM:date"}
    words = ["Description", "Entity", "Abbreviation", "Person", "Location", "Number"]
    pools = []
    for layout, files in {"a": ("TREC.train.all", "TREC.test.all"), "b": ("train_5500.label", "TREC_10.label")}.items():
        (tmp_path / layout).mkdir()
        for file in files:
            lines = [f"{i if layout == 'a' else names[i]} what is {i} ?\n" for i in names]
            (tmp_path / layout / file).write_text("".join(lines))
        pools.append(shipped_pool("trec", tmp_path / layout))
    assert pools[0] == pools[1]
    assert [e.y for e in pools[0].queries] == words


def test_ag_news_joins_title_and_description_and_counts_classes_from_one(tmp_path):
    (tmp_path / "ag_news_csv").mkdir()
    rows = '"3","Wall St. Bears","Reuters - Short, ""green"" ones\\back"\n"4","A","B"\n'
    for file in ("train.csv", "test.csv"):
        (tmp_path / "ag_news_csv" / file).write_text(rows)
    expected = Example('Wall St. Bears Reuters - Short, "green" ones back', "Business")
    assert shipped_pool("ag-news", tmp_path).queries == (expected, Example("A B", "Technology"))


def json_lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_json_lines_can_replace_the_public_files(tmp_path):
    """Labels are the names of classes or their words. A corpus in one file is split without overlap."""
    (tmp_path / "sst5.train.jsonl").write_text(json_lines({"text": "ugh", "label": "very negative"}))
    (tmp_path / "sst5.test.jsonl").write_text(json_lines({"text": "wow", "label": "great"}))
    task_pool = shipped_pool("sst5", tmp_path)
    assert (task_pool.demonstrations, task_pool.queries) == ((Example("ugh", "terrible"),), (Example("wow", "great"),))
    rows = [{"text": f"t{i}", "label": ["positive", "negative"][i % 2]} for i in range(100)]
    (tmp_path / "mr.jsonl").write_text(json_lines(*rows, rows[0]))
    task_pool = shipped_pool("mr", tmp_path)
    splits = (task_pool.demonstrations, task_pool.queries, task_pool.development)
    assert [len(part) for part in splits] == [25, 50, 25]
    assert len({e.x for part in splits for e in part}) == 100


def test_without_words_the_labels_are_the_candidates(tmp_path):
    rows = [{"text": f"t{i}", "label": i % 3} for i in range(12)]
    (tmp_path / "mine.jsonl").write_text(json_lines(*rows))
    task_pool = make_task(layout="jsonl", file="mine").pool(tmp_path)
    assert task_pool.labels == ("0", "1", "2")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0 good\n7 bad\n", ("line 2", "'7'", "0 to 1")),
        ("0 good\n\n1\n", ("line 3",)),
        ("a film\n", ("line 1", "'a'", "negative, positive")),
        ("", ()),
    ],
)
def test_bad_lines_are_refused(tmp_path, text, names):
    write_sst(tmp_path, train=text)
    assert_refused(SHIPPED["sst2"], "bad-data", tmp_path / "stsa.binary.train", *names, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"text": "a"}\n', ("line 1", "'label'", "'text'")),
        ('{"text": "a", "label": "positive"}\n{"sentence": "a", "label": 1}\n', ("line 2", "'text'")),
        ('{"text": "a", "label": "glad"}\n', ("line 1", "'glad'", "negative, positive")),
        ('{"text": "a", "label": 1}\n', ("line 1", "'1'", "negative, positive")),
        ('{"text": "a", "label": null}\n', ("line 1", "label", None)),
        ('{"text": 3, "label": "positive"}\n', ("line 1", "text", 3)),
        ('{"text": " ", "label": "positive"}\n', ("line 1", "text")),
        ('["a"]\n', ("line 1", "'text'", "'label'")),
        ('{"text": "a", "label": "positive"}\n', (1, 4)),
    ],
)
def test_bad_json_lines_are_refused(tmp_path, text, names):
    (tmp_path / "sst2.jsonl").write_text(text, encoding="utf-8")
    assert_refused(SHIPPED["sst2"], "bad-data", tmp_path / "sst2.jsonl", *names, data_dir=tmp_path)


@pytest.mark.parametrize("text", ['{"text": \n', "\x81"])
def test_lines_that_are_not_json_are_refused(tmp_path, text):
    (tmp_path / "sst2.jsonl").write_text(text, encoding="utf-8")
    assert_error_names(SHIPPED["sst2"], "sst2.jsonl", "line 1", "JSON", data_dir=tmp_path)


def test_a_single_label_and_too_many_labels_are_refused(tmp_path):
    for rows, name in (
        ([{"text": f"t{i}", "label": "x"} for i in range(8)], "'x'"),
        ([{"text": f"t{i}", "label": str(i)} for i in range(8)], 8),
    ):
        (tmp_path / "mine.jsonl").write_text(json_lines(*rows))
        assert_refused(make_task(layout="jsonl", file="mine"), "bad-data", "mine.jsonl", name, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("sst2", ("'stsa.binary.train', 'stsa.binary.dev', 'stsa.binary.test'", "'sst2.jsonl'", "classification")),
        ("mmlu-virology", ("'test/virology_test.csv'", "mmlu")),
        ("bbh-snarks", ("'snarks.json'", "bbh")),
    ],
)
def test_the_error_for_missing_files_names_the_searched_folders(tmp_path, task, names):
    assert_refused(SHIPPED[task], "missing-data", tmp_path, *names, data_dir=tmp_path)


def test_tasks_with_data_files_are_refused_without_a_data_folder():
    assert_refused(SHIPPED["trec"], "missing-data", "--data-dir", "ICLBENCH_DATA")


def test_a_corpus_with_a_missing_file_is_refused(tmp_path):
    write_sst(tmp_path)
    (tmp_path / "stsa.binary.dev").unlink()
    assert_refused(
        SHIPPED["sst2"], "missing-data", "stsa.binary.dev", tmp_path / "stsa.binary.train", data_dir=tmp_path
    )


def test_a_corpus_in_an_unknown_encoding_is_refused(tmp_path):
    (tmp_path / "TREC.train.all").write_bytes(b"0 \x81\n")
    (tmp_path / "TREC.test.all").write_text("0 What ?\n")
    assert_refused(SHIPPED["trec"], "unreadable-file", "UTF-8", "Latin-1", data_dir=tmp_path)


def write_mmlu(
    folder, header=False, dev="What?,a,b,c,d,B\n", test='"Who, me?",e,f,g,h,A\n"Same?",7,7,8,9,B\n', val=None
):
    head = "question,choice0,choice1,choice2,choice3,answer\n" if header else ""
    for split, text in {"dev": dev, "test": test, "val": val}.items():
        if text is not None:
            (folder / "mmlu" / split).mkdir(parents=True, exist_ok=True)
            (folder / "mmlu" / split / f"virology_{split}.csv").write_text(head + text)


def test_mmlu_is_the_same_with_and_without_a_header(tmp_path):
    """Answers are texts, and choices with the same text are one candidate."""
    write_mmlu(tmp_path / "a")
    write_mmlu(
        tmp_path / "b", True, "What?,a,b,c,d,1\n", '"Who, me?",e,f,g,h,0\n"Same?",7,7,8,9,1\n', "New?,a,b,c,d,3\n"
    )
    plain, headed = shipped_pool("mmlu-virology", tmp_path / "a"), shipped_pool("mmlu-virology", tmp_path / "b")
    assert plain.demonstrations == headed.demonstrations == (Example("What?", "b", ("a", "b", "c", "d")),)
    assert plain.queries == headed.queries
    assert plain.queries[1] == Example("Same?", "7", ("7", "8", "9"))
    assert (plain.development, headed.development) == ((), (Example("New?", "d", ("a", "b", "c", "d")),))


@pytest.mark.parametrize(
    ("dev", "names"),
    [
        ("What?,a,b,c,d,E\n", ("line 1",)),
        ("What?,a,b,c,d,A\nWho?,a,b\n", ("line 2",)),
        ("What?,a,,c,d,A\n", ("line 1",)),
        ("", ()),
    ],
)
def test_bad_questions_are_refused(tmp_path, dev, names):
    write_mmlu(tmp_path, dev=dev)
    assert_refused(SHIPPED["mmlu-virology"], "bad-data", "virology_dev.csv", *names, data_dir=tmp_path)


def write_bbh(folder, name, examples, **parameters):
    (folder / "bbh").mkdir(exist_ok=True)
    (folder / "bbh" / f"{name}.json").write_text(json.dumps({"canary": "", "examples": examples}))
    sizes = {"demonstrations": 1, "development": 1}
    return make_task("bbh", **(sizes | parameters))


def all_examples(pool):
    return {*pool.demonstrations, *pool.queries, *pool.development}


def test_candidates_are_the_texts_or_letters_of_options(tmp_path):
    question = "Which?\nOptions:\n(A) one\n(B) two"
    raw_examples = [{"input": f"{i} {question}", "target": f"({'AB'[i % 2]})"} for i in range(4)]
    raw_examples.append({"input": "4 Which?\nOptions:\n(A) one\n(B) two\n(C) three", "target": "(C)"})
    task = write_bbh(tmp_path, "t", raw_examples)
    by_text = LanguageTask("t", task.card, "t").pool(tmp_path)
    assert Example("1 Which?", "two", ("one", "two")) in all_examples(by_text)
    assert Example("4 Which?", "three", ("one", "two", "three")) in all_examples(by_text)
    card = write_bbh(tmp_path, "t", raw_examples, options="letters").card
    by_letter = LanguageTask("t", card, "t").pool(tmp_path)
    assert Example(f"1 {question}", "(B)", ("(A)", "(B)")) in all_examples(by_letter)
    assert [len(p) for p in (by_text.demonstrations, by_text.development, by_text.queries)] == [1, 1, 3]


def test_questions_with_a_single_option_are_omitted(tmp_path):
    raw = [{"input": f"{i}\nOptions:\n(A) one\n(B) two", "target": "(A)"} for i in range(4)]
    single_options = [
        {"input": "4\nOptions:\n(A) one", "target": "(A)"},
        {"input": "5\nOptions:\n(A) a\n(B) a", "target": "(A)"},
    ]
    task_pool = LanguageTask("t", write_bbh(tmp_path, "t", raw + single_options).card, "t").pool(tmp_path)
    assert {e.x for e in all_examples(task_pool)} == {"0", "1", "2", "3"}


def test_questions_that_differ_only_in_their_options_are_different_examples(tmp_path):
    """All questions of `hyperbaton` have the same text, and only their options differ."""
    raw = [{"input": f"Which?\nOptions:\n(A) a {i}\n(B) b {i}", "target": "(A)"} for i in range(12)]
    task = LanguageTask("t", write_bbh(tmp_path, "t", [*raw, raw[0]]).card, "t")
    task_pool = task.pool(tmp_path)
    assert len(all_examples(task_pool)) == len(task_pool.queries) + 2 == 12
    assert [len(part) for part in task_pool.splits] == [10, 1, 1]


def test_questions_about_the_same_paragraph_are_in_the_same_split(tmp_path):
    options = "\nOptions:\n(A) the {} is first\n(B) the {} is last"
    raw = [{"input": f"Paragraph {i // 3}." + options.format(i, i), "target": "(A)"} for i in range(30)]
    raw += [{"input": f"Alone {i}." + options.format(i, i), "target": "(A)"} for i in range(5)]
    for options_kind in ("texts", "letters"):
        card = write_bbh(tmp_path, "t", raw, options=options_kind, demonstrations=5, development=7).card
        task_pool = LanguageTask("t", card, "t").pool(tmp_path)
        splits = (task_pool.demonstrations, task_pool.development, task_pool.queries)
        assert [len(part) for part in splits] == [5, 7, 23]
        demonstrated, held_out, queried = ({e.x.partition(".")[0] for e in part} for part in splits)
        assert not (demonstrated & held_out or demonstrated & queried or held_out & queried)


def test_without_options_the_targets_are_the_candidates_if_there_are_few(tmp_path):
    few_targets = write_bbh(
        tmp_path, "few", [{"input": f"q{i}", "target": ["valid", "invalid"][i % 2]} for i in range(6)]
    )
    listed = write_bbh(
        tmp_path, "listed", [{"input": f"q{i}\nOptions:\n- valid \n- invalid", "target": "valid"} for i in range(6)]
    )
    many_targets = write_bbh(tmp_path, "free", [{"input": f"q{i}", "target": str(i)} for i in range(30)])
    assert LanguageTask("few", few_targets.card, "few").pool(tmp_path).labels == ("invalid", "valid")
    task_pool = LanguageTask("listed", listed.card, "listed").pool(tmp_path)
    assert task_pool.labels == ("valid", "invalid")
    assert Example("q0", "valid") in all_examples(task_pool)
    assert LanguageTask("free", many_targets.card, "free").pool(tmp_path).labels == ()


@pytest.mark.parametrize(
    ("examples", "names"),
    [
        ([{"input": "q\nOptions:\n(A) a", "target": "(B)"}], ("example 1", "'(B)'")),
        ([{"input": "q", "target": "a"}, {"input": "q"}], ("example 2", "'target'")),
        ([{"input": "q", "target": "a"}], ("1 examples", 2, "demonstrations", "development")),
        ([], ("examples",)),
    ],
)
def test_bad_examples_are_refused(tmp_path, examples, names):
    assert_refused(
        write_bbh(tmp_path, "bad", examples), "bad-data", "bad.json", *names, data_dir=tmp_path, subset="bad"
    )


@needs_real_corpora
def test_real_corpora_have_the_published_sizes():
    """Sizes are in tables 4 and 5 of Deep-Thinking. Table 4 counts one example too many for SST-2 and AG News."""
    data_dir = Path(os.environ["ICLBENCH_DATA"])
    sizes = {"sst2": (6911, 872), "sst5": (8534, 2210), "trec": (5381, 500), "mr": (8530, 1066)}
    for name, expected in sizes.items():
        task_pool = shipped_pool(name, data_dir)
        assert (len(task_pool.demonstrations), len(task_pool.queries)) == expected
    subjects = {"astronomy": 152, "college-physics": 102, "moral-scenarios": 895, "professional-law": 1534}
    for subject, expected in subjects.items():
        assert len(shipped_pool(f"mmlu-{subject}", data_dir).queries) == expected
        assert len(shipped_pool(f"mmlu-{subject}", data_dir).demonstrations) == 5
    # These labels were checked by hand.
    answers = {e.x: e.y for e in shipped_pool("trec", data_dir).queries}
    assert answers["How far is it from Denver to Aspen ?"] == "Number"
    assert answers["Who was Galileo ?"] == "Person"


@needs_real_corpora
def test_the_answers_of_every_real_task_are_among_its_candidates():
    data_dir = Path(os.environ["ICLBENCH_DATA"])
    for task in language_tasks(["mmlu", "bbh", "sst2", "sst5", "mr", "trec"]):
        task_pool = task.pool(data_dir)
        assert all(e.y in (e.candidates or task_pool.labels) for e in all_examples(task_pool))


def test_every_shipped_file_of_pairs_is_used_by_a_card():
    used_files = {task.card.parameters["file"] for task in SHIPPED.values() if task.card.reader == "mapping"}
    assert used_files == {f"pairs/{path.name}" for path in (cards_folder("tasks/language") / "pairs").glob("*.json")}


def test_a_class_that_is_not_a_reader_is_refused():
    with refused("bad-value", "iclbench.language.tasks.pools:Example"):
        make_task("iclbench.language.tasks.pools:Example").pool()
