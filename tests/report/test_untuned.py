"""A backbone that nobody tuned, among others that were, is never ranked above a tie."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from iclbench.config import rates
from iclbench.report import data, normalised
from iclbench.report.blocks import Figure, Section, Table, Text
from iclbench.report.data import Results
from iclbench.report.sections import report
from iclbench.report.sections.ranking import among, ranking
from iclbench.report.untuned import untuned
from iclbench.tables import frame
from tests.report import synthetic_grid
from tests.report.synthetic_grid import BACKBONES
from tests.tables.rows import complete


@pytest.fixture(scope="module")
def unfair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """The grid where everybody but the best, gpt2, has a rate on two tasks, and nobody has one elsewhere."""
    tmp_path = tmp_path_factory.mktemp("unfair")
    chosen = "".join(f"{name} = {{ lr = 1e-3 }}\n" for name in BACKBONES if name != "gpt2")
    folder = tmp_path / "results"
    synthetic_grid.write(folder)
    (folder / "rates").mkdir()
    (folder / "rates" / "grid.toml").write_text(
        '[[tuned]]\ntasks = ["gp-mixture", "linear"]\nsteps = 100\nseeds = 3\n[tuned.train]\n' + chosen
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates, "shipped_path", lambda preset: tmp_path / "none.toml")
        yield data.load(folder)


@pytest.fixture(scope="module")
def told(unfair: Results) -> list[Section]:
    """The sections of a report on tasks of every question, those with chosen rates among them."""
    return report(some(unfair))


def some(results: Results) -> Results:
    """What was read of a few tasks: a section of each of the others costs a second."""
    tasks = ["bursty", "gp-mixture", "linear"]
    of = {name: getattr(results, name) for name in ("rows", "costs", "cells")}
    return replace(results, **{name: rows[rows["task"].isin(tasks)] for name, rows in of.items()})


def test_nobody_is_told_to_be_worse_than_it(grid_results: Results, unfair: Results) -> None:
    before, _ = ranking(normalised.contests(grid_results, "grid"))
    after, _ = ranking(normalised.contests(unfair, "grid"))
    assert before["contestant"].tolist() == after["contestant"].tolist()
    before, after = before.set_index("contestant"), after.set_index("contestant")
    assert before.loc["gpt2", "rank"] != after.loc["gpt2", "rank"]
    assert after.loc["gpt2", "rank"].split("–")[-1] == str(len(after))
    below = after.index[after.index.get_loc("gpt2") + 1]
    assert after.loc[below, "tied"] == "tied"
    # It may well be worse than others, and others are told apart as they were.
    first = {name: int(after.loc[name, "rank"].split("–")[0]) for name in ("s4d", "cnp")}
    assert first == {name: int(before.loc[name, "rank"].split("–")[0]) - 1 for name in ("s4d", "cnp")}


def test_who_is_told_to_be_worse_than_it_is_tied(
    grid_results: Results, unfair: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    contests = normalised.contests(grid_results, "grid")
    before = ranking(contests)[0].set_index("contestant")
    assert before.loc["cnp", "tied"] == "told apart" and before.index.tolist()[-2:] == ["s4d", "cnp"]
    monkeypatch.setattr("iclbench.report.sections.ranking.untuned", lambda contests: {"s4d": ["linear"]})
    after = ranking(contests)[0].set_index("contestant")
    assert after.loc["cnp", "tied"] == "tied" and after.loc["s4d", "rank"] == after.loc["cnp", "rank"] == "4–5"
    assert after.loc["s4d", "tied"] == "told apart", "it may well be worse than others"


def test_only_tasks_where_others_are_tuned_count(unfair: Results, grid_results: Results) -> None:
    assert untuned(unfair.slices) == {"gpt2": ["gp-mixture", "linear"]}
    assert untuned(grid_results.slices) == {}


def test_every_table_that_compares_it_marks_it(told: list[Section], grid_results: Results) -> None:
    text = [line for s in told for block in s.walk() if isinstance(block, Text) for line in block.items]
    assert "gpt2: gp-mixture, linear" in text
    said = {t.name: "".join(cell.text for row in t.rows() for cell in row) for s in told for t in tables(s)}
    headers = {t.name: [column.header for column in t.columns] for s in told for t in tables(s)}
    assert "gpt2 (untuned)" in said["gp-mixture-grid-leaderboard-targets"]
    assert "gpt2" in said["bursty-grid-in-context"] and "untuned" not in said["bursty-grid-in-context"], (
        "nobody is there"
    )
    assert all("gpt2 (untuned on 2 tasks)" in said[name] for name in ("ranking-grid", "scores"))
    assert "gpt2 (untuned on 2 tasks)" in headers["heat-map-grid-numbers"] and "s4d" in headers["heat-map-grid-numbers"]
    assert not any(f"{other} (untuned" in shown for other in BACKBONES if other != "gpt2" for shown in said.values())
    heat_map = next(block for s in told for block in s.walk() if isinstance(block, Figure) and "heat" in block.name)
    assert "as others were: gpt2." in heat_map.caption
    speaks = ["heat-map", "ranking", "overview", "leaderboard", "targets"]
    nobody = [
        cell.text for s in report(some(grid_results), speaks) for t in tables(s) for row in t.rows() for cell in row
    ]
    assert not any("untuned" in cell for cell in nobody)


@pytest.mark.slow
def test_it_shares_its_rank_with_the_next_one_below_and_its_place_among_the_ranked_reaches_to_the_last(
    results: Path, grid_results: Results, tmp_path: Path
) -> None:
    order, rank = board(results)
    place = min(map(order.index, ("gpt2", "mamba")))
    alone, below = order[place], order[place + 1 :]
    others = [name for name in ("gpt2", "mamba") if name != alone]
    assert rank[alone] < rank[below[0]]
    folder = shutil.copytree(results, tmp_path / "results")
    (folder / "rates").mkdir()
    chosen = "".join(f"{name} = {{ lr = 1e-3 }}\n" for name in others)
    (folder / "rates" / "small.toml").write_text(
        f'[[tuned]]\ntasks = ["linear"]\nsteps = 100\nseeds = 3\n[tuned.train]\n{chosen}'
    )
    after, shared = board(folder)
    assert after == order and shared[alone] == shared[below[0]]
    assert [shared[name] for name in below] == [rank[name] - 1 for name in below], "it is counted nowhere"
    assert all(shared[name] == rank[name] for name in order[:place])
    contests = normalised.contests(grid_results, "grid")
    ranked = ranking(contests)[0]["contestant"].tolist()
    beside = among(contests, ranked).set_index("contestant")["place"]
    name = beside.index[0]
    number, _, of = beside[name].split()
    assert among(contests, ranked, {name}).set_index("contestant")["place"][name] == f"{number}–{of} of {of}"


def test_files_of_a_table_say_it_in_a_column_and_keep_the_name(told: list[Section]) -> None:
    table = next(t for s in told for t in tables(s) if t.name == "ranking-grid")
    assert table.frame.set_index("contestant")["untuned"].to_dict() == {
        name: name == "gpt2" for name in table.frame["contestant"]
    }
    assert "gpt2" in set(table.frame["contestant"])


def tables(section: Section) -> list[Table]:
    return [block for block in section.walk() if isinstance(block, Table)]


def board(folder: Path) -> tuple[list[str], dict[str, int]]:
    """Who holds a rank on the leaderboard of a task, in order, and which."""
    made = report(data.load(folder, ["linear"]), ["leaderboard"])
    found = next(t for s in made for t in tables(s) if t.name == "linear-small-leaderboard-next")
    rank = found.frame.dropna(subset="rank").set_index("contestant")["rank"]
    return rank.index.tolist(), {str(name): int(value) for name, value in rank.items()}


def test_a_method_does_not_make_its_backbone_untuned_nor_do_rates_of_the_task_judge_runs_of_another(
    tmp_path: Path,
) -> None:
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "small.toml").write_text(
        '[[tuned]]\ntasks = ["linear"]\nsteps = 100\nseeds = 3\n[tuned.train]\ngpt2 = { lr = 1e-3 }\n'
    )
    shared = {"task": "linear", "family": "linear", "kind": "backbone", "preset": "small", "seed": 0, "shift": "none"}
    shared |= {"evaluator": "next", "metric": "auc", "value": 0.5, "status": "ok", "card": "c", "version": "0"}
    runs: list[dict[str, object]] = [
        {"run": "linear-gpt2-small-s0", "contestant": "gpt2"},
        {"run": "linear-gpt2-small-s0+deep-thinking", "contestant": "gpt2+deep-thinking"},
        {"run": "linear-mamba-small-s0+deep-thinking", "contestant": "mamba+deep-thinking"},
        {"run": "linear-mamba-small-s0", "contestant": "mamba"},
        {"run": "quadratic-s4d-small-s0", "contestant": "s4d@quadratic", "trained_on": "quadratic"},
    ]
    results = data.of_values(frame("values", [complete(shared | run) for run in runs]))
    (task,) = replace(results, folder=tmp_path).slices
    assert task.untuned == {"mamba", "mamba+deep-thinking"}
