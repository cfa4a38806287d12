"""The tables of an evaluation, best contestant first: errors at a few context sizes, or log-likelihoods by the number
of related datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.gains import gains
from iclbench.analysis.loops import loop_values
from iclbench.analysis.oracles import beaten_oracles
from iclbench.analysis.scores import run_leaderboard
from iclbench.analysis.table_ranks import table_metric
from iclbench.analysis.target_scores import has_joint
from iclbench.cli.accuracy_table import has_labels, print_accuracies
from iclbench.cli.result_rows import (
    print_failures,
    print_packed_sources,
    short_score,
    styled_name,
    value_with_half_width,
    with_terminal_columns,
)
from iclbench.cli.table_board import table_board, table_notes
from iclbench.cli.terminal import out, print_rows, print_table
from iclbench.core.metrics import curve_metric, metric
from iclbench.tables.runs import trained_runs


def print_summary(
    results: Path, prompt_sets: Sequence[str], json: bool = False, omitted_runs: Sequence[str] = ()
) -> None:
    """Print a leaderboard per prompt set. For a task with class labels, print one table over all its prompt sets.

    With `json`, print all rows instead. The `omitted_runs` are left out, since their code has changed.
    """
    frames = {} if json else {name: _read(results, name, omitted_runs) for name in prompt_sets}
    with_tables = [name for name, values in frames.items() if table_metric(values)]
    with_labels = {name: rows for name, rows in frames.items() if name not in with_tables and has_labels(rows)}
    other_sets = [name for name in prompt_sets if name not in with_labels and name not in with_tables]
    print_tables(results, with_tables, False, table_board, notes_of=table_notes, omitted_runs=omitted_runs)
    print_tables(results, other_sets, json, leaderboard, notes_of=partial(notes, results), omitted_runs=omitted_runs)
    print_accuracies(results, list(with_labels.values()))


def print_tables(
    results: Path,
    prompt_sets: Sequence[str],
    json: bool,
    board_of: Callable[[pd.DataFrame], tuple[list[str], list[list[str]]]],
    title_part_of: Callable[[pd.DataFrame], str] = lambda values: "",
    notes_of: Callable[[pd.DataFrame], list[str]] = lambda values: [],
    omitted_runs: Sequence[str] = (),
) -> None:
    """Print a table and the failures for each prompt set, or print all rows as JSON.

    Args:
        results: results folder.
        prompt_sets: names of the prompt sets.
        json: whether to print rows as JSON.
        board_of: function that returns column names and rows, given the values of one prompt set.
        title_part_of: function that returns the part of the title between the preset and the shift.
        notes_of: function that returns the lines below the table.
        omitted_runs: runs that are omitted, with all their methods.
    """
    frames = {name: _read(results, name, omitted_runs) for name in prompt_sets}
    if json:
        rows = pd.concat(list(frames.values())) if frames else tables.frame("values", [])
        print_rows(rows)
        return

    for name, values in frames.items():
        columns, lines = board_of(values)
        first_row = values.iloc[0]
        title = (
            f"{first_row['task']}, {first_row['preset']}, {title_part_of(values)}shift {first_row['shift']} ({name})"
        )
        print_table(title, columns, lines, range(1, len(columns)))
        if (values["n_related"] > 0).any():
            out.print("gap and squared error: with all related datasets that a contestant uses")
        if pd.notna(first_row["trained_data"]):
            out.print(f"data: {first_row['data']}; runs were trained on fingerprint={first_row['trained_data']}")
        for note in notes_of(values):
            out.print(note)
        print_packed_sources(results, values)
        print_failures(values)
        out.print()


def _read(results: Path, prompt_set: str, omitted_runs: Sequence[str]) -> pd.DataFrame:
    values = tables.read_all("values", results / "tables" / prompt_set)
    return values[~trained_runs(values).isin(omitted_runs)] if omitted_runs else values


def notes(results: Path, values: pd.DataFrame) -> list[str]:
    """Return the lines below the table of one prompt set."""
    return [*oracle_notes(results, values), *score_notes(values), *target_notes(results, values), *loop_notes(values)]


def loop_notes(values: pd.DataFrame) -> list[str]:
    """Return a note for each run that was evaluated with further numbers of loops, with its value at each number."""
    lines = []
    for (run, name), rows in loop_values(values).groupby(["run", "metric"]):
        numbers = [f"{int(n)}: {value:.3f}" for n, value in zip(rows["axis_value"], rows["value"], strict=True)]
        lines.append(f"{metric(str(name)).label} of {run} by number of loops: {', '.join(numbers)}")
    return lines


def target_notes(results: Path, values: pd.DataFrame) -> list[str]:
    """Return notes on a table for the question `targets`: the numbers of episodes, the ceiling to which scores are
    adjusted, and the gains from related datasets.

    A gain is given with its median and the share of a single dominating episode.
    """
    ok_rows = values[values["evaluator"].eq("targets") & values["status"].eq("ok") & values["axis"].isna()]
    likelihood, gap = (ok_rows[ok_rows["metric"].eq(metric)] for metric in ("log_likelihood", "gap"))
    lines, max_episodes = [], likelihood["n_episodes"].max()
    if (likelihood["n_episodes"] < max_episodes).any():
        lines.append(
            f"in brackets: number of episodes, if fewer than {int(max_episodes)}; gaps: on the episodes that all "
            "oracles predicted"
        )
    teacher_forced = ok_rows.loc[ok_rows["metric"].eq("log_likelihood_teacher_forced"), "run"].drop_duplicates()
    if len(teacher_forced):
        lines.append(
            f"joint LL of {', '.join(map(str, teacher_forced))}: by the chain rule, given the previous true targets"
        )
    is_ceiling = ok_rows["run"].isin(likelihood["run"]) & ~ok_rows["run"].isin(gap["run"])
    ceilings = ok_rows[ok_rows["metric"].eq("log_likelihood_adjusted") & is_ceiling]
    for _, row in ceilings.iterrows():
        score = likelihood.loc[likelihood["run"].eq(row["run"]), "value"].iloc[0]
        lines.append(
            f"ceiling-adjusted: {row['run']} scores {score:.3f} on these prompts and {value_with_half_width(row)} on "
            "average over the task; scores that are adjusted to this average can be compared with published ones"
        )
    max_related = likelihood[likelihood["kind"].ne("oracle")].groupby("run")["n_related"].max()
    related_by_run = {str(run): int(n) for run, n in max_related.items() if n > 0}
    if related_by_run:
        name = str(likelihood["prompt_set"].iloc[0])
        errors = EpisodeScores([tables.read_all("errors", results / "tables" / name)], {name})
        gain_of = gains(lambda run, n: errors.targets([run], name, "log_likelihood", n), related_by_run)
        lines += [
            f"gain of {run} with {n} related: {gain.line}"
            for (run, n), gain in gain_of.items()
            if n == related_by_run[run]
        ]
    return lines


def oracle_notes(results: Path, values: pd.DataFrame) -> list[str]:
    """Return a note for each oracle of one prompt set that a contestant beats."""
    if not values["kind"].eq("oracle").any():
        return []
    name = str(values["prompt_set"].dropna().iloc[0])
    errors = EpisodeScores([tables.read_all("errors", results / "tables" / name)], {name})
    return [defeat.line for defeat in beaten_oracles(values.assign(contestant=values["run"]), errors)]


def score_notes(values: pd.DataFrame) -> list[str]:
    """Return a note on the method that defines score 1 on one prompt set, unless this method is in the table. If no
    scores are defined, return a note with the reason."""
    undefined = values[values["metric"].eq("score") & values["status"].eq("skipped")]
    if len(undefined):
        return [f"no scores: {undefined['reason'].iloc[0]}"]
    references = values.loc[values["metric"].eq("score"), "score_one"].dropna().unique()
    return [f"score 1: {reference}" for reference in references[:1] if reference not in set(values["run"].unique())]


def leaderboard(values: pd.DataFrame, size_count: int = 3) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows: contestants sorted by the area under their curve, with the error at about
    `size_count` context sizes and, for tokens, the accuracy.

    Contestants without an area come last: they failed or were skipped, or some of their predictions are not finite.
    """
    if values["evaluator"].eq("targets").any():
        return targets_board(values)
    next_rows = values[values["evaluator"].eq("next") & values["axis"].isna()]
    ok_rows = next_rows[next_rows["status"] == "ok"]
    curves = ok_rows[ok_rows["metric"].eq(curve_metric(ok_rows["metric"].unique())) & ok_rows["n_context"].notna()]
    board = run_leaderboard(values, "next", "auc", ["auc", "score", "accuracy"])
    sizes = _shared_sizes(curves[curves["run"].isin(board.loc[board["auc"].notna(), "contestant"])], size_count)
    # The table has the accuracies of tokens, but not those of the marks of events.
    has_accuracies = ok_rows["metric"].eq("cross_entropy").any() and board["accuracy"].notna().any()
    means = ["score", "accuracy"] if has_accuracies else ["score"]
    statuses = next_rows[next_rows["status"].ne("ok")].drop_duplicates("run").set_index("run")["status"]
    rows = []
    for row in board.to_dict("records"):
        run = row["contestant"]
        status = str(statuses[run]) if pd.isna(row["value"]) else ""
        at_sizes = curves[curves["run"] == run].set_index("n_context")["value"].reindex(sizes)
        rows.append(
            [
                styled_name(run, row["kind"]),
                status or value_with_half_width(row),
                *("" if pd.isna(row[name]) else f"{row[name]:.3f}" for name in means),
                *(status if pd.isna(value) else short_score(value) for value in at_sizes),
            ]
        )
    columns = ["contestant", "area", *means, *[f"n={n}" for n in sizes]]
    return with_terminal_columns(columns, rows, board)


def targets_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows: contestants sorted by their best log-likelihood over the numbers of related
    datasets. Contestants that predict single values follow, sorted by their error."""
    ok_rows = values[(values["status"] == "ok") & values["axis"].isna()].set_index(["run", "n_related"])
    likelihood, error, gap = (ok_rows[ok_rows["metric"].eq(m)] for m in ("log_likelihood", "squared_error", "gap"))
    related_counts = sorted(int(n) for n in values.loc[values["axis"].isna(), "n_related"].dropna().unique())
    ranking = run_leaderboard(values, "targets", by="log_likelihood").drop_duplicates("contestant")
    kinds = dict(zip(ranking["contestant"], ranking["kind"], strict=True))
    is_failed = ranking["value"].isna()
    ranked_runs = ranking.loc[~is_failed, "contestant"].tolist()
    adjusted_scores = ok_rows[ok_rows["metric"].eq("log_likelihood_adjusted")]
    joint_scores = ok_rows[ok_rows["metric"].eq("log_likelihood_joint")]
    if not has_joint(ok_rows.reset_index()):
        joint_scores = joint_scores.iloc[:0]
    max_episodes = pd.concat([likelihood, error])["n_episodes"].max()
    failures = values[values["status"].eq("failed") & values["axis"].isna() & values["n_related"].notna()]
    failed_keys = set(zip(failures["run"], failures["n_related"], strict=True))

    def cell(scores: pd.DataFrame, run: str, n: int, write: Callable[[Any], str]) -> str:
        """Format the score of a run. Add its number of episodes if other scores are over more episodes."""
        if (run, n) not in scores.index:
            return ""
        row: Any = scores.loc[(run, n)]
        has_fewer = pd.notna(row["n_episodes"]) and row["n_episodes"] != max_episodes
        return write(row) + (f" ({int(row['n_episodes'])})" if has_fewer else "")

    rows = []
    for run in ranked_runs:
        cells = [
            "failed" if (run, n) in failed_keys else cell(likelihood, run, n, lambda row: f"{row['value']:.3f}")
            for n in related_counts
        ]
        related_count = max(n for n in related_counts if (run, n) in error.index or (run, n) in failed_keys)
        cells += [
            cell(scores, run, related_count, value_with_half_width) for scores in (gap, adjusted_scores) if len(scores)
        ]
        cells += (
            [cell(joint_scores, run, related_count, lambda row: f"{row['value']:.3f}")] if len(joint_scores) else []
        )
        error_cell = (
            "failed"
            if (run, related_count) in failed_keys
            else cell(error, run, related_count, lambda row: short_score(row["value"]))
        )
        rows.append([styled_name(run, kinds[run]), *cells, error_cell])
    failed_runs = ranking.loc[is_failed, "contestant"].tolist()
    statuses = values[values["status"].ne("ok")].drop_duplicates("run").set_index("run")["status"]
    for run in failed_runs:
        blanks = [""] * sum(len(scores) > 0 for scores in (gap, adjusted_scores, joint_scores))
        rows.append(
            [styled_name(run, kinds[run]), *[statuses[run]] * (len(related_counts) or 1), *blanks, statuses[run]]
        )
    likelihood_titles = (
        [f"LL, {n} related" for n in related_counts] if len(related_counts) > 1 else [metric("log_likelihood").label]
    )
    extra_columns = {metric("gap").label: gap, "LL, ceiling-adjusted": adjusted_scores, "joint LL": joint_scores}
    columns = [
        "contestant",
        *likelihood_titles,
        *(name for name, scores in extra_columns.items() if len(scores)),
        "squared error",
    ]
    return with_terminal_columns(columns, rows, ranking)


def _shared_sizes(curves: pd.DataFrame, count: int) -> list[int]:
    """Return up to `count` context sizes, spread over the sizes at which all contestants were evaluated."""
    sizes_by_run = curves.groupby("run")["n_context"].agg(set)
    if sizes_by_run.empty:
        return []
    shared_sizes = sorted(int(n) for n in set.intersection(*sizes_by_run) - {0})
    picks = (
        {shared_sizes[round(i * (len(shared_sizes) - 1) / max(1, count - 1))] for i in range(count)}
        if shared_sizes
        else set()
    )
    return sorted(picks)
