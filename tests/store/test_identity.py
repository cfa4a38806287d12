"""Identities depend on what results depend on, and on nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from iclbench.cli.main import main
from iclbench.config import codes
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import RunConfig, resolve_run
from iclbench.evaluation import contestants
from iclbench.evaluation.prompts import PromptSet
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES, MIXERS, Entry, Registry
from iclbench.store import identity
from iclbench.store.runs import CodeChangedError, Run
from iclbench.sweep.cells import GridCell, grid_cells
from tests.conftest import raise_code, small_card


def grid(folder: Path) -> list[GridCell]:
    """Two models on a tiny task, with all kinds of cells."""
    card = small_card(baselines=["zero", "mean", "lasso-1e-2"])
    card["presets"]["smoke"]["backbones"]["mamba"] = {"layers": 1, "width": 16}  # type: ignore[index]
    (folder / "tiny-linear.toml").write_text(tomli_w.dumps(card))
    asked = {
        "summary": "one task",
        "tasks": [str(folder / "tiny-linear.toml")],
        "backbones": ["gpt2", "mamba"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"shifts": ["orthants"]},
        "probe": {"contexts": {"smoke": [4]}},
        "cost": {"points": [4]},
    }
    (folder / "grid.toml").write_text(tomli_w.dumps(asked))
    return grid_cells([str(folder / "grid.toml")])


def kinds_to_do(before: list[GridCell], folder: Path) -> set[str]:
    """The kinds of cells whose identity has changed; evaluations by what is scored."""
    pairs = zip(before, grid(folder), strict=True)
    return {
        "summary" if cell.is_summary else f"{cell.kind}{' baseline' if cell.baseline is not None else ''}"
        for old, cell in pairs
        if old.hash != cell.hash
    }


EVALUATED = {"evaluate", "evaluate baseline", "summary", "probe"}


@pytest.mark.parametrize(
    ("registry", "name", "code", "to_do"),
    [
        (FAMILIES, "linear", "code", {"train", "cost", *EVALUATED}),
        (FAMILIES, "linear", "prompts", EVALUATED),
        (FAMILIES, "linear", "normaliser", EVALUATED),
        (BACKBONES, "mamba", "code", {"train", "cost", "evaluate", "summary", "probe"}),
        (MIXERS, "mamba2", "code", set()),
        (ESTIMATORS, "lasso", "code", {"evaluate baseline", "summary"}),
        (ESTIMATORS, "gradient-descent", "code", {"probe"}),
    ],
)
def test_a_raised_code_leaves_these_kinds_of_cells_to_do(
    registry: Registry,
    name: str,
    code: str,
    to_do: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = grid(tmp_path)
    assert {cell.hash for cell in before} and kinds_to_do(before, tmp_path) == set()
    raise_code(monkeypatch, registry, name, code)
    assert kinds_to_do(before, tmp_path) == to_do


@pytest.mark.parametrize(
    ("code", "to_do"),
    [("LOSS", {"train", "cost", "evaluate", "summary", "probe"}), ("PROBE", {"probe"}), ("SUMMARY", {"summary"})],
)
def test_a_raised_code_of_training_probes_or_summaries_leaves_these_cells_to_do(
    code: str, to_do: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = grid(tmp_path)
    assert {cell.hash for cell in before} and kinds_to_do(before, tmp_path) == set()
    monkeypatch.setattr(codes, code, 2)
    assert kinds_to_do(before, tmp_path) == to_do


def identities(run: RunConfig) -> dict[str, str]:
    """Those of a training, of its prompt set and of the score of a baseline on it."""
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
def test_a_family_has_three_codes(code: str, changed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = identities(resolve_run("linear", "gpt2", "smoke"))
    raise_code(monkeypatch, FAMILIES, "linear", code)
    after = identities(resolve_run("linear", "gpt2", "smoke"))
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("train.weight_decay=0.0", set()),  # the default
        ("task.renormalise=false", set()),
        ("task.protocol.head=point", set()),
        ("train.weight_decay=0.1", {"training"}),
        ("train.checkpoint_every=7", {"training"}),
        ("task.episodes=65", {"prompts", "score"}),
        ("task.noise=0.5", {"training", "prompts", "score"}),
    ],
)
def test_settings_count_unless_they_equal_their_default(override: str, changed: set[str]) -> None:
    before = identities(resolve_run("noisy-linear", "gpt2", "smoke"))
    after = identities(resolve_run("noisy-linear", "gpt2", "smoke", overrides=[override]))
    assert {name for name in before if before[name] != after[name]} == changed


class Grown(TrainSettings):
    """Training settings with a further key."""

    momentum: float = 0.0


def test_a_further_key_with_a_default_changes_no_identity() -> None:
    old: dict[str, Any] = identity.without_defaults(TrainSettings(steps=10))
    assert identity.without_defaults(Grown(steps=10)) == old
    assert identity.without_defaults(Grown(steps=10, momentum=0.0)) == old
    assert identity.without_defaults(Grown(steps=10, momentum=0.9)) == old | {"momentum": 0.9}


def test_runs_that_differ_in_their_seed_or_in_what_observes_them_are_one_variant() -> None:
    plain, other = (resolve_run("linear", "gpt2", "smoke", seed=seed) for seed in (0, 1))
    observed = resolve_run("linear", "gpt2", "smoke", overrides=["train.log_every=3"])
    assert identity.variant_id(plain) == identity.variant_id(other) == identity.variant_id(observed)
    assert len({*map(identity.run_id, (plain, other, observed))}) == 3


def test_a_plug_in_is_known_by_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_hybrid_is_known_by_its_mixers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(CodeChangedError, match="the sources of 'hybrid' are not those"):
        Run(tmp_path).check_codes()


def test_a_run_whose_plug_in_was_edited_is_refused_until_the_sources_are_back(
    tmp_path: Path, card_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "from iclbench.backbones.cnp import CNP\n\n\nclass EditedNet(CNP):\n    doubled = False\n"
    (tmp_path / "edited_net.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "edited_net")
    where = ["--results", str(tmp_path)]
    train = ["train", str(card_path), "edited_net:EditedNet", "-p", "smoke", "--name", "mine", *where]
    evaluate = ["eval", "mine", *where]
    assert main(train) == 0 and main(evaluate) == 0
    cells = {path: path.read_bytes() for path in tmp_path.glob("tables/*/mine.values.parquet")}
    capsys.readouterr()
    (tmp_path / "edited_net.py").write_text(source.replace("False", "True"))
    for command in (train, evaluate):
        assert main(command) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 1 and "--name" in said[0] and "iclbench rm mine" in said[0]
    (tmp_path / "edited_net.py").write_text("# as it was\n" + source)
    assert main(train) == 0 and main(evaluate) == 0
    assert {path: path.read_bytes() for path in tmp_path.glob("tables/*/mine.values.parquet")} == cells


@pytest.mark.slow
def test_rows_of_an_edited_plug_in_are_not_printed_beside_others_and_its_weights_do_not_pass_for_those_of_today(
    tmp_path: Path, card_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "from iclbench.backbones.cnp import CNP\n\n\nclass OtherNet(CNP):\n    doubled = False\n"
    (tmp_path / "other_net.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "other_net")
    where = ["-p", "smoke", "--results", str(tmp_path)]
    train = ["train", str(card_path), "other_net:OtherNet", "--name", "mine", *where]
    assert main(train) == 0 and main(["train", str(card_path), "gpt2", "--name", "another", *where]) == 0
    capsys.readouterr()
    assert main(["eval", *where[2:]]) == 0
    assert "\nmine " in capsys.readouterr().out
    (tmp_path / "other_net.py").write_text(source.replace("False", "True"))
    assert main(["eval", *where[2:]]) == 1
    said = capsys.readouterr()
    assert "\nanother " in said.out and "\nmine " not in said.out and "skipped run 'mine'" in said.err
    assert main(["eval", "--json", *where[2:]]) == 1
    printed = {row["run"] for row in json.loads(capsys.readouterr().out)}
    assert "another" in printed and "mine" not in printed
    kept = (tmp_path / "runs" / "mine" / "config.toml").read_bytes()
    (tmp_path / "runs" / "mine" / "config.toml").unlink()
    assert main(train) == 2
    said = capsys.readouterr()
    assert "other sources" in said.err and not (tmp_path / "runs" / "mine" / "config.toml").exists()
    (tmp_path / "other_net.py").write_text(source)
    assert main(train) == 0 and (tmp_path / "runs" / "mine" / "config.toml").read_bytes() == kept
