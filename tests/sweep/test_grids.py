"""Grid cards: the shipped ones name every cell of the papers' figures, and what they stand for can be typed."""

import io
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from iclbench.backbones.coqe import CoQESettings
from iclbench.cli.lazy import load
from iclbench.cli.main import main
from iclbench.config.cards import load_baseline, load_task, names
from iclbench.config.resolution import resolve_run
from iclbench.core.errors import UsageError
from iclbench.store.runs import check_name
from iclbench.sweep.grids import GridCard, GridPart, GridRun, grid_runs, is_grid, load_grid
from iclbench.sweep.language_grids import is_language_grid
from iclbench.training.schedule import learning_rate

ROOT = Path(__file__).parents[2]
# Those of language models have tests of their own.
SHIPPED = [name for name in names("grids") if not is_language_grid(name)]
# Those whose commands alone take seconds to read: `make test-slow` has them, and every test run the cells of the first.
LARGE = ("reference", "steps", "cmab-table-2-celeba")
CARD = {
    "summary": "a test",
    "tasks": ["linear", "skewed-linear"],
    "backbones": ["gpt2"],
    "presets": ["smoke", "small"],
    "seeds": [0, 1],
}
# A further part of it, of other runs.
PART = {"tasks": ["linear"], "backbones": ["mamba"], "presets": ["smoke"], "seeds": [0]}
# What the text of the paper says of its figures, at the paper's size.
PAPER = {
    "mamba-icl-1": ({"skewed-linear"}, {"gpt2", "mamba", "s4d"}, 3),
    "mamba-icl-2": ({"sparse-linear", "relu-network", "decision-tree"}, {"gpt2", "mamba"}, 3),
    "mamba-icl-3": ({"skewed-linear", "sparse-linear", "relu-network", "decision-tree"}, {"gpt2", "mamba"}, 1),
    "mamba-icl-4": ({"skewed-linear"}, {"gpt2", "mamba"}, 1),
    "mamba-icl-8": ({"linear"}, {"gpt2", "mamba"}, 1),
    "mamba-icl-9": ({"linear"}, {"gpt2", "mamba"}, 1),
    "mamba-icl-10": ({"skewed-linear"}, {"gpt2", "mamba"}, 3),
}
# The same of CoQE's, whose text gives no seeds: the levels of P_bursty and alpha, or the classes of functions.
OF = ("", "-p0", "-p50", "-p100", "-alpha1", "-alpha2")
LEVELS = {f"bursty{images}{level}" for images in ("", "-omniglot") for level in OF}
ALPHA_1 = {"bursty-alpha1", "bursty-omniglot-alpha1"}
# The released code of CoQE learns positions, in the Transformer beside it too.
POSITIONS = {"gpt2", "coqe", "gpt2-learned", "coqe-learned"}
COQE = {
    "coqe-3": ({"linear-10", "sparse-linear-10", "relu-network-shared", "combination"}, POSITIONS, 3),
    "coqe-4": (LEVELS, {"transformer", "coqe"}, 3),
    "coqe-4-sizes": (LEVELS, {"transformer"}, 3),
    "coqe-5": (LEVELS, {"transformer", "coqe"}, 1),
    "coqe-6": ({"combination"}, {"coqe", "coqe-learned"}, 3),
    "coqe-table-1": (ALPHA_1, {"coqe"}, 3),
    "coqe-table-2": (ALPHA_1, {"coqe", "transformer"}, 3),
}


# A grid takes up to seconds, and nobody can change one of its runs.
resolved = cache(grid_runs)


def write(folder: Path, card: dict[str, object], name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(tomli_w.dumps(card), encoding="utf-8")
    return str(path)


def words(run: GridRun) -> Iterator[list[str]]:
    for line in run.commands():
        assert "\n" not in line
        yield shlex.split(line)


def test_every_figure_of_the_simple_functions_has_a_card() -> None:
    assert {*PAPER, *COQE} <= set(SHIPPED)


@pytest.mark.parametrize("grid", [*PAPER, *COQE])
def test_a_card_has_the_tasks_backbones_and_seeds_of_its_figure(grid: str) -> None:
    tasks, backbones, seeds = (PAPER | COQE)[grid]
    for preset in ("small", "paper"):
        runs = resolved(grid, preset)
        assert {run.config.task.name for run in runs} == tasks
        assert {run.config.backbone.name for run in runs} == backbones
        assert {run.config.seed for run in runs} == set(range(seeds))


def test_the_network_of_figure_3_takes_the_50_steps_of_the_released_code() -> None:
    assert {run.baselines for run in resolved("coqe-3")} == {("zero", "least-squares", "lasso-1e-2", "mlp-50")}
    assert "mlp-50" in load_task("relu-network-shared")[1].baselines
    assert load_baseline("mlp-50")[1].settings == {"steps": 50, "lr": 5e-3}


def covering(runs: list[GridRun]) -> list[GridRun]:
    """Every task, every backbone and every change of settings at least once."""
    met: set[tuple[str, str]] = set()
    picked = []
    for run in runs:
        new = {("task", run.task), ("backbone", run.backbone), *(("change", each) for each in run.overrides)} - met
        picked += [run] if new else []
        met |= new
    return picked


@pytest.mark.parametrize(
    ("grid", "every"),
    [pytest.param(grid, False, marks=pytest.mark.slow if grid in LARGE else []) for grid in SHIPPED]
    + [pytest.param(grid, True, marks=pytest.mark.slow) for grid in SHIPPED],
)
def test_every_command_of_a_shipped_grid_is_one_that_the_command_line_takes(grid: str, every: bool) -> None:
    """In every run a covering array of tasks and backbones; their product by `make test-slow`."""
    # Runs that differ in their seed alone have commands that do: one of them is asked.
    alone = {run.config.model_copy(update={"seed": 0}).model_dump_json(): run for run in resolved(grid)}
    for run in alone.values() if every else covering(list(alone.values())):
        for program, command, *rest in words(run):
            assert program == "iclbench"
            with loaded(command).make_context(command, list(rest)) as context:
                typed = context.params
            if command == "train":
                again = resolve_run(
                    typed["task"], typed["backbone"], typed["preset"], typed["seed"], typed["override"] or ()
                )
                assert again == run.config
                assert typed["name"] == run.name
            else:
                assert typed["run"] == [run.name]
                assert int(typed.get("extrapolate") or 10**9) > run.config.task.points


@cache
def loaded(command: str) -> Any:
    return load(command)


@pytest.mark.slow
@pytest.mark.parametrize("grid", SHIPPED)
def test_the_runs_of_a_grid_have_names_of_their_own(grid: str) -> None:
    found = [check_name(run.name) for run in resolved(grid)]
    assert len(set(found)) == len(found)


@pytest.mark.slow
def test_a_name_that_two_grids_share_means_the_same_run() -> None:
    known: dict[str, GridRun] = {}
    for grid in SHIPPED:
        for run in resolved(grid):
            assert known.setdefault(run.name, run).config == run.config
    assert "skewed-linear-gpt2-paper-s2" in known


def test_figure_1_extrapolates_every_shift_and_figure_10_every_trained_length() -> None:
    runs = resolved("mamba-icl-1", "paper")
    assert {(run.config.task.points, run.extrapolate) for run in runs} == {(40, 500)}
    assert all(shift.endswith("+points-500") for run in runs for shift in run.shifts)
    # Appendix A.1.3 and the released evaluation: whatever the model was trained on, inputs are isotropic.
    shifts = {tuple(shift.removesuffix("+points-500") for shift in run.shifts) for run in runs}
    assert shifts == {("isotropic", "isotropic+noisy-1", "orthants", "subspace", "isotropic+repeated-query")}
    assert {run.config.task.points for run in resolved("mamba-icl-10", "small")} == {20, 40, 80}
    longest = [run for run in resolved("mamba-icl-10", "paper") if run.config.task.points == 160]
    assert {run.name for run in longest if run.config.seed == 0} == {
        "skewed-linear-gpt2-trained-160-paper-s0",
        "skewed-linear-mamba-trained-160-paper-s0",
    }


@pytest.mark.parametrize("grid", ["mamba-icl-1", "mamba-icl-10"])
def test_all_curricula_end_at_the_same_step_and_well_before_training(grid: str) -> None:
    for preset, complete in (("small", 1000), ("paper", 30_000)):
        for run in resolved(grid, preset):
            train, length = run.config.train, run.config.task.points + 1
            points = train.curriculum.points
            assert points is not None
            assert points.at(complete - 1, length) < length <= points.at(complete, length)
            assert complete < train.steps / 2


def test_figures_8_and_9_are_the_same_runs_at_a_constant_rate() -> None:
    eight, nine = resolved("mamba-icl-8"), resolved("mamba-icl-9")
    assert [run.config for run in eight] == [run.config for run in nine]
    assert {run.config.train.schedule for run in eight} == {"constant"}
    assert {run.config.train.lr for run in eight if run.config.preset == "paper"} == {1e-4}


def test_probes_are_asked_at_the_papers_numbers_of_examples() -> None:
    asked = {run.config.task.name: run.contexts for run in resolved("mamba-icl-3", "paper")}
    assert asked == {"skewed-linear": (40,), "sparse-linear": (40,), "relu-network": (100,), "decision-tree": (100,)}
    assert {run.contexts for run in resolved("mamba-icl-4", "paper")} == {(40, 80, 120, 160)}


def test_coqe_and_its_transformer_are_of_one_size_at_one_rate_as_the_paper_has_them() -> None:
    for run in resolved("coqe-3", "paper"):
        sizes, train = run.config.backbone.settings, run.config.train
        assert (sizes["layers"], sizes["width"], sizes["heads"]) == (3, 64, 2)
        assert (train.batch, train.lr, run.config.task.points) == (64, 5e-5, 20)
        assert train.steps == (200_000 if run.task == "combination" else 100_000)
        dim = run.config.task.parameters["dim"]
        assert dim == (10 if "linear" in run.task else 5)
    first = [run for run in resolved("coqe-3", "small") if run.config.seed == 0]
    for task in COQE["coqe-3"][0]:
        size = {run.backbone: _parameters(run) for run in first if run.task == task}
        assert size.keys() == {"coqe-learned", "gpt2-learned", "coqe", "gpt2"}
        for positions in ("-learned", ""):
            pair = size[f"coqe{positions}"], size[f"gpt2{positions}"]
            assert abs(pair[0] - pair[1]) <= 1, "but for the bias of the read-out"


def _parameters(run: GridRun) -> int:
    config = run.config
    return int(config.backbone.build(config.shape(config.task.build())).parameter_count)


def test_table_1_has_its_five_levels_of_noise_as_released_and_table_2_its_three_models() -> None:
    """The released code changes mean and standard deviation together: (5, 3), (9, 7) beside it."""
    for preset in ("small", "paper"):
        runs = [run.config for run in resolved("coqe-table-1", preset) if run.config.seed == 0]
        drawn = [CoQESettings(**run.backbone.settings).logit_noise for run in runs if run.task.name == "bursty-alpha1"]
        assert [noise and (noise.mean, noise.std) for noise in drawn] == [None, (3, 1), (5, 3), (7, 5), (9, 7)]
    models = {
        (run.backbone, run.config.backbone.settings["encoder"], run.config.backbone.settings["layers"])
        for run in resolved("coqe-table-2", "paper")
    }
    assert models == {("transformer", "resnet-64", 12), ("coqe", "resnet-256", 4), ("coqe", "resnet-512", 4)}
    sizes = {
        (run.config.backbone.settings["encoder"], run.config.backbone.settings["layers"])
        for run in resolved("coqe-4-sizes", "paper")
    }
    assert sizes == {("resnet-64", 4), ("resnet-64", 12), ("resnet-512", 4), ("resnet-512", 12)}


def test_what_is_compared_in_icl_iwl_has_one_image_encoder_but_for_the_papers_transformer() -> None:
    for preset, encoder in (("small", "contours-512"), ("paper", "resnet-512")):
        runs = [run for run in resolved("icl-iwl", preset) if run.config.seed == 0 and run.task == "bursty"]
        alike = [run for run in runs if run.config.backbone.settings["encoder"] == encoder]
        assert sorted(run.backbone for run in alike) == ["coqe", "mamba", "tnp", "transformer"]
        (other,) = (run for run in runs if run not in alike)
        assert other.backbone == "transformer" and other.config.backbone.settings["encoder"].endswith("-64")


def test_the_rate_of_bursty_cards_at_the_papers_size_is_that_of_the_released_code() -> None:
    """Adam, linear to 3e-4 at step 4,000, then by the inverse square root; not clipped."""
    for task in LEVELS:
        train = load_task(task)[1].presets["paper"].train
        assert (train.optimiser, train.clip, train.steps, train.batch) == ("adam", 0, 100_000, 24)
        rates = [learning_rate(train, step - 1) for step in (1000, 4000, 16_000)]
        assert rates == pytest.approx([0.75e-4, 3e-4, 1.5e-4])


def test_omniglot_cards_differ_from_those_of_procedural_glyphs_in_their_images_alone() -> None:
    for level in OF:
        ours, real = (load_task(f"bursty{images}{level}")[1] for images in ("", "-omniglot"))
        assert real.parameters == ours.parameters | {"glyphs": "omniglot"}
        assert real.evaluators == ours.evaluators
        assert all(real.presets[name] == preset for name, preset in ours.presets.items() if name != "grid")
        labels = "rarest" if "alpha" in level else "first"
        assert resolve_run(f"bursty{level}", "coqe", "small").task.parameters["icl_labels"] == labels


def test_a_grid_says_which_probes_are_run() -> None:
    narrow = [run for run in resolved("coqe-6", "small") if run.config.backbone.settings.get("sample_dim") == 5]
    assert [(run.backbone, run.config.seed) for run in narrow] == [
        (name, seed) for seed in (0, 1, 2) for name in ("coqe-learned", "coqe")
    ]
    plain = next(run for run in narrow if run.backbone == "coqe")
    probes = [line for line in plain.commands() if line.startswith("iclbench probe")]
    assert probes == [
        "iclbench probe combination-coqe-width-5-small-s0 --representation",
        "iclbench probe combination-coqe-width-5-small-s0 --rank --context 20",
    ]


def test_a_grid_is_every_combination_in_order(tmp_path: Path) -> None:
    variants = {"small": {"own": [], "wide": ["backbone.width=96"]}}
    card = CARD | {"evaluate": {"shifts": ["orthants"], "extrapolate": {"small": "2x"}}, "overrides": variants}
    runs = grid_runs(write(tmp_path, card))
    assert [run.name for run in runs if run.task == "linear"] == [
        "linear-gpt2-smoke-s0",
        "linear-gpt2-smoke-s1",
        "linear-gpt2-small-s0",
        "linear-gpt2-small-s1",
        "linear-gpt2-wide-small-s0",
        "linear-gpt2-wide-small-s1",
    ]
    smoke, wide = runs[0], runs[-1]
    assert (smoke.extrapolate, smoke.shifts) == (None, ("orthants",))
    assert (wide.extrapolate, wide.shifts) == (40, ("orthants+points-40",))
    assert wide.config.backbone.settings["width"] == 96
    assert wide.contexts is None


def test_further_parts_are_asked_for_other_things(tmp_path: Path) -> None:
    card = CARD | {
        "tasks": ["linear"],
        "backbones": ["gpt2", "icicl-cnp"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {
            "shifts": ["noisy"],
            "shifts_of": {"linear": ["orthants"]},
            "extrapolate": {"smoke": "2x"},
            "seed": 1,
        },
        "cost": {"points": [6, 4]},
        "without": [{"tasks": ["linear"], "backbones": ["icicl-cnp"], "reason": "no related datasets"}],
        "more": [PART | {"probe": {"of": ["layers", "rank"]}}],
    }
    first, none, other = grid_runs(write(tmp_path, card))
    trained = first.config.task.points
    assert first.shifts == (f"noisy-1+points-{2 * trained}", "orthants"), "those of single tasks at the trained length"
    assert first.cost == tuple(sorted({4, 6, trained}))
    assert (first.evaluation_seed, first.exclusion, first.contexts) == (1, None, None)
    assert none.exclusion == "no related datasets"
    assert (other.name, other.evaluate, other.cost, other.evaluation_seed) == ("linear-mamba-smoke-s0", False, (), 0)
    assert other.probes == ("layers", "rank")


@pytest.mark.slow
def test_a_newcomer_meets_every_task_and_preset_of_a_grid_once() -> None:
    name = "iclbench.backbones.cnp:CNP"
    plain, found = resolved("reference"), grid_runs("reference", added=["GPT2", name, "deltanet"])
    of_card = {(run.config.task.name, run.config.preset) for run in plain if not run.overrides}
    new = [run for run in found if run.backbone == name]
    assert {(run.config.task.name, run.config.preset) for run in new} == of_card
    assert len({run.name for run in found}) == len(found)
    of_a_later_part = {(run.config.task.name, run.config.preset) for run in found if run.backbone == "deltanet"}
    assert of_a_later_part == of_card
    beside = {(run.config.task.name, run.config.preset, run.config.seed) for run in new}
    assert len(beside) == len(new)
    assert {run.name for run in plain} <= {run.name for run in found}
    linear = {
        run.backbone: run for run in found if (run.task, run.config.preset, run.config.seed) == ("linear", "grid", 0)
    }
    assert (linear[name].shifts, linear[name].extrapolate) == (linear["cnp"].shifts, linear["cnp"].extrapolate)
    assert linear[name].config.backbone.settings == linear["cnp"].config.backbone.settings


def test_nobody_is_added_to_a_grid_of_language_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "deep-thinking-3", "--add", "gpt2", "--dry-run"]) == 2
    assert "grid 'deep-thinking-3'" in capsys.readouterr().err


def test_the_commands_of_all_parts_are_printed_and_those_of_no_sense_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = CARD | {
        "tasks": ["linear"],
        "backbones": ["gpt2", "icicl-cnp"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"shifts_of": {"linear": ["orthants"]}, "baselines": ["zero"], "seed": 1},
        "cost": {"points": [4]},
        "without": [{"tasks": ["linear"], "backbones": ["icicl-cnp"], "reason": "no related datasets"}],
        "more": [PART],
    }
    path = write(tmp_path, card)
    points = grid_runs(path)[0].config.task.points
    assert main(["show", path, "--commands"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "iclbench train linear gpt2 --preset smoke --seed 0 --name linear-gpt2-smoke-s0",
        "iclbench eval linear-gpt2-smoke-s0 --shift orthants --baseline ridge --baseline zero --seed 1",
        f"iclbench cost linear-gpt2-smoke-s0 --points 4 --points {points}",
        "iclbench train linear mamba --preset smoke --seed 0 --name linear-mamba-smoke-s0",
    ]


def test_commands_are_safe_in_a_shell(tmp_path: Path) -> None:
    """Also a path with a blank and a quoted value come out of `sh` as one word each."""
    folder = tmp_path / "a folder; echo"
    folder.mkdir()
    card = {**load_task("linear")[1].model_dump(mode="json", exclude_unset=True)}
    task = write(folder, card, "tiny.toml")
    grid = write(tmp_path, CARD | {"tasks": [task], "seeds": [0], "presets": ["smoke"]})
    (line,) = grid_runs(grid)[0].commands(Path("my results"))
    printed = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines()[2:4] == [task, "gpt2"]
    assert printed.stdout.splitlines()[-2:] == ["--results", "my results"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": ["linear"]}, "unknown key 'task'; did you mean 'tasks'"),
        ({"tasks": []}, "tasks: expected .*at least 1"),
        ({"tasks": ["linaer"]}, "unknown task 'linaer'; did you mean 'linear'"),
        ({"backbones": ["gtp2"]}, "backbones: unknown backbone 'gtp2'; did you mean 'gpt2'"),
        ({"presets": ["tiny"]}, "presets.0: expected 'smoke', 'grid', 'small' or 'paper', got 'tiny'"),
        ({"seeds": [0, 0]}, "seeds: 0 is listed twice"),
        ({"seeds": [-1]}, "seeds.0: expected greater than or equal to 0, got -1"),
        ({"evaluate": {"shift": []}}, "unknown key 'evaluate.shift'; did you mean 'evaluate.shifts'"),
        ({"evaluate": {"extrapolate": {"paper": 80}}}, "evaluate.extrapolate.paper: 'paper' "),
        ({"evaluate": {"extrapolate": {"small": "4 x"}}}, "expected a number of examples, like 500, .* got '4 x'"),
        ({"evaluate": {"extrapolate": {"small": 2.5}}}, "expected a number of examples, like 500, .* got 2.5"),
        ({"evaluate": {"baselines": ["lasso"]}}, "evaluate.baselines: unknown baseline 'lasso'; did you mean"),
        ({"probe": {"contexts": {"small": [0]}}}, "expected a number of examples, like 500, .* got 0"),
        ({"evaluate": {"seed": -1}}, "evaluate.seed: expected greater than or equal to 0, got -1"),
        (
            {"evaluate": {"shifts_of": {"quadratic": []}}},
            "evaluate.shifts_of.quadratic: 'quadratic' ",
        ),
        ({"cost": {"points": []}}, "cost.points: expected .*at least 1"),
        ({"cost": {"points": [0]}}, "cost.points.0: expected greater than 0, got 0"),
        ({"cost": {"points": [8, 8]}}, "cost.points: 8 is listed twice"),
        ({"cost": {"sizes": [8]}}, "unknown key 'cost.sizes'"),
        (
            {"without": [{"tasks": ["linear"], "backbones": ["gpt2"]}]},
            "without.0.reason: expected a string, but the key",
        ),
        ({"without": [{"tasks": [], "backbones": ["gpt2"], "reason": "x"}]}, "without.0.tasks: expected .*at least 1"),
        (
            {"without": [{"tasks": ["quadratic"], "backbones": ["gpt2"], "reason": "x"}]},
            "without.tasks: 'quadratic' .*tasks",
        ),
        (
            {"without": [{"tasks": ["linear"], "backbones": ["s4"], "reason": "x"}]},
            "without.backbones: 's4' .*backbones",
        ),
        (
            {"more": [{"tasks": ["linear"], "backbones": ["gpt2"], "presets": ["smoke"]}]},
            "more.0.seeds: expected a list, but the key is missing",
        ),
        ({"more": [PART | {"backbones": ["gtp2"]}]}, "more.0.backbones: unknown backbone 'gtp2'; did you mean 'gpt2'"),
        ({"more": [PART | {"tasks": ["linaer"]}]}, "more.0: unknown task 'linaer'; did you mean 'linear'"),
        ({"more": [PART | {"summary": "x"}]}, "unknown key 'more.0.summary'"),
        ({"more": [PART | {"more": []}]}, "unknown key 'more.0.more'"),
        ({"overrides": {"small": {"a b": []}}}, "a variant is part of run names: .* got 'a b'"),
        ({"overrides": {"small": {"x": ["lr=1"]}}}, "-o lr=1: write -o root.key=value"),
        ({"overrides": {"small": {"x": ["trian.lr=1"]}}}, "unknown key 'trian'; did you mean 'train'"),
    ],
)
def test_a_bad_grid_is_one_line_with_the_file(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = write(tmp_path, CARD | changes)
    with pytest.raises(UsageError, match=message) as error:
        load_grid(path)
    assert str(error.value).startswith(path)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate": {"shifts": ["orthant"]}}, "unknown shift 'orthant'; did you mean 'orthants'"),
        ({"tasks": ["tabular"], "evaluate": {"shifts": ["orthants"]}}, "'orthants' does not apply to this task"),
        ({"evaluate": {"extrapolate": {"small": 20}}}, "extrapolate.small: 20 .*'linear'"),
        ({"evaluate": {"shifts_of": {"linear": ["orthant"]}}}, "unknown shift 'orthant'; did you mean 'orthants'"),
        (
            {"more": [PART | {"backbones": ["gpt2"]}]},
            "'linear-gpt2-smoke-s0'",
        ),
        ({"more": [PART | {"evaluate": {"shifts": ["orthant"]}}]}, "unknown shift 'orthant'; did you mean 'orthants'"),
        ({"overrides": {"small": {"x": ["train.lrr=1"]}}}, "unknown key 'lrr'; did you mean"),
        ({"overrides": {"small": {"x": ["backbone.widht=8"]}}}, "unknown key 'widht'; did you mean 'width'"),
    ],
)
def test_what_does_not_fit_a_task_is_one_line_with_the_grid(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        grid_runs(write(tmp_path, CARD | changes))
    assert str(error.value).startswith("grid 'mine': ")
    assert len(str(error.value).splitlines()) == 1


def test_unknown_grids_and_presets_list_near_matches() -> None:
    with pytest.raises(UsageError, match="unknown grid 'mamba-icl-5'; did you mean 'mamba-icl-"):
        load_grid("mamba-icl-5")
    with pytest.raises(UsageError, match="unknown preset 'papr'; did you mean 'paper'"):
        grid_runs("mamba-icl-4", "papr")


def test_a_path_may_lead_to_a_grid_or_to_a_task(tmp_path: Path) -> None:
    assert is_grid(write(tmp_path, CARD))
    assert not is_grid(str(ROOT / "tasks" / "linear.toml"))
    assert not is_grid("mamba-icl-1")


def test_list_and_show_know_grids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, CARD)
    assert main(["show", path]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert shown["grid"] == "mine"
    assert len(shown["runs"]) == 8
    assert {key: shown[key] for key in CARD} == CARD
    assert main(["show", path, "--commands", "--preset", "smoke"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "iclbench train linear gpt2 --preset smoke --seed 0 --name linear-gpt2-smoke-s0"
    assert len(lines) == 4
    assert main(["show", path, "--card"]) == 0
    assert tomllib.load(io.BytesIO(capsys.readouterr().out.encode())) == CARD
    assert main(["show", "linear", "--commands"]) == 2
    assert "unknown grid 'linear'" in capsys.readouterr().err


def test_grids_are_listed_without_torch() -> None:
    code = (
        "import sys; from iclbench.cli.main import main; code = main(['list', 'grids', '--json']);"
        "assert code in (0, 2) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_folder_of_cards_goes_into_the_wheel() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {kind: f"iclbench/_cards/{kind}" for kind in ("tasks", "baselines", "grids")}


def test_a_fresh_wheel_carries_the_cards(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend is not installed here")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    for grid in SHIPPED:
        assert f"iclbench/_cards/grids/{grid}.toml" in inside
    assert "iclbench/_cards/grids/rates/grid.toml" in inside


def test_the_keys_are_those_of_the_design() -> None:
    keys = {"tasks", "backbones", "presets", "seeds", "evaluate", "probe", "cost", "weights", "without", "overrides"}
    assert set(GridPart.model_fields) == keys
    assert set(GridCard.model_fields) == keys | {"summary", "source", "notes", "more", "pairs", "engine"}


def test_pairs_are_trained_from_the_seeds_that_nobody_else_has(tmp_path: Path) -> None:
    path = tmp_path / "paired.toml"
    card: dict[str, Any] = {
        "summary": "a pair",
        "tasks": ["linear", "sparse-linear"],
        "backbones": ["gpt2", "cnp", "tnp"],
        "presets": ["smoke"],
        "seeds": [0, 1],
        "evaluate": {"shifts_of": {"linear": ["orthants"], "sparse-linear": ["noisy-1"]}},
        "probe": {},
        "weights": [0],
        "pairs": [
            {"a": "gpt2", "b": "cnp", "tasks": ["linear"], "preset": "smoke"},
            {"a": "tnp", "b": "cnp", "tasks": ["linear"], "preset": "smoke", "seeds": [0, 1, 2]},
        ],
    }
    path.write_text(tomli_w.dumps(card))
    runs = {run.name: run for run in grid_runs(str(path))}
    more = {"gpt2": range(2, 5), "cnp": range(2, 5), "tnp": [2]}
    expected = {f"linear-{name}-smoke-s{seed}" for name, seeds in more.items() for seed in [0, 1, *seeds]}
    assert {name for name in runs if name.startswith("linear")} == expected
    assert len(runs) == len(expected) + 6
    asked = runs["linear-cnp-smoke-s4"]
    assert asked.shifts == runs["linear-cnp-smoke-s0"].shifts and asked.evaluate
    assert asked.contexts is None and not asked.weights and runs["linear-cnp-smoke-s0"].weights
    path.write_text(tomli_w.dumps(card | {"pairs": [card["pairs"][0] | {"tasks": ["quadratic"]}]}))
    with pytest.raises(UsageError, match="pairs: 'gpt2' on 'quadratic' at preset 'smoke'"):
        grid_runs(str(path))


def test_names_of_a_grid_are_the_same_however_they_are_spelled(tmp_path: Path) -> None:
    card = CARD | {"tasks": ["Linear", "skewed_linear"], "backbones": ["GPT2", "cnp"]}
    card |= {"presets": ["smoke"], "seeds": [0]}
    pair = {"a": "gpt2", "b": "CNP", "tasks": ["Skewed_Linear"], "preset": "smoke", "seeds": [0, 1, 2]}
    without = {"tasks": ["linear"], "backbones": ["CNP"], "reason": "no"}
    asked = {"pairs": [pair], "without": [without], "evaluate": {"shifts_of": {"LINEAR": ["orthants"]}}}
    runs = grid_runs(write(tmp_path, card | asked), added=["gpt2", "Mamba", "mamba"])
    expected = {f"{task}-{who}-smoke-s0" for task in ("linear", "skewed-linear") for who in ("gpt2", "cnp", "mamba")}
    expected |= {f"skewed-linear-{who}-smoke-s{seed}" for who in ("gpt2", "cnp") for seed in (1, 2)}
    assert {run.name for run in runs} == expected and len(runs) == len(expected)
    assert {run.name for run in runs if run.exclusion} == {"linear-cnp-smoke-s0"}
    assert {run.config.task.name for run in runs if run.shifts} == {"linear"}
    with pytest.raises(UsageError, match="gpt2"):
        grid_runs(write(tmp_path, card | {"backbones": ["gpt2", "GPT2"]}))
