"""The cells of a grid card and their hashes. A hash changes only if an input of the cell's rows changes."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from iclbench.sweep.cells import SUMMARY, GridCell, grid_cells
from iclbench.sweep.grids import grid_runs
from tests.conftest import small_card
from tests.sweep.conftest import tiny_grid


def hashes(cells: list[GridCell]) -> dict[tuple[object, ...], str]:
    """Map the kind, run, task and probe of each cell to its hash."""
    return {(cell.kind, cell.run, cell.task, cell.options.get("probe")): cell.hash for cell in cells}


def changed_cells(before: list[GridCell], after: list[GridCell]) -> set[tuple[str, str]]:
    """Return the kind and run of each cell whose hash changed."""
    old, new = hashes(before), hashes(after)
    assert old.keys() == new.keys()
    return {(str(key[0]), str(key[1])) for key in old if old[key] != new[key]}


def one_task_cells(folder: Path, grid: dict[str, Any] | None = None, **card: object) -> list[GridCell]:
    """Return the cells of one backbone on a task with several baselines and an oracle."""
    folder.mkdir(exist_ok=True)
    task = folder / "tiny.toml"
    task.write_text(tomli_w.dumps(small_card(**card)))
    grid_card = {
        "summary": "one",
        "tasks": [str(task)],
        "backbones": ["gpt2"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"shifts": ["orthants", "noisy"]},
        "probe": {},
        "cost": {"points": [4, 6]},
        **(grid or {}),
    }
    path = folder / "one.toml"
    path.write_text(tomli_w.dumps(grid_card))
    return grid_cells([str(path)])


RUN = "tiny-gpt2-smoke-s0"
EVALUATIONS = {("evaluate", name) for name in ("zero", "mean", "knn-3", "least-squares", RUN, SUMMARY)}


def test_empty_overrides_do_not_change_runs(tmp_path: Path) -> None:
    plain, empty = (one_task_cells(tmp_path, {"overrides": overrides}) for overrides in ({}, {"smoke": {}}))
    assert [cell.hash for cell in empty] == [cell.hash for cell in plain]


def test_runs_baselines_probes_costs_and_the_summary_are_cells(tmp_path: Path) -> None:
    cells = one_task_cells(tmp_path)
    assert {(cell.kind, cell.run) for cell in cells} == EVALUATIONS | {(k, RUN) for k in ("train", "probe", "cost")}
    assert len({cell.hash for cell in cells}) == len(cells) == 9
    by_name = {(cell.kind, cell.run): cell for cell in cells}
    train, summary = by_name["train", RUN], by_name["evaluate", SUMMARY]
    for kind in ("evaluate", "probe"):
        assert by_name[kind, RUN].needs == (train.hash,)
    assert by_name["cost", RUN].needs == (), "costs do not depend on weights"
    assert set(summary.needs) == {by_name[key].hash for key in EVALUATIONS - {("evaluate", SUMMARY)}}
    assert by_name["evaluate", RUN].options["shifts"] == ["none", "orthants", "noisy-1"]
    assert by_name["cost", RUN].options["points"] == [4, 6, 8]
    assert [cell.run for cell in cells].index(SUMMARY) == 8


def test_hashes_do_not_depend_on_notes_folders_or_the_order_of_lists(tmp_path: Path) -> None:
    before = one_task_cells(tmp_path / "a")
    reordered = {"evaluate": {"shifts": ["noisy", "orthants"]}, "cost": {"points": [6, 4]}, "notes": "reordered"}
    after = one_task_cells(tmp_path / "b", reordered, notes="a note", summary="another", source="a paper")
    assert not changed_cells(before, after)


@pytest.mark.parametrize(
    ("grid", "card", "expected"),
    [
        # A training setting changes the cells of the run and the summary.
        (
            {},
            {"presets": {"train": {"lr": 2e-3}}},
            {(kind, RUN) for kind in ("train", "evaluate", "probe", "cost")} | {("evaluate", SUMMARY)},
        ),
        # Settings of evaluations, costs and probes do not change the training cell.
        ({}, {"presets": {"episodes": 64}}, EVALUATIONS | {("probe", RUN)}),
        ({"evaluate": {"shifts": ["orthants"]}}, {}, EVALUATIONS),
        ({"evaluate": {"shifts": ["orthants", "noisy"], "seed": 1}}, {}, EVALUATIONS),
        ({"cost": {"points": [4]}}, {}, {("cost", RUN)}),
        ({"probe": {"contexts": {"smoke": [4]}}}, {}, {("probe", RUN)}),
        # Without oracles, least squares is a baseline, and the summary and the reference levels of the probe change.
        (
            {},
            {"oracles": [], "baselines": ["zero", "mean", "knn-3", "least-squares"]},
            {("evaluate", "least-squares"), ("evaluate", SUMMARY), ("probe", RUN)},
        ),
        # Published numbers are rows of the summary.
        (
            {},
            {"published": [{"contestant": "gpt2", "value": 0.1, "source": "a", "read": "b"}]},
            {("evaluate", SUMMARY)},
        ),
    ],
)
def test_a_setting_changes_only_the_hashes_of_cells_that_depend_on_it(
    tmp_path: Path, grid: dict[str, Any], card: dict[str, Any], expected: set[tuple[str, str]]
) -> None:
    before = one_task_cells(tmp_path / "a")
    smoke: dict[str, Any] = small_card()["presets"]["smoke"]  # type: ignore[index]
    changes = card.pop("presets", {})
    train = smoke["train"] | changes.pop("train", {})
    after = one_task_cells(tmp_path / "b", grid, presets={"smoke": smoke | changes | {"train": train}}, **card)
    assert changed_cells(before, after) == expected


def test_runs_with_equal_configurations_but_different_names_have_different_cells(tmp_path: Path) -> None:
    """Their rows contain the name of the run."""
    variants = {"smoke": {"plain": [], "same": ["train.lr=1e-3"]}}
    training_cells = [cell for cell in one_task_cells(tmp_path, {"overrides": variants}) if cell.kind == "train"]
    assert [cell.run for cell in training_cells] == [RUN, "tiny-gpt2-same-smoke-s0"]
    assert training_cells[0].config == training_cells[1].config
    assert training_cells[0].hash != training_cells[1].hash


def test_two_grids_share_equal_cells(tmp_path: Path) -> None:
    first = tiny_grid(tmp_path, probe=None)
    second = tmp_path / "second.toml"
    second.write_text(first.read_text().replace('"cnp"', '"tnp"'))
    first_cells, second_cells = (grid_cells([str(path)]) for path in (first, second))
    all_cells = grid_cells([str(first), str(second)])
    shared = {cell.hash for cell in first_cells} & {cell.hash for cell in second_cells}
    assert {cell.run for cell in first_cells if cell.hash in shared} == {
        "zero",
        "mean",
        "knn-3",
        "least-squares",
        "tiny-linear-gpt2-smoke-s0",
        "tiny-quadratic-gpt2-smoke-s0",
    }
    single_hashes = {cell.hash for cell in (*first_cells, *second_cells) if cell.run != SUMMARY}
    assert {cell.hash for cell in all_cells if cell.run != SUMMARY} == single_hashes


def test_a_baseline_evaluation_merges_the_options_of_runs_with_the_same_evaluation_seed(tmp_path: Path) -> None:
    more = [
        {
            "tasks": [str(tmp_path / "tiny.toml")],
            "backbones": ["cnp"],
            "presets": ["smoke"],
            "seeds": [0],
            "evaluate": {"shifts": ["noisy"], "baselines": ["zero"]},
        },
        {
            "tasks": [str(tmp_path / "tiny.toml")],
            "backbones": ["tnp"],
            "presets": ["smoke"],
            "seeds": [0],
            "evaluate": {"seed": 1, "baselines": ["zero"]},
        },
    ]
    cells = one_task_cells(tmp_path, {"evaluate": {"shifts": ["orthants"]}, "more": more})
    assert [cell.options for cell in cells if cell.run == "zero"] == [
        {"shifts": ["none", "orthants", "noisy-1"], "evaluators": [], "seed": 0},
        {"shifts": ["none"], "evaluators": [], "seed": 1},
    ]
    assert [cell.options["shifts"] for cell in cells if cell.run == "knn-3"] == [["none", "orthants"]]
    assert [cell.options["seed"] for cell in cells if cell.run == SUMMARY] == [0, 1]


def test_excluded_cells_have_a_reason_and_are_not_needed_by_the_summary(tmp_path: Path) -> None:
    without = [{"tasks": [str(tmp_path / "tiny.toml")], "backbones": ["icicl-cnp"], "reason": "no related datasets"}]
    cells = one_task_cells(tmp_path, {"backbones": ["gpt2", "icicl-cnp"], "without": without})
    excluded = [cell for cell in cells if cell.contestant == "icicl-cnp"]
    assert {cell.kind for cell in excluded} == {"train", "evaluate", "probe", "cost"}
    assert {cell.reason for cell in excluded} == {"no related datasets"}
    (summary,) = [cell for cell in cells if cell.run == SUMMARY]
    assert not {cell.hash for cell in excluded} & set(summary.needs)


def test_a_baseline_that_does_not_apply_to_a_task_is_skipped_with_a_reason(tmp_path: Path) -> None:
    """A grid may have one list of baselines for regression and classification tasks. Oracles are added to the list."""
    cells = one_task_cells(tmp_path, {"evaluate": {"baselines": ["zero", "majority"]}})
    by_name = {cell.run: cell for cell in cells if cell.kind == "evaluate"}
    reason = by_name["majority"].reason
    assert reason and "'majority'" in reason and "'tiny'" in reason and by_name["zero"].reason is None
    assert set(by_name[SUMMARY].needs) == {by_name[name].hash for name in ("least-squares", "zero", RUN)}
    (run,) = grid_runs(str(tmp_path / "one.toml"))
    commands = " ".join(run.commands())
    assert "--baseline least-squares --baseline zero" in commands and "majority" not in commands


def test_a_user_baseline_card_is_given_by_its_path_and_hashed_by_its_content(tmp_path: Path) -> None:
    card = tmp_path / "nearest.toml"
    card.write_text(tomli_w.dumps({"estimator": "knn", "summary": "mine", "settings": {"k": 1}}))
    cells = one_task_cells(tmp_path, {"evaluate": {"baselines": ["zero", str(card)]}})
    (nearest,) = [cell for cell in cells if cell.run == "nearest"]
    assert nearest.baseline == str(card)
    card.write_text(tomli_w.dumps({"estimator": "knn", "summary": "mine", "settings": {"k": 2}}))
    changed_grid = one_task_cells(tmp_path, {"evaluate": {"baselines": ["zero", str(card)]}})
    assert {cell.hash for cell in changed_grid if cell.run == "nearest"} != {nearest.hash}
