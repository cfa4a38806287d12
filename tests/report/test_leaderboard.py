"""The leaderboard where costly baselines are asked at a few context sizes."""

from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.normalised import contests
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.scores import write_scores
from iclbench.report.blocks import Column, Table
from iclbench.report.data import Results, load
from iclbench.report.sections import leaderboard
from tests.evaluation.test_common_sizes import ALL, FEW, NEXT, area, drawn, told


@pytest.mark.parametrize(("one", "knn", "said"), [("costly", 0.7, "all scores are"), ("knn", 0.45, "their scores are")])
def test_the_order_is_that_of_scores_over_the_same_sizes(tmp_path: Path, one: str, knn: float, said: str) -> None:
    errors = drawn(knn=knn)
    values, single = told(errors)
    for name, rows in (("values", values), ("errors", single)):
        path = tmp_path / "tables" / "prompts" / f"all.{name}.parquet"
        tables.write("values" if name == "values" else "errors", rows, path, {})
    write_scores(PromptSetRows(tmp_path, NEXT))
    results = load(tmp_path)
    task = results.slices[0]
    section = leaderboard.section(task)
    assert section is not None
    board = next(block for block in section.blocks if hasattr(block, "frame"))
    frame: pd.DataFrame = board.frame
    by_area = frame.sort_values("auc")["contestant"].tolist()
    if one == "costly":
        assert frame["contestant"].tolist() == ["gpt2", "costly", "knn", "zero"]
        assert by_area == ["knn", "costly", "gpt2", "zero"], "areas that are over whatever sizes each was asked at"
    else:
        assert frame["contestant"].tolist() == ["knn", "costly", "gpt2", "zero"]
    assert "Sorted by the score" in board.caption
    assert f"(of costly over the few context sizes that they are asked at, as {said})" in board.caption
    contest = contests(results, "smoke")[0]
    assert contest.coarse == (one == "costly")
    sizes = FEW if contest.coarse else ALL
    zero, gpt2, best = (area(errors[name], sizes).mean() for name in ("zero", "gpt2", one))
    found = contest.difference("gpt2", "zero")
    assert found is not None and found.value == pytest.approx((zero - gpt2) / (zero - best))
    costly = contest.difference("gpt2", "costly")
    few = {name: area(own, FEW).mean() for name, own in errors.items()}
    span = few["zero"] - few[one]
    if contest.coarse:
        assert costly is not None and costly.value == pytest.approx((few["costly"] - few["gpt2"]) / span)
        assert costly.low > 0 and frame["rank"].tolist() == [1, 2, 3, 4]
    else:
        assert costly is None, "their scores are over different sizes"
        nothing = contest.difference("costly", "zero")
        assert nothing is not None and nothing.value == pytest.approx((few["zero"] - few["costly"]) / span)


def test_which_models_are_tuned_is_a_column_where_they_differ_in_it_and_changes_no_rank(tmp_path: Path) -> None:
    kinds = {"zero": "baseline", "costly": "baseline", "gpt2": "backbone", "knn": "backbone"}
    values, errors = told(drawn(knn=0.45), kinds)

    def board(name: str, **tuned: bool) -> Table:
        folder = tmp_path / name / "tables" / "prompts"
        rows = [row | {"tuned": tuned.get(str(row["run"]))} for row in values]
        tables.write("values", rows, folder / "all.values.parquet", {})
        tables.write("errors", errors, folder / "all.errors.parquet", {})
        write_scores(PromptSetRows(tmp_path / name, NEXT))
        section = leaderboard.section(load(tmp_path / name).slices[0])
        assert section is not None
        return next(block for block in section.blocks if isinstance(block, Table))

    without = board("not-known")
    assert "tuned" not in [column.key for column in without.columns]
    assert board("all", gpt2=True, knn=True).columns == without.columns
    both = board("both", gpt2=True, knn=False)
    assert "tuned" in [column.key for column in both.columns]
    assert both.frame.set_index("contestant")["tuned"].dropna().to_dict() == {"gpt2": "yes", "knn": "no"}
    assert both.frame[["contestant", "rank"]].equals(without.frame[["contestant", "rank"]])


def test_a_table_without_a_column_that_it_shows_is_an_error() -> None:
    frame = pd.DataFrame({"a": [1.0], "b": [2.0]})
    for column in (Column("c", "c"), Column("a", "a", low="c", high="b"), Column("a", "a", episodes="c")):
        with pytest.raises(KeyError, match="'c'"):
            Table("name", "title", "caption", frame, (column,))
    with pytest.raises(KeyError, match="'c'"):
        Table("name", "title", "caption", frame, (Column("a", "a"),), group="c")


def test_the_oracles_of_an_honest_folder_are_not_questioned(loaded: Results) -> None:
    slices = [task for task in loaded.slices if "oracle" in task.kinds.values()]
    assert len(slices) == 2
    assert not any(list(leaderboard.beaten_oracles(task, "next")) for task in slices)
