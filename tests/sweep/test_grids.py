"""Grid cards: the shipped grids cover the figures of the papers, and the command line accepts their commands."""

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
from iclbench.cli.lazy import command_parser
from iclbench.cli.main import main
from iclbench.config.cards import card_names, load_baseline, load_task
from iclbench.config.resolution import family_class, resolve_run
from iclbench.core.errors import UsageError
from iclbench.store.runs import check_name
from iclbench.sweep.cells import grid_cells
from iclbench.sweep.grids import GridCard, GridPart, GridRun, grid_runs, is_grid, load_grid
from iclbench.sweep.language_grids import is_language_grid
from iclbench.training.schedule import learning_rate
from tests.refusals import refused
from tests.sweep.conftest import tiny_grid

ROOT = Path(__file__).parents[2]
# Grids of language models are in `test_language_grids.py`.
SHIPPED = [name for name in card_names("grids") if not is_language_grid(name)]
# Grids whose commands take seconds to parse. `make test-slow` tests them.
LARGE = ("reference", "steps", "states", "cmab-table-2-celeba")
CARD = {
    "summary": "a test",
    "tasks": ["linear", "skewed-linear"],
    "backbones": ["gpt2"],
    "presets": ["smoke", "small"],
    "seeds": [0, 1],
}
# A second part of the card with different runs.
PART = {"tasks": ["linear"], "backbones": ["mamba"], "presets": ["smoke"], "seeds": [0]}
# Tasks, backbones and number of seeds of each figure, from the text of the paper.
PAPER = {
    "mamba-icl-1": ({"skewed-linear"}, {"gpt2", "mamba", "s4d"}, 3),
    "mamba-icl-2": ({"sparse-linear", "relu-network", "decision-tree"}, {"gpt2", "mamba"}, 3),
    "mamba-icl-3": ({"skewed-linear", "sparse-linear", "relu-network", "decision-tree"}, {"gpt2", "mamba"}, 1),
    "mamba-icl-4": ({"skewed-linear"}, {"gpt2", "mamba"}, 1),
    "mamba-icl-8": ({"linear"}, {"gpt2", "mamba"}, 1),
    "mamba-icl-9": ({"linear"}, {"gpt2", "mamba"}, 1),
    "mamba-icl-10": ({"skewed-linear"}, {"gpt2", "mamba"}, 3),
}
# The same values for the CoQE paper, which does not state seeds. A task is a function class or a level of P_bursty or
# alpha.
SUFFIXES = ("", "-p0", "-p50", "-p100", "-alpha1", "-alpha2")
LEVELS = {f"bursty{images}{level}" for images in ("", "-omniglot") for level in SUFFIXES}
ALPHA_1 = {"bursty-alpha1", "bursty-omniglot-alpha1"}
# In the released code, CoQE and its Transformer baseline learn positional embeddings.
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


# Cached because resolving a grid can take seconds. The runs are immutable.
resolved_runs = cache(grid_runs)


def write(folder: Path, card: dict[str, object], name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(tomli_w.dumps(card), encoding="utf-8")
    return str(path)


def command_words(run: GridRun) -> Iterator[list[str]]:
    for line in run.commands():
        assert "\n" not in line
        yield shlex.split(line)


def test_every_reproduced_figure_has_a_shipped_grid() -> None:
    assert {*PAPER, *COQE} <= set(SHIPPED)


@pytest.mark.parametrize("grid", [*PAPER, *COQE])
def test_a_grid_has_the_tasks_backbones_and_seeds_of_its_figure(grid: str) -> None:
    tasks, backbones, seeds = (PAPER | COQE)[grid]
    for preset in ("small", "paper"):
        runs = resolved_runs(grid, preset)
        assert {run.config.task.name for run in runs} == tasks
        assert {run.config.backbone.name for run in runs} == backbones
        assert {run.config.seed for run in runs} == set(range(seeds))


def test_the_network_baseline_of_coqe_figure_3_trains_for_50_steps_as_in_the_released_code() -> None:
    assert {run.baselines for run in resolved_runs("coqe-3")} == {("zero", "least-squares", "lasso-1e-2", "mlp-50")}
    assert "mlp-50" in load_task("relu-network-shared")[1].baselines
    assert load_baseline("mlp-50")[1].settings == {"steps": 50, "lr": 5e-3}


def covering_runs(runs: list[GridRun]) -> list[GridRun]:
    """Select runs that together contain every task, backbone and override at least once."""
    covered: set[tuple[str, str]] = set()
    selected = []
    for run in runs:
        uncovered = {
            ("task", run.task),
            ("backbone", run.backbone),
            *(("change", each) for each in run.overrides),
        } - covered
        selected += [run] if uncovered else []
        covered |= uncovered
    return selected


@pytest.mark.parametrize(
    ("grid", "all_runs"),
    [pytest.param(grid, False, marks=pytest.mark.slow if grid in LARGE else []) for grid in SHIPPED]
    + [pytest.param(grid, True, marks=pytest.mark.slow) for grid in SHIPPED],
)
def test_the_command_line_accepts_every_command_of_a_shipped_grid(grid: str, all_runs: bool) -> None:
    """The fast test covers every task, backbone and override. `make test-slow` covers all combinations."""
    # Of runs that differ only in the seed, only one is tested.
    runs = {run.config.model_copy(update={"seed": 0}).model_dump_json(): run for run in resolved_runs(grid)}
    for run in runs.values() if all_runs else covering_runs(list(runs.values())):
        for program, command, *rest in command_words(run):
            assert program == "iclbench"
            with cached_parser(command).make_context(command, list(rest)) as context:
                options = context.params
            if command == "train":
                config = resolve_run(
                    options["task"], options["backbone"], options["preset"], options["seed"], options["override"] or ()
                )
                assert config == run.config
                assert options["name"] == run.name
            else:
                assert list(options["run"]) == [run.name]
                assert int(options.get("extrapolate") or 10**9) > run.config.task.points


@cache
def cached_parser(command: str) -> Any:
    return command_parser(command)


@pytest.mark.slow
@pytest.mark.parametrize("grid", SHIPPED)
def test_run_names_are_unique_within_a_grid(grid: str) -> None:
    run_names = [check_name(run.name) for run in resolved_runs(grid)]
    assert len(set(run_names)) == len(run_names)


@pytest.mark.slow
def test_runs_with_the_same_name_in_two_grids_have_the_same_configuration() -> None:
    runs: dict[str, GridRun] = {}
    for grid in SHIPPED:
        for run in resolved_runs(grid):
            assert runs.setdefault(run.name, run).config == run.config
    assert "skewed-linear-gpt2-paper-s2" in runs


def test_figure_1_extrapolates_every_shift_and_figure_10_varies_the_training_length() -> None:
    runs = resolved_runs("mamba-icl-1", "paper")
    assert {(run.config.task.points, run.extrapolate) for run in runs} == {(40, 500)}
    assert all(shift.endswith("+points-500") for run in runs for shift in run.shifts)
    # In appendix A.1.3 and the released evaluation, inputs are isotropic for every training distribution.
    shifts = {tuple(shift.removesuffix("+points-500") for shift in run.shifts) for run in runs}
    assert shifts == {("isotropic", "isotropic+noisy-1", "orthants", "subspace", "isotropic+repeated-query")}
    assert {run.config.task.points for run in resolved_runs("mamba-icl-10", "small")} == {20, 40, 80}
    longest = [run for run in resolved_runs("mamba-icl-10", "paper") if run.config.task.points == 160]
    assert {run.name for run in longest if run.config.seed == 0} == {
        "skewed-linear-gpt2-trained-160-paper-s0",
        "skewed-linear-mamba-trained-160-paper-s0",
    }


@pytest.mark.parametrize("grid", ["mamba-icl-1", "mamba-icl-10"])
def test_all_curricula_of_a_grid_end_at_the_same_step_in_the_first_half_of_training(grid: str) -> None:
    for preset, complete in (("small", 1000), ("paper", 30_000)):
        for run in resolved_runs(grid, preset):
            train, length = run.config.train, run.config.task.points + 1
            points = train.curriculum.points
            assert points is not None
            assert points.at(complete - 1, length) < length <= points.at(complete, length)
            assert complete < train.steps / 2


def test_figures_8_and_9_use_the_same_runs_with_a_constant_learning_rate() -> None:
    eight, nine = resolved_runs("mamba-icl-8"), resolved_runs("mamba-icl-9")
    assert [run.config for run in eight] == [run.config for run in nine]
    assert {run.config.train.schedule for run in eight} == {"constant"}
    assert {run.config.train.lr for run in eight if run.config.preset == "paper"} == {1e-4}


def test_probes_use_the_context_sizes_of_the_paper() -> None:
    contexts = {run.config.task.name: run.contexts for run in resolved_runs("mamba-icl-3", "paper")}
    assert contexts == {"skewed-linear": (40,), "sparse-linear": (40,), "relu-network": (100,), "decision-tree": (100,)}
    assert {run.contexts for run in resolved_runs("mamba-icl-4", "paper")} == {(40, 80, 120, 160)}


def test_coqe_and_its_transformer_baseline_have_equal_sizes_and_the_settings_of_the_paper() -> None:
    for run in resolved_runs("coqe-3", "paper"):
        sizes, train = run.config.backbone.settings, run.config.train
        assert (sizes["layers"], sizes["width"], sizes["heads"]) == (3, 64, 2)
        assert (train.batch, train.lr, run.config.task.points) == (64, 5e-5, 20)
        assert train.steps == (200_000 if run.task == "combination" else 100_000)
        dim = run.config.task.parameters["dim"]
        assert dim == (10 if "linear" in run.task else 5)
    seed_0_runs = [run for run in resolved_runs("coqe-3", "small") if run.config.seed == 0]
    for task in COQE["coqe-3"][0]:
        size = {run.backbone: _parameters(run) for run in seed_0_runs if run.task == task}
        assert size.keys() == {"coqe-learned", "gpt2-learned", "coqe", "gpt2"}
        for positions in ("-learned", ""):
            pair = size[f"coqe{positions}"], size[f"gpt2{positions}"]
            assert abs(pair[0] - pair[1]) <= 1, "the sizes are equal except for the bias of the read-out"


def _parameters(run: GridRun) -> int:
    config = run.config
    return int(config.backbone.build(config.shape(config.task.build())).parameter_count)


def test_coqe_table_1_has_five_noise_levels_and_table_2_three_models() -> None:
    """The released code changes mean and standard deviation together, as in (5, 3) and (9, 7)."""
    for preset in ("small", "paper"):
        runs = [run.config for run in resolved_runs("coqe-table-1", preset) if run.config.seed == 0]
        noises = [CoQESettings(**run.backbone.settings).logit_noise for run in runs if run.task.name == "bursty-alpha1"]
        assert [noise and (noise.mean, noise.std) for noise in noises] == [None, (3, 1), (5, 3), (7, 5), (9, 7)]
    models = {
        (run.backbone, run.config.backbone.settings["encoder"], run.config.backbone.settings["layers"])
        for run in resolved_runs("coqe-table-2", "paper")
    }
    assert models == {("transformer", "resnet-64", 12), ("coqe", "resnet-256", 4), ("coqe", "resnet-512", 4)}
    sizes = {
        (run.config.backbone.settings["encoder"], run.config.backbone.settings["layers"])
        for run in resolved_runs("coqe-4-sizes", "paper")
    }
    assert sizes == {("resnet-64", 4), ("resnet-64", 12), ("resnet-512", 4), ("resnet-512", 12)}


def test_all_icl_iwl_models_except_one_transformer_use_the_same_image_encoder() -> None:
    for preset, encoder in (("small", "contours-512"), ("paper", "resnet-512")):
        runs = [run for run in resolved_runs("icl-iwl", preset) if run.config.seed == 0 and run.task == "bursty"]
        with_encoder = [run for run in runs if run.config.backbone.settings["encoder"] == encoder]
        assert sorted(run.backbone for run in with_encoder) == ["coqe", "mamba", "tnp", "transformer"]
        (other,) = (run for run in runs if run not in with_encoder)
        assert other.backbone == "transformer" and other.config.backbone.settings["encoder"].endswith("-64")


def test_the_paper_preset_of_bursty_tasks_uses_the_learning_rate_of_the_released_code() -> None:
    """The optimiser is Adam without clipping. The rate increases linearly to 3e-4 at step 4,000 and then decays as
    1 / sqrt(step)."""
    for task in LEVELS:
        train = load_task(task)[1].presets["paper"].train
        assert (train.optimiser, train.clip, train.steps, train.batch) == ("adam", 0, 100_000, 24)
        rates = [learning_rate(train, step - 1) for step in (1000, 4000, 16_000)]
        assert rates == pytest.approx([0.75e-4, 3e-4, 1.5e-4])


def test_omniglot_cards_equal_procedural_cards_except_for_the_images() -> None:
    for level in SUFFIXES:
        procedural, real = (load_task(f"bursty{images}{level}")[1] for images in ("", "-omniglot"))
        assert real.parameters == procedural.parameters | {"glyphs": "omniglot"}
        assert real.evaluators == procedural.evaluators
        assert all(real.presets[name] == preset for name, preset in procedural.presets.items() if name != "grid")
        labels = "rarest" if "alpha" in level else "first"
        assert resolve_run(f"bursty{level}", "coqe", "small").task.parameters["icl_labels"] == labels


def test_a_grid_can_select_the_probes_of_its_runs() -> None:
    narrow = [run for run in resolved_runs("coqe-6", "small") if run.config.backbone.settings.get("sample_dim") == 5]
    assert [(run.backbone, run.config.seed) for run in narrow] == [
        (name, seed) for seed in (0, 1, 2) for name in ("coqe-learned", "coqe")
    ]
    plain = next(run for run in narrow if run.backbone == "coqe")
    probes = [line for line in plain.commands() if line.startswith("iclbench probe")]
    assert probes == [
        "iclbench probe combination-coqe-width-5-small-s0 --representation",
        "iclbench probe combination-coqe-width-5-small-s0 --rank --context 20",
    ]


def test_a_grid_expands_to_all_combinations_in_order(tmp_path: Path) -> None:
    variants = {"small": {"plain": [], "wide": ["backbone.width=96"]}}
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


def test_parts_of_a_grid_have_separate_evaluations_probes_and_costs(tmp_path: Path) -> None:
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
    first, excluded, other = grid_runs(write(tmp_path, card))
    trained_length = first.config.task.points
    assert first.shifts == (f"noisy-1+points-{2 * trained_length}", "orthants"), (
        "shifts in `shifts_of` are not extrapolated"
    )
    assert first.cost_points == tuple(sorted({4, 6, trained_length}))
    assert (first.evaluation_seed, first.exclusion, first.contexts) == (1, None, None)
    assert excluded.exclusion == "no related datasets"
    assert (other.name, other.evaluate, other.cost_points, other.evaluation_seed) == (
        "linear-mamba-smoke-s0",
        False,
        (),
        0,
    )
    assert other.probes == ("layers", "rank")


def test_looped_models_of_a_grid_are_also_evaluated_with_other_numbers_of_loops(tmp_path: Path) -> None:
    card = CARD | {
        "tasks": ["linear"],
        "backbones": ["gpt2"],
        "presets": ["smoke"],
        "seeds": [0],
        "overrides": {"smoke": {"looped": ["backbone.loops=3"]}},
        "evaluate": {},
    }
    plain, looped = (
        write(tmp_path, card | {"evaluate": {"loops": loops}}, f"{len(loops)}.toml") for loops in ([], [2, 6])
    )
    assert [run.loops for path in (plain, looped) for run in grid_runs(path)] == [(), (2, 6)]
    cells = {path: grid_cells([path]) for path in (plain, looped)}
    options = [[cell.options.get("loops") for cell in cells[path] if cell.kind == "evaluate"] for path in cells]
    assert not any(options[0]) and [each for each in options[1] if each] == [[2, 6]]
    changed = {cell.hash for cell in cells[plain]} ^ {cell.hash for cell in cells[looped]}
    assert {cell.run for path in cells for cell in cells[path] if cell.hash in changed} == {
        "linear-gpt2-looped-smoke-s0",
        "summary",
    }
    evaluation = list(next(iter(grid_runs(looped))).commands())[1]
    assert evaluation.startswith("iclbench eval") and evaluation.endswith("--loops 2 --loops 6")


def test_cells_of_some_tasks_are_those_of_the_whole_grid(tmp_path: Path) -> None:
    path = str(tiny_grid(tmp_path))
    for names in (["tiny-linear"], ["tiny-quadratic"], ["tiny-quadratic", "tiny-linear"]):
        expected = [cell.hash for cell in grid_cells([path]) if cell.task in names]
        assert expected and [cell.hash for cell in grid_cells([path], tasks=names)] == expected


def test_notes_are_about_selected_tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whether a backbone fits a task is noted only if the task is selected."""
    path = write(tmp_path, CARD | {"tasks": ["linear", "markov"], "backbones": ["gpt2", "cnp"], "evaluate": {}})
    notes: list[str] = []
    monkeypatch.setattr("iclbench.sweep.grids.log_once", notes.append)
    assert {run.task for run in grid_runs(path, tasks=["linear"])} == {"linear"} and not notes
    assert {run.task for run in grid_runs(path, tasks=["markov"])} == {"markov"}
    assert "task 'markov', backbone 'cnp'" in notes[0]


@pytest.mark.slow
def test_an_added_model_is_trained_once_on_every_task_and_preset_of_a_grid() -> None:
    name = "iclbench.backbones.cnp:CNP"
    plain, extended = resolved_runs("reference"), grid_runs("reference", added_backbones=["GPT2", name, "deltanet"])
    groups = {(run.config.task.name, run.config.preset) for run in plain if not run.overrides}
    added = [run for run in extended if run.backbone == name]
    # CNP does not read the order of its points, so it is not applicable to streams.
    stream_runs = [run for run in plain if family_class(run.config.task.family).is_stream]
    streams = {(run.config.task.name, run.config.preset) for run in stream_runs}
    assert streams and {(run.config.task.name, run.config.preset) for run in added} == groups - streams
    assert len({run.name for run in extended}) == len(extended)
    # An added backbone that a later part contains is also trained on the tasks of the other parts.
    assert {(run.config.task.name, run.config.preset) for run in extended if run.backbone == "deltanet"} == groups
    assert len({(run.config.task.name, run.config.preset, run.config.seed) for run in added}) == len(added)
    assert {run.name for run in plain} <= {run.name for run in extended}
    linear = {
        run.backbone: run for run in extended if (run.task, run.config.preset, run.config.seed) == ("linear", "grid", 0)
    }
    assert (linear[name].shifts, linear[name].extrapolate) == (linear["cnp"].shifts, linear["cnp"].extrapolate)
    assert linear[name].config.backbone.settings == linear["cnp"].config.backbone.settings


def test_backbones_cannot_be_added_to_a_grid_of_language_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "deep-thinking-3", "--add", "gpt2", "--dry-run"]) == 2
    assert "'deep-thinking-3'" in capsys.readouterr().err


def test_the_commands_of_all_parts_are_printed_without_excluded_pairs(
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


def test_commands_are_quoted_for_the_shell(tmp_path: Path) -> None:
    """A path with spaces or a semicolon is a single word in `sh`."""
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
    ("changes", "names"),
    [
        ({"task": ["linear"]}, ("'task'", "'tasks'")),
        ({"tasks": []}, ("tasks",)),
        ({"tasks": ["linaer"]}, ("'linaer'", "'linear'")),
        ({"backbones": ["gtp2"]}, ("backbones", "'gtp2'", "'gpt2'")),
        ({"presets": ["tiny"]}, ("presets.0", "'smoke'", "'grid'", "'small'", "'paper'", "'tiny'")),
        ({"seeds": [0, 0]}, ("seeds", 0)),
        ({"seeds": [-1]}, ("seeds.0", -1)),
        ({"evaluate": {"shift": []}}, ("'evaluate.shift'", "'evaluate.shifts'")),
        ({"evaluate": {"extrapolate": {"paper": 80}}}, ("evaluate.extrapolate.paper", "'paper'")),
        ({"evaluate": {"extrapolate": {"small": "4 x"}}}, ("evaluate.extrapolate.small", "'4 x'", "500", '"4x"')),
        ({"evaluate": {"extrapolate": {"small": 2.5}}}, ("evaluate.extrapolate.small", 2.5)),
        ({"evaluate": {"baselines": ["lasso"]}}, ("evaluate.baselines", "'lasso'")),
        ({"probe": {"contexts": {"small": [0]}}}, ("probe.contexts.small", 0)),
        ({"evaluate": {"seed": -1}}, ("evaluate.seed", -1)),
        ({"evaluate": {"shifts_of": {"quadratic": []}}}, ("evaluate.shifts_of.quadratic", "'quadratic'")),
        ({"cost": {"points": []}}, ("cost.points",)),
        ({"cost": {"points": [0]}}, ("cost.points.0", 0)),
        ({"cost": {"points": [8, 8]}}, ("cost.points", 8)),
        ({"cost": {"sizes": [8]}}, ("'cost.sizes'",)),
        ({"without": [{"tasks": ["linear"], "backbones": ["gpt2"]}]}, ("without.0.reason",)),
        ({"without": [{"tasks": [], "backbones": ["gpt2"], "reason": "x"}]}, ("without.0.tasks",)),
        (
            {"without": [{"tasks": ["quadratic"], "backbones": ["gpt2"], "reason": "x"}]},
            ("without.tasks", "'quadratic'"),
        ),
        ({"without": [{"tasks": ["linear"], "backbones": ["s4"], "reason": "x"}]}, ("without.backbones", "'s4'")),
        ({"more": [{"tasks": ["linear"], "backbones": ["gpt2"], "presets": ["smoke"]}]}, ("more.0.seeds",)),
        ({"more": [PART | {"backbones": ["gtp2"]}]}, ("more.0.backbones", "'gtp2'", "'gpt2'")),
        ({"more": [PART | {"tasks": ["linaer"]}]}, ("more.0", "'linaer'", "'linear'")),
        ({"more": [PART | {"summary": "x"}]}, ("'more.0.summary'",)),
        ({"more": [PART | {"more": []}]}, ("'more.0.more'",)),
        ({"overrides": {"small": {"a b": []}}}, ("overrides", "'a b'")),
        ({"overrides": {"small": {"x": ["lr=1"]}}}, ("-o lr=1",)),
        ({"overrides": {"small": {"x": ["trian.lr=1"]}}}, ("'trian'", "'train'")),
    ],
)
def test_the_error_for_an_invalid_card_is_one_line_and_names_its_path(
    tmp_path: Path, changes: dict[str, object], names: tuple[object, ...]
) -> None:
    path = write(tmp_path, CARD | changes)
    with pytest.raises(UsageError) as error:
        load_grid(path)
    message = str(error.value)
    assert message.startswith(path) and "\n" not in message
    assert all(str(name) in message for name in names), message


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"evaluate": {"shifts": ["orthant"]}}, ("'orthant'", "'orthants'")),
        ({"tasks": ["tabular"], "evaluate": {"shifts": ["orthants"]}}, ("'orthants'",)),
        ({"evaluate": {"extrapolate": {"small": 20}}}, ("evaluate.extrapolate.small", 20, "'linear'")),
        ({"evaluate": {"loops": [4]}}, ("evaluate.loops", "'gpt2'", "backbone.loops")),
        ({"evaluate": {"shifts_of": {"linear": ["orthant"]}}}, ("'orthant'", "'orthants'")),
        ({"more": [PART | {"backbones": ["gpt2"]}]}, ("'linear-gpt2-smoke-s0'",)),
        ({"more": [PART | {"evaluate": {"shifts": ["orthant"]}}]}, ("'orthant'", "'orthants'")),
        ({"overrides": {"small": {"x": ["train.lrr=1"]}}}, ("'lrr'",)),
        ({"overrides": {"small": {"x": ["backbone.widht=8"]}}}, ("'widht'", "'width'")),
    ],
)
def test_the_error_for_a_card_that_is_invalid_for_a_task_is_one_line_and_names_the_grid(
    tmp_path: Path, changes: dict[str, object], names: tuple[object, ...]
) -> None:
    with pytest.raises(UsageError) as error:
        grid_runs(write(tmp_path, CARD | changes))
    message = str(error.value)
    assert message.startswith("grid 'mine': ") and "\n" not in message
    assert all(str(name) in message for name in names), message


def test_grid_errors_have_error_codes(tmp_path: Path) -> None:
    with refused("duplicate", "'linear-gpt2-smoke-s0'"):
        grid_runs(write(tmp_path, CARD | {"more": [PART | {"backbones": ["gpt2"]}]}))
    with refused("bad-value", "evaluate.extrapolate.small", 20):
        grid_runs(write(tmp_path, CARD | {"evaluate": {"extrapolate": {"small": 20}}}))
    with refused("unknown-name", "'mamba-icl-5'", "'mamba-icl-"):
        load_grid("mamba-icl-5")
    with refused("unknown-name", "'papr'", "'paper'", "'mamba-icl-4'"):
        grid_runs("mamba-icl-4", "papr")


def test_a_path_to_a_grid_card_is_recognised(tmp_path: Path) -> None:
    assert is_grid(write(tmp_path, CARD))
    assert not is_grid(str(ROOT / "tasks" / "linear.toml"))
    assert not is_grid("mamba-icl-1")


def test_show_prints_a_grid_its_commands_and_its_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, CARD)
    assert main(["show", path]) == 0
    values = tomllib.loads(capsys.readouterr().out)
    assert values["grid"] == "mine"
    assert len(values["runs"]) == 8
    assert {key: values[key] for key in CARD} == CARD
    assert main(["show", path, "--commands", "--preset", "smoke"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "iclbench train linear gpt2 --preset smoke --seed 0 --name linear-gpt2-smoke-s0"
    assert len(lines) == 4
    assert main(["show", path, "--card"]) == 0
    assert tomllib.load(io.BytesIO(capsys.readouterr().out.encode())) == CARD
    assert main(["show", "linear", "--commands"]) == 2
    assert "'linear'" in capsys.readouterr().err


def test_grids_are_listed_without_torch() -> None:
    code = (
        "import sys; from iclbench.cli.main import main; code = main(['list', 'grids', '--json']);"
        "assert code in (0, 2) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_wheel_includes_every_folder_of_cards() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {kind: f"iclbench/_cards/{kind}" for kind in ("tasks", "baselines", "grids")}


def test_a_built_wheel_contains_the_cards(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend is not installed here")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    wheel_files = zipfile.ZipFile(wheel).namelist()
    for grid in SHIPPED:
        assert f"iclbench/_cards/grids/{grid}.toml" in wheel_files
    assert "iclbench/_cards/grids/rates/grid.toml" in wheel_files


def test_grid_cards_have_exactly_the_expected_keys() -> None:
    keys = {"tasks", "backbones", "presets", "seeds", "evaluate", "probe", "cost", "weights", "without", "overrides"}
    assert set(GridPart.model_fields) == keys
    assert set(GridCard.model_fields) == keys | {"summary", "source", "notes", "more", "pairs", "engine"}


def test_pairs_add_runs_for_seeds_that_the_grid_lacks(tmp_path: Path) -> None:
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
    pair_seeds = {"gpt2": range(2, 8), "cnp": range(2, 8), "tnp": [2]}
    expected = {f"linear-{name}-smoke-s{seed}" for name, seeds in pair_seeds.items() for seed in [0, 1, *seeds]}
    assert {name for name in runs if name.startswith("linear")} == expected
    assert len(runs) == len(expected) + 6
    pair_run = runs["linear-cnp-smoke-s4"]
    assert pair_run.shifts == runs["linear-cnp-smoke-s0"].shifts and pair_run.evaluate
    assert pair_run.contexts is None and not pair_run.packs_weights and runs["linear-cnp-smoke-s0"].packs_weights
    path.write_text(tomli_w.dumps(card | {"pairs": [card["pairs"][0] | {"tasks": ["quadratic"]}]}))
    with pytest.raises(UsageError) as error:
        grid_runs(str(path))
    assert all(name in str(error.value) for name in ("pairs", "'gpt2'", "'quadratic'", "'smoke'"))


def test_names_in_a_grid_are_case_insensitive_and_may_contain_underscores(tmp_path: Path) -> None:
    card = CARD | {"tasks": ["Linear", "skewed_linear"], "backbones": ["GPT2", "cnp"]}
    card |= {"presets": ["smoke"], "seeds": [0]}
    pair = {"a": "gpt2", "b": "CNP", "tasks": ["Skewed_Linear"], "preset": "smoke", "seeds": [0, 1, 2]}
    without = {"tasks": ["linear"], "backbones": ["CNP"], "reason": "no"}
    spellings = {"pairs": [pair], "without": [without], "evaluate": {"shifts_of": {"LINEAR": ["orthants"]}}}
    runs = grid_runs(write(tmp_path, card | spellings), added_backbones=["gpt2", "Mamba", "mamba"])
    expected = {f"{task}-{name}-smoke-s0" for task in ("linear", "skewed-linear") for name in ("gpt2", "cnp", "mamba")}
    expected |= {f"skewed-linear-{name}-smoke-s{seed}" for name in ("gpt2", "cnp") for seed in (1, 2)}
    assert {run.name for run in runs} == expected and len(runs) == len(expected)
    assert {run.name for run in runs if run.exclusion} == {"linear-cnp-smoke-s0"}
    assert {run.config.task.name for run in runs if run.shifts} == {"linear"}
    with pytest.raises(UsageError) as error:
        grid_runs(write(tmp_path, card | {"backbones": ["gpt2", "GPT2"]}))
    assert "gpt2" in str(error.value)
