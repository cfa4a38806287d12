"""Identities change if and only if something changes that results depend on."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from iclbench.cli.main import main
from iclbench.config import codes
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import RunConfig, resolve_run
from iclbench.deep_thinking.methods import parse_method
from iclbench.evaluation import contestants
from iclbench.evaluation.prompts import PromptSet
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES, MIXERS, Entry, Registry
from iclbench.store import identity
from iclbench.store.runs import Run
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.language_grids import language_cells
from tests.conftest import increase_code_version, small_card
from tests.refusals import refused


def grid(folder: Path) -> list[GridCell]:
    """Return the cells of a grid with all kinds of cells: three models on a tiny task, one of them with mixers."""
    card = small_card(baselines=["zero", "mean", "lasso-1e-2", "forest"])
    card["presets"]["smoke"]["backbones"]["mamba"] = {"layers": 1, "width": 16}  # type: ignore[index]
    mixers = {"layers": 2, "width": 16, "mixers": ["gla", "attention"]}
    card["presets"]["smoke"]["backbones"]["hybrid"] = mixers  # type: ignore[index]
    (folder / "tiny-linear.toml").write_text(tomli_w.dumps(card))
    grid_card = {
        "summary": "one task",
        "tasks": [str(folder / "tiny-linear.toml")],
        "backbones": ["gpt2", "mamba", "hybrid"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"shifts": ["orthants"]},
        "probe": {"contexts": {"smoke": [4]}},
        "cost": {"points": [4]},
    }
    (folder / "grid.toml").write_text(tomli_w.dumps(grid_card))
    return grid_cells([str(folder / "grid.toml")])


def changed_kinds(old_cells: list[GridCell], folder: Path) -> set[str]:
    """Return the kinds of cells whose identities have changed. Evaluations of baselines are a separate kind."""
    pairs = zip(old_cells, grid(folder), strict=True)
    return {
        "summary" if cell.is_summary else f"{cell.kind}{' baseline' if cell.baseline is not None else ''}"
        for old, cell in pairs
        if old.hash != cell.hash
    }


EVALUATED = {"evaluate", "evaluate baseline", "summary", "probe"}


@pytest.mark.parametrize(
    ("registry", "name", "code", "changed"),
    [
        (FAMILIES, "linear", "code", {"train", "cost", *EVALUATED}),
        (FAMILIES, "linear", "prompts", EVALUATED),
        (FAMILIES, "linear", "normaliser", EVALUATED),
        (BACKBONES, "mamba", "code", {"train", "cost", "evaluate", "summary", "probe"}),
        (MIXERS, "gla", "code", {"train", "cost", "evaluate", "summary", "probe"}),
        (MIXERS, "mamba2", "code", set()),
        (ESTIMATORS, "lasso", "code", {"evaluate baseline", "summary"}),
        (ESTIMATORS, "gradient-descent", "code", {"probe"}),
    ],
)
def test_a_new_code_version_of_a_class_changes_only_cells_that_depend_on_it(
    registry: Registry,
    name: str,
    code: str,
    changed: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = grid(tmp_path)
    assert {cell.hash for cell in cells} and changed_kinds(cells, tmp_path) == set()
    increase_code_version(monkeypatch, registry, name, code)
    assert changed_kinds(cells, tmp_path) == changed


# The codes in `iclbench.config.codes`, with the kinds of cells that depend on each of them.
CELLS_BY_CODE = {
    "LOSS": {"train", "cost", "evaluate", "summary", "probe"},
    "PROBE": {"probe"},
    "SUMMARY": {"summary"},
    "LIBRARY_MODEL": {"evaluate baseline", "summary"},
}
# The codes of evaluations of language models, with the identities that depend on each of them.
LANGUAGE_IDENTITIES_BY_CODE = {
    "LANGUAGE_METHOD": {"cell", "method", "model"},
    "LANGUAGE_PROMPTS": {"cell", "prompts"},
    "LANGUAGE_ANSWERS": {"cell", "model"},
    "LANGUAGE_MAJORITY": {"cell", "majority"},
}


def test_the_tests_below_increase_all_codes() -> None:
    assert {*CELLS_BY_CODE, *LANGUAGE_IDENTITIES_BY_CODE} == {
        name for name, value in vars(codes).items() if isinstance(value, int)
    }


@pytest.mark.parametrize(("code", "changed"), CELLS_BY_CODE.items())
def test_a_new_code_version_of_training_probes_summaries_or_library_models_changes_only_their_cells(
    code: str, changed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = grid(tmp_path)
    assert {cell.hash for cell in cells} and changed_kinds(cells, tmp_path) == set()
    monkeypatch.setattr(codes, code, getattr(codes, code) + 1)
    assert changed_kinds(cells, tmp_path) == changed


def language_identities() -> dict[str, str]:
    """Return the identities of a cell of a language grid, and of the parts of its evaluation."""
    cell = next(language_cells("mamba-icl-7"))
    method = parse_method("deep-thinking", []).hash
    return {
        "cell": cell.hash,
        "method": method,
        "prompts": LanguagePrompts(cell.task_config, 4, 16, 0, 0, "none").id,
        "model": identity.language_model_id("weights", method, "error", []),
        "majority": identity.majority_id(),
    }


@pytest.mark.parametrize(("code", "changed"), LANGUAGE_IDENTITIES_BY_CODE.items())
def test_a_new_code_version_of_language_evaluations_changes_their_cells_and_only_some_identities(
    code: str, changed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old_ids = language_identities()
    monkeypatch.setattr(codes, code, getattr(codes, code) + 1)
    new_ids = language_identities()
    assert {name for name in old_ids if old_ids[name] != new_ids[name]} == changed


def identities(run: RunConfig) -> dict[str, str]:
    """Return the identities of a training run, its prompt set, and the score of a baseline."""
    prompts = PromptSet(run.task, "smoke")
    (least_squares,) = contestants.baselines(prompts, ["least-squares"])
    score = identity.score_id(least_squares, prompts.id, run.task.family)
    return {"training": identity.run_id(run), "prompts": prompts.id, "score": score}


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("code", {"training", "prompts", "score"}),
        ("prompts", {"prompts", "score"}),
        ("normaliser", {"score"}),
    ],
)
def test_the_three_code_versions_of_a_family_change_different_identities(
    code: str, changed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old_ids = identities(resolve_run("linear", "gpt2", "smoke"))
    increase_code_version(monkeypatch, FAMILIES, "linear", code)
    new_ids = identities(resolve_run("linear", "gpt2", "smoke"))
    assert {name for name in old_ids if old_ids[name] != new_ids[name]} == changed


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("train.weight_decay=0.0", set()),  # this is the default
        ("task.renormalise=false", set()),
        ("task.protocol.head=point", set()),
        ("train.weight_decay=0.1", {"training"}),
        ("train.checkpoint_every=7", {"training"}),
        ("task.episodes=65", {"prompts", "score"}),
        ("task.noise=0.5", {"training", "prompts", "score"}),
    ],
)
def test_identities_depend_only_on_settings_that_differ_from_the_default(override: str, changed: set[str]) -> None:
    old_ids = identities(resolve_run("noisy-linear", "gpt2", "smoke"))
    new_ids = identities(resolve_run("noisy-linear", "gpt2", "smoke", overrides=[override]))
    assert {name for name in old_ids if old_ids[name] != new_ids[name]} == changed


class ExtendedSettings(TrainSettings):
    """Training settings with an additional key."""

    momentum: float = 0.0


def test_a_new_setting_with_its_default_does_not_change_identities() -> None:
    old: dict[str, Any] = identity.without_defaults(TrainSettings(steps=10))
    assert identity.without_defaults(ExtendedSettings(steps=10)) == old
    assert identity.without_defaults(ExtendedSettings(steps=10, momentum=0.0)) == old
    assert identity.without_defaults(ExtendedSettings(steps=10, momentum=0.9)) == old | {"momentum": 0.9}


def test_runs_that_differ_in_seed_or_monitoring_have_the_same_variant() -> None:
    default, other = (resolve_run("linear", "gpt2", "smoke", seed=seed) for seed in (0, 1))
    monitored = resolve_run("linear", "gpt2", "smoke", overrides=["train.log_every=3"])
    assert identity.variant_id(default) == identity.variant_id(other) == identity.variant_id(monitored)
    assert len({*map(identity.run_id, (default, other, monitored))}) == 3


def test_the_code_version_of_a_plug_in_is_the_hash_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spiral_net.py").write_text(
        "from iclbench.backbones.gpt2 import GPT2\nclass Net(GPT2):\n    '''Ours.'''\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BACKBONES.entries, "spiral", Entry("spiral_net:Net", package="spiral"))
    by_name, by_path = codes.of_backbone("spiral"), codes.of_backbone("spiral_net:Net")
    assert by_name == by_path and isinstance(by_name, str)
    assert resolve_run("linear", "spiral", "smoke").dump()["backbone"]["code"] == by_name
    assert resolve_run("linear", "gpt2", "smoke").dump()["backbone"]["code"] == 1
    assert codes.of_backbone("iclbench.backbones.gpt2:GPT2") == codes.of_backbone("gpt2") == 1


def test_the_code_version_of_a_hybrid_includes_its_mixers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from iclbench.layers.mixers.mamba2 import Mamba2\nclass Fading(Mamba2):\n    rate = 2\n"
    (tmp_path / "fading_mixer.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "fading_mixer")
    monkeypatch.setitem(MIXERS.entries, "fading", Entry("fading_mixer:Fading", package="fading"))

    def code(*mixers: str) -> codes.Code:
        return codes.of_backbone("hybrid", {"mixers": list(mixers)})

    assert code("mamba2", "attention") == [codes.of_backbone("hybrid"), 1, 1]
    assert code("hyena", "mamba2", "hyena") == [1, 2, 1]
    with_fading = code("fading", "hyena"), code("fading"), code("attention", "fading_mixer:Fading")
    run = resolve_run("linear", "hybrid", "smoke", overrides=['backbone.mixers=["attention", "fading_mixer:Fading"]'])
    assert run.backbone.settings["mixers"][1] == "fading_mixer:Fading" and run.backbone.code == with_fading[2]
    (tmp_path / "fading_mixer.py").write_text(source.replace("2\n", "3\n"))
    edited = code("fading", "hyena"), code("fading")
    assert edited[0] != with_fading[0] and edited[1] != with_fading[1] != with_fading[0]
    (tmp_path / "config.toml").write_text(tomli_w.dumps(run.dump()))
    with refused("code-changed", "'hybrid'", "iclbench rm"):
        Run(tmp_path).check_codes()


@pytest.mark.slow
def test_a_run_of_an_edited_plug_in_is_refused_until_the_sources_are_restored(
    tmp_path: Path, card_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "from iclbench.backbones.cnp import CNP\n\n\nclass EditedNet(CNP):\n    doubled = False\n"
    (tmp_path / "edited_net.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "edited_net")
    options = ["--results", str(tmp_path)]
    train = ["train", str(card_path), "edited_net:EditedNet", "-p", "smoke", "--name", "mine", *options]
    evaluate = ["eval", "mine", *options]
    assert main(train) == 0 and main(evaluate) == 0
    files = {path: path.read_bytes() for path in tmp_path.glob("tables/*/mine.values.parquet")}
    capsys.readouterr()
    (tmp_path / "edited_net.py").write_text(source.replace("False", "True"))
    for command in (train, evaluate):
        assert main(command) == 2
        (message,) = capsys.readouterr().err.strip().splitlines()
        assert "--name" in message and "iclbench rm mine" in message
    (tmp_path / "edited_net.py").write_text("# a comment\n" + source)
    assert main(train) == 0 and main(evaluate) == 0
    assert {path: path.read_bytes() for path in tmp_path.glob("tables/*/mine.values.parquet")} == files


@pytest.mark.slow
def test_results_and_weights_of_an_edited_plug_in_are_not_used(
    tmp_path: Path, card_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "from iclbench.backbones.cnp import CNP\n\n\nclass OtherNet(CNP):\n    doubled = False\n"
    (tmp_path / "other_net.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "other_net")
    options = ["-p", "smoke", "--results", str(tmp_path)]
    train = ["train", str(card_path), "other_net:OtherNet", "--name", "mine", *options]
    assert main(train) == 0 and main(["train", str(card_path), "gpt2", "--name", "another", *options]) == 0
    capsys.readouterr()
    assert main(["eval", *options[2:]]) == 0
    assert "\nmine " in capsys.readouterr().out
    (tmp_path / "other_net.py").write_text(source.replace("False", "True"))
    assert main(["eval", *options[2:]]) == 1
    printed = capsys.readouterr()
    assert "\nanother " in printed.out and "\nmine " not in printed.out and "'mine'" in printed.err
    assert main(["eval", "--json", *options[2:]]) == 1
    runs = {row["run"] for row in json.loads(capsys.readouterr().out)}
    assert "another" in runs and "mine" not in runs
    config = (tmp_path / "runs" / "mine" / "config.toml").read_bytes()
    (tmp_path / "runs" / "mine" / "config.toml").unlink()
    assert main(train) == 2
    assert str(tmp_path / "runs" / "mine") in capsys.readouterr().err
    assert not (tmp_path / "runs" / "mine" / "config.toml").exists()
    (tmp_path / "other_net.py").write_text(source)
    assert main(train) == 0 and (tmp_path / "runs" / "mine" / "config.toml").read_bytes() == config
