"""User-defined backbones: their looks, their highlighting, and their ranking on shared tasks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.analysis.ranking import ranking, unranked
from iclbench.core.predictor import Predictor
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.report import build
from iclbench.report.data import Results, load
from iclbench.report.style import ARCHITECTURE_LOOKS, CAUSAL_LOOKS, SET_LOOKS, looks
from tests.report.synthetic_grid import BACKBONES, Grid, gap, score

SHARED = ("linear", "quadratic")


@pytest.fixture(scope="module")
def folder(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid with `mynet`, whose scores are those of s4d plus 0.1, on two tasks of the grid and another one."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("values", "errors"):
        rows = tables.read_all(name, grid.folder)  # type: ignore[arg-type]
        is_s4d = rows["run"].str.contains("-s4d-") & rows["run"].str.startswith(SHARED)
        mynet = rows[is_s4d].assign(run=rows["run"].str.replace("s4d", "mynet"))
        mynet["value"] = mynet["value"].mask(mynet["metric"].eq("squared_error"), mynet["value"] - 0.08)
        if name == "values":
            mynet = mynet.assign(contestant="mynet", model="mynet", context_order="set")
            mynet["value"] = mynet["value"].mask(mynet["metric"].eq("score"), mynet["value"] + 0.1)
            other_task = mynet[mynet["task"].eq("linear")].assign(task="mine", prompt_set="mine-next")
            mynet = pd.concat([mynet, other_task.assign(run=other_task["run"].str.replace("linear", "mine"))])
        tables.write(name, pd.concat([rows, mynet]), folder / f"{name}.{name}.parquet", {})  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def user_results(folder: Path) -> Results:
    return load(folder)


@pytest.mark.parametrize("order", ["causal", "set"])
def test_it_looks_like_others_of_its_order_with_a_unique_colour(order: str) -> None:
    same_order = CAUSAL_LOOKS if order == "causal" else SET_LOOKS
    look = looks([*ARCHITECTURE_LOOKS, "mynet"], [], [], {"mynet": order})["mynet"]
    assert (look.colour, look.dash) not in {(other.colour, other.dash) for other in ARCHITECTURE_LOOKS.values()}
    assert look.colour not in {other.colour for other in ARCHITECTURE_LOOKS.values()}
    styles = {(bool(other.dash), other.hollow) for other in same_order.values()}
    assert styles == {(bool(look.dash), look.hollow)}, "solid and filled, or dashed and hollow"
    assert look.order == order and look.is_user_defined
    assert look.width > max(other.width for other in ARCHITECTURE_LOOKS.values())
    many = looks([*ARCHITECTURE_LOOKS, *"abcdefghijk"], [], [], dict.fromkeys("abcdefghijk", order))
    assert len({(look.colour, look.dash) for look in many.values()}) == len(many)


def test_a_variant_of_a_shipped_backbone_is_not_user_defined() -> None:
    assert not looks(["gpt2", "gpt2-wide"], [], [], {"gpt2-wide": "causal"})["gpt2-wide"].is_user_defined


def test_tables_have_the_context_order_of_backbones(grid_results: Results, user_results: Results) -> None:
    assert user_results.orders["mynet"] == "set" and user_results.orders["s4d"] == "causal"
    assert user_results.user_backbones == {"mynet"} and grid_results.user_backbones == frozenset()

    class Mine(Predictor, abstract=True):
        order = "causal"

    assert PredictorContestant("mynet", "r", "backbone", "i", predictor=Mine()).order == "causal"
    assert PredictorContestant("mine", "mine", "baseline", "i", predictor=Mine()).order is None


@pytest.mark.slow
def test_another_task_does_not_change_the_ranking(grid_results: Results, user_results: Results) -> None:
    before, after = (ranking(normalised.contests(results, "grid"))[0] for results in (grid_results, user_results))
    pd.testing.assert_frame_equal(before, after)


def test_it_is_compared_on_shared_tasks(grid: Grid, user_results: Results) -> None:
    contests = normalised.contests(user_results, "grid")
    ranked = ranking(contests)[0]["contestant"].tolist()
    row = unranked(contests, ranked).set_index("contestant").loc["mynet"]
    scores = pd.DataFrame(
        {
            name: {
                task: np.mean([score(grid.raw[task, "next", name, s].mean(), "next") for s in (0, 1)])
                for task in SHARED
            }
            for name in BACKBONES
            if name in ranked
        }
    )
    scores["mynet"] = scores["s4d"] + 0.1
    ranks = scores.rank(axis=1, ascending=False).mean()
    assert row["tasks"] == 2 and row["mean_rank"] == pytest.approx(ranks["mynet"])
    place = int((ranks < ranks["mynet"]).sum()) + 1
    assert row["place"] == f"{place} of {len(ranked) + 1}"
    assert row["mean_score"] == pytest.approx(scores["mynet"].mean())
    order = ranks.sort_values().index.tolist()
    above = order[place - 2]
    assert row["neighbour"] == above
    assert row["behind"] == pytest.approx(scores["mynet"].mean() - scores[above].mean())
    gaps = [0.1 + np.array(gap(grid, task, "next", "s4d", above)) for task in SHARED]
    better, worse = sum(low > 0 for _, low, _ in gaps), sum(high < 0 for *_, high in gaps)
    assert (row["better"], row["tied_on"], row["worse"]) == (better, 2 - better - worse, worse)
    assert better != worse


def test_it_is_highlighted_on_the_page(folder: Path, tmp_path: Path) -> None:
    selection = {"tasks": [*SHARED, "mine", "bursty"], "only": ["summary", "ranking", "overview"]}
    html = build(folder, tmp_path, **selection).page.read_text(encoding="utf-8")
    assert '<th scope="col" class="own"><span>mynet</span>' in html
    highlighted = re.findall(r'<tr class="(?:group )?own">\s*<th scope="row">([^<]+)<', html)
    assert highlighted and {name.strip() for name in highlighted} == {"mynet"}
    assert len(highlighted) == len(re.findall(r'<th scope="row">mynet', html))
