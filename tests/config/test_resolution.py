"""From what a user types to a frozen configuration."""

from pathlib import Path

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from iclbench.config.cards import Curriculum, read_toml
from iclbench.config.resolution import ROOTS, RunConfig, difference, parse_overrides, resolve_run
from iclbench.config.sizes import missing_size
from iclbench.core.errors import UsageError
from iclbench.core.settings import validate
from iclbench.store.identity import variant_id
from tests.conftest import small_card


def test_overrides_are_toml_values_and_plain_words() -> None:
    parsed = parse_overrides(
        ["backbone.layers=6", "task.glyphs=omniglot", "train.lr=3e-4", "train.curriculum.dims.start=2"]
    )
    assert parsed == {
        "backbone": {"layers": 6},
        "task": {"glyphs": "omniglot"},
        "train": {"lr": 3e-4, "curriculum": {"dims": {"start": 2}}},
    }


def test_values_that_no_parser_takes_are_words() -> None:
    for text in ("9" * 5000, "[" * 100_000):
        assert parse_overrides([f"backbone.layers={text}"])["backbone"] == {"layers": text}


@pytest.mark.parametrize(
    "pair", ["layers=6", "backbone.layers", "=3", "backbone.=3", "model.layers=6", "train.=.=", "", "."]
)
def test_malformed_overrides_say_how_to_write_them(pair: str) -> None:
    with pytest.raises(UsageError, match=r"root\.key=value|unknown key"):
        parse_overrides([pair])


def test_of_overrides_of_one_table_none_is_lost() -> None:
    start, dims = "train.curriculum.points.start=5", "train.curriculum={dims={start=2}}"
    both = {"train": {"curriculum": {"points": {"start": 5}, "dims": {"start": 2}}}}
    assert parse_overrides([start, dims]) == both == parse_overrides([dims, start])
    for pairs in (["train.lr.x=2", "train.lr=1"], ["train.lr=1", "train.lr.x=2"]):
        with pytest.raises(UsageError, match=f"^-o {pairs[1]}: 'lr' already has a value$"):
            parse_overrides(pairs)


def test_an_empty_table_takes_the_cards_away(card_path: Path) -> None:
    card = resolve_run(str(card_path), "gpt2", "smoke").train.curriculum
    none = resolve_run(str(card_path), "gpt2", "smoke", overrides=["train.curriculum={}"]).train.curriculum
    assert card.dims and card.points and none == Curriculum()


@given(st.lists(st.text(max_size=30), max_size=3))
def test_any_text_is_an_override_or_a_usage_error(pairs: list[str]) -> None:
    try:
        assert set(parse_overrides(pairs)) <= set(ROOTS)
    except UsageError as error:
        assert str(error)


@settings(deadline=None)  # the first call imports torch
@given(st.sampled_from(ROOTS), st.text(alphabet="abcdlerstp_.", min_size=1, max_size=12), st.text(max_size=12))
def test_any_override_resolves_or_is_a_usage_error(root: str, key: str, value: str) -> None:
    try:
        resolve_run("linear", "gpt2", "smoke", 0, [f"{root}.{key}={value}"])
    except UsageError as error:
        assert str(error)


def test_a_run_configuration_survives_toml(card_path: Path, tmp_path: Path) -> None:
    config = resolve_run(str(card_path), "gpt2", "smoke", 1, ["train.lr=0.5"])
    (tmp_path / "c.toml").write_text(tomli_w.dumps(config.dump()))
    again = validate(RunConfig, read_toml(tmp_path / "c.toml"), "c.toml")
    assert again == config
    assert again.trained == config.trained


def test_every_source_overrides_the_one_before(card_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text("[train]\nlr = 0.25\nclip = 2.0\n[backbone]\nlayers = 3\n[task]\npoints = 9\n")
    config = resolve_run(str(card_path), "gpt2", "smoke", 0, ["train.lr=0.5", "task.dim=4"], file)
    assert (config.train.lr, config.train.clip) == (0.5, 2.0)
    assert config.backbone.settings["layers"] == 3
    assert (config.task.points, config.task.parameters["dim"]) == (9, 4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steeps=3", r"did you mean 'steps'"),
        ("backbone.layer=3", r"did you mean 'layers'"),
        ("task.dims=3", r"^-o task: unknown key 'dims'; did you mean 'dim'\?$"),
        ("task.point=3", r"^-o task: unknown key 'point'; did you mean 'points'"),
        ("task.protocol.dim=3", r"^-o task.protocol: unknown key 'dim'"),
        ("task.parameters.points=3", r"^-o task: unknown key 'points'"),
        ("task.parameters=3", r"^-o task.parameters: expected a table of keys, got 3$"),
        ("train.steps=-3", r"steps.*greater than 0.*-3"),
        ("train.lr=nan", r"lr.*finite"),
        ("train.lr=fast", r"lr.*number.*fast"),
        ("backbone.width=none", r"width"),
        ("train.betas=[2, 3]", r"betas.*less than 1"),
        ("task.dim=100000000", r"dim.*less than or equal to 10000"),
        ("task.context_targets=true", r"context_targets is for question = \"targets\".*leave it out"),
        ("task.context_targets=1", r"context_targets.*boolean.*1"),
        ("task.floor=abc", r"^-o task.floor is for head gaussian, mixture or event; .* has head point: leave it out$"),
        ("task.components=-3", r"^-o task.components is for head mixture or event; .* has head point: leave it out$"),
        ("train.curriculum.points={}", r"curriculum.points.start: expected a whole number, but the key is missing"),
    ],
)
def test_bad_overrides_name_the_key_and_the_fix(card_path: Path, override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_run(str(card_path), "gpt2", "smoke", 0, [override])


@pytest.mark.parametrize(("task", "head"), [("linear", "point"), ("bursty", "categorical")])
def test_a_spread_without_a_standard_deviation_is_refused(task: str, head: str) -> None:
    with pytest.raises(UsageError, match=f"backbone.spread is for head gaussian or mixture; .* {head}: leave it out"):
        resolve_run(task, "cnp", "smoke", 0, ["backbone.spread=exp"])
    resolve_run("gp-mixture", "cnp", "smoke", 0, ["backbone.spread=exp"])


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
def colliding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A card whose family has parameters that are called like keys of a task."""
    (tmp_path / "colliding.py").write_text(COLLIDING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "colliding")
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(small_card(family="colliding:Colliding", parameters={"points": 5})))
    return str(path)


def test_a_parameter_of_a_family_may_have_the_name_of_a_key_of_the_task(colliding: str) -> None:
    def task(*overrides: str) -> tuple[int, int, int, int]:
        found = resolve_run(colliding, "gpt2", "smoke", 0, overrides).task
        return found.points, *(found.parameters[key] for key in ("points", "protocol", "dim"))

    assert task() == (8, 5, 2, 3)
    assert task("task.parameters.points=4", "task.parameters.protocol=6", "task.dim=2") == (8, 4, 6, 2)
    assert task("task.protocol.points=7", "task.parameters.points=4", "task.parameters.dim=1") == (7, 4, 2, 1)
    with pytest.raises(
        UsageError,
        match=r"^-o task.points: the task and its family both have it; "
        r"write -o task.protocol.points or -o task.parameters.points$",
    ):
        task("task.points=4")
    with pytest.raises(UsageError, match=r"^-o task.dim: given twice, also as parameters.dim$"):
        task("task.dim=4", "task.parameters.dim=4")


def test_a_long_name_and_a_short_one_are_the_same_run(card_path: Path) -> None:
    short, long = (
        resolve_run(str(card_path), "gpt2", "smoke", 0, overrides)
        for overrides in (["task.points=7", "task.dim=2"], ["task.protocol.points=7", "task.parameters.dim=2"])
    )
    assert short == long


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("linaer", "gpt2"), "unknown task 'linaer'; did you mean 'linear'"),
        (("linear", "gpt3"), "unknown backbone 'gpt3'; did you mean 'gpt2'"),
        (("linear", "gpt2", "smal"), "unknown preset 'smal'; did you mean 'small'"),
    ],
)
def test_unknown_names_list_near_matches(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_run(*arguments)


def test_bad_family_parameters_in_a_card_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(small_card(parameters={"dimension": 3})))
    with pytest.raises(UsageError, match=r"mine.*parameters.*dimension.*dim"):
        resolve_run(str(path), "gpt2", "smoke")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baselines": ["knn-4"]}, "unknown baseline 'knn-4'; did you mean 'knn-3'"),
        ({"oracles": ["nope"]}, "unknown baseline 'nope'"),
        ({"shifts": ["orthantz"]}, "did you mean 'orthants'"),
        ({"question": "targets"}, "does not ask 'targets'"),
        ({"head": "categorical"}, "does not fit the regression family"),
        ({"family": "os:getcwd"}, "is no family"),
    ],
)
def test_a_card_is_checked_before_anything_is_trained(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(small_card(**changes)))
    with pytest.raises(UsageError, match=message):
        resolve_run(str(path), "gpt2", "smoke").task.build()


def test_a_mistyped_backbone_in_a_preset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(small_card()).replace("backbones.gpt2", "backbones.gpt22"))
    with pytest.raises(UsageError, match="unknown backbone 'gpt22'; did you mean 'gpt2'"):
        resolve_run(str(path), "gpt2", "smoke")


def test_backbones_have_their_settings_in_a_card_in_either_spelling(tmp_path: Path) -> None:
    path, card = tmp_path / "mine.toml", small_card()
    preset = card["presets"]["smoke"]  # type: ignore[index]
    preset["backbones"] = {"GPT2_learned": {"layers": 1, "width": 24, "heads": 2}}
    preset["train_for"] = {"gpt2_learned": {"lr": 0.125}}
    path.write_text(tomli_w.dumps(card))
    found = resolve_run(str(path), "gpt2-learned", "smoke")
    assert (found.backbone.settings["width"], found.train.lr) == (24, 0.125)
    assert missing_size(str(path), "gpt2-learned", "smoke", {}) is None
    preset["train_for"]["gpt2-learned"] = {"lr": 0.25}
    path.write_text(tomli_w.dumps(card))
    with pytest.raises(UsageError, match="train_for: 'gpt2_learned' and 'gpt2-learned' are one backbone; leave one"):
        resolve_run(str(path), "gpt2-learned", "smoke")


def test_something_that_is_no_backbone_is_refused() -> None:
    with pytest.raises(UsageError, match="is no backbone"):
        resolve_run("linear", "os:getcwd", "smoke")


def test_context_targets_are_part_of_what_was_trained_and_of_nothing_else() -> None:
    plain, scored = (
        resolve_run("gp-mixture", "tnp", "smoke", overrides=[f"task.context_targets={v}"]) for v in ("false", "true")
    )
    assert plain.dump() == resolve_run("gp-mixture", "tnp", "smoke").dump()
    # Contexts differ in size and so do episodes in what is scored: then each episode weighs the same.
    assert difference(plain.dump(), scored.dump()) == ["task.context_targets: False -> True"]
    assert variant_id(plain) != variant_id(scored)


@pytest.mark.parametrize("backbone", ["np", "anp"])
def test_a_latent_that_reads_targets_is_not_shown_the_context_twice(backbone: str) -> None:
    with pytest.raises(UsageError, match=f"'{backbone}' every context point twice.* -o backbone.reconstruct=all"):
        resolve_run("gp-mixture", backbone, "smoke", overrides=["task.context_targets=true"])
    resolve_run("gp-mixture", backbone, "smoke", overrides=["backbone.reconstruct=all"])


def test_difference_shows_old_and_new() -> None:
    assert difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == ["a.c: 2 -> 3", "d: None -> 4"]
