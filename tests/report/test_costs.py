"""The section on costs: tables and figures of measurements by `iclbench cost`."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.report.blocks import Figure, Table
from iclbench.report.cost_table import cost_table
from iclbench.report.data import Results, load_results
from iclbench.report.sections import costs, leaderboard
from tests.report import vega_lite

RUN = "linear-mamba-small-s0"
SECONDS = {("condition", 40): 2e-3, ("condition", 500): 2e-2, ("query", 40): 3e-5, ("query", 500): 3.5e-5}

# Seconds of a query in a batch of one episode, which is longer than the time per episode in a batch of 64.
BATCH_OF_ONE = 1e-3


@pytest.fixture(scope="module")
def blocks(results: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table | Figure]:
    folder = shutil.copytree(results, tmp_path_factory.mktemp("costly"), dirs_exist_ok=True)
    shared = {
        "run": RUN,
        "task": "linear",
        "contestant": "mamba",
        "preset": "small",
        "device": "cpu",
        "threads": 1,
        "version": "0",
    }
    rows: list[dict[str, object]] = [
        shared | {"phase": phase, "n_points": n, "metric": "seconds", "value": value, "n_episodes": 64}
        for (phase, n), value in SECONDS.items()
    ]
    rows += [
        shared | {"phase": "condition", "n_points": n, "metric": "state_bytes", "value": 5632.0, "n_episodes": 64}
        for n in (40, 500)
    ]
    rows += [
        shared | {"phase": "update", "n_points": n, "metric": "bytes", "value": 100.0 * n, "n_episodes": 64}
        for n in (40, 500)
    ]
    rows.append(
        shared | {"phase": "query", "n_points": 40, "metric": "seconds", "value": BATCH_OF_ONE, "n_episodes": 1}
    )
    rows += [
        shared | {"phase": "query", "n_points": n, "metric": "flops", "value": 8000.0, "n_episodes": 64}
        for n in (40, 500)
    ]
    rows += [
        shared | {"phase": "query", "n_points": 40, "n_at_once": 64, "metric": m, "value": v, "n_episodes": 64}
        for m, v in {"seconds": 1e-3, "flops": 512e3, "bytes": 2048.0}.items()
    ]
    rows.append(shared | {"phase": "train_step", "n_points": 21, "metric": "seconds", "value": 0.05})
    rows.append(shared | {"phase": "train_step", "n_points": 21, "metric": "flops", "value": 1.2e9})
    tables.write("costs", rows, folder / "tables" / "costs" / "x.costs.parquet", {})
    section = costs.section(load_results(Path(folder)))
    assert section is not None
    return {block.name: block for block in section.walk() if isinstance(block, Table | Figure)}


def test_the_table_has_separate_rows_for_runs_numbers_of_points_and_batch_sizes(
    blocks: dict[str, Table | Figure],
) -> None:
    table = blocks["linear-small-costs-by-run"]
    assert isinstance(table, Table)
    headers = [column.header for column in table.columns]
    texts = [[cell.text for cell in row] for row in table.rows() if row[0].text == RUN]
    batches_of_one = [row for row in texts if row[-1] == "1"]
    query = headers.index("query")
    assert [row[query + 1] for row in batches_of_one] == ["1.00 ms"]
    assert texts[0] == batches_of_one[0], "batch sizes have separate rows"
    rows = {(row[0], row[headers.index("n")]): row for row in texts if row[-1] == "64"}
    shared = [RUN, "201 k", "1.20 GFLOP", "50.0 ms", "–"]
    assert rows[RUN, "40"][:11] == [*shared, "40", "5.50 KiB", "–", "2.00 ms", "8.00 kFLOP", "30.0 µs"]
    assert rows[RUN, "500"][:11] == [*shared, "500", "5.50 KiB", "–", "20.0 ms", "8.00 kFLOP", "35.0 µs"]


def test_simultaneous_queries_are_listed_next_to_a_single_query(blocks: dict[str, Table | Figure]) -> None:
    table = blocks["linear-small-costs-at-once"]
    assert isinstance(table, Table)
    texts = [[cell.text for cell in row][:7] for row in table.rows() if row[0].text == RUN]
    assert texts == [
        [RUN, "query", "40", "1", "8.00 kFLOP", "30.0 µs", "–"],
        [RUN, "query", "40", "64", "512 kFLOP", "1.00 ms", "2.00 KiB"],
    ]


def test_figures_show_the_measurements_and_are_valid(blocks: dict[str, Table | Figure]) -> None:
    time, state = blocks["linear-small-costs-time"], blocks["linear-small-costs-state"]
    assert isinstance(time, Figure) and isinstance(state, Figure)
    points = {
        (str(panel), int(n)): value
        for panel, n, value in time.data[["panel", "n_points", "value"]].itertuples(index=False)
    }
    titles = {"condition": "conditioning on n points", "query": "a query after n points"}
    assert points == {(titles[phase], n): value for (phase, n), value in SECONDS.items()}
    assert state.data["value"].tolist() == [5632.0, 5632.0]
    memory = blocks["linear-small-costs-memory"]
    assert isinstance(memory, Figure)
    assert [panel.title for panel in memory.panels] == ["an update after n points"]
    assert memory.data["value"].tolist() == [4000.0, 50000.0]
    work = blocks["linear-small-costs-work"]
    assert isinstance(work, Figure)
    assert work.data["value"].tolist() == [8000.0, 8000.0]
    assert "64 episodes" in time.caption and "1 row" in time.caption
    for figure in (time, memory, state, work):
        vega_lite.validate(figure.static)
        vega_lite.validate(figure.live)


@pytest.mark.slow
def test_without_measured_phases_the_section_has_only_a_table(report_results: Results) -> None:
    section = costs.section(report_results)
    assert section is not None
    assert all(isinstance(block, Table) and block.name.endswith("-costs") for block in section.walk())


@pytest.mark.slow
def test_parameters_but_not_seconds_are_compared_between_devices(results: Path) -> None:
    report_results = load_results(results)
    costs_on_two_devices = report_results.costs.assign(
        device=report_results.costs["device"].mask(report_results.costs["run"].eq(RUN), "cuda")
    )
    task = next(task for task in replace(report_results, costs=costs_on_two_devices).slices if task.task == "linear")
    frame = leaderboard.with_costs(task, pd.DataFrame({"contestant": ["gpt2", "mamba"]})).set_index("contestant")
    assert frame["parameters"].tolist() == [201_345.0, 201_345.0]
    assert frame["train_seconds"].notna().tolist() == [True, False]
    shared = {"run": RUN, "task": "linear", "contestant": "mamba", "preset": "small", "threads": 1, "version": "0"}
    rows: list[dict[str, object]] = [
        shared | {"device": "cuda", "phase": "model", "metric": "parameters", "value": 5.0},
        shared | {"device": "cpu", "phase": "query", "metric": "seconds", "value": 1.0, "n_points": 4, "n_episodes": 8},
    ]
    frame = cost_table(tables.frame("costs", rows))
    assert frame[["device", "parameters", "query_seconds"]].to_numpy().tolist() == [["cpu", 5.0, 1.0]]
