"""The leaderboards of a report on the packed results equal those of `scores`."""

import pandas as pd
import pytest

from docs.quantities import Reference
from iclbench.analysis.scores import leaderboard
from iclbench.report.blocks import Table
from iclbench.report.sections import leaderboard as next_section
from iclbench.report.sections import targets as targets_section

QUESTIONS = {"next": (next_section, "auc"), "targets": (targets_section, "log_likelihood")}


@pytest.mark.slow
@pytest.mark.parametrize("evaluator", QUESTIONS)
def test_leaderboards_hold_the_same_order_ranks_and_differences(reference: Reference, evaluator: str) -> None:
    section, by = QUESTIONS[evaluator]
    shown = [(task, made) for task in reference.results.slices if (made := section.section(task)) is not None]
    assert len(shown) > 2
    for task, made in shown:
        board = next(block for block in made.walk() if isinstance(block, Table)).frame
        expected = leaderboard(task, evaluator, by=by)
        of = expected["metric"].iloc[0]
        assert board["contestant"].tolist() == expected["contestant"].tolist()
        columns = {"rank": "rank", "behind": "behind", "behind_low": "behind_low", "behind_high": "behind_high"}
        columns |= {of: "value", f"{of}_low": "low", f"{of}_high": "high"}
        own = expected.where(expected["metric"].eq(of))
        for column, name in columns.items():
            pd.testing.assert_series_equal(
                board[column].astype("Float64"), own[name].astype("Float64"), check_names=False
            )
