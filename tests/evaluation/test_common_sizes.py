"""Scores where costly baselines are asked at a few context sizes: areas compare over the same sizes, against NumPy."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.prefixes import prefix_grid
from iclbench.evaluation.bootstrap import bootstrap_interval
from iclbench.evaluation.contestants import baselines, in_memory
from iclbench.evaluation.evaluate import evaluate
from iclbench.evaluation.prompts import PromptSet
from tests.evaluation.test_scores import EPISODES, Rows, prompts, row, scored

ALL, FEW = list(range(25)), prefix_grid(24)
NEXT = prompts("next", "point")
# Mean curves: what lies between the few sizes flatters the k-NN and harms the model.
KINDS = {"zero": "baseline", "knn": "baseline", "costly": "baseline", "gpt2": "backbone"}
AT_OTHERS = {"zero": 1.0, "knn": 0.3, "gpt2": 0.9}


def drawn(**at_few: float) -> dict[str, pd.DataFrame]:
    """Errors of every episode, episodes x context sizes, by contestant."""
    draw = np.random.default_rng(0)
    found = {}
    for name, level in ({"zero": 1.0, "costly": 0.5, "gpt2": 0.2} | at_few).items():
        sizes = FEW if name == "costly" else ALL
        means = np.array([level if n in FEW else AT_OTHERS[name] for n in sizes])
        found[name] = pd.DataFrame(means * draw.uniform(0.8, 1.2, (EPISODES, len(sizes))), columns=sizes)
    return found


def area(errors: pd.DataFrame, sizes: list[int]) -> np.ndarray:
    """The mean height of every episode's curve."""
    return np.asarray(np.trapezoid(errors[sizes].to_numpy(), sizes, axis=1) / sizes[-1])


def told(errors: dict[str, pd.DataFrame], kinds: dict[str, str] = KINDS, **more: object) -> tuple[Rows, Rows]:
    """Tables of values and of errors that hold these curves."""
    values: Rows = []
    single: Rows = []
    for name, own in errors.items():
        sizes = [int(n) for n in own.columns]
        numbers = {None: area(own, sizes)} | {n: own[n].to_numpy() for n in sizes}
        for n, scores in numbers.items():
            low, high = bootstrap_interval(scores[:, None])
            about = {"low": low[0], "high": high[0], "n_context": n} | more
            of = "auc" if n is None else "squared_error"
            values.append(row(name, kinds[name], "next", of, float(scores.mean())) | about)
            shared = {"run": name, "prompt_set": "prompts", "metric": "squared_error", "n_context": n}
            single += [shared | {"episode": i, "value": v} for i, v in enumerate(scores) if n is not None]
    return values, single


def line(errors: dict[str, pd.DataFrame], one: str, sizes: list[int]) -> pd.Series:
    """What everybody who was asked at these sizes scores over them."""
    mean = {name: area(own, sizes).mean() for name, own in errors.items() if set(sizes) <= set(own.columns)}
    return pd.Series({name: (value - mean["zero"]) / (mean[one] - mean["zero"]) for name, value in mean.items()})


def test_where_a_costly_baseline_scores_one_everybody_is_scored_over_its_sizes(tmp_path: Path) -> None:
    errors = drawn(knn=0.7)
    found = scored(tmp_path, NEXT, *told(errors))
    assert found is not None and set(found["score_one"]) == {"costly"} and found["coarse"].eq(True).all()
    score = found.droplevel("n_related")
    assert score["value"].to_dict() == pytest.approx(line(errors, "costly", FEW).to_dict())
    areas = {name: area(own, FEW) for name, own in errors.items()}
    span = areas["zero"].mean() - areas["costly"].mean()
    assert score["normaliser"].tolist() == pytest.approx([span] * 4)
    low, high = (end[0] for end in bootstrap_interval(areas["gpt2"][:, None]))
    expected = (areas["zero"].mean() - np.array([high, low])) / span
    assert score.loc["gpt2", ["low", "high"]].tolist() == pytest.approx(expected.tolist())


def test_the_best_baseline_is_best_at_the_sizes_that_all_have(tmp_path: Path) -> None:
    """Over all its own sizes the k-NN has the smaller area, over the common ones the larger; and the other way
    round."""
    flattered = drawn(knn=0.55)
    assert (
        area(flattered["knn"], ALL).mean() < area(flattered["costly"], FEW).mean() < area(flattered["knn"], FEW).mean()
    )
    found = scored(tmp_path / "flattered", NEXT, *told(flattered))
    assert found is not None and set(found["score_one"]) == {"costly"}
    harmed = drawn(knn=0.45)
    harmed["knn"] *= np.where(harmed["knn"].columns.isin(FEW), 1.0, 3.0)
    assert area(harmed["knn"], ALL).mean() > area(harmed["costly"], FEW).mean() > area(harmed["knn"], FEW).mean()
    found = scored(tmp_path / "harmed", NEXT, *told(harmed))
    assert found is not None and set(found["score_one"]) == {"knn"}


def test_nobody_scores_one_who_is_worse_than_the_zero_predictor_over_all_its_sizes(tmp_path: Path) -> None:
    """What is far from all others between the few sizes, as least squares is at as many examples as dimensions."""
    errors = drawn(knn=0.3)
    errors["spiked"] = errors["knn"] * np.where(errors["knn"].columns == 11, 99.0, 0.5)
    kinds = KINDS | {"spiked": "baseline"}
    found = scored(tmp_path / "baseline", NEXT, *told(errors, kinds))
    assert found is not None and set(found["score_one"]) == {"knn"}
    score = found.droplevel("n_related")["value"]
    assert score["spiked"] < 0 < score["gpt2"] < score["knn"] == 1
    found = scored(tmp_path / "oracle", NEXT, *told(errors, kinds | {"spiked": "oracle"}))
    assert found is not None and set(found["score_one"]) == {"knn (the oracle spiked is no better than zero)"}


def test_without_a_line_over_its_sizes_a_costly_baseline_has_no_score(tmp_path: Path) -> None:
    errors = drawn(knn=1.1)
    errors.pop("costly")
    errors["costly"] = errors["zero"][FEW] * 1.2
    found = scored(tmp_path, NEXT, *told(errors, KINDS | {"knn": "oracle"}))
    assert found is not None and set(found["score_one"]) == {"knn"}
    assert set(found.droplevel("n_related").index) == {"zero", "knn", "gpt2"}


def test_beside_another_best_only_the_costly_are_scored_over_their_sizes(tmp_path: Path) -> None:
    errors = drawn(knn=0.3)
    found = scored(tmp_path, NEXT, *told(errors))
    assert found is not None and set(found["score_one"]) == {"knn"}
    score = found.droplevel("n_related")
    assert score["value"][["zero", "knn", "gpt2"]].to_dict() == pytest.approx(line(errors, "knn", ALL).to_dict())
    assert score["value"]["costly"] == pytest.approx(line(errors, "knn", FEW)["costly"])
    assert score["coarse"].dropna().to_dict() == {"costly": True}
    oracle = scored(tmp_path / "oracle", NEXT, *told(errors, KINDS | {"knn": "oracle"}))
    assert oracle is not None
    pd.testing.assert_series_equal(oracle["value"], found["value"])


def test_mean_heights_that_are_packed_serve_and_without_episodes_there_is_no_interval(tmp_path: Path) -> None:
    errors = drawn(knn=0.7)
    values, single = told(errors)
    expected = scored(tmp_path / "whole", NEXT, values, single)
    assert expected is not None
    packed = [
        {"run": name, "prompt_set": "prompts", "metric": "squared_error", "coarse": True, "episode": i, "value": v}
        for name, own in errors.items()
        for i, v in enumerate(area(own, FEW))
    ]
    folder = tmp_path / "packed"
    tables.write("errors", packed, folder / "reference" / tables.packed_name("errors", "task", "small"), {})
    found = scored(folder, NEXT, values)
    assert found is not None
    pd.testing.assert_frame_equal(found, expected)
    alone = scored(tmp_path / "alone", NEXT, values)
    assert alone is not None
    pd.testing.assert_series_equal(alone["value"], expected["value"])
    ends = alone.droplevel("n_related")[["low", "high"]]
    assert ends.drop("costly").isna().all(axis=None) and ends.loc["costly"].notna().all()


def test_a_position_that_a_shift_leaves_undefined_in_some_episodes_is_in_no_area(tmp_path: Path) -> None:
    errors = {name: own.drop(columns=FEW[4]) for name, own in drawn(knn=0.7).items()}
    values, single = told(errors)
    half = {"n_context": FEW[4], "value": 99.0, "n_episodes": EPISODES // 2}
    found = scored(tmp_path, NEXT, [*values, *(one | half for one in values if one["n_context"] == 1)], single)
    assert found is not None
    expected = line(errors, "costly", [n for n in FEW if n != FEW[4]])
    assert found.droplevel("n_related")["value"].to_dict() == pytest.approx(expected.to_dict())


def test_in_memory_scores_are_over_the_sizes_of_the_costly_best() -> None:
    """A real task: an MLP is fitted at eight of 21 context sizes."""
    options = ["task.dim=2", "task.points=20", "task.episodes=12"]
    config = resolve_run("relu-network", "gpt2", "small", overrides=[*options, "backbone.width=8", "backbone.layers=1"])
    asked = PromptSet(config.task, "small")
    model = in_memory("mine", config.build(config.task.build()))
    found = evaluate([model, *baselines(asked, ["zero", "mlp"])], asked)
    ok = found[found["status"].eq("ok") & found["run"].isin(["mine", "zero", "mlp"])]
    curves = ok[ok["metric"].eq("squared_error") & ok["n_context"].notna()]
    wide = curves.pivot_table("value", index="n_context", columns="run").astype(float)
    few = prefix_grid(20)
    assert wide["mlp"].dropna().index.tolist() == few != wide["mine"].dropna().index.tolist()
    over = {run: np.trapezoid(wide.loc[few, run], few) / 20 for run in wide.columns}
    score = ok[ok["metric"] == "score"].set_index("run")
    one = str(score["score_one"].iloc[0])
    best = over.get(one, 0.0)
    sizes_of_all = one != "mlp"
    assert score["coarse"].fillna(False).astype(bool).to_dict() == {
        "mine": not sizes_of_all,
        "zero": not sizes_of_all,
        "mlp": True,
    }
    assert score["value"]["mlp"] == pytest.approx((over["zero"] - over["mlp"]) / (over["zero"] - best))
    if one == "mlp":
        assert score["value"]["mine"] == pytest.approx((over["zero"] - over["mine"]) / (over["zero"] - over["mlp"]))
