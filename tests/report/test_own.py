"""A contestant of one's own stands among its kind, stands out, and is ranked on the tasks it shares."""

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
from iclbench.report.style import CAUSAL, OWN, SETS, looks
from tests.report.synthetic_grid import BACKBONES, Grid, gap, score

SHARED = ("linear", "quadratic")


@pytest.fixture(scope="module")
def folder(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid, with `mynet`, which answers as s4d does 0.1 better, on two of its tasks and on one of its own."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("values", "errors"):
        rows = tables.read_all(name, grid.folder)  # type: ignore[arg-type]
        of_s4d = rows["run"].str.contains("-s4d-") & rows["run"].str.startswith(SHARED)
        own = rows[of_s4d].assign(run=rows["run"].str.replace("s4d", "mynet"))
        better = own["metric"].eq("squared_error")
        own["value"] = own["value"].mask(better, own["value"] - 0.08)
        if name == "values":
            own = own.assign(contestant="mynet", model="mynet", context_order="set")
            own["value"] = own["value"].mask(own["metric"].eq("score"), own["value"] + 0.1)
            alone = own[own["task"].eq("linear")].assign(task="mine", prompt_set="mine-next")
            own = pd.concat([own, alone.assign(run=alone["run"].str.replace("linear", "mine"))])
        tables.write(name, pd.concat([rows, own]), folder / f"{name}.{name}.parquet", {})  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Results:
    return load(folder)


@pytest.mark.parametrize("kind", ["causal", "set"])
def test_it_looks_like_its_kind_with_a_colour_and_dash_of_its_own(kind: str) -> None:
    own, others = OWN.keys(), CAUSAL if kind == "causal" else SETS
    look = looks([*own, "mynet"], [], [], {"mynet": kind})["mynet"]
    assert (look.colour, look.dash) not in {(other.colour, other.dash) for other in OWN.values()}
    assert look.colour not in {other.colour for other in OWN.values()}
    kinds = {(bool(other.dash), other.hollow) for other in others.values()}
    assert kinds == {(bool(look.dash), look.hollow)}, "as its kind: solid and filled, or dashed and hollow"
    assert look.order == kind and look.own and look.width > max(other.width for other in OWN.values())
    several = looks([*own, *"abcdefghijk"], [], [], dict.fromkeys("abcdefghijk", kind))
    assert len({(look.colour, look.dash) for look in several.values()}) == len(several)


def test_a_variant_of_a_shipped_backbone_is_not_ones_own() -> None:
    assert not looks(["gpt2", "gpt2-wide"], [], [], {"gpt2-wide": "causal"})["gpt2-wide"].own


def test_tables_say_how_a_backbone_reads_its_context(grid_results: Results, found: Results) -> None:
    assert found.orders["mynet"] == "set" and found.orders["s4d"] == "causal"
    assert found.user_backbones == {"mynet"} and grid_results.user_backbones == frozenset()

    class Mine(Predictor, abstract=True):
        order = "causal"

    assert PredictorContestant("mynet", "r", "backbone", "i", predictor=Mine()).order == "causal"
    assert PredictorContestant("mine", "mine", "baseline", "i", predictor=Mine()).order is None


@pytest.mark.slow
def test_a_task_of_ones_own_leaves_the_ranking_as_it_was(grid_results: Results, found: Results) -> None:
    before, after = (ranking(normalised.contests(results, "grid"))[0] for results in (grid_results, found))
    pd.testing.assert_frame_equal(before, after)


def test_it_is_ranked_on_the_tasks_it_shares(grid: Grid, found: Results) -> None:
    contests = normalised.contests(found, "grid")
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


def test_it_stands_out_on_the_page(folder: Path, tmp_path: Path) -> None:
    few = {"tasks": [*SHARED, "mine", "bursty"], "only": ["summary", "ranking", "overview"]}
    html = build(folder, tmp_path, **few).page.read_text(encoding="utf-8")
    assert '<th scope="col" class="own"><span>mynet</span>' in html
    marked = re.findall(r'<tr class="(?:group )?own">\s*<th scope="row">([^<]+)<', html)
    assert marked and {name.strip() for name in marked} == {"mynet"}
    assert len(marked) == len(re.findall(r'<th scope="row">mynet', html))
