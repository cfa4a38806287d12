"""A preset that does not say how big a backbone is never means the biggest without a word."""

import logging
from pathlib import Path

import pytest
import tomli_w

from iclbench.cli.main import main
from iclbench.config import sizes
from iclbench.config.sizes import check_size, missing_size
from iclbench.core.errors import UsageError
from iclbench.sweep.grids import grid_runs
from tests.conftest import small_card

LINE = (
    "preset 'smoke' of task 'tiny-linear' has no size for 'tnp', whose own is width 128, layers 5, heads 8; "
    "give -o backbone.layers=N -o backbone.width=N"
)


def test_a_backbone_without_a_size_is_refused_with_what_to_do(card_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        check_size(str(card_path), "TNP", "smoke")
    assert str(raised.value) == LINE


def test_presets_that_have_one_are_named(tmp_path: Path) -> None:
    card = small_card()
    other = {**card["presets"]["smoke"], "backbones": {"tnp": {"width": 8}}}  # type: ignore[index]
    path = tmp_path / "two.toml"
    path.write_text(tomli_w.dumps(card | {"presets": {**card["presets"], "small": other}}))  # type: ignore[dict-item]
    assert str(missing_size(str(path), "tnp", "smoke")).endswith("-o backbone.width=N, or --preset small")
    assert missing_size(str(path), "tnp", "small") is None


@pytest.mark.parametrize(("given", "enough"), [("layers=2", True), ("encoder=linear", False), ("residual=none", False)])
def test_a_size_that_is_given_is_enough_and_another_setting_is_not(given: str, enough: bool, card_path: Path) -> None:
    assert (missing_size(str(card_path), "lbanp", "smoke", [f"backbone.{given}"]) is None) == enough
    config = card_path.with_name("given.toml")
    key, value = given.split("=")
    config.write_text(tomli_w.dumps({"backbone": {key: int(value) if value.isdecimal() else value}}))
    assert (missing_size(str(card_path), "lbanp", "smoke", config_file=config) is None) == enough


def test_the_papers_preset_means_the_papers_size() -> None:
    assert missing_size("linear", "tnp", "paper") is None
    assert "has no size for 'icicl-tnp'" in str(missing_size("linear", "icicl-tnp", "grid"))


def test_train_refuses_before_there_is_a_folder_and_goes_on_with_a_run_that_has_begun(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of an earlier version may have the backbone's own size: the same command still continues it."""
    command = ["train", str(card_path), "cnp", "-p", "smoke", "-o", "train.steps=2", "--results", str(tmp_path / "r")]
    assert main(command) == 2
    assert "error: preset 'smoke' of task 'tiny-linear' has no size for 'cnp'" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    assert main([*command, "-o", "backbone.width=128"]) == 0  # its own
    assert main(command) == 0
    assert "is finished" in capsys.readouterr().err


def test_a_plug_in_and_a_grid_are_told_once_and_go_on(
    card_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "iclbench")
    sizes.tell_once.cache_clear()
    for _ in range(2):
        check_size(str(card_path), "iclbench.backbones.cnp:CNP", "smoke")
    assert [record.message for record in caplog.records] == [
        "preset 'smoke' of task 'tiny-linear' has no size for 'iclbench.backbones.cnp:CNP', whose own is width 128; "
        "give -o backbone.width=N"
    ]
    caplog.clear()
    grid = {
        "summary": "two",
        "tasks": [str(card_path)],
        "backbones": ["gpt2", "tnp"],
        "presets": ["smoke"],
        "seeds": [0, 1],
    }
    (tmp_path / "grid.toml").write_text(tomli_w.dumps(grid))
    assert len(grid_runs(str(tmp_path / "grid.toml"))) == 4
    assert [record.message for record in caplog.records] == [LINE]
