"""The section on distances to known solutions during training."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import iclbench as icl
from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.evaluation.evaluate import evaluate_run
from iclbench.evaluation.monitor import Monitor
from iclbench.report.blocks import Figure, Section
from iclbench.report.data import Results, load_results
from iclbench.report.sections import solutions
from iclbench.store.runs import create
from iclbench.training.run import train
from tests.refusals import refused
from tests.report import vega_lite

STEPS = (2, 4, 6)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results of two seeds of one model and one seed of another, trained for a few steps."""
    folder = tmp_path_factory.mktemp("results")
    for name, seed in (("gru", 0), ("gru", 1), ("gpt2", 0)):
        overrides = ["train.steps=6", "train.evaluate_every=2"]
        run = create(folder, resolve_run("markov", name, "smoke", seed, overrides), f"markov-{name}-smoke-s{seed}")
        train(run, monitor=Monitor)
        list(evaluate_run(Context(folder), run, baseline_names=["uniform", "oracle-bayes-chain"]))
    return load_results(folder)


def section_of(results: Results) -> Section:
    (task,) = results.slices
    section = solutions.section(task)
    assert section is not None
    return section


def test_lines_are_means_over_seeds_with_ranges(results: Results) -> None:
    (figure,) = [block for block in section_of(results).walk() if isinstance(block, Figure)]
    data = figure.data
    assert sorted(data["panel"].unique()) == ["KL to bigram", "KL to uniform", "KL to unigram"]
    assert results.folder is not None
    files = sorted((results.folder / "runs").glob("*gru*/values.parquet"))
    values = pd.concat([tables.read("values", path) for path in files])
    seeds = values[values["metric"].eq("kl_to_unigram") & values["axis_value"].eq(4)]["value"].astype(float)
    (line,) = data[data["panel"].eq("KL to unigram") & data["contestant"].eq("gru") & data["axis_value"].eq(4)].to_dict(
        "records"
    )
    assert len(seeds) == 2
    assert line["value"] == pytest.approx(seeds.mean())
    assert (line["low"], line["high"]) == pytest.approx((seeds.min(), seeds.max()))
    for _, rows in data.groupby(["panel", "contestant"]):
        np.testing.assert_array_equal(rows["axis_value"], STEPS)
    vega_lite.validate(figure.make_static())


def test_distances_are_not_treated_as_scores(results: Results) -> None:
    (task,) = results.slices
    assert set(task.summaries["evaluator"]) == {"next"}


def test_the_section_is_omitted_for_a_single_step(results: Results) -> None:
    rows = results.rows[~results.rows["axis_value"].isin(STEPS[1:]).fillna(False)]
    (task,) = replace(results, rows=rows).slices
    assert not solutions.trajectory(task).empty
    assert solutions.section(task) is None


def test_the_figure_is_also_a_chart_for_notebooks(results: Results) -> None:
    assert results.folder is not None
    values = icl.open_results(results.folder).values()
    chart = icl.plot.solutions(values, "markov").to_dict()
    assert chart["title"]["text"] == "markov: distance from known solutions during training"
    assert all(name in str(chart) for name in ("gru", "gpt2", "KL to bigram"))
    with refused("nothing-to-do", "evaluate_every"):
        icl.plot.solutions(values[values["evaluator"].eq("next")])
