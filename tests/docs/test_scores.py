"""The leaderboards in a report of the packed results equal the leaderboards of `scores`."""

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
def test_report_leaderboards_have_the_order_ranks_and_differences_of_scores(
    reference: Reference, evaluator: str
) -> None:
    section, by = QUESTIONS[evaluator]
    sections = [
        (task, leaderboard_section)
        for task in reference.results.slices
        if (leaderboard_section := section.section(task)) is not None
    ]
    assert len(sections) > 2
    for task, leaderboard_section in sections:
        board = next(block for block in leaderboard_section.walk() if isinstance(block, Table)).frame
        expected = leaderboard(task, evaluator, by=by)
        metric = expected["metric"].iloc[0]
        assert board["contestant"].tolist() == expected["contestant"].tolist()
        columns = {"rank": "rank", "behind": "behind", "behind_low": "behind_low", "behind_high": "behind_high"}
        columns |= {metric: "value", f"{metric}_low": "low", f"{metric}_high": "high"}
        metric_rows = expected.where(expected["metric"].eq(metric))
        for column, name in columns.items():
            pd.testing.assert_series_equal(
                board[column].astype("Float64"), metric_rows[name].astype("Float64"), check_names=False
            )
