"""What results are kept under: hashes of version 0.1.0 stay, and other code never answers under an old one."""

import fnmatch
import json
from pathlib import Path
from typing import Annotated

import pytest
import tomli_w

from iclbench.cli.main import main
from iclbench.config import cards, codes
from iclbench.config import resolution as config
from iclbench.config.cards import Added, BaselineCard, Strict, TrainSettings
from iclbench.core.hashing import content_hash
from iclbench.config.registry import BACKBONES, ESTIMATORS, FAMILIES, MIXERS, Entry
from iclbench.config.resolution import resolve_run
from iclbench.config.runs import CodeChangedError, Run
from iclbench.evaluation.prompts import PromptSet
from iclbench.sweep.cells import GridCell, grid_cells
from tests.conftest import raise_code

V0_1_0 = Path(__file__).parent / "fixtures" / "v0_1_0"

# Cells of the grid `reference` whose hash is no longer that of version 0.1.0, by the beginning of "GROUP RUN KIND" (`*`
# stands for anything), and why. Whoever adds a line takes the cells out of `results/reference` in the same commit.
CHANGED: dict[str, str] = {
    "image-completion-grid * evaluate": "at preset grid images have 2,048 prompts, since a handful of 256 decided",
    "gp-mixture-* evaluate": "frozen prompts are stratified by kernel, lengthscale and context size; trainings stay",
    "linear-10-small ridge evaluate": "oracles stand beside whatever baselines a grid names",
    "image-completion-* mean-image ": "a baseline that 0.1.0 did not have",
    "point-process-grid ": "a row of events, which the grid did not have",
    **dict.fromkeys(
        ("* oracle-features evaluate", "* oracle-supports evaluate"), "optima that were not known to be there"
    ),
    **dict.fromkeys(
        ("*-grid-s", "*-small-s"), "backbones have the size of a budget of parameters; grid trains otherwise"
    ),
    **dict.fromkeys(("*-grid summary", "*-small summary"), "so do those whose rows are summed up"),
}


def described(cell: GridCell) -> str:
    probe = f" {cell.asked['probe']}" if cell.kind == "probe" else ""
    return f"{cell.group} {cell.run} {cell.kind}{probe}"


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return {described(cell): cell.hash for cell in grid_cells(["reference"])}


def test_cells_of_the_reference_keep_the_hashes_of_0_1_0_but_for_those_listed(reference: dict[str, str]) -> None:
    old = json.loads((V0_1_0 / "reference-cells.json").read_text())
    moved = {name for name in old.keys() | reference.keys() if old.get(name) != reference.get(name)}
    explained = {listed: fnmatch.filter(moved, f"{listed}*") for listed in CHANGED}
    assert moved - {name for names in explained.values() for name in names} == set()
    assert all(explained.values()), "a reason without a change"


def models() -> list[type[Strict]]:
    registered = [
        *(FAMILIES.get(name).Parameters for name in FAMILIES.names()),
        *(BACKBONES.get(name).Settings for name in BACKBONES.names()),
        *(ESTIMATORS.get(name).Settings for name in ESTIMATORS.names()),
    ]
    own = [config.RunConfig, config.TaskConfig, config.BackboneConfig, cards.TaskCard, cards.Preset, cards.Published]
    return [*registered, *own, TrainSettings, cards.Curriculum, cards.Ramp, BaselineCard]


def test_every_key_that_0_1_0_did_not_have_is_marked_as_added() -> None:
    old = json.loads((V0_1_0 / "keys.json").read_text())
    for model in models():
        name = f"{model.__module__.removeprefix('iclbench.')}:{model.__name__}"
        if name in old:  # a class that came later has no hashes to keep
            assert model.model_fields.keys() - old[name] == model.added().keys(), name
            assert set(old[name]) <= model.model_fields.keys(), name


class Grown(TrainSettings):
    """Training settings with a key of a later version."""

    momentum: Annotated[float, Added("0.2.0")] = 0.0


def test_an_added_key_enters_no_hash_while_it_has_its_default() -> None:
    old, new = TrainSettings(steps=10), Grown(steps=10)
    assert content_hash(new) == content_hash(old) and "momentum" not in new.model_dump()
    assert content_hash(Grown(steps=10, momentum=0.0)) == content_hash(old)
    assert content_hash(Grown(steps=10, momentum=0.9)) != content_hash(old)
    assert Grown.model_validate(Grown(steps=10, momentum=0.9).model_dump()).momentum == 0.9
    assert hashed_settings(Grown, {"steps": 10, "momentum": 0.0}) == {"steps": 10}
    assert hashed_settings(Grown, {"steps": 10, "momentum": 0.9}) == {"steps": 10, "momentum": 0.9}


# What is raised, and a word that the cells of `reference` have in common that depend on it.
RAISED = {
    (FAMILIES, "relu-network"): "relu-network-",
    (ESTIMATORS, "lasso"): " lasso",
    (BACKBONES, "mamba"): "-mamba-",
}


def test_raised_numbers_set_their_own_cells_to_do_and_no_others(
    reference: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry, name in RAISED:
        raise_code(monkeypatch, registry, name, 2)
    moved = {described(c) for c in grid_cells(["reference"]) if reference[described(c)] != c.hash}
    own = {each for each in reference if any(word in each for word in RAISED.values())}
    assert moved == own | {f"{each.split()[0]} summary evaluate" for each in own}
    assert len(own) < len(reference) / 3


def test_a_raised_normaliser_has_its_tasks_scored_again_and_nothing_trained_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def identities(task: str) -> tuple[str, str, str]:
        run = resolve_run(task, "gpt2", "smoke")
        cell = GridCell("evaluate", "a run", "gpt2", run.task, "smoke", run)
        return content_hash(run.trained), PromptSet(run.task, "smoke").id, cell.hash

    shared, other = identities("relu-network-shared"), identities("relu-network")
    again = codes.Raise("relu-network", "normaliser", ("shared_hidden", True))
    monkeypatch.setattr(versions, "RAISES", [*codes.RAISES, again])
    trained, *scored = identities("relu-network-shared")
    assert trained == shared[0] and not set(scored) & set(shared)
    assert identities("relu-network") == other
    for name in ("relu-network", "iclbench.families.relu_network:ReluNetwork"):
        assert codes.of_normaliser(name, {"shared_hidden": True}) == {"normaliser": 3}


def test_a_number_raised_for_some_parameters_leaves_all_others_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, anchors = (
        resolve_run("bursty", "gpt2", "smoke", overrides=[f"task.anchor_compat={v}"]) for v in ("false", "true")
    )
    assert "code" not in plain.dump()["task"] and anchors.dump()["task"]["code"] == 2
    raise_code(monkeypatch, FAMILIES, "bursty", 5)
    for name in ("bursty", "iclbench.families.images.bursty:Bursty"):
        numbers = [codes.of_family(name, {"anchor_compat": value}) for value in (True, False)]
        assert numbers == [6, 5], "raised once more than for all parameters"
    names = {each.name for each in codes.RAISES if each.of not in ("rows", "weights")}
    assert names <= set(FAMILIES.names())


def test_a_number_raised_for_a_head_leaves_runs_with_others_as_they_were() -> None:
    """CoQE's first answer of several components, which stayed one."""
    codes = {task: resolve_run(task, "coqe-learned", "grid").backbone.code for task in ("point-process", "gp-mixture")}
    assert codes == {"point-process": 2, "gp-mixture": None}
    for name in ("coqe", "iclbench.backbones.coqe:CoQE"):
        numbers = [codes.of_backbone(name, head=head) for head in ("event", "mixture", "gaussian")]
        assert numbers == [2, 2, 1]
    assert codes.of_backbone("gpt2", head="event") == 1


@pytest.mark.parametrize(
    ("task", "preset", "overrides", "loss"),
    [
        ("linear", "smoke", [], None),
        ("tabular", "smoke", [], None),
        ("bursty", "smoke", [], None),
        ("gp-mixture", "paper", [], None),
        ("gp-mixture", "paper", ["task.context_targets=true"], codes.LOSS),
        ("image-completion", "small", [], None),  # 128 targets of at least 320 pixels that are left
        ("image-completion", "small", ["task.targets=320"], None),
        ("image-completion", "small", ["task.targets=321"], codes.LOSS),
        ("image-completion", "paper", [], codes.LOSS),
        ("image-completion-emnist", "smoke", [], codes.LOSS),
    ],
)
def test_where_episodes_differ_in_their_scored_points_a_run_is_not_one_of_0_1_0(
    task: str, preset: str, overrides: list[str], loss: int | None
) -> None:
    run = resolve_run(task, "cnp", preset, overrides=overrides)
    assert run.loss == run.trained.get("loss") == loss
    assert run.variant != run.model_copy(update={"loss": 7}).variant


@pytest.mark.parametrize(
    ("backbone", "loss"),
    [("cnp", codes.LOSS_OF_EVERY_EVENT), ("icicl-cnp", codes.LOSS_OF_EVERY_EVENT), ("tnp", None)],
)
def test_who_learns_from_every_event_is_not_one_that_learned_from_one_of_each_sequence(
    backbone: str, loss: int | None
) -> None:
    assert resolve_run("point-process", backbone, "smoke").loss == loss


def test_a_family_that_does_not_say_whether_they_differ_is_not_served_what_0_1_0_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICLBENCH_TRUST", "tests")
    card = {"family": "tests.prototypes:Prototypes", "summary": "x", "question": "targets", "head": "categorical"}
    preset = {"points": 6, "episodes": 4, "train": {"steps": 1}}
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps({**card, "presets": {"smoke": preset}}))
    assert resolve_run(str(path), "cnp", "smoke").loss == codes.LOSS


def test_a_plug_in_is_known_by_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spiral_net.py").write_text(
        "from iclbench.backbones.gpt2 import GPT2\nclass Net(GPT2):\n    '''Ours.'''\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BACKBONES.entries, "spiral", Entry("spiral_net:Net", package="spiral"))
    by_name, by_path = codes.of_backbone("spiral"), codes.of_backbone("spiral_net:Net")
    assert by_name == by_path and isinstance(by_name, str)
    assert resolve_run("linear", "spiral", "smoke").dump()["backbone"]["code"] == by_name
    assert "code" not in resolve_run("linear", "gpt2", "smoke").dump()["backbone"]
    assert codes.of_backbone("iclbench.backbones.gpt2:GPT2") == codes.of_backbone("gpt2") == 1


def test_a_hybrid_is_known_by_its_mixers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from iclbench.layers.mixers.mamba2 import Mamba2\nclass Fading(Mamba2):\n    rate = 2\n"
    (tmp_path / "fading_mixer.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "fading_mixer")
    monkeypatch.setitem(MIXERS.entries, "fading", Entry("fading_mixer:Fading", package="fading"))

    def code(*mixers: str) -> codes.Code:
        return codes.of_backbone("hybrid", {"mixers": list(mixers)})

    assert code("mamba2", "attention") == codes.of_backbone("hybrid") == 1, "old hashes stand"
    assert code("hyena", "mamba2", "hyena") == codes.of_backbone("hyena") == 2
    with_fading = code("fading", "hyena"), code("fading"), code("fading_mixer:Fading")
    assert all(isinstance(each, str) for each in with_fading)
    run = resolve_run("linear", "hybrid", "smoke", overrides=['backbone.mixers=["attention", "fading_mixer:Fading"]'])
    assert run.backbone.settings["mixers"][1] == "fading_mixer:Fading" and run.backbone.code == with_fading[1]
    (tmp_path / "fading_mixer.py").write_text(source.replace("2\n", "3\n"))
    edited = code("fading", "hyena"), code("fading")
    assert edited[0] != with_fading[0] and edited[1] != with_fading[1] != with_fading[0]
    (tmp_path / "config.toml").write_text(tomli_w.dumps(run.dump()))
    with pytest.raises(CodeChangedError, match="the sources of 'hybrid' are not those"):
        Run(tmp_path).check_codes()


def test_a_number_of_the_backbone_is_part_of_what_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    before = resolve_run("linear", "mamba", "smoke")
    raise_code(monkeypatch, BACKBONES, "mamba", 2)
    after = resolve_run("linear", "mamba", "smoke")
    assert before.trained != after.trained and before.variant != after.variant
    assert after.dump()["backbone"]["code"] == 2


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
    assert main(["adopt", "mine", *where]) == 2, "it is known what it was trained with"
    (tmp_path / "edited_net.py").write_text("# as it was\n" + source)
    assert main(train) == 0 and main(evaluate) == 0
    assert {path: path.read_bytes() for path in tmp_path.glob("tables/*/mine.values.parquet")} == cells


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
