"""`iclbench show`: a task on one screen, and the settings of a backbone with their meanings."""

import json
import tomllib
from pathlib import Path

import pytest

from iclbench.cli.check_class import classes, oracle_claims
from iclbench.cli.main import main
from iclbench.cli.show_backbone import values_of
from iclbench.config.cards import card_names, load_task
from iclbench.registry import BACKBONES, FAMILIES


def show(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("task", card_names("tasks"))
def test_a_task_fits_one_screen(task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = show(task, capsys=capsys).splitlines()
    assert len(lines) <= 50
    assert all(len(line.rstrip()) <= 80 for line in lines if not line.startswith(("from", "the card")))


def test_a_task_is_shown_with_its_process_sizes_and_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    card = load_task("gp-mixture")[1]
    out = " ".join(show("gp-mixture", capsys=capsys).split())
    for text in (card.summary, card.source, *card.baselines, *card.oracles, *card.shifts, card.published[0].source):
        assert " ".join(text.split()) in out
    assert f"gp-mixture: {FAMILIES.entry('gp-mixture').summary}" in out
    for name, preset in card.presets.items():
        assert f"{name} {preset.points:,} {preset.episodes:,} {preset.train.steps:,} {preset.train.batch}" in out
    assert f"and {len(card.published) - 8} more" in out
    assert "from CoQE, table 2, for glyphs=omniglot" in show("bursty-alpha1", capsys=capsys), (
        "the published numbers name their data"
    )


def test_the_card_and_all_values_are_printed_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    card = tomllib.loads(show("linear", "--card", capsys=capsys))
    values = json.loads(show("skewed_linear", "--json", capsys=capsys))
    assert card["presets"]["paper"]["train"]["steps"] == 500_001
    assert values["task"] == "skewed-linear" and values["presets"]["paper"]["parameters"]["dim"] == 20


def test_the_suggested_commands_for_a_users_card_contain_its_path(
    card_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = show(str(card_path), capsys=capsys)
    assert f"iclbench show {card_path} --card" in out and f"iclbench train {card_path} gpt2" in out
    assert show(str(card_path), "--card", capsys=capsys) == card_path.read_text()


def test_only_the_selected_preset_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = show("linear", "--preset", "grid", capsys=capsys)
    assert "\ngrid " in out and "\npaper " not in out


@pytest.mark.parametrize("name", BACKBONES.names())
def test_every_setting_of_a_backbone_has_a_description(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = values_of(name)["settings"]
    out = " ".join(show(name, capsys=capsys).split())
    for key, field in settings.items():
        assert field["meaning"], f"{key} has no meaning: write a string below the setting"
        assert "\n" not in field["meaning"]
        assert key in out
    assert "-o backbone.NAME=VALUE" in out


def test_the_equation_of_a_mixer_is_wrapped_at_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = show("kda", capsys=capsys)
    assert "S_t = (I - beta_t k_t k_t^T) diag(e^g_t) S_{t-1} + beta_t k_t v_t^T" in " ".join(out.split())
    assert json.loads(show("kda", "--json", capsys=capsys))["about"].startswith("S_t = ")
    lines = show("np", capsys=capsys).splitlines()
    assert sum(line.startswith("- ") for line in lines) > 2, "each list item starts a new line"
    assert all(
        len(line.rstrip()) <= 80 for line in [*out.splitlines(), *lines] if not line.startswith("change a setting")
    )


def test_a_user_defined_class_is_shown_like_a_registered_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classes that the user names are trusted. Classes that are not backbones are refused."""
    (tmp_path / "shown_net.py").write_text(
        "from iclbench.backbones.gpt2 import GPT2, GPT2Settings\n"
        'class MySettings(GPT2Settings):\n    depth: int = 3\n    """Blocks of a column."""\n'
        'class MyNet(GPT2):\n    """A net of columns."""\n    Settings = MySettings\n'
        "class Other: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "")
    out = " ".join(show("shown_net:MyNet", capsys=capsys).split())
    assert "A net of columns." in out and "depth 3 Blocks of a column." in out
    assert main(["show", "shown_net:Other"]) == 2
    assert "iclbench.backbones.base.Backbone" in capsys.readouterr().err


def test_the_error_for_an_unknown_name_suggests_similar_names_or_the_list_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "mambda"]) == main(["show", "qqqqqqqq"]) == 2
    similar, unknown = capsys.readouterr().err.splitlines()
    assert "'mamba'" in similar
    assert "'qqqqqqqq'" in unknown and "iclbench list" in unknown


def test_a_baseline_is_shown_and_checked_by_the_path_to_its_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my-mean.toml"
    path.write_text(show("mean", "--card", capsys=capsys))
    assert tomllib.loads(show(str(path), capsys=capsys))["baseline"] == "my-mean"
    assert classes(str(path)) == classes("mean")[:1] and not list(oracle_claims(str(path)))


@pytest.mark.parametrize(
    "arguments", [("mamba",), ("ridge",), ("antonyms",), ("glyphs", "--png", "x.png"), ("linear", "--card")]
)
def test_a_preset_is_refused_where_it_does_not_apply(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show", *arguments, "--preset", "small"]) == 2
    assert "--preset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "texts"),
    [("mamba2", ["10,416 numbers", "linear", "grid"]), ("attention", ["grows with the sequence"])],
)
def test_the_state_of_a_mixer_is_shown(name: str, texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The number of values in the state equals the number in docs/sequence-mixers.md."""
    out = " ".join(show(name, capsys=capsys).split())
    assert all(text in out for text in texts) and values_of("cnp")["state"] == ""
