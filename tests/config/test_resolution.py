"""Resolution of cards, presets, configuration files and overrides into frozen configurations."""

from pathlib import Path

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from iclbench.config.cards import Curriculum, read_toml
from iclbench.config.resolution import ROOTS, RunConfig, differences, parse_overrides, resolve_run
from iclbench.config.sizes import missing_size_message
from iclbench.core.errors import UsageError
from iclbench.core.settings import validate
from iclbench.store.identity import variant_id
from tests.conftest import small_card
from tests.refusals import refused


def test_override_values_are_toml_values_or_strings() -> None:
    parsed = parse_overrides(
        ["backbone.layers=6", "task.glyphs=omniglot", "train.lr=3e-4", "train.curriculum.dims.start=2"]
    )
    assert parsed == {
        "backbone": {"layers": 6},
        "task": {"glyphs": "omniglot"},
        "train": {"lr": 3e-4, "curriculum": {"dims": {"start": 2}}},
    }


def test_values_that_the_toml_parser_cannot_read_are_strings() -> None:
    for text in ("9" * 5000, "[" * 100_000):
        assert parse_overrides([f"backbone.layers={text}"])["backbone"] == {"layers": text}


@pytest.mark.parametrize("pair", ["layers=6", "backbone.layers", "=3", "backbone.=3", "train.=.=", "", "."])
def test_malformed_overrides_are_refused(pair: str) -> None:
    with refused("bad-syntax", "-o", "root.key=value"):
        parse_overrides([pair])


def test_an_override_with_an_unknown_section_is_refused() -> None:
    with refused("unknown-name", "'model'", "backbone"):
        parse_overrides(["model.layers=6"])


def test_overrides_of_the_same_table_are_merged() -> None:
    start, dims = "train.curriculum.points.start=5", "train.curriculum={dims={start=2}}"
    expected = {"train": {"curriculum": {"points": {"start": 5}, "dims": {"start": 2}}}}
    assert parse_overrides([start, dims]) == expected == parse_overrides([dims, start])
    for pairs in (["train.lr.x=2", "train.lr=1"], ["train.lr=1", "train.lr.x=2"]):
        with refused("conflict", f"-o {pairs[1]}", "'lr'"):
            parse_overrides(pairs)


def test_an_override_with_an_empty_table_removes_the_table_of_the_card(card_path: Path) -> None:
    curriculum = resolve_run(str(card_path), "gpt2", "smoke").train.curriculum
    empty = resolve_run(str(card_path), "gpt2", "smoke", overrides=["train.curriculum={}"]).train.curriculum
    assert curriculum.dims and curriculum.points and empty == Curriculum()


@given(st.lists(st.text(max_size=30), max_size=3))
def test_any_text_is_a_valid_override_or_raises_a_usage_error(pairs: list[str]) -> None:
    try:
        assert set(parse_overrides(pairs)) <= set(ROOTS)
    except UsageError as error:
        assert str(error)


@settings(deadline=None)  # the first call is slow because it imports torch
@given(st.sampled_from(ROOTS), st.text(alphabet="abcdlerstp_.", min_size=1, max_size=12), st.text(max_size=12))
def test_any_override_resolves_or_raises_a_usage_error(root: str, key: str, value: str) -> None:
    try:
        resolve_run("linear", "gpt2", "smoke", 0, [f"{root}.{key}={value}"])
    except UsageError as error:
        assert str(error)


def test_a_configuration_written_as_toml_is_read_unchanged(card_path: Path, tmp_path: Path) -> None:
    config = resolve_run(str(card_path), "gpt2", "smoke", 1, ["train.lr=0.5"])
    (tmp_path / "c.toml").write_text(tomli_w.dumps(config.dump()))
    read_config = validate(RunConfig, read_toml(tmp_path / "c.toml"), "c.toml")
    assert read_config == config
    assert read_config.trained_part == config.trained_part


def test_a_config_file_overrides_the_card_and_options_override_both(card_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text("[train]\nlr = 0.25\nclip = 2.0\n[backbone]\nlayers = 3\n[task]\npoints = 9\n")
    config = resolve_run(str(card_path), "gpt2", "smoke", 0, ["train.lr=0.5", "task.dim=4"], file)
    assert (config.train.lr, config.train.clip) == (0.5, 2.0)
    assert config.backbone.settings["layers"] == 3
    assert (config.task.points, config.task.parameters["dim"]) == (9, 4)


@pytest.mark.parametrize(
    ("override", "code", "names"),
    [
        ("train.steeps=3", "unknown-name", ["-o train", "'steeps'", "'steps'"]),
        ("backbone.layer=3", "unknown-name", ["-o backbone", "'layer'", "'layers'"]),
        ("task.dims=3", "unknown-name", ["-o task", "'dims'", "'dim'"]),
        ("task.point=3", "unknown-name", ["-o task", "'point'", "'points'"]),
        ("task.protocol.dim=3", "unknown-name", ["-o task.protocol", "'dim'"]),
        ("task.parameters.points=3", "unknown-name", ["-o task", "'points'"]),
        ("task.parameters=3", "bad-value", ["-o task.parameters", 3]),
        ("train.steps=-3", "bad-value", ["steps", 0, -3]),
        ("train.lr=nan", "bad-value", ["lr", "nan"]),
        ("train.lr=fast", "bad-value", ["lr", "'fast'"]),
        ("backbone.width=none", "bad-value", ["width", "'none'"]),
        ("train.betas=[2, 3]", "bad-value", ["betas", 1]),
        ("task.dim=100000000", "bad-value", ["dim", 10000]),
        ("task.context_targets=true", "not-applicable", ["context_targets", 'question = "targets"']),
        ("task.context_targets=1", "bad-value", ["context_targets", 1]),
        ("task.floor=abc", "not-applicable", ["-o task.floor", "gaussian, mixture or event", "point"]),
        ("task.components=-3", "not-applicable", ["-o task.components", "mixture or event", "point"]),
        ("task.buckets=50", "not-applicable", ["-o task.buckets", "head bar", "point"]),
        ("train.curriculum.points={}", "missing-value", ["curriculum.points.start"]),
    ],
)
def test_invalid_overrides_are_refused(card_path: Path, override: str, code: str, names: list[object]) -> None:
    with refused(code, *names):
        resolve_run(str(card_path), "gpt2", "smoke", 0, [override])


@pytest.mark.parametrize(
    ("text", "names"), [("[train]\nsteeps = 3", ["train", "'steeps'"]), ("[trian]\nsteps = 3", ["'trian'", "train"])]
)
def test_errors_in_a_config_file_name_the_file(card_path: Path, tmp_path: Path, text: str, names: list[str]) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with refused("unknown-name", str(tmp_path / "mine.toml"), *names):
        resolve_run(str(card_path), "gpt2", "smoke", 0, config_file=tmp_path / "mine.toml")


@pytest.mark.parametrize(("task", "head"), [("linear", "point"), ("bursty", "categorical")])
def test_a_spread_for_a_head_without_a_standard_deviation_is_refused(task: str, head: str) -> None:
    with refused("not-applicable", "-o backbone.spread", "gaussian or mixture", head):
        resolve_run(task, "cnp", "smoke", 0, ["backbone.spread=exp"])
    resolve_run("gp-mixture", "cnp", "smoke", 0, ["backbone.spread=exp"])


def test_a_bar_head_has_the_scale_of_the_outputs_and_the_given_number_of_buckets() -> None:
    """The outputs of linear functions of 5 inputs have variance 5."""
    config = resolve_run("linear", "tnp", "smoke", 0, ["task.head=bar", "task.buckets=20", "task.dim=5"])
    model = config.build(config.task.build())
    assert config.dump()["task"]["buckets"] == model.shape.raw_dim == 20
    assert model.shape.head_settings.scale == pytest.approx(5**0.5)
    with refused("bad-value", "buckets", 2):
        resolve_run("linear", "tnp", "smoke", 0, ["task.head=bar", "task.buckets=1"])
    assert "buckets" not in resolve_run("linear", "tnp", "smoke").dump()["task"]


def test_a_backbone_for_tables_is_refused_for_image_and_event_tasks() -> None:
    for task in ("bursty", "point-process"):
        with refused("not-applicable", "'cells'", f"'{task}'"):
            resolve_run(task, "cells", "smoke")


COLLIDING = """
from iclbench.families.base import FunctionParameters
from iclbench.families.linear import Linear


class Parameters(FunctionParameters):
    points: int = 1
    protocol: int = 2


class Colliding(Linear):
    Parameters = Parameters
"""


@pytest.fixture
def colliding_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A card whose family has parameters that are named like keys of a task."""
    (tmp_path / "colliding.py").write_text(COLLIDING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "colliding")
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(small_card(family="colliding:Colliding", parameters={"points": 5})))
    return str(path)


def test_family_parameters_may_be_named_like_keys_of_a_task(colliding_card: str) -> None:
    def task(*overrides: str) -> tuple[int, int, int, int]:
        config = resolve_run(colliding_card, "gpt2", "smoke", 0, overrides).task
        return config.points, *(config.parameters[key] for key in ("points", "protocol", "dim"))

    assert task() == (8, 5, 2, 3)
    assert task("task.parameters.points=4", "task.parameters.protocol=6", "task.dim=2") == (8, 4, 6, 2)
    assert task("task.protocol.points=7", "task.parameters.points=4", "task.parameters.dim=1") == (7, 4, 2, 1)
    with refused("conflict", "-o task.points", "-o task.protocol.points", "-o task.parameters.points"):
        task("task.points=4")
    with refused("duplicate", "-o task.dim", "parameters.dim"):
        task("task.dim=4", "task.parameters.dim=4")


def test_long_and_short_keys_give_the_same_configuration(card_path: Path) -> None:
    short, long = (
        resolve_run(str(card_path), "gpt2", "smoke", 0, overrides)
        for overrides in (["task.points=7", "task.dim=2"], ["task.protocol.points=7", "task.parameters.dim=2"])
    )
    assert short == long


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("linaer", "gpt2"), ["task", "'linaer'", "'linear'"]),
        (("linear", "gpt3"), ["backbone", "'gpt3'", "'gpt2'"]),
        (("linear", "gpt2", "smal"), ["preset", "'smal'", "'small'"]),
    ],
)
def test_errors_for_unknown_names_list_similar_names(arguments: tuple[str, ...], names: list[str]) -> None:
    with refused("unknown-name", *names):
        resolve_run(*arguments)


def test_errors_in_family_parameters_name_the_card(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(small_card(parameters={"dimension": 3})))
    with refused("unknown-name", "'mine'", "parameters", "'dimension'"):
        resolve_run(str(path), "gpt2", "smoke")


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"baselines": ["knn-4"]}, "unknown-name", ["baseline", "'knn-4'", "'knn-3'"]),
        ({"oracles": ["nope"]}, "unknown-name", ["baseline", "'nope'"]),
        ({"shifts": ["orthantz"]}, "unknown-name", ["'orthantz'", "'orthants'"]),
        ({"question": "targets"}, "not-applicable", ["'mine'", "'linear'", "'targets'", 'question = "next"']),
        ({"head": "categorical"}, "not-applicable", ["'mine'", "'categorical'", "'linear'"]),
        ({"family": "os:getcwd"}, "bad-value", ["'os:getcwd'", "iclbench.families.base.Family"]),
    ],
)
def test_an_invalid_card_is_refused_before_training(
    tmp_path: Path, changes: dict[str, object], code: str, names: list[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(small_card(**changes)))
    with refused(code, *names):
        resolve_run(str(path), "gpt2", "smoke").task.build()


def test_a_mistyped_backbone_in_a_preset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(small_card()).replace("backbones.gpt2", "backbones.gpt22"))
    with refused("unknown-name", "backbone", "'gpt22'", "'gpt2'"):
        resolve_run(str(path), "gpt2", "smoke")


def test_backbone_names_in_a_card_are_normalised(tmp_path: Path) -> None:
    path, card = tmp_path / "mine.toml", small_card()
    preset = card["presets"]["smoke"]  # type: ignore[index]
    preset["backbones"] = {"GPT2_learned": {"layers": 1, "width": 24, "heads": 2}}
    preset["train_for"] = {"gpt2_learned": {"lr": 0.125}}
    path.write_text(tomli_w.dumps(card))
    config = resolve_run(str(path), "gpt2-learned", "smoke")
    assert (config.backbone.settings["width"], config.train.lr) == (24, 0.125)
    assert missing_size_message(str(path), "gpt2-learned", "smoke", {}) is None
    preset["train_for"]["gpt2-learned"] = {"lr": 0.25}
    path.write_text(tomli_w.dumps(card))
    with refused("bad-value", "train_for", "'gpt2_learned'", "'gpt2-learned'"):
        resolve_run(str(path), "gpt2-learned", "smoke")


def test_a_path_to_an_object_that_is_not_a_backbone_is_refused() -> None:
    with refused("bad-value", "'os:getcwd'", "iclbench.backbones.base.Backbone"):
        resolve_run("linear", "os:getcwd", "smoke")


def test_context_targets_change_one_setting_and_the_variant() -> None:
    default, with_context_targets = (
        resolve_run("gp-mixture", "tnp", "smoke", overrides=[f"task.context_targets={v}"]) for v in ("false", "true")
    )
    assert default.dump() == resolve_run("gp-mixture", "tnp", "smoke").dump()
    assert differences(default.dump(), with_context_targets.dump()) == ["task.context_targets: False -> True"]
    assert variant_id(default) != variant_id(with_context_targets)


@pytest.mark.parametrize("backbone", ["np", "anp"])
def test_context_targets_conflict_with_latents_that_encode_the_targets(backbone: str) -> None:
    with refused("conflict", "context_targets", f"'{backbone}'", "-o backbone.reconstruct=all"):
        resolve_run("gp-mixture", backbone, "smoke", overrides=["task.context_targets=true"])
    resolve_run("gp-mixture", backbone, "smoke", overrides=["backbone.reconstruct=all"])


def test_differences_state_old_and_new_values() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == ["a.c: 2 -> 3", "d: None -> 4"]


@pytest.mark.parametrize("task", ["recall", "markov", "linear-system", "point-process"])
def test_a_curriculum_of_dimensions_is_refused_for_elements_without_inputs(task: str) -> None:
    dims = ["train.curriculum.dims.start=2", "train.curriculum.dims.every=5"]
    with refused("not-applicable", "-o train.curriculum.dims", task):
        resolve_run(task, "gpt2", "smoke", overrides=dims)


def test_a_curriculum_starts_with_sequences_in_which_a_position_is_scored() -> None:
    every = "train.curriculum.points.every=5"
    with refused("conflict", "train.curriculum.points.start", "at least 6"):
        resolve_run("recall", "gpt2", "smoke", overrides=["train.curriculum.points.start=5", every])
    resolve_run("recall", "gpt2", "smoke", overrides=["train.curriculum.points.start=6", every])
    resolve_run("markov", "gpt2", "smoke", overrides=["train.curriculum.points.start=1", every])
