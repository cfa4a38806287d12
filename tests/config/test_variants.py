"""Variants: names for backbones with frozen settings, contestants like any other."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import tomli_w

from iclbench import registry
from iclbench.backbones.base import Backbone
from iclbench.cli.main import main
from iclbench.config import cards, codes
from iclbench.config.rates import Rates, learning_rate
from iclbench.config.resolution import resolve_run
from iclbench.config.sizes import missing_size
from iclbench.core.errors import UsageError
from iclbench.registry import BACKBONES, VARIANTS, Backbones, Entry, Variant
from iclbench.store.runs import run_name
from tests.conftest import small_card

NAMED = [name for name, variant in VARIANTS.items() if variant.backbone != name]
WIDE = Variant("gpt2", {"width": 512}, "wide")
ODD = "no variant"


@pytest.mark.parametrize("name", VARIANTS)
def test_a_name_stands_for_its_settings_and_shares_all_else_with_its_backbone(name: str) -> None:
    config, plain = (resolve_run("linear", each, "small") for each in (name, VARIANTS[name].backbone))
    assert config.backbone.name == name and run_name(config) == f"linear-{name}-small-s0"
    frozen = {key: value for key, value in VARIANTS[name].frozen.items() if value is not None}
    # A table of learned positions counts, and what grows makes room for it.
    same = {key: value for key, value in config.backbone.settings.items() if key not in Backbone.grows}
    rest = {key: value for key, value in plain.backbone.settings.items() if key not in Backbone.grows}
    assert same == rest | frozen
    assert config.train == plain.train, "the rate of the backbone where the card has none of its own"
    assert missing_size("linear", name, "small", {}) is None
    assert codes.of_backbone(name) == codes.of_backbone(VARIANTS[name].backbone)
    built = config.build(config.task.build())
    assert type(built) is BACKBONES.get(VARIANTS[name].backbone)


def test_a_card_may_give_a_variant_a_rate_and_sizes_of_its_own(tmp_path: Path) -> None:
    table = small_card()
    table["presets"]["smoke"]["backbones"] = {"gpt2": {"layers": 2, "width": 16}, "gpt2-rotary": {"layers": 1}}
    table["presets"]["smoke"]["train_for"] = {"gpt2": {"lr": 0.5, "clip": 2.0}, "gpt2-rotary": {"lr": 0.25}}
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(table))
    config = resolve_run(str(tmp_path / "mine.toml"), "gpt2-rotary", "smoke")
    assert (config.backbone.settings["layers"], config.backbone.settings["width"]) == (1, 16)
    assert (config.train.lr, config.train.clip) == (0.25, 2.0)
    preset = cards.load_task(str(tmp_path / "mine.toml"))[1].presets["smoke"]
    rates = {who: learning_rate(preset, Rates(), who) for who in ("gpt2", "gpt2-learned", "gpt2-rotary", "mamba")}
    assert rates == {"gpt2": 0.5, "gpt2-learned": 0.5, "gpt2-rotary": 0.25, "mamba": None}
    table["presets"]["smoke"]["backbones"]["gpt2"]["positions"] = "learned"
    (tmp_path / "placed.toml").write_text(tomli_w.dumps(table))
    for name in ("gpt2", "gpt2-rotary"):
        with pytest.raises(UsageError, match=r"backbones\.gpt2: positions is part of a contestant's name"):
            resolve_run(str(tmp_path / "placed.toml"), name, "smoke")


@pytest.mark.parametrize(
    ("name", "positions", "line"),
    [
        ("gpt2", "learned", "contradicts the name 'gpt2', which stands for positions=none; write gpt2-learned"),
        ("gpt2-learned", "none", "contradicts the name 'gpt2-learned', .* write gpt2$"),
        ("coqe", "rotary", "contradicts the name 'coqe', which leaves it at its default; write coqe-rotary"),
        ("coqe-learned", "none", "stands for positions=learned; leave positions out"),
    ],
)
def test_what_contradicts_a_name_is_refused_with_the_name_it_belongs_to(name: str, positions: str, line: str) -> None:
    with pytest.raises(UsageError, match=rf"^-o backbone.positions={positions} .*{line}"):
        resolve_run("linear", name, "small", overrides=[f"backbone.positions={positions}"])


def test_what_agrees_with_a_name_may_be_said_and_a_class_by_its_path_has_nothing_frozen() -> None:
    said = resolve_run("linear", "gpt2-learned", "small", overrides=["backbone.positions=learned"])
    assert said == resolve_run("linear", "gpt2-learned", "small")
    target = "iclbench.backbones.gpt2:GPT2"
    assert resolve_run("linear", target, "paper", overrides=["backbone.positions=rotary"]).backbone.name == target


def test_no_card_sets_what_is_part_of_a_name() -> None:
    for task in cards.names("tasks"):
        for preset in cards.load_task(task)[1].presets.values():
            for name, settings in preset.backbones.items():
                assert not settings.keys() & BACKBONES.variant(name).frozen.keys(), (task, name)


@pytest.mark.parametrize("name", NAMED)
def test_variants_are_listed_shown_and_completed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from iclbench.cli import completion

    assert main(["list", "backbones", "--json"]) == 0
    assert name in [row["backbone"] for row in json.loads(capsys.readouterr().out)]
    assert main(["show", name]) == 0
    assert VARIANTS[name].backbone in capsys.readouterr().out
    assert name in completion.backbones()


def with_plugged(monkeypatch: pytest.MonkeyPatch, **variants: str) -> Backbones:
    points = [EntryPoint(name, value, "iclbench.variants") for name, value in variants.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "iclbench.variants" else [])
    return Backbones({"gpt2": Entry("iclbench.backbones.gpt2:GPT2")}, {"gpt2": VARIANTS["gpt2"]})


def test_a_third_party_registers_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    backbones = with_plugged(monkeypatch, gpt2_wide=f"{__name__}:WIDE")
    assert backbones.names() == ["gpt2", "gpt2-wide"] and backbones.architectures() == ["gpt2"]
    assert backbones.get("gpt2_wide") is BACKBONES.get("gpt2")
    assert backbones.variant("gpt2-wide").frozen == {"positions": "none", "width": 512}
    assert backbones.contradiction("gpt2-wide", {"width": 8}) == (
        "width=8 contradicts the name 'gpt2-wide', which stands for width=512; leave width out"
    )


@pytest.mark.parametrize(("value", "problem"), [("ODD", "is no variant"), ("OF_NOTHING", "is of 'lstm'; give one of")])
def test_a_third_partys_variant_that_is_none_says_so(value: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbones = with_plugged(monkeypatch, gpt2_wide=f"{__name__}:{value}")
    with pytest.raises(UsageError, match=problem):
        backbones.get("gpt2-wide")


OF_NOTHING = Variant("lstm")
