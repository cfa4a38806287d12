"""The leaderboard: order, ranks and columns."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.evaluation.bootstrap import bootstrap_interval
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.scores import write_scores
from iclbench.report.blocks import Column, Table
from iclbench.report.data import Results, load_results
from iclbench.report.sections import leaderboard
from tests.evaluation.test_scores import EPISODES, Rows, prompts, row

NEXT = prompts("next", "point", baselines=("zero", "tree"))
LEVELS = {"zero": 1.0, "tree": 0.5, "gpt2": 0.2, "knn": 0.3}


def tables_of(kinds: dict[str, str]) -> tuple[Rows, Rows]:
    """Return rows of `values` and `errors` for contestants with flat curves at their level in `LEVELS`."""
    rng, sizes = np.random.default_rng(0), range(9)
    values: Rows = []
    errors: Rows = []
    for name, kind in kinds.items():
        curves = LEVELS[name] * rng.uniform(0.8, 1.2, (EPISODES, len(sizes)))
        by_size = {None: np.trapezoid(curves, axis=1) / sizes[-1]} | dict(zip(sizes, curves.T, strict=True))
        for n, scores in by_size.items():
            low, high = bootstrap_interval(scores[:, None])
            metric = "auc" if n is None else "squared_error"
            columns = {"low": low[0], "high": high[0], "n_context": n}
            values.append(row(name, kind, "next", metric, float(scores.mean())) | columns)
            shared = {"run": name, "prompt_set": "prompts", "metric": "squared_error", "n_context": n}
            errors += [shared | {"episode": i, "value": v} for i, v in enumerate(scores) if n is not None]
    return values, errors


@pytest.mark.slow
def test_the_column_tuned_appears_only_if_models_differ_and_does_not_change_ranks(tmp_path: Path) -> None:
    values, errors = tables_of({"zero": "baseline", "tree": "baseline", "gpt2": "backbone", "knn": "backbone"})

    def board(name: str, **tuned: bool) -> Table:
        folder = tmp_path / name / "tables" / "prompts"
        rows = [row | {"tuned": tuned.get(str(row["run"]))} for row in values]
        tables.write("values", rows, folder / "all.values.parquet", {})
        tables.write("errors", errors, folder / "all.errors.parquet", {})
        write_scores(PromptSetRows(tmp_path / name, NEXT))
        section = leaderboard.section(load_results(tmp_path / name).slices[0])
        assert section is not None
        return next(block for block in section.blocks if isinstance(block, Table))

    unknown = board("unknown")
    assert unknown.frame["contestant"].tolist() == ["gpt2", "knn", "tree", "zero"]
    assert unknown.frame["rank"].tolist() == [1, 2, 3, 4]
    expected = [(LEVELS["zero"] - LEVELS[name]) / 0.5 for name in unknown.frame["contestant"]]
    assert unknown.frame["score"].tolist() == pytest.approx(expected, abs=0.05)
    assert "tuned" not in [column.key for column in unknown.columns]
    assert board("all-tuned", gpt2=True, knn=True).columns == unknown.columns
    mixed = board("one-tuned", gpt2=True, knn=False)
    assert "tuned" in [column.key for column in mixed.columns]
    assert mixed.frame.set_index("contestant")["tuned"].dropna().to_dict() == {"gpt2": "yes", "knn": "no"}
    assert mixed.frame[["contestant", "rank"]].equals(unknown.frame[["contestant", "rank"]])


def test_a_table_with_a_missing_column_raises_an_error() -> None:
    frame = pd.DataFrame({"a": [1.0], "b": [2.0]})
    for column in (Column("c", "c"), Column("a", "a", low="c", high="b"), Column("a", "a", episodes="c")):
        with pytest.raises(KeyError, match="'c'"):
            Table("name", "title", "caption", frame, (column,))
    with pytest.raises(KeyError, match="'c'"):
        Table("name", "title", "caption", frame, (Column("a", "a"),), group="c")


def test_oracles_that_are_not_beaten_have_no_remark(report_results: Results) -> None:
    slices = [task for task in report_results.slices if "oracle" in task.kinds.values()]
    assert len(slices) == 2
    assert not any(list(leaderboard.beaten_oracles(task, "next")) for task in slices)
