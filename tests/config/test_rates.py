"""Tables of learning rates: which table applies, and precedence over cards and options."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import tomli_w

from iclbench.cli.main import main
from iclbench.config.cards import card_file, card_names, load_task
from iclbench.config.rates import Rates, read_table, shipped_path
from iclbench.config.resolution import RunConfig, resolve_run
from iclbench.registry import BACKBONES
from iclbench.store.rates import read_rates, results_path
from iclbench.store.runs import Run, create, with_rates_of_started_run
from iclbench.sweep.grids import grid_runs
from tests.conftest import small_card
from tests.refusals import refused


def table(train: dict[str, dict[str, object]], tasks: list[str], **changes: object) -> dict[str, object]:
    return {"tuned": [{"tasks": tasks, "steps": 4, "seeds": 3, "train": train, **changes}]}


def write(results: Path, preset: str, content: dict[str, object]) -> None:
    path = results_path(results, preset)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(content))


def tuned_run(results: Path, task: str, backbone: str, preset: str, overrides: Sequence[str] = ()) -> RunConfig:
    return resolve_run(task, backbone, preset, overrides=overrides, read_rates=partial(read_rates, results))


def test_tasks_and_backbones_of_shipped_tables_exist() -> None:
    paths = sorted(shipped_path("grid").parent.glob("*.toml"))
    assert shipped_path("grid") in paths
    for path in paths:
        for tuning in read_table(path).tuned:
            assert all(path.stem in load_task(task)[1].presets for task in tuning.tasks)
            assert tuning.on in ("", *tuning.tasks) or tuning.on in card_names("tasks")
            assert tuning.train.keys() <= BACKBONES.entries.keys()


def test_rates_in_a_table_override_the_card_and_options_override_both(tmp_path: Path) -> None:
    shipped = Rates.of("grid", "linear").chosen_settings
    assert resolve_run("linear", "mamba", "grid").train.lr == shipped["mamba"]["lr"]
    write(tmp_path, "grid", table({"mamba": {"lr": 0.25, "betas": [0.5, 0.75], "warmup": 7}}, ["linear"]))
    tuned = tuned_run(tmp_path, "linear", "mamba", "grid").train
    assert (tuned.lr, tuned.betas, tuned.warmup) == (0.25, (0.5, 0.75), 7)
    assert tuned_run(tmp_path, "linear", "gpt2", "grid").train.lr == shipped["gpt2"]["lr"]
    assert tuned_run(tmp_path, "quadratic", "mamba", "grid").train.lr != 0.25
    overridden = tuned_run(tmp_path, "linear", "mamba", "grid", overrides=["train.lr=0.5"]).train
    assert (overridden.lr, overridden.warmup) == (0.5, 7)


def test_a_variant_without_a_rate_uses_the_rate_of_its_backbone_but_counts_as_untuned(tmp_path: Path) -> None:
    write(tmp_path, "smoke", table({"gpt2": {"lr": 0.25}}, ["linear"]))
    rates = Rates.of("smoke", "linear", results_table=read_rates(tmp_path, "smoke"))
    names = ("gpt2", "gpt2-rotary", "cnp")
    settings = {name: tuned_run(tmp_path, "linear", name, "smoke").train for name in names}
    assert settings["gpt2"].lr == settings["gpt2-rotary"].lr == 0.25 != settings["cnp"].lr
    is_chosen = {name: rates.is_chosen(name, train.model_dump(mode="json")) for name, train in settings.items()}
    assert is_chosen == {"gpt2": True, "gpt2-rotary": False, "cnp": False}
    assert not rates.is_chosen("gpt2", settings["gpt2"].model_dump(mode="json") | {"lr": 0.5})


def test_the_shipped_table_is_not_used_for_a_different_card_with_the_same_name(tmp_path: Path) -> None:
    card = tmp_path / "linear.toml"
    card.write_text(tomli_w.dumps(small_card() | {"presets": {"grid": small_card()["presets"]["smoke"]}}))
    assert resolve_run("linear", "mamba", "grid").train.lr != resolve_run(str(card), "mamba", "grid").train.lr
    assert resolve_run(str(card), "mamba", "grid").train.lr == small_card()["presets"]["smoke"]["train"]["lr"]


def test_the_shipped_table_is_used_for_a_copy_that_differs_only_in_logging(tmp_path: Path) -> None:
    card, text = tmp_path / "linear.toml", card_file("linear").read_text()
    assert text.count("log_every = ") == 1
    card.write_text(re.sub("log_every = .*", "log_every = 7", text))
    copy, shipped = (resolve_run(name, "mamba", "grid") for name in (str(card), "linear"))
    assert copy.train.lr == shipped.train.lr and copy.task.card != shipped.task.card


def test_backbone_names_in_a_table_are_normalised(tmp_path: Path) -> None:
    write(tmp_path, "smoke", table({"gpt2_learned": {"lr": 0.25}}, ["linear"]))
    assert tuned_run(tmp_path, "linear", "gpt2-learned", "smoke").train.lr == 0.25


@pytest.mark.parametrize(
    ("content", "code", "names"),
    [
        (table({"gpt2": {"lr": 0}}, ["linear"]), "bad-value", ["smoke.toml", "tuned.0.train.gpt2.lr", 0]),
        (table({"gpt2": {"rate": 1.0}}, ["linear"]), "unknown-name", ["smoke.toml", "'tuned.0.train.gpt2.rate'"]),
        (table({"gpt2": {"lr": 1.0}}, ["linear", "linear"]), "bad-value", ["smoke.toml", "'gpt2'", "'linear'"]),
    ],
)
def test_an_invalid_table_is_refused(
    tmp_path: Path, content: dict[str, object], code: str, names: list[object]
) -> None:
    write(tmp_path, "smoke", content)
    with refused(code, *names):
        tuned_run(tmp_path, "linear", "gpt2", "smoke")


def test_the_table_is_read_only_after_the_preset_has_been_checked(tmp_path: Path) -> None:
    with refused("unknown-name", "preset", "'linear'"):
        tuned_run(tmp_path, "linear", "gpt2", "p" * 300)  # too long for the name of a file


def test_a_started_run_keeps_its_learning_rate(tmp_path: Path, card_path: Path) -> None:
    """A learning rate on the command line that differs from the rate of the run is an error."""
    train = ["train", str(card_path), "gpt2", "-p", "smoke", "--results", str(tmp_path)]
    assert main(train) == 0
    started = Run(tmp_path / "runs" / "tiny-linear-gpt2-smoke-s0").config
    write(tmp_path, "smoke", table({"gpt2": {"lr": 0.25, "warmup": 1}}, ["tiny-linear"]))
    assert main(train) == 0
    tuned = tuned_run(tmp_path, str(card_path), "gpt2", "smoke")
    assert (tuned.train.lr, tuned.train.warmup) == (0.25, 1) and started.train.lr != 0.25
    assert with_rates_of_started_run(tmp_path, tuned).train == started.train
    assert with_rates_of_started_run(tmp_path, tuned, "another").train.lr == 0.25
    assert main([*train, "-o", "train.lr=0.25"]) == 2

    grid = {"summary": "", "tasks": [str(card_path)], "backbones": ["gpt2"], "presets": ["smoke"], "seeds": [0, 1]}
    (tmp_path / "grid.toml").write_text(tomli_w.dumps(grid))
    started_run, new_run = grid_runs(str(tmp_path / "grid.toml"), results=tmp_path)
    assert started_run.config.trained_part == started.trained_part and new_run.config.train.lr == 0.25
    assert create(tmp_path, started_run.config).is_finished


def test_the_python_api_uses_the_rates_of_the_results_folder(tmp_path: Path, card_path: Path) -> None:
    import iclbench as icl

    write(tmp_path, "smoke", table({"gpt2": {"lr": 0.25}}, ["tiny-linear"]))
    tiny = icl.task(card_path, "smoke")
    run = icl.train(tiny, "gpt2", results=tmp_path, progress=False)
    assert run.config.train.lr == 0.25
    write(tmp_path, "smoke", table({"gpt2": {"lr": 0.5}}, ["tiny-linear"]))
    assert icl.train(tiny, "gpt2", results=tmp_path, progress=False).config.train.lr == 0.25
