"""Cards: the shipped ones are sound, and a bad one is one clear line."""

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
    load_baseline,
    load_task,
    names,
    read_similar_toml,
    read_toml,
)
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.hashing import content_hash
from iclbench.core.settings import validate
from iclbench.registry import FAMILIES

TRAIN = {"steps": 10}
CARD = {
    "family": "linear",
    "summary": "a test",
    "presets": {"smoke": {"points": 5, "episodes": 4, "parameters": {"dim": 3}, "train": TRAIN}},
}


def changed(**changes):
    """The card with values set at dotted keys (`__` for a dot); None removes a key."""
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


SHIPPED = names("tasks")


def test_the_shipped_tasks_are_those_of_the_papers():
    linear = {"linear", "sparse-linear", "skewed-linear", "noisy-linear"}
    others = {"relu-network", "relu-network-shared", "decision-tree", "combination", "quadratic", "tabular"}
    assert linear | others <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_card_is_complete_and_its_family_accepts_it(name):
    task, card = load_task(name)
    assert task == name
    assert set(PRESETS) - {"grid"} <= set(card.presets), "grid is on one card of each family"
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
                assert ramp.at(preset.train.steps - 1, end) == end, "the curriculum ends before training does"
    assert len(set(card.shifts)) == len(card.shifts)
    assert card.presets["smoke"].episodes == 64
    # The accuracy of a single answer varies more than an error does.
    assert card.presets["small"].episodes == (256 if family.classes is None else 512)
    assert card.presets["paper"].episodes >= 1280
    assert set(card.evaluators) <= family.evaluators().keys()
    if card.head == "event":
        assert {"poisson", "renewal", "markov-marks"} <= set(card.baselines)
        return
    floor = {"zero", "mean", "knn-3"} if family.classes is None else {"pixel-1nn", "nearest-class-mean", "majority"}
    assert floor <= set(card.baselines)
    if card.question == "next":
        assert {"least-squares", "xgboost", "gd", "gd-plus-plus"} <= set(card.baselines)
        assert any(b.startswith("lasso") for b in card.baselines)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_cards_name_baselines_that_exist(name):
    if not names("baselines"):
        pytest.skip("no baseline cards")
    _, card = load_task(name)
    for baseline in (*card.baselines, *card.oracles):
        load_baseline(baseline)


@pytest.mark.parametrize("name", ["linear", "sparse-linear", "skewed-linear", "noisy-linear", "quadratic"])
def test_the_papers_curriculum_reaches_20_dimensions_at_step_30000(name):
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
def test_the_papers_longer_curriculum_reaches_101_points_at_step_30000(name):
    preset = load_task(name)[1].presets["paper"]
    assert preset.points == 100
    assert [preset.train.curriculum.points.at(s, 101) for s in (0, 29_999, 30_000)] == [26, 96, 101]


def test_a_ramp_never_passes_its_end():
    ramp = Ramp(start=2, by=3, every=10)
    assert [ramp.at(step, 7) for step in (0, 9, 10, 19, 20, 10**6)] == [2, 2, 5, 5, 7, 7]


def test_names_are_accepted_in_either_spelling():
    assert load_task("Sparse_Linear")[0] == "sparse-linear"


def test_a_card_is_found_by_path_and_named_after_its_file(tmp_path):
    task, card = load_task(write(tmp_path, CARD, "My_Task.toml"))
    assert task == "my-task"
    assert card.presets["smoke"].parameters == {"dim": 3}
    assert card.family == "linear"


def test_a_family_may_be_a_class_of_another_package(tmp_path):
    """Reading the card imports nothing."""
    assert (
        load_task(write(tmp_path, changed(family="my_package.spiral:Spiral")))[1].family == "my_package.spiral:Spiral"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": None}, "mine.toml: family: expected the name of a family.*but the key is missing"),
        ({"summary": None}, "summary: expected a string, but the key is missing"),
        ({"presets": None}, "presets: expected .*missing"),
        ({"presets": {}}, "presets: expected at least one of smoke, grid, small, paper"),
        ({"presets__smoke__train": None}, "presets.smoke.train: expected .*missing"),
        ({"presets__smoke__train__steps": None}, "presets.smoke.train.steps: expected .*missing"),
        ({"family": "linaer"}, "family: unknown family 'linaer'; did you mean 'linear'"),
        ({"family": "a b:C"}, "family: expected a family's name or package.module:Class, got 'a b:C'"),
        ({"family": "../evil:run"}, "family: expected a family's name"),
        ({"family": 3}, "family: expected a valid string, got 3"),
        ({"famly": "linear"}, "unknown key 'famly'; did you mean 'family'"),
        ({"presets__smoke__pionts": 5}, "unknown key 'presets.smoke.pionts'; did you mean 'presets.smoke.points'"),
        (
            {"presets__smoke__train__lrr": 1.0},
            "unknown key 'presets.smoke.train.lrr'; did you mean 'presets.smoke.train.lr'",
        ),
        (
            {"presets__smoke__train__curriculum": {"dims": {"start": 1, "every": 2, "bye": 1}}},
            "did you mean 'presets.smoke.train.curriculum.dims.by'",
        ),
        (
            {"presets__smal": CARD["presets"]["smoke"]},
            "presets.smal: expected 'smoke', 'grid', 'small' or 'paper', got 'smal'",
        ),
        ({"presets__smoke__points": -3}, "presets.smoke.points: expected greater than 0, got -3"),
        ({"presets__smoke__points": 10**12}, "presets.smoke.points: expected less than or equal to"),
        ({"presets__smoke__points": 2.5}, "presets.smoke.points: expected a valid integer, got 2.5"),
        ({"presets__smoke__points": "5"}, "presets.smoke.points: expected a valid integer, got '5'"),
        ({"presets__smoke__points": True}, "presets.smoke.points: expected a valid integer, got True"),
        ({"presets__smoke": 7}, "presets.smoke: expected a table of keys, got 7"),
        ({"presets__smoke__train__lr": math.nan}, "presets.smoke.train.lr: expected a finite number, got nan"),
        ({"presets__smoke__train__lr": math.inf}, "presets.smoke.train.lr: expected a finite number, got inf"),
        ({"presets__smoke__train__betas": [0.9]}, "presets.smoke.train.betas.*missing"),
        (
            {"presets__smoke__train__schedule": "linear"},
            "expected 'constant', 'cosine', 'inverse-sqrt' or 'warmup-stable-decay', got 'linear'",
        ),
        ({"parameters": {"noise": math.nan}}, "parameters: expected a finite number for 'noise', got nan"),
        ({"presets__smoke__parameters": {"a": {"b": [1.0, -math.inf]}}}, "expected a finite number for 'b', got -inf"),
        ({"presets__smoke__backbones": {"gpt2": {"width": math.nan}}}, "expected a finite number for 'width'"),
        ({"baselines": "zero"}, r'baselines: expected a list, \["zero"\], got'),
        ({"baselines": [1]}, "baselines.0: expected a valid string, got 1"),
        ({"published": [{"contestant": "x"}]}, "published.0.value: expected .*missing"),
        ({"a\nb": 1}, "unknown key 'a b'"),
    ],
)
def test_a_bad_card_is_one_line_with_file_key_expected_and_got(tmp_path, changes, message):
    path = write(tmp_path, changed(**changes))
    with pytest.raises(UsageError, match=message) as error:
        load_task(path)
    assert str(error.value).startswith(path)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("family == 3", "not valid TOML.*line 1"),
        ("a = 1\na = 2", "not valid TOML"),
        ("a = " + "9" * 5000, "not valid TOML"),
        ("a = " + "[" * 5000, "not valid TOML"),
        (
            "parameters = { when = 2024-01-01 }\nfamily = 'linear'\nsummary = ''",
            "expected a number, a string or a boolean",
        ),
        ("family = 'linear'\nsummary = ''\nparameters." + ".".join("a" * 12) + " = 1", "at most eight deep"),
    ],
)
def test_a_file_that_is_no_card_is_one_line(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as error:
        load_task(write(tmp_path, text))
    assert len(str(error.value).splitlines()) == 1


def test_a_card_with_a_byte_order_mark_is_read(tmp_path):
    """Editors on Windows write one."""
    path = Path(write(tmp_path, CARD))
    expected = read_toml(path)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_toml(path) == expected


def test_unreadable_files_are_one_line(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    for name, message in (
        ("pipe", "pipe"),
        ("binary", "not UTF-8"),
        ("folder", "cannot read"),
        ("nowhere", "cannot read"),
        ("null\0", "not"),
    ):
        with pytest.raises(UsageError, match=message):
            read_toml(tmp_path / f"{name}.toml")


def test_unknown_tasks_and_presets_list_near_matches():
    with pytest.raises(UnknownNameError, match=r"unknown task 'linaer'; did you mean 'linear'.*path to a \.toml"):
        load_task("linaer")
    with pytest.raises(
        UnknownNameError, match=r"unknown preset 'smal'; did you mean 'small'.*presets of task 'linear'"
    ):
        load_task("linear")[1].preset("smal", "linear")
    with pytest.raises(UnknownNameError, match="unknown baseline"):
        load_baseline("../tasks/linear")


@pytest.mark.parametrize("name", ["../linear", "tasks/linear", "/etc/passwd", "", "linear/../linear"])
def test_names_cannot_leave_the_cards_folder(name):
    with pytest.raises(UnknownNameError):
        load_task(name)


@pytest.mark.parametrize("stem", ["..", "a b", "-x", "ü", "a" * 80, ".hidden", "a;b"])
def test_a_cards_file_name_must_be_usable_in_result_files(tmp_path, stem):
    with pytest.raises(UsageError, match="letters, digits and hyphens"):
        card_name(tmp_path / f"{stem}.toml")


def test_the_content_hash_is_of_values_not_of_layout(tmp_path):
    one = load_task(write(tmp_path, CARD))[1]
    reordered = {key: CARD[key] for key in reversed(CARD)}
    two = load_task(write(tmp_path, "# a comment\n" + tomli_w.dumps(reordered)))[1]
    three = load_task(write(tmp_path, changed(presets__smoke__points=6)))[1]
    assert content_hash(one) == content_hash(two) != content_hash(three)
    assert content_hash(one) == content_hash(one.model_dump(mode="json", exclude_unset=True))


def test_the_hash_in_the_tables_is_of_what_is_trained_and_evaluated(tmp_path):
    """A note, a source, a published number or a baseline more changes no number of a run."""

    def hashed(**changes):
        return load_task(write(tmp_path, changed(**changes)))[1].hash

    plain = hashed()
    number = {"contestant": "gpt2", "value": 0.5, "source": "table 1", "read": "as printed"}
    for beside in ({"notes": "mended"}, {"source": "A paper"}, {"published": [number]}, {"baselines": ["zero"]}):
        assert hashed(**beside) == plain, beside
    for of_the_protocol in ({"head": "gaussian"}, {"presets__smoke__points": 6}, {"presets__smoke__train__lr": 0.5}):
        assert hashed(**of_the_protocol) != plain, of_the_protocol


FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from([*TaskCard.model_fields, *BaselineCard.model_fields, "smoke", "train", "x"])


def card_or_error(load, path):
    try:
        _, card = load(path)
    except UsageError as error:
        assert len(str(error).splitlines()) == 1
    else:
        content_hash(card)


@pytest.mark.slow
@FUZZ
@given(st.dictionaries(KEYS | st.text(max_size=8), VALUES, max_size=5))
def test_any_dictionary_is_a_card_or_an_error(tmp_path, values):
    card_or_error(load_task, write(tmp_path, values))
    card_or_error(load_baseline, write(tmp_path, values))


@FUZZ
@given(KEYS, st.sampled_from(["points", "parameters", "train", "backbones", "train_for"]), VALUES)
def test_any_value_in_a_good_card_is_a_card_or_an_error(tmp_path, key, inner, value):
    card_or_error(load_task, write(tmp_path, changed(**{key: value})))
    card_or_error(load_task, write(tmp_path, changed(**{f"presets__smoke__{inner}": value})))


@FUZZ
@given(st.text(max_size=100))
def test_any_text_is_a_card_or_an_error(tmp_path, text):
    card_or_error(load_task, write(tmp_path, text))


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
def test_a_file_of_many_is_read_as_any_other(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode())

    def read(reader: Callable[[Path], dict[str, Any]]) -> dict[str, Any] | str:
        try:
            return reader(path)
        except UsageError as error:
            return str(error)

    assert read(read_similar_toml) == read(read_toml)
