"""User-defined backbones: looks, ranks on shared tasks, and highlighting on the page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.analysis.ranking import ranking, unranked_backbones
from iclbench.core.predictor import Predictor
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.report import build
from iclbench.report.data import Results, load_results
from iclbench.report.style import CAUSAL_LOOKS, SET_LOOKS, SHIPPED_LOOKS, looks
from tests.report.synthetic_grid import BACKBONES, Grid, gap, score

SHARED = ("linear", "quadratic")


@pytest.fixture(scope="module")
def folder(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid with `mynet`, which scores 0.1 above s4d on two of its tasks and also has results on the task `mine`."""
    folder = tmp_path_factory.mktemp("with-mynet")
    for name in ("values", "errors"):
        rows = tables.read_all(name, grid.folder)  # type: ignore[arg-type]
        of_s4d = rows["run"].str.contains("-s4d-") & rows["run"].str.startswith(SHARED)
        of_mynet = rows[of_s4d].assign(run=rows["run"].str.replace("s4d", "mynet"))
        is_error = of_mynet["metric"].eq("squared_error")
        of_mynet["value"] = of_mynet["value"].mask(is_error, of_mynet["value"] - 0.08)
        if name == "values":
            of_mynet = of_mynet.assign(contestant="mynet", model="mynet", context_order="set")
            of_mynet["value"] = of_mynet["value"].mask(of_mynet["metric"].eq("score"), of_mynet["value"] + 0.1)
            on_mine = of_mynet[of_mynet["task"].eq("linear")].assign(task="mine", prompt_set="mine-next")
            of_mynet = pd.concat([of_mynet, on_mine.assign(run=on_mine["run"].str.replace("linear", "mine"))])
        tables.write(name, pd.concat([rows, of_mynet]), folder / f"{name}.{name}.parquet", {})  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def with_mynet(folder: Path) -> Results:
    return load_results(folder)


@pytest.mark.parametrize("kind", ["causal", "set"])
def test_a_user_backbone_has_the_style_of_its_kind_with_a_unique_colour_and_dash(kind: str) -> None:
    others = CAUSAL_LOOKS if kind == "causal" else SET_LOOKS
    look = looks([*SHIPPED_LOOKS, "mynet"], [], [], {"mynet": kind})["mynet"]
    assert (look.colour, look.dash) not in {(other.colour, other.dash) for other in SHIPPED_LOOKS.values()}
    assert look.colour not in {other.colour for other in SHIPPED_LOOKS.values()}
    kinds = {(bool(other.dash), other.hollow) for other in others.values()}
    assert kinds == {(bool(look.dash), look.hollow)}, "solid and filled, or dashed and hollow, like its kind"
    assert look.order == kind and look.is_user_defined
    assert look.width > max(other.width for other in SHIPPED_LOOKS.values())
    several = looks([*SHIPPED_LOOKS, *"abcdefghijk"], [], [], dict.fromkeys("abcdefghijk", kind))
    assert len({(look.colour, look.dash) for look in several.values()}) == len(several)


def test_a_variant_of_a_shipped_backbone_is_not_user_defined() -> None:
    assert not looks(["gpt2", "gpt2-wide"], [], [], {"gpt2-wide": "causal"})["gpt2-wide"].is_user_defined


def test_the_order_of_a_backbone_is_read_from_the_tables(grid_results: Results, with_mynet: Results) -> None:
    assert with_mynet.orders["mynet"] == "set" and with_mynet.orders["s4d"] == "causal"
    assert with_mynet.user_backbones == {"mynet"} and grid_results.user_backbones == frozenset()

    class Mine(Predictor, abstract=True):
        order = "causal"

    assert PredictorContestant("mynet", "r", "backbone", "i", predictor=Mine()).order == "causal"
    assert PredictorContestant("mine", "mine", "baseline", "i", predictor=Mine()).order is None


@pytest.mark.slow
def test_ranks_of_shipped_backbones_do_not_depend_on_user_backbones(grid_results: Results, with_mynet: Results) -> None:
    expected, frame = (ranking(normalised.contests(results, "grid"))[0] for results in (grid_results, with_mynet))
    pd.testing.assert_frame_equal(expected, frame)


def test_a_user_backbone_is_ranked_on_the_tasks_it_shares_with_others(grid: Grid, with_mynet: Results) -> None:
    contests = normalised.contests(with_mynet, "grid")
    ranked = ranking(contests)[0]["contestant"].tolist()
    row = unranked_backbones(contests, ranked).set_index("contestant").loc["mynet"]
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
    assert (row["better"], row["not_different"], row["worse"]) == (better, 2 - better - worse, worse)
    assert better != worse


@pytest.mark.slow
def test_the_page_highlights_the_user_backbone(folder: Path, tmp_path: Path) -> None:
    selection = {"tasks": [*SHARED, "mine", "bursty"], "only": ["summary", "ranking", "overview"]}
    html = build(folder, tmp_path, **selection).page.read_text(encoding="utf-8")
    assert '<th scope="col" class="own"><span>mynet</span>' in html
    highlighted = re.findall(r'<tr class="(?:group )?own">\s*<th scope="row">([^<]+)<', html)
    assert highlighted and {name.strip() for name in highlighted} == {"mynet"}
    assert len(highlighted) == len(re.findall(r'<th scope="row">mynet', html))
