"""Backbones that met others with a chosen learning rate, and have none of their own."""

from __future__ import annotations

from collections.abc import Sequence

from iclbench.config.rates import Rates
from iclbench.report.normalised import Contest

MARK = "untuned"


def untuned(contests: Sequence[Contest]) -> dict[str, list[str]]:
    """By backbone the tasks on which nobody chose its learning rate and somebody that of others. A variant that goes by
    the rate of its backbone is one of them; what a run was trained with is not looked at."""
    found: dict[str, set[str]] = {}
    for contest in contests:
        task = contest.task
        rates = Rates.of(task.preset, task.task, results=task.results.folder)
        if not rates.chosen:
            continue
        own = contest.rows[contest.rows["kind"].eq("backbone")]
        for contestant, backbone in own[["contestant", "backbone"]].drop_duplicates().itertuples(index=False):
            if not rates.have(str(contestant), str(backbone)):
                found.setdefault(str(contestant), set()).add(task.task)
    return {contestant: sorted(tasks) for contestant, tasks in sorted(found.items())}
