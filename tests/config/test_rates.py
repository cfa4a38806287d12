"""Tables of learning rates: which one is read, for whom, and what goes over what."""

import re
from pathlib import Path

import pytest
import tomli_w

from iclbench.cli.main import main
from iclbench.config.cards import card_file, load_task, names
from iclbench.config.rates import Rates, read_table, results_path, shipped_path
from iclbench.config.resolution import resolve_run
from iclbench.core.errors import UsageError
from iclbench.registry import BACKBONES
from iclbench.store.runs import Run, create, keeping_rate
from iclbench.sweep.grids import grid_runs
from tests.conftest import small_card


def table(train: dict[str, dict[str, object]], tasks: list[str], **changes: object) -> dict[str, object]:
    return {"tuned": [{"tasks": tasks, "steps": 4, "seeds": 3, "train": train, **changes}]}


def write(results: Path, preset: str, content: dict[str, object]) -> None:
    path = results_path(results, preset)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(content))


def test_shipped_tables_name_tasks_and_backbones_that_there_are() -> None:
    found = sorted(shipped_path("grid").parent.glob("*.toml"))
    assert shipped_path("grid") in found
    for path in found:
        for tuning in read_table(path).tuned:
            assert all(path.stem in load_task(task)[1].presets for task in tuning.tasks)
            assert tuning.on in ("", *tuning.tasks) or tuning.on in names("tasks")
            assert tuning.train.keys() <= BACKBONES.entries.keys()


def test_a_table_goes_over_the_card_and_the_user_over_the_table(tmp_path: Path) -> None:
    shipped = Rates.of("grid", "linear").chosen_settings
    assert resolve_run("linear", "mamba", "grid").train.lr == shipped["mamba"]["lr"]
    write(tmp_path, "grid", table({"mamba": {"lr": 0.25, "betas": [0.5, 0.75], "warmup": 7}}, ["linear"]))
    own = resolve_run("linear", "mamba", "grid", results=tmp_path).train
    assert (own.lr, own.betas, own.warmup) == (0.25, (0.5, 0.75), 7)
    assert resolve_run("linear", "gpt2", "grid", results=tmp_path).train.lr == shipped["gpt2"]["lr"]
    assert resolve_run("quadratic", "mamba", "grid", results=tmp_path).train.lr != 0.25
    typed = resolve_run("linear", "mamba", "grid", overrides=["train.lr=0.5"], results=tmp_path).train
    assert (typed.lr, typed.warmup) == (0.5, 7)


def test_a_variant_without_a_rate_takes_that_of_its_backbone_and_is_not_tuned(tmp_path: Path) -> None:
    write(tmp_path, "smoke", table({"gpt2": {"lr": 0.25}}, ["linear"]))
    rates = Rates.of("smoke", "linear", results=tmp_path)
    runs = {who: resolve_run("linear", who, "smoke", results=tmp_path).train for who in ("gpt2", "gpt2-rotary", "cnp")}
    assert runs["gpt2"].lr == runs["gpt2-rotary"].lr == 0.25 != runs["cnp"].lr
    found = {who: rates.is_chosen(who, train.model_dump(mode="json")) for who, train in runs.items()}
    assert found == {"gpt2": True, "gpt2-rotary": False, "cnp": False}
    assert not rates.is_chosen("gpt2", runs["gpt2"].model_dump(mode="json") | {"lr": 0.5})


def test_the_shipped_table_is_not_for_a_card_of_the_same_name(tmp_path: Path) -> None:
    card = tmp_path / "linear.toml"
    card.write_text(tomli_w.dumps(small_card() | {"presets": {"grid": small_card()["presets"]["smoke"]}}))
    assert resolve_run("linear", "mamba", "grid").train.lr != resolve_run(str(card), "mamba", "grid").train.lr
    assert resolve_run(str(card), "mamba", "grid").train.lr == small_card()["presets"]["smoke"]["train"]["lr"]


def test_the_shipped_table_is_for_a_copy_that_is_only_looked_at_more_often(tmp_path: Path) -> None:
    card, text = tmp_path / "linear.toml", card_file("linear").read_text()
    assert text.count("log_every = ") == 1
    card.write_text(re.sub("log_every = .*", "log_every = 7", text))
    copy, shipped = (resolve_run(name, "mamba", "grid") for name in (str(card), "linear"))
    assert copy.train.lr == shipped.train.lr and copy.task.card != shipped.task.card


def test_a_table_of_rates_names_backbones_in_either_spelling(tmp_path: Path) -> None:
    write(tmp_path, "smoke", table({"gpt2_learned": {"lr": 0.25}}, ["linear"]))
    assert resolve_run("linear", "gpt2-learned", "smoke", results=tmp_path).train.lr == 0.25


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (table({"gpt2": {"lr": 0}}, ["linear"]), r"smoke.toml: tuned.0.train.gpt2.lr: expected greater than 0, got 0"),
        (table({"gpt2": {"rate": 1.0}}, ["linear"]), r"unknown key 'tuned.0.train.gpt2.rate'"),
        (table({"gpt2": {"lr": 1.0}}, ["linear", "linear"]), "two rates for 'gpt2' on task 'linear'; leave one"),
    ],
)
def test_a_table_that_does_not_hold_is_one_line(tmp_path: Path, content: dict[str, object], line: str) -> None:
    write(tmp_path, "smoke", content)
    with pytest.raises(UsageError, match=line):
        resolve_run("linear", "gpt2", "smoke", results=tmp_path)


def test_a_run_that_has_begun_keeps_its_rate(tmp_path: Path, card_path: Path) -> None:
    """Whatever is chosen later; who types a rate is told that the run has another."""
    train = ["train", str(card_path), "gpt2", "-p", "smoke", "--results", str(tmp_path)]
    assert main(train) == 0
    before = Run(tmp_path / "runs" / "tiny-linear-gpt2-smoke-s0").config
    write(tmp_path, "smoke", table({"gpt2": {"lr": 0.25, "warmup": 1}}, ["tiny-linear"]))
    assert main(train) == 0
    now = resolve_run(str(card_path), "gpt2", "smoke", results=tmp_path)
    assert (now.train.lr, now.train.warmup) == (0.25, 1) and before.train.lr != 0.25
    assert keeping_rate(tmp_path, now).train == before.train
    assert keeping_rate(tmp_path, now, "another").train.lr == 0.25
    assert main([*train, "-o", "train.lr=0.25"]) == 2

    grid = {"summary": "", "tasks": [str(card_path)], "backbones": ["gpt2"], "presets": ["smoke"], "seeds": [0, 1]}
    (tmp_path / "grid.toml").write_text(tomli_w.dumps(grid))
    begun, new = grid_runs(str(tmp_path / "grid.toml"), results=tmp_path)
    assert begun.config.trained == before.trained and new.config.train.lr == 0.25
    assert create(tmp_path, begun.config).finished


def test_a_notebook_trains_with_the_rate_of_its_folder(tmp_path: Path, card_path: Path) -> None:
    import iclbench as icl

    write(tmp_path, "smoke", table({"gpt2": {"lr": 0.25}}, ["tiny-linear"]))
    tiny = icl.task(card_path, "smoke")
    run = icl.train(tiny, "gpt2", results=tmp_path, progress=False)
    assert run.config.train.lr == 0.25
    write(tmp_path, "smoke", table({"gpt2": {"lr": 0.5}}, ["tiny-linear"]))
    assert icl.train(tiny, "gpt2", results=tmp_path, progress=False).config.train.lr == 0.25
