"""Grid cards of language models: the command line accepts their commands, and they agree with the papers."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from iclbench import tables
from iclbench.cli.lazy import command_parser
from iclbench.cli.main import main
from iclbench.config.cards import card_names
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.language.models.loading import DoesNotFitError
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.ranges import as_text, parse
from iclbench.store.cells import CellStore
from iclbench.sweep.language_grids import commands, grid_tasks, is_language_grid, language_cells, load_language_grid
from iclbench.sweep.order import Order
from iclbench.sweep.plan import make_plan
from iclbench.sweep.work import _LAST_MODEL, work
from tests.language.tiny_models import save_tiny_model

SHIPPED = [name for name in card_names("grids") if is_language_grid(name)]
CARD = {"summary": "a test", "models": ["a model", "gpt2"], "tasks": ["to-upper"], "demo_seeds": [0, 1, 2]}
CLASSIFICATION_TASKS = {"sst2", "sst5", "trec", "mr", "ag-news"}
# Tasks and numbers of models, demonstration seeds and orders, from the text of the papers.
PAPERS = {
    "deep-thinking-4": ({"sst2", "ag-news"}, 1, 10, 1),
    "deep-thinking-5-seeds": ({"sst2"}, 1, 10, 1),
    "deep-thinking-5-orders": ({"sst2"}, 1, 1, 10),
    "deep-thinking-6": ({"sst2"}, 1, 10, 1),
    "deep-thinking-table-1": (CLASSIFICATION_TASKS, 1, 10, 1),
    "deep-thinking-table-2": (CLASSIFICATION_TASKS, 8, 10, 1),
    "deep-thinking-table-3": ({"mmlu", "bbh"}, 7, 1, 1),
    "mamba-icl-6": ({"simple"}, 17, 1, 1),
    "mamba-icl-7": ({"simple"}, 4, 1, 1),
}


def grid_file(folder: Path, **changes: object) -> str:
    path = folder / "mine.toml"
    path.write_text(tomli_w.dumps(CARD | changes), encoding="utf-8")
    return str(path)


def parse_options(line: str) -> dict[str, object]:
    """Return the options that the command line parses from a command of a grid."""
    program, group, command, *rest = shlex.split(line)
    assert (program, group, command) == ("iclbench", "lm", "eval")
    parser = command_parser("lm eval")
    with parser.make_context(command, rest) as context:
        return dict(context.params)


@pytest.mark.parametrize("grid", PAPERS)
def test_a_grid_has_the_tasks_models_seeds_and_orders_of_the_paper(grid: str) -> None:
    tasks, models, seeds, orders = PAPERS[grid]
    card = load_language_grid(grid)[1]
    assert set(card.tasks) == tasks
    assert (len(card.models), len(card.demo_seeds), len(card.orders)) == (models, seeds, orders)


def test_figure_6_has_three_runs_of_15_passes_and_one_tuned_on_the_development_split() -> None:
    settings = [tuple(parse_options(line)["override"] or ()) for line in commands("deep-thinking-6")]
    passes = "method.passes=15"
    assert settings[1:] == [("method.eta=0.001", passes), (passes,), ("method.eta=0.1", passes), ("method.passes=dev",)]


def test_figure_3_covers_all_57_mmlu_subjects_in_four_families() -> None:
    tasks = grid_tasks("deep-thinking-3")
    assert len({task.family for task in tasks}) == 4
    assert {task.name for task in tasks} == {task.name for task in grid_tasks("deep-thinking-table-3")} - {
        task.name for task in bbh_tasks()
    }
    assert len(tasks) == 57


def bbh_tasks() -> list:
    return [task for task in grid_tasks("deep-thinking-table-3") if task.card.reader == "bbh"]


@pytest.mark.parametrize("grid", SHIPPED)
def test_the_command_line_accepts_every_command_of_a_shipped_grid(grid: str) -> None:
    card = load_language_grid(grid)[1]
    lines = list(commands(grid))
    assert len(lines) == len(set(lines)) == len(card.models) * len(card.methods)
    for line in lines:
        options = parse_options(line)
        assert options["model"][0] in card.models
        assert parse(str(options["demo_seeds"]), "") == card.demo_seeds
        assert parse(str(options["orders"]), "") == card.orders
        assert (parse(str(options["shots"]), "") if options["shots"] else []) == card.shots
        assert list(options["tasks"]) == [",".join(card.tasks)]


def test_a_grid_without_shots_uses_the_shots_of_its_task_cards() -> None:
    (line,) = list(commands("deep-thinking-5-seeds"))
    assert parse(str(parse_options(line)["shots"]), "") == [load_language_card("sst2")[1].shots] == [8]
    assert parse_options(next(commands("deep-thinking-table-2")))["shots"] is None


def test_commands_are_quoted_for_the_shell_and_contain_every_setting(tmp_path: Path) -> None:
    path = grid_file(
        tmp_path,
        shots=[0, 2, 4],
        orders=[1],
        episodes=7,
        controls=False,
        overlength="skip",
        dtype="bfloat16",
        methods={"x": {"method": "repeat", "overrides": ["method.times=3"]}},
    )
    first = next(commands(path, Path("my results")))
    printed = subprocess.run(["sh", "-c", f"printf '%s\\n' {first}"], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == [
        "iclbench",
        "lm",
        "eval",
        "--model",
        "a model",
        "--tasks",
        "to-upper",
        "--shots",
        "0,2,4",
        "--demo-seeds",
        "0:3",
        "--orders",
        "1",
        "--episodes",
        "7",
        "--no-controls",
        "--overlength",
        "skip",
        "--dtype",
        "bfloat16",
        "--method",
        "repeat",
        "-o",
        "method.times=3",
        "--results",
        "my results",
    ]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model": ["gpt2"]}, ("'model'", "'models'")),
        ({"models": []}, ("models",)),
        ({"models": ["a/lm", "b/lm"]}, ("'a/lm'", "'b/lm'", "'lm'")),
        ({"demo_seeds": [0, 0]}, ("demo_seeds", 0)),
        ({"shots": [-1]}, ("shots.0", -1)),
        ({"methods": {"A b": {}}}, ("methods", "'A b'")),
        ({"methods": {"x": {"method": "think"}}}, ("methods.x.method", "'icl'", "'deep-thinking'", "'repeat'")),
        ({"tasks": ["to-uper"]}, ("grid 'mine'", "'to-uper'", "'to-upper'")),
        ({"methods": {"x": {"method": "repeat", "overrides": ["method.time=3"]}}}, ("grid 'mine'", "'time'")),
        ({"methods": {"x": {"overrides": ["train.lr=3"]}}}, ("grid 'mine'", "'train'")),
    ],
)
def test_an_invalid_card_is_refused_with_a_one_line_error(
    tmp_path: Path, changes: dict[str, object], names: tuple[object, ...]
) -> None:
    with pytest.raises(UsageError) as error:
        list(commands(grid_file(tmp_path, **changes)))
    message = str(error.value)
    assert "\n" not in message
    assert all(str(name) in message for name in ("mine", *names)), message


def test_grids_tasks_and_suites_are_shown_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", grid_file(tmp_path)]) == 0
    assert 'grid = "mine"' in capsys.readouterr().out
    assert main(["show", grid_file(tmp_path), "--commands"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "iclbench lm eval --model gpt2 --tasks to-upper --demo-seeds 0:3"
    assert main(["show", grid_file(tmp_path), "--commands", "--preset", "paper"]) == 2
    assert "--preset" in capsys.readouterr().err
    assert main(["show", "to-upper"]) == 0
    assert 'language_task = "to-upper"' in capsys.readouterr().out
    assert main(["show", "sst2", "--card"]) == 0
    assert "Sentiment" in capsys.readouterr().out
    assert main(["list", "tasks"]) == 0
    assert re.search(r"^tasks for language models: iclbench lm tasks$", capsys.readouterr().out, re.M)
    assert main(["train", "sst2", "gpt2"]) == 2
    err = capsys.readouterr().err
    assert "iclbench lm eval" in err and "--tasks sst2" in err and err.count("\n") == 1


@pytest.mark.slow
def test_grids_of_language_models_are_recognised_and_listed_without_torch() -> None:
    assert is_language_grid("mamba_icl_6") and not is_language_grid("mamba-icl-1") and not is_language_grid("linear")
    code = (
        "import sys; from iclbench.cli.main import main; code = main(['list', 'grids', '--json']);"
        "assert code == 0 and not {'torch', 'pandas', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("text", "numbers"), [("5", [5]), ("0:3", [0, 1, 2]), ("0,2,4,8", [0, 2, 4, 8]), ("7,0:2", [7, 0, 1])]
)
def test_ranges_are_half_open_as_in_python(text: str, numbers: list[int]) -> None:
    assert parse(text, "--shots") == numbers
    assert parse(as_text(numbers), "--shots") == numbers


@pytest.mark.parametrize("text", ["", "a", "3:3", "3:1", "-1", "1,,2", "0:99999", "1.5"])
def test_the_error_for_an_invalid_range_names_the_option(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text, "--orders")
    assert "--orders" in str(error.value)


@pytest.mark.slow
def test_a_cell_writes_the_same_tables_as_its_commands(tmp_path: Path) -> None:
    save_tiny_model("gpt2", tmp_path / "lm")
    changes = {"models": [str(tmp_path / "lm")], "demo_seeds": [1], "episodes": 4, "shots": [2]}
    thinking = {"method": "deep-thinking", "overrides": ["method.passes=2"]}
    grid = grid_file(tmp_path, **changes, methods={"icl": {}, "deep-thinking": thinking})
    (cell,) = language_cells(grid)
    swept, command_results = tmp_path / "swept", tmp_path / "typed"
    assert make_plan([cell], CellStore(swept)).todo == (cell,)
    outcome = work(cell, Context(swept))
    assert outcome.status == "done" and outcome.reason is None
    assert make_plan([cell], CellStore(swept)).todo == ()
    for line in commands(grid, command_results):
        assert main(shlex.split(line)[1:]) == 0
    values, expected = (tables.read_all("values", folder / "tables") for folder in (swept, command_results))
    keys = ["prompt_set", "run", "evaluator", "metric", "axis_value", "n_context", "shift"]
    assert len(values) and values.sort_values(keys).reset_index(drop=True).equals(
        expected.sort_values(keys).reset_index(drop=True)
    )
    next(swept.glob("tables/*/lm.values.parquet")).unlink()
    assert make_plan([cell], CellStore(swept)).todo == (cell,), "a deleted table is recomputed"


def test_cell_hashes_depend_on_weights_and_settings_and_a_missing_model_fails_its_cell(tmp_path: Path) -> None:
    save_tiny_model("gpt2", tmp_path / "lm")
    grid = grid_file(tmp_path, models=[str(tmp_path / "lm"), "./nowhere"])
    (cell, missing), (same_cell, _) = language_cells(grid), language_cells(grid)
    assert cell.hash == same_cell.hash != missing.hash
    other = grid_file(tmp_path, models=[str(tmp_path / "lm")], shots=[3])
    assert next(iter(language_cells(other))).hash != cell.hash
    (tmp_path / "lm").rename(tmp_path / "old")
    save_tiny_model("gpt2", tmp_path / "lm", seed=1)
    assert next(iter(language_cells(grid))).hash != cell.hash
    outcome = work(missing, Context(tmp_path / "results"))
    assert outcome.status == "failed" and "'./nowhere'" in (outcome.reason or "")


def test_a_model_that_fails_to_load_is_not_loaded_again_for_the_next_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, **_: object) -> None:
        calls.append(name)
        raise UsageError(f"'{name}' cannot be loaded")

    calls: list[str] = []
    monkeypatch.setattr("iclbench.language.models.model.load", load)
    grid = grid_file(tmp_path, models=["owner/missing-model"], tasks=["to-upper", "to-lower"])
    outcomes = [work(cell, Context(tmp_path / "results")) for cell in language_cells(grid)]
    assert [outcome.reason for outcome in outcomes] == ["'owner/missing-model' cannot be loaded"] * 2
    assert calls == ["owner/missing-model"]


def test_cells_are_ordered_by_model_and_a_model_that_did_not_fit_into_memory_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, **_: object) -> None:
        assert not _LAST_MODEL, "the previous model is removed first"
        calls.append(name)
        raise DoesNotFitError(f"'{name}' does not fit") if name == "b/two" else UsageError(f"'{name}' is missing")

    calls: list[str] = []
    monkeypatch.setattr("iclbench.language.models.model.load", load)
    grid = grid_file(tmp_path, models=["a/one", "b/two"], tasks=["to-upper", "to-lower"])
    order = Order(make_plan(list(language_cells(grid)), CellStore(tmp_path)), 1)
    cells = [order.take() for _ in range(4)]
    assert [cell.run for cell in cells if cell] == ["one", "one", "two", "two"]
    assert all(work(cell, Context(tmp_path / "results")).status == "failed" for cell in cells if cell)
    assert calls == ["a/one", "b/two", "b/two"]


def test_a_dry_run_counts_cells_of_language_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = grid_file(tmp_path, tasks=["to-upper", "to-lower"])
    assert main(["sweep", grid, "--dry-run", "--json", "--results", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["to_do"] == {"evaluate": 4}
    assert main(["sweep", grid, "--pack", "here", "--results", str(tmp_path)]) == 2
    assert grid in capsys.readouterr().err
