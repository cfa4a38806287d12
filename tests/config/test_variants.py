"""Variants are names for backbones with frozen settings."""

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
from iclbench.config.sizes import missing_size_message
from iclbench.registry import BACKBONES, VARIANTS, Backbones, Entry, Variant
from iclbench.store.runs import run_name
from tests.conftest import small_card
from tests.refusals import refused

VARIANT_NAMES = [name for name, variant in VARIANTS.items() if variant.backbone != name]
WIDE = Variant("gpt2", {"width": 512}, "wide")
NOT_A_VARIANT = "a string"


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_differs_from_its_backbone_only_in_frozen_settings(name: str) -> None:
    backbone = VARIANTS[name].backbone
    config, backbone_config = (resolve_run("linear", contestant, "small") for contestant in (name, backbone))
    assert config.backbone.name == name and run_name(config) == f"linear-{name}-small-s0"
    frozen = {key: value for key, value in VARIANTS[name].frozen.items() if value is not None}
    # Sizes differ because learned positions count towards the budget.
    settings, backbone_settings = (
        {key: value for key, value in c.backbone.settings.items() if key not in Backbone.grows}
        for c in (config, backbone_config)
    )
    assert settings == backbone_settings | frozen
    assert config.train == backbone_config.train, "a variant without its own rate uses the rate of its backbone"
    assert missing_size_message("linear", name, "small", {}) is None
    assert codes.of_backbone(name) == codes.of_backbone(backbone)
    model = config.build(config.task.build())
    assert type(model) is BACKBONES.get(backbone)


def test_a_card_may_set_the_learning_rate_and_the_size_of_a_variant(tmp_path: Path) -> None:
    table = small_card()
    table["presets"]["smoke"]["backbones"] = {"gpt2": {"layers": 2, "width": 16}, "gpt2-rotary": {"layers": 1}}
    table["presets"]["smoke"]["train_for"] = {"gpt2": {"lr": 0.5, "clip": 2.0}, "gpt2-rotary": {"lr": 0.25}}
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(table))
    config = resolve_run(str(tmp_path / "mine.toml"), "gpt2-rotary", "smoke")
    assert (config.backbone.settings["layers"], config.backbone.settings["width"]) == (1, 16)
    assert (config.train.lr, config.train.clip) == (0.25, 2.0)
    preset = cards.load_task(str(tmp_path / "mine.toml"))[1].presets["smoke"]
    names = ("gpt2", "gpt2-learned", "gpt2-rotary", "mamba")
    rates = {name: learning_rate(preset, Rates(), name) for name in names}
    assert rates == {"gpt2": 0.5, "gpt2-learned": 0.5, "gpt2-rotary": 0.25, "mamba": None}
    table["presets"]["smoke"]["backbones"]["gpt2"]["positions"] = "learned"
    (tmp_path / "conflict.toml").write_text(tomli_w.dumps(table))
    for name in ("gpt2", "gpt2-rotary"):
        with refused("conflict", "backbones.gpt2", "positions"):
            resolve_run(str(tmp_path / "conflict.toml"), name, "smoke")


@pytest.mark.parametrize(
    ("name", "positions", "names"),
    [
        ("gpt2", "learned", ["'gpt2'", "positions=none", "gpt2-learned"]),
        ("gpt2-learned", "none", ["'gpt2-learned'", "gpt2"]),
        ("coqe", "rotary", ["'coqe'", "coqe-rotary"]),
        ("coqe-learned", "none", ["'coqe-learned'", "positions=learned"]),
    ],
)
def test_the_error_for_a_setting_that_conflicts_with_a_variant_suggests_the_right_name(
    name: str, positions: str, names: list[str]
) -> None:
    with refused("conflict", f"-o backbone.positions={positions}", *names):
        resolve_run("linear", name, "small", overrides=[f"backbone.positions={positions}"])


def test_overrides_may_repeat_a_frozen_setting() -> None:
    config = resolve_run("linear", "gpt2-learned", "small", overrides=["backbone.positions=learned"])
    assert config == resolve_run("linear", "gpt2-learned", "small")


def test_a_class_given_by_its_path_has_no_frozen_settings() -> None:
    target = "iclbench.backbones.gpt2:GPT2"
    assert resolve_run("linear", target, "paper", overrides=["backbone.positions=rotary"]).backbone.name == target


def test_no_card_sets_a_frozen_setting() -> None:
    for task in cards.card_names("tasks"):
        for preset in cards.load_task(task)[1].presets.values():
            for name, settings in preset.backbones.items():
                assert not settings.keys() & BACKBONES.variant(name).frozen.keys(), (task, name)


@pytest.mark.parametrize("name", VARIANT_NAMES)
def test_variants_appear_in_list_show_and_completion(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from iclbench.cli import completion

    assert main(["list", "backbones", "--json"]) == 0
    assert name in [row["backbone"] for row in json.loads(capsys.readouterr().out)]
    assert main(["show", name]) == 0
    assert VARIANTS[name].backbone in capsys.readouterr().out
    assert name in completion.backbones()


def backbones_with_plugins(monkeypatch: pytest.MonkeyPatch, **variants: str) -> Backbones:
    points = [EntryPoint(name, value, "iclbench.variants") for name, value in variants.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "iclbench.variants" else [])
    return Backbones({"gpt2": Entry("iclbench.backbones.gpt2:GPT2")}, {"gpt2": VARIANTS["gpt2"]})


def test_a_plugin_registers_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    backbones = backbones_with_plugins(monkeypatch, gpt2_wide=f"{__name__}:WIDE")
    assert backbones.names() == ["gpt2", "gpt2-wide"] and backbones.architectures() == ["gpt2"]
    assert backbones.get("gpt2_wide") is BACKBONES.get("gpt2")
    assert backbones.variant("gpt2-wide").frozen == {"positions": "none", "width": 512}
    message = str(backbones.contradiction("gpt2-wide", {"width": 8}))
    assert all(name in message for name in ("width=8", "'gpt2-wide'", "width=512"))


@pytest.mark.parametrize(("value", "name"), [("NOT_A_VARIANT", ":NOT_A_VARIANT'"), ("UNKNOWN_BACKBONE", "'lstm'")])
def test_an_invalid_plugin_variant_is_refused(value: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbones = backbones_with_plugins(monkeypatch, gpt2_wide=f"{__name__}:{value}")
    with refused("plugin", name):
        backbones.get("gpt2-wide")


UNKNOWN_BACKBONE = Variant("lstm")
