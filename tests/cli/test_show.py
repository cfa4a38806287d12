"""`iclbench show`: a task on one screen, and what the settings of a backbone mean."""

import json
import tomllib
from pathlib import Path

import pytest

from iclbench.cli.check_class import classes, oracle_claims
from iclbench.cli.main import main
from iclbench.cli.show import NO_PRESET
from iclbench.cli.show_backbone import values_of
from iclbench.config.cards import load_task, names
from iclbench.registry import BACKBONES, FAMILIES


def shown(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("task", names("tasks"))
def test_a_task_fits_one_screen(task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(task, capsys=capsys).splitlines()
    assert len(lines) <= 50
    assert all(len(line.rstrip()) <= 80 for line in lines if not line.startswith(("from", "the card")))


def test_a_task_says_what_it_samples_how_big_and_beside_what(capsys: pytest.CaptureFixture[str]) -> None:
    card = load_task("gp-mixture")[1]
    out = " ".join(shown("gp-mixture", capsys=capsys).split())
    for said in (card.summary, card.source, *card.baselines, *card.oracles, *card.shifts, card.published[0].source):
        assert " ".join(said.split()) in out
    assert f"gp-mixture: {FAMILIES.entry('gp-mixture').summary}" in out
    for name, preset in card.presets.items():
        assert f"{name} {preset.points:,} {preset.episodes:,} {preset.train.steps:,} {preset.train.batch}" in out
    assert f"and {len(card.published) - 8} more" in out
    assert "from CoQE, table 2, for glyphs=omniglot" in shown("bursty-alpha1", capsys=capsys), "for which data they are"


def test_the_card_and_every_number_are_there_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    card = tomllib.loads(shown("linear", "--card", capsys=capsys))
    whole = json.loads(shown("skewed_linear", "--json", capsys=capsys))
    assert card["presets"]["paper"]["train"]["steps"] == 500_001
    assert whole["task"] == "skewed-linear" and whole["presets"]["paper"]["parameters"]["dim"] == 20


def test_the_commands_for_a_card_of_ones_own_name_its_file(card_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(str(card_path), capsys=capsys)
    assert f"iclbench show {card_path} --card" in out and f"iclbench train {card_path} gpt2" in out
    assert shown(str(card_path), "--card", capsys=capsys) == card_path.read_text()


def test_one_preset_is_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown("linear", "--preset", "grid", capsys=capsys)
    assert "\ngrid " in out and "\npaper " not in out


@pytest.mark.parametrize("name", BACKBONES.names())
def test_every_setting_of_a_backbone_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = values_of(name)["settings"]
    out = " ".join(shown(name, capsys=capsys).split())
    for key, field in settings.items():
        assert len(field["meaning"].split()) >= 2, f"{key} is not explained"
        assert key in out
    assert "-o backbone.NAME=VALUE" in out


def test_a_mixer_is_explained_by_its_equation_at_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = shown("kda", capsys=capsys)
    assert "S_t = (I - beta_t k_t k_t^T) diag(e^g_t) S_{t-1} + beta_t k_t v_t^T" in " ".join(out.split())
    assert json.loads(shown("kda", "--json", capsys=capsys))["about"].startswith("S_t = ")
    lines = shown("np", capsys=capsys).splitlines()
    assert any(line.startswith("- The mean of no points is 0") for line in lines), "lists stay lists"
    assert all(len(line.rstrip()) <= 80 for line in [*out.splitlines(), *lines] if not line.startswith("set one"))


def test_a_class_of_ones_own_is_shown_as_a_registered_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is typed is trusted, as by train; what is no backbone is refused."""
    (tmp_path / "shown_net.py").write_text(
        "from iclbench.backbones.gpt2 import GPT2, GPT2Settings\n"
        'class MySettings(GPT2Settings):\n    depth: int = 3\n    """Blocks of a column."""\n'
        'class MyNet(GPT2):\n    """A net of columns."""\n    Settings = MySettings\n'
        "class Other: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "")
    out = " ".join(shown("shown_net:MyNet", capsys=capsys).split())
    assert "A net of columns." in out and "depth 3 Blocks of a column." in out
    assert main(["show", "shown_net:Other"]) == 2
    assert "must be a subclass of iclbench.backbones.base.Backbone" in capsys.readouterr().err


def test_an_unknown_name_is_answered_by_near_ones_or_by_who_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "mambda"]) == main(["show", "qqqqqqqq"]) == 2
    near, none = capsys.readouterr().err.splitlines()
    assert "did you mean 'mamba'" in near
    assert none.endswith("unknown name 'qqqqqqqq'; iclbench list names all (or package.module:Class)")


def test_a_baseline_is_shown_and_checked_by_the_path_to_its_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my-mean.toml"
    path.write_text(shown("mean", "--card", capsys=capsys))
    assert tomllib.loads(shown(str(path), capsys=capsys))["baseline"] == "my-mean"
    assert classes(str(path)) == classes("mean")[:1] and not list(oracle_claims(str(path)))


@pytest.mark.parametrize(
    "asked", [("mamba",), ("ridge",), ("antonyms",), ("glyphs", "--png", "x.png"), ("linear", "--card")]
)
def test_a_preset_is_refused_where_it_means_nothing(
    asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show", *asked, "--preset", "small"]) == 2
    assert capsys.readouterr().err.strip().endswith(NO_PRESET)
