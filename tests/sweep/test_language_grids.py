"""Grid cards of language models: what they stand for can be typed, and is what the papers' text says."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from iclbench import tables
from iclbench.cli.lazy import load
from iclbench.cli.main import main
from iclbench.config.cards import names
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.language.models.loading import DoesNotFitError
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.ranges import parse, written
from iclbench.store.cells import Store
from iclbench.sweep.language_grids import commands, grid_tasks, is_language_grid, language_cells, load_language_grid
from iclbench.sweep.order import Order
from iclbench.sweep.plan import plan
from iclbench.sweep.work import _LAST_MODEL, work
from tests.language.tiny_models import tiny

SHIPPED = [name for name in names("grids") if is_language_grid(name)]
CARD = {"summary": "a test", "models": ["a model", "gpt2"], "tasks": ["to-upper"], "demo_seeds": [0, 1, 2]}
FIVE = {"sst2", "sst5", "trec", "mr", "ag-news"}
# What the text of the papers says: tasks, how many models, demonstration seeds, orders.
PAPERS = {
    "deep-thinking-4": ({"sst2", "ag-news"}, 1, 10, 1),
    "deep-thinking-5-seeds": ({"sst2"}, 1, 10, 1),
    "deep-thinking-5-orders": ({"sst2"}, 1, 1, 10),
    "deep-thinking-6": ({"sst2"}, 1, 10, 1),
    "deep-thinking-table-1": (FIVE, 1, 10, 1),
    "deep-thinking-table-2": (FIVE, 8, 10, 1),
    "deep-thinking-table-3": ({"mmlu", "bbh"}, 7, 1, 1),
    "mamba-icl-6": ({"simple"}, 17, 1, 1),
    "mamba-icl-7": ({"simple"}, 4, 1, 1),
}


def grid_file(folder: Path, **changes: object) -> str:
    path = folder / "mine.toml"
    path.write_text(tomli_w.dumps(CARD | changes), encoding="utf-8")
    return str(path)


def typed(line: str) -> dict[str, object]:
    """The options that the command line reads from one command of a grid."""
    program, group, command, *rest = shlex.split(line)
    assert (program, group, command) == ("iclbench", "lm", "eval")
    reader = load("lm eval")
    with reader.make_context(command, rest) as context:
        return dict(context.params)


@pytest.mark.parametrize("grid", PAPERS)
def test_a_grid_has_the_tasks_models_seeds_and_orders_of_the_text(grid: str) -> None:
    tasks, models, seeds, orders = PAPERS[grid]
    card = load_language_grid(grid)[1]
    assert set(card.tasks) == tasks
    assert (len(card.models), len(card.demo_seeds), len(card.orders)) == (models, seeds, orders)


def test_figure_6_has_three_gates_of_fifteen_passes_and_a_development_split() -> None:
    settings = [tuple(typed(line)["override"] or ()) for line in commands("deep-thinking-6")]
    passes = "method.passes=15"
    assert settings[1:] == [("method.eta=0.001", passes), (passes,), ("method.eta=0.1", passes), ("method.passes=dev",)]


def test_figure_3_asks_every_subject_of_mmlu_once_in_four_classes() -> None:
    tasks = grid_tasks("deep-thinking-3")
    assert len({task.family for task in tasks}) == 4
    assert {task.name for task in tasks} == {task.name for task in grid_tasks("deep-thinking-table-3")} - {
        task.name for task in tasks_of_bbh()
    }
    assert len(tasks) == 57


def tasks_of_bbh() -> list:
    return [task for task in grid_tasks("deep-thinking-table-3") if task.card.reader == "bbh"]


@pytest.mark.parametrize("grid", SHIPPED)
def test_every_command_of_a_shipped_grid_is_one_that_the_command_line_takes(grid: str) -> None:
    card = load_language_grid(grid)[1]
    lines = list(commands(grid))
    assert len(lines) == len(set(lines)) == len(card.models) * len(card.methods)
    for line in lines:
        options = typed(line)
        assert options["model"][0] in card.models
        assert parse(str(options["demo_seeds"]), "") == card.demo_seeds
        assert parse(str(options["orders"]), "") == card.orders
        assert (parse(str(options["shots"]), "") if options["shots"] else []) == card.shots
        assert options["tasks"] == [",".join(card.tasks)]


def test_an_empty_list_of_shots_means_those_of_the_cards() -> None:
    (line,) = list(commands("deep-thinking-5-seeds"))
    assert parse(str(typed(line)["shots"]), "") == [load_language_card("sst2")[1].shots] == [8]
    assert typed(next(commands("deep-thinking-table-2")))["shots"] is None


def test_commands_are_safe_in_a_shell_and_name_every_setting(tmp_path: Path) -> None:
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
    ("changes", "message"),
    [
        ({"model": ["gpt2"]}, "unknown key 'model'; did you mean 'models'"),
        ({"models": []}, "models: expected .*at least 1"),
        ({"models": ["a/lm", "b/lm"]}, "'a/lm' and 'b/lm' .*'lm'"),
        ({"demo_seeds": [0, 0]}, "demo_seeds: 0 is listed twice"),
        ({"shots": [-1]}, "shots.0: expected greater than or equal to 0, got -1"),
        ({"methods": {"A b": {}}}, "a variant's name is lower-case letters, .* got 'A b'"),
        ({"methods": {"x": {"method": "think"}}}, "methods.x.method: expected 'icl', 'deep-thinking' or 'repeat'"),
        ({"tasks": ["to-uper"]}, "grid 'mine': unknown language task 'to-uper'; did you mean 'to-upper'"),
        ({"methods": {"x": {"method": "repeat", "overrides": ["method.time=3"]}}}, "grid 'mine': .*'time.*'times'"),
        ({"methods": {"x": {"overrides": ["train.lr=3"]}}}, "grid 'mine': unknown key 'train'"),
    ],
)
def test_a_bad_grid_is_one_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        list(commands(grid_file(tmp_path, **changes)))
    assert len(str(error.value).splitlines()) == 1
    assert "mine" in str(error.value)


def test_show_and_list_know_grids_tasks_and_suites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", grid_file(tmp_path)]) == 0
    assert 'grid = "mine"' in capsys.readouterr().out
    assert main(["show", grid_file(tmp_path), "--commands"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "iclbench lm eval --model gpt2 --tasks to-upper --demo-seeds 0:3"
    assert main(["show", grid_file(tmp_path), "--commands", "--preset", "paper"]) == 2
    assert "drop --preset" in capsys.readouterr().err
    assert main(["show", "to-upper"]) == 0
    assert 'language_task = "to-upper"' in capsys.readouterr().out
    assert main(["show", "sst2", "--card"]) == 0
    assert "Sentiment" in capsys.readouterr().out
    assert main(["list", "tasks"]) == 0
    assert re.search(r"^tasks for language models: iclbench lm tasks$", capsys.readouterr().out, re.M)
    assert main(["train", "sst2", "gpt2"]) == 2
    line = capsys.readouterr().err
    assert "iclbench lm eval --model DIR_OR_ID --tasks sst2" in line and line.count("\n") == 1


@pytest.mark.slow
def test_grids_are_told_apart_by_models_and_listed_without_torch() -> None:
    assert is_language_grid("mamba_icl_6") and not is_language_grid("mamba-icl-1") and not is_language_grid("linear")
    code = (
        "import sys; from iclbench.cli.main import main; code = main(['list', 'grids', '--json']);"
        "assert code == 0 and not {'torch', 'pandas', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("text", "numbers"), [("5", [5]), ("0:3", [0, 1, 2]), ("0,2,4,8", [0, 2, 4, 8]), ("7,0:2", [7, 0, 1])]
)
def test_ranges_are_read_as_python_counts(text: str, numbers: list[int]) -> None:
    assert parse(text, "--shots") == numbers
    assert parse(written(numbers), "--shots") == numbers


@pytest.mark.parametrize("text", ["", "a", "3:3", "3:1", "-1", "1,,2", "0:99999", "1.5"])
def test_what_is_no_range_names_the_option(text: str) -> None:
    with pytest.raises(UsageError, match="--orders"):
        parse(text, "--orders")


@pytest.mark.slow
def test_a_cell_of_a_sweep_leaves_the_tables_of_the_commands_and_is_done(tmp_path: Path) -> None:
    tiny("gpt2", tmp_path / "lm")
    changes = {"models": [str(tmp_path / "lm")], "demo_seeds": [1], "episodes": 4, "shots": [2]}
    thinking = {"method": "deep-thinking", "overrides": ["method.passes=2"]}
    grid = grid_file(tmp_path, **changes, methods={"icl": {}, "deep-thinking": thinking})
    (cell,) = language_cells(grid)
    swept, typed_in = tmp_path / "swept", tmp_path / "typed"
    assert plan([cell], Store(swept)).todo == (cell,)
    outcome = work(cell, Context(swept))
    assert outcome.status == "done" and outcome.reason is None
    assert plan([cell], Store(swept)).todo == ()
    for line in commands(grid, typed_in):
        assert main(shlex.split(line)[1:]) == 0
    found, expected = (tables.read_all("values", folder / "tables") for folder in (swept, typed_in))
    keys = ["prompt_set", "run", "evaluator", "metric", "axis_value", "n_context", "shift"]
    assert len(found) and found.sort_values(keys).reset_index(drop=True).equals(
        expected.sort_values(keys).reset_index(drop=True)
    )
    values = next(swept.glob("tables/*/lm.values.parquet"))
    values.unlink()
    assert plan([cell], Store(swept)).todo == (cell,), "what is gone is computed again"


def test_other_weights_or_settings_are_other_cells_and_what_is_no_model_fails_alone(tmp_path: Path) -> None:
    tiny("gpt2", tmp_path / "lm")
    grid = grid_file(tmp_path, models=[str(tmp_path / "lm"), "./nowhere"])
    (one, nowhere), (again, _) = language_cells(grid), language_cells(grid)
    assert one.hash == again.hash != nowhere.hash
    other = grid_file(tmp_path, models=[str(tmp_path / "lm")], shots=[3])
    assert next(iter(language_cells(other))).hash != one.hash
    (tmp_path / "lm").rename(tmp_path / "old")
    tiny("gpt2", tmp_path / "lm", seed=1)
    assert next(iter(language_cells(grid))).hash != one.hash
    outcome = work(nowhere, Context(tmp_path / "results"))
    assert outcome.status == "failed" and "'./nowhere'" in (outcome.reason or "")


def test_a_model_that_cannot_be_had_is_asked_for_once_however_many_tasks_it_was_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, **_: object) -> None:
        tried.append(name)
        raise UsageError(f"'{name}' cannot be had")

    tried: list[str] = []
    monkeypatch.setattr("iclbench.language.models.model.load", load)
    grid = grid_file(tmp_path, models=["nobody/no-model"], tasks=["to-upper", "to-lower"])
    outcomes = [work(cell, Context(tmp_path / "results")) for cell in language_cells(grid)]
    assert [outcome.reason for outcome in outcomes] == ["'nobody/no-model' cannot be had"] * 2
    assert tried == ["nobody/no-model"]


def test_a_worker_has_all_tasks_of_one_model_in_a_row_and_asks_again_where_memory_was_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, **_: object) -> None:
        assert not _LAST_MODEL, "the model before is let go of first"
        tried.append(name)
        raise DoesNotFitError(f"'{name}' does not fit") if name == "b/two" else UsageError(f"'{name}' cannot be had")

    tried: list[str] = []
    monkeypatch.setattr("iclbench.language.models.model.load", load)
    grid = grid_file(tmp_path, models=["a/one", "b/two"], tasks=["to-upper", "to-lower"])
    order = Order(plan(list(language_cells(grid)), Store(tmp_path)), 1)
    cells = [order.take() for _ in range(4)]
    assert [cell.run for cell in cells if cell] == ["one", "one", "two", "two"]
    assert all(work(cell, Context(tmp_path / "results")).status == "failed" for cell in cells if cell)
    assert tried == ["a/one", "b/two", "b/two"]


def test_a_dry_run_counts_cells_of_language_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = grid_file(tmp_path, tasks=["to-upper", "to-lower"])
    assert main(["sweep", grid, "--dry-run", "--json", "--results", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["total"]["to_do"] == {"evaluate": 4}
    assert main(["sweep", grid, "--pack", "here", "--results", str(tmp_path)]) == 2
    assert grid in capsys.readouterr().err
