"""Shipped cards are valid, and invalid cards raise errors."""

import codecs
import math
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iclbench.config.cards import (
    PRESETS,
    BaselineCard,
    Ramp,
    TaskCard,
    card_name,
    card_names,
    load_baseline,
    load_task,
    read_similar_toml,
    read_toml,
)
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.hashing import content_hash
from iclbench.core.settings import validate
from iclbench.registry import FAMILIES
from tests.refusals import refused

TRAIN = {"steps": 10}
CARD = {
    "family": "linear",
    "summary": "a test",
    "presets": {"smoke": {"points": 5, "episodes": 4, "parameters": {"dim": 3}, "train": TRAIN}},
}


def changed_card(**changes):
    """Return a copy of `CARD` with new values at dotted keys (`__` for a dot). None removes a key."""
    card = tomllib.loads(tomli_w.dumps(CARD))
    for path, value in changes.items():
        *tables, key = path.split("__")
        table = card
        for name in tables:
            table = table.setdefault(name, {})
        if value is None:
            del table[key]
        else:
            table[key] = value
    return card


def write(folder, card, name="mine.toml"):
    path = folder / name
    path.write_text(card if isinstance(card, str) else tomli_w.dumps(card), encoding="utf-8")
    return str(path)


SHIPPED_TASKS = card_names("tasks")


def test_the_tasks_of_the_papers_are_shipped():
    linear = {"linear", "sparse-linear", "skewed-linear", "noisy-linear"}
    others = {"relu-network", "relu-network-shared", "decision-tree", "combination", "quadratic", "tabular"}
    assert linear | others <= set(SHIPPED_TASKS)


@pytest.mark.parametrize("name", SHIPPED_TASKS)
def test_a_shipped_card_is_complete_and_valid_for_its_family(name):
    task, card = load_task(name)
    assert task == name
    assert set(PRESETS) - {"grid"} <= set(card.presets), "only some cards have the preset grid"
    cls = FAMILIES.get(card.family)
    for preset in card.presets.values():
        family = cls(validate(cls.Parameters, {**card.parameters, **preset.parameters}, name))
        for shift in card.shifts:
            family.parse_shift(shift)
        for ramp, end in (
            (preset.train.curriculum.dims, family.x_dim),
            (preset.train.curriculum.points, preset.points + (card.question == "next")),
        ):
            if ramp:
                assert ramp.start <= end
                assert ramp.at(preset.train.steps - 1, end) == end, "the curriculum is complete at the last step"
    assert len(set(card.shifts)) == len(card.shifts)
    assert card.presets["smoke"].episodes == 64
    # Classification needs more episodes, because accuracies of single predictions vary more than errors.
    assert card.presets["small"].episodes == (256 if family.classes is None else 512)
    assert card.presets["paper"].episodes >= 1280
    assert set(card.evaluators) <= family.evaluators().keys()
    if card.head == "event":
        assert {"poisson", "renewal", "markov-marks"} <= set(card.baselines)
        return
    if not family.x_dim:
        assert ({"zero", "last-value"} if family.classes is None else {"uniform"}) <= set(card.baselines)
        return
    simple_baselines = (
        {"zero", "mean", "knn-3"} if family.classes is None else {"pixel-1nn", "nearest-class-mean", "majority"}
    )
    assert simple_baselines <= set(card.baselines)
    if card.question == "next" and family.classes is None:
        assert {"least-squares", "xgboost"} <= set(card.baselines)
        if card.family != "tabular-prior":  # gradient descent is a baseline only for tasks from the papers
            assert {"gd", "gd-plus-plus"} <= set(card.baselines)
        assert any(name.startswith("lasso") for name in card.baselines)


@pytest.mark.parametrize("name", SHIPPED_TASKS)
def test_the_baselines_of_shipped_cards_exist(name):
    if not card_names("baselines"):
        pytest.skip("no baseline cards")
    _, card = load_task(name)
    for baseline in (*card.baselines, *card.oracles):
        load_baseline(baseline)


@pytest.mark.parametrize("name", ["linear", "sparse-linear", "skewed-linear", "noisy-linear", "quadratic"])
def test_the_curriculum_of_the_paper_reaches_20_dimensions_at_step_30000(name):
    train = load_task(name)[1].presets["paper"].train
    assert (train.steps, train.batch, train.lr, train.schedule, train.optimiser) == (
        500_001,
        64,
        1e-4,
        "cosine",
        "adam",
    )
    dims, points = train.curriculum.dims, train.curriculum.points
    assert [dims.at(s, 20) for s in (0, 1999, 2000, 29_999, 30_000)] == [5, 5, 6, 19, 20]
    assert [points.at(s, 41) for s in (0, 2000, 29_999, 30_000)] == [11, 13, 39, 41]


@pytest.mark.parametrize("name", ["relu-network", "decision-tree"])
def test_the_longer_curriculum_of_the_paper_reaches_101_points_at_step_30000(name):
    preset = load_task(name)[1].presets["paper"]
    assert preset.points == 100
    assert [preset.train.curriculum.points.at(s, 101) for s in (0, 29_999, 30_000)] == [26, 96, 101]


def test_a_ramp_is_constant_after_its_end():
    ramp = Ramp(start=2, by=3, every=10)
    assert [ramp.at(step, 7) for step in (0, 9, 10, 19, 20, 10**6)] == [2, 2, 5, 5, 7, 7]


def test_task_names_are_case_insensitive_and_may_contain_underscores():
    assert load_task("Sparse_Linear")[0] == "sparse-linear"


def test_a_card_is_loaded_by_path_and_named_after_its_file(tmp_path):
    task, card = load_task(write(tmp_path, CARD, "My_Task.toml"))
    assert task == "my-task"
    assert card.presets["smoke"].parameters == {"dim": 3}
    assert card.family == "linear"


def test_a_family_may_be_a_class_in_another_package(tmp_path):
    """The class need not exist, because reading a card does not import it."""
    family = "my_package.spiral:Spiral"
    assert load_task(write(tmp_path, changed_card(family=family)))[1].family == family


@pytest.mark.parametrize(
    ("changes", "code", "message_parts"),
    [
        ({"family": None}, "missing-value", ["family"]),
        ({"summary": None}, "missing-value", ["summary"]),
        ({"presets": None}, "missing-value", ["presets"]),
        ({"presets": {}}, "bad-value", ["presets", "smoke, grid, small, paper"]),
        ({"presets__smoke__train": None}, "missing-value", ["presets.smoke.train"]),
        ({"presets__smoke__train__steps": None}, "missing-value", ["presets.smoke.train.steps"]),
        ({"family": "linaer"}, "bad-value", ["family", "'linaer'", "'linear'"]),
        ({"family": "a b:C"}, "bad-value", ["family", "'a b:C'", "package.module:Class"]),
        ({"family": "../evil:run"}, "bad-value", ["family", "'../evil:run'", "package.module:Class"]),
        ({"family": 3}, "bad-value", ["family", 3]),
        ({"famly": "linear"}, "unknown-name", ["'famly'", "'family'"]),
        ({"presets__smoke__pionts": 5}, "unknown-name", ["'presets.smoke.pionts'", "'presets.smoke.points'"]),
        ({"presets__smoke__train__lrr": 1.0}, "unknown-name", ["train.lrr'", "'presets.smoke.train.lr'"]),
        (
            {"presets__smoke__train__curriculum": {"dims": {"start": 1, "every": 2, "bye": 1}}},
            "unknown-name",
            ["'presets.smoke.train.curriculum.dims.by'"],
        ),
        (
            {"presets__smal": CARD["presets"]["smoke"]},
            "bad-value",
            ["presets.smal", "'smoke', 'grid', 'small' or 'paper'", "'smal'"],
        ),
        ({"presets__smoke__points": -3}, "bad-value", ["presets.smoke.points", 0, -3]),
        ({"presets__smoke__points": 10**12}, "bad-value", ["presets.smoke.points", 10**12]),
        ({"presets__smoke__points": 2.5}, "bad-value", ["presets.smoke.points", 2.5]),
        ({"presets__smoke__points": "5"}, "bad-value", ["presets.smoke.points", "'5'"]),
        ({"presets__smoke__points": True}, "bad-value", ["presets.smoke.points", True]),
        ({"presets__smoke": 7}, "bad-value", ["presets.smoke", 7]),
        ({"presets__smoke__train__lr": math.nan}, "bad-value", ["presets.smoke.train.lr", "nan"]),
        ({"presets__smoke__train__lr": math.inf}, "bad-value", ["presets.smoke.train.lr", "inf"]),
        ({"presets__smoke__train__betas": [0.9]}, "missing-value", ["presets.smoke.train.betas"]),
        (
            {"presets__smoke__train__schedule": "linear"},
            "bad-value",
            ["presets.smoke.train.schedule", "'constant', 'cosine', 'inverse-sqrt' or 'warmup-stable-decay'"],
        ),
        ({"parameters": {"noise": math.nan}}, "bad-value", ["parameters", "'noise'", "nan"]),
        (
            {"presets__smoke__parameters": {"a": {"b": [1.0, -math.inf]}}},
            "bad-value",
            ["presets.smoke.parameters", "'b'", "-inf"],
        ),
        ({"presets__smoke__backbones": {"gpt2": {"width": math.nan}}}, "bad-value", ["'width'", "nan"]),
        ({"baselines": "zero"}, "bad-value", ["baselines", '["zero"]']),
        ({"baselines": [1]}, "bad-value", ["baselines.0", 1]),
        ({"published": [{"contestant": "x"}]}, "missing-value", ["published.0.value"]),
        ({"a\nb": 1}, "unknown-name", ["'a b'"]),
    ],
)
def test_the_error_for_an_invalid_card_names_file_key_and_value(tmp_path, changes, code, message_parts):
    path = write(tmp_path, changed_card(**changes))
    with refused(code, path, *message_parts):
        load_task(path)


@pytest.mark.parametrize(
    ("text", "code", "message_parts"),
    [
        ("family == 3", "bad-syntax", ["line 1"]),
        ("a = 1\na = 2", "bad-syntax", []),
        ("a = " + "9" * 5000, "bad-syntax", []),
        ("a = " + "[" * 5000, "bad-syntax", []),
        (
            "parameters = { when = 2024-01-01 }\nfamily = 'linear'\nsummary = ''",
            "bad-value",
            ["parameters", "'when'", "2024"],
        ),
        (
            "family = 'linear'\nsummary = ''\nparameters." + ".".join("a" * 12) + " = 1",
            "bad-value",
            ["parameters"],
        ),
    ],
)
def test_a_file_that_is_not_a_card_raises_an_error(tmp_path, text, code, message_parts):
    path = write(tmp_path, text)
    with refused(code, path, *message_parts):
        load_task(path)


def test_a_card_may_start_with_a_byte_order_mark(tmp_path):
    """Some editors on Windows write a byte order mark."""
    path = Path(write(tmp_path, CARD))
    expected = read_toml(path)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_toml(path) == expected


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("pipe", "unreadable-file"),
        ("binary", "bad-syntax"),
        ("folder", "unreadable-file"),
        ("absent", "missing-file"),
        ("null\0", "bad-syntax"),
    ],
)
def test_unreadable_files_raise_errors(tmp_path, name, code):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    with refused(code, tmp_path / name.strip("\0")):
        read_toml(tmp_path / f"{name}.toml")


def test_errors_for_unknown_names_list_similar_names():
    with refused("unknown-name", "task", "'linaer'", "'linear'", ".toml"):
        load_task("linaer")
    with refused("unknown-name", "preset", "'smal'", "'small'", "'linear'"):
        load_task("linear")[1].preset("smal", "linear")
    with refused("unknown-name", "baseline"):
        load_baseline("../tasks/linear")


@pytest.mark.parametrize("name", ["../linear", "tasks/linear", "/etc/passwd", "", "linear/../linear"])
def test_names_that_contain_a_path_are_refused(name):
    with pytest.raises(UnknownNameError):
        load_task(name)


@pytest.mark.parametrize("stem", ["..", "a b", "-x", "ü", "a" * 80, ".hidden", "a;b"])
def test_the_file_name_of_a_card_must_consist_of_letters_digits_and_hyphens(tmp_path, stem):
    with refused("bad-syntax", f"{stem}.toml", "my-task.toml"):
        card_name(tmp_path / f"{stem}.toml")


def test_the_content_hash_does_not_depend_on_comments_or_the_order_of_keys(tmp_path):
    card = load_task(write(tmp_path, CARD))[1]
    reordered = {key: CARD[key] for key in reversed(CARD)}
    equal_card = load_task(write(tmp_path, "# a comment\n" + tomli_w.dumps(reordered)))[1]
    other_card = load_task(write(tmp_path, changed_card(presets__smoke__points=6)))[1]
    assert content_hash(card) == content_hash(equal_card) != content_hash(other_card)
    assert content_hash(card) == content_hash(card.model_dump(mode="json", exclude_unset=True))


def test_the_hash_of_a_card_does_not_depend_on_notes_sources_or_baselines(tmp_path):
    def card_hash(**changes):
        return load_task(write(tmp_path, changed_card(**changes)))[1].hash

    unchanged = card_hash()
    published = [{"contestant": "gpt2", "value": 0.5, "source": "table 1", "read": "as printed"}]
    for changes in (
        {"notes": "a note"},
        {"source": "A paper"},
        {"published": published},
        {"baselines": ["zero"]},
    ):
        assert card_hash(**changes) == unchanged, changes
    for changes in ({"head": "gaussian"}, {"presets__smoke__points": 6}, {"presets__smoke__train__lr": 0.5}):
        assert card_hash(**changes) != unchanged, changes


FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8) | st.dates(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=8), values, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from([*TaskCard.model_fields, *BaselineCard.model_fields, "smoke", "train", "x"])


def load_or_check_error(load, path):
    try:
        _, card = load(path)
    except UsageError as error:
        assert len(str(error).splitlines()) == 1
    else:
        content_hash(card)


@pytest.mark.slow
@FUZZ
@given(st.dictionaries(KEYS | st.text(max_size=8), VALUES, max_size=5))
def test_any_dictionary_is_a_valid_card_or_raises_a_one_line_error(tmp_path, values):
    load_or_check_error(load_task, write(tmp_path, values))
    load_or_check_error(load_baseline, write(tmp_path, values))


@FUZZ
@given(KEYS, st.sampled_from(["points", "parameters", "train", "backbones", "train_for"]), VALUES)
def test_any_value_of_a_key_is_valid_or_raises_a_one_line_error(tmp_path, key, preset_key, value):
    load_or_check_error(load_task, write(tmp_path, changed_card(**{key: value})))
    load_or_check_error(load_task, write(tmp_path, changed_card(**{f"presets__smoke__{preset_key}": value})))


@FUZZ
@given(st.text(max_size=100))
def test_any_text_is_a_valid_card_or_raises_a_one_line_error(tmp_path, text):
    load_or_check_error(load_task, write(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        'preset = "smoke"\nseed = 0\n\n[task]\nname = "linear"\n\n[[task.published]]\nvalue = 1\n',
        'preset = "smoke"\r\nseed = 1\r\n\r\n[task]\r\nname = "linear"\r\n',
        "seed = 2\n",
        "[task]\nname = 'linear'\n",
        'text = """\n[task]\n"""\nlist = [\n[1],\n[2]]\n[task]\nname = "linear"\n',
        "task.points = 1\n[task.parameters]\ndim = 2\n",
        "task = 1\n[task]\nname = 'linear'\n",
        "seed = \n[task]\n",
        "seed = 3\n[task\n",
    ],
)
def test_read_similar_toml_equals_read_toml(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode())

    def read(reader: Callable[[Path], dict[str, Any]]) -> dict[str, Any] | str:
        try:
            return reader(path)
        except UsageError as error:
            return str(error)

    assert read(read_similar_toml) == read(read_toml)
