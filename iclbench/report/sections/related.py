"""Related datasets: log-likelihood against their number, on the training distribution and under shifts."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.gains import MIN_NAMED_SHARE, gains
from iclbench.analysis.target_scores import over_all_episodes, related_counts, repeat_over_counts, shifts
from iclbench.core.formats import fixed, signed
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import KINDS, Slice, data_note
from iclbench.report.figures import targets
from iclbench.report.titles import ADJUSTED_NOTE, shift_title


def section(task: Slice) -> Section | None:
    published_rows = _published_likelihoods(task)
    likelihoods = over_all_episodes(task.targets_by_run, "log_likelihood")
    n_related = related_counts(likelihoods)
    if likelihoods.empty or (len(n_related) < 2 and likelihoods["shift"].nunique() < 2):
        return None
    blocks: list[Block] = []
    if len(n_related) > 1:
        comparable = _with_adjusted_likelihoods(task.targets_by_run, likelihoods, published_rows)
        panels = {
            shift_title(shift): pd.concat(
                [
                    repeat_over_counts(comparable[comparable["shift"] == shift], n_related),
                    published_rows[published_rows["shift"] == shift],
                ]
            )
            for shift in shifts(likelihoods)
        }
        blocks.append(
            targets.figure(
                task,
                panels,
                targets.related_axis(related_counts(pd.concat(panels.values()))),
                name="related",
                title=f"{task.task}: log-likelihood against the number of related datasets",
                caption="Log-likelihood per target (nats, higher is better) against the number of related datasets; "
                "horizontal lines: models that do not use them."
                + (f" {ADJUSTED_NOTE}" if len(comparable) and comparable is not likelihoods else ""),
            )
        )
    blocks.append(_likelihood_table(task, over_all_episodes(task.targets, "log_likelihood"), published_rows))
    if (table := _gain_table(task)) is not None:
        blocks.append(table)
    title = "Related datasets" if len(n_related) > 1 else "Shifts"
    return Section(f"{task.id}-related", title, tuple(blocks), rules=("Ceiling-adjusted", "Intervals"))


def _with_adjusted_likelihoods(
    rows: pd.DataFrame, likelihoods: pd.DataFrame, published_rows: pd.DataFrame
) -> pd.DataFrame:
    """The log-likelihoods, ceiling-adjusted under the shifts that have published numbers."""
    adjusted_rows = over_all_episodes(rows, "log_likelihood_adjusted")
    adjusted_rows = adjusted_rows[adjusted_rows["shift"].isin(published_rows["shift"])]
    if adjusted_rows.empty:
        return likelihoods
    return pd.concat(
        [likelihoods[~likelihoods["shift"].isin(adjusted_rows["shift"])], adjusted_rows], ignore_index=True
    )


def _gain_table(task: Slice) -> Table | None:
    """A table with a row per contestant and number of related datasets; None if no model uses related datasets."""
    rows = over_all_episodes(task.targets, "log_likelihood")
    largest = rows[rows["shift"] == "none"].groupby("contestant")["n_related"].max()
    n_related = {str(name): int(n) for name, n in largest.items() if n > 0}
    by_contestant = gains(lambda name, n: _likelihoods(task, name, n), n_related)
    if not by_contestant:
        return None
    frame = pd.DataFrame(
        {
            "contestant": name,
            "n_related": n,
            "gain": gain.value,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "median": gain.median,
            "largest": gain.largest_share if abs(gain.largest_share) >= MIN_NAMED_SHARE else None,
        }
        for (name, n), gain in by_contestant.items()
    )
    return Table(
        name=f"{task.id}-related-gains",
        title="Gains from related datasets",
        caption="Gain in log-likelihood per target (nats) from related datasets, paired over episodes, with 95 % "
        f"intervals. One episode: share of the sum due to the largest gain or loss, if at least {MIN_NAMED_SHARE:.0%}.",
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("n_related", "related datasets", lambda n: str(int(n)), numeric=True),
            Column("gain", "mean gain", signed, True, "gain_low", "gain_high"),
            Column("median", "median", signed, numeric=True),
            Column("largest", "one episode", lambda share: f"{share:.0%}", numeric=True),
        ),
        group="contestant",
    )


def _likelihoods(task: Slice, contestant: str, n_related: int) -> pd.Series | None:
    """The log-likelihood of each episode, averaged over runs."""
    likelihoods = over_all_episodes(task.targets_by_run, "log_likelihood")
    runs = likelihoods.loc[(likelihoods["shift"] == "none") & (likelihoods["contestant"] == contestant), "run"].unique()
    prompt_set = task.target_prompt_set
    if prompt_set is None:
        return None
    return task.results.errors.targets(sorted(runs), prompt_set, "log_likelihood", n_related)


def _published_likelihoods(task: Slice) -> pd.DataFrame:
    """Published log-likelihoods of all presets; `n_related` is 0 for models without related datasets."""
    rows = task.results.rows
    rows = rows[(rows["kind"] == "published") & (rows["task"] == task.task) & rows["axis"].isna()]
    rows = rows[(rows["metric"] == "log_likelihood") & rows["n_context"].isna()]
    suffix = " (published, preset " + rows["preset"] + data_note(rows) + ")"
    return rows.assign(note=suffix, level=False, n_related=rows["n_related"].fillna(0))


def _likelihood_table(task: Slice, rows: pd.DataFrame, published_rows: pd.DataFrame) -> Table:
    """A table with a row per shift and contestant, and a column per number of related datasets."""
    labelled_rows = published_rows.assign(contestant=published_rows["contestant"] + published_rows["note"])
    labelled_rows = labelled_rows.drop_duplicates(["shift", "contestant", "n_related"])
    labelled_rows = labelled_rows[labelled_rows["shift"].isin(rows["shift"])]
    adjusted_rows = over_all_episodes(task.targets, "log_likelihood_adjusted")
    adjusted_rows = adjusted_rows[adjusted_rows["shift"].isin(labelled_rows["shift"])]
    adjusted_rows = adjusted_rows.assign(contestant=adjusted_rows["contestant"] + ", ceiling-adjusted")
    all_rows = pd.concat([rows, adjusted_rows, labelled_rows], ignore_index=True)
    n_related = related_counts(all_rows)
    keys = ["shift", "kind", "contestant"]
    frame = all_rows[keys].drop_duplicates()
    for n in n_related:
        names = {"value": f"r{n}", "low": f"r{n}_low", "high": f"r{n}_high", "n_episodes": f"r{n}_episodes"}
        with_n = all_rows.loc[all_rows["n_related"] == n, [*keys, *names]]
        frame = frame.merge(with_n.rename(columns=names), "left", keys)
    positions = {kind: i for i, kind in enumerate(KINDS)} | {shift: i for i, shift in enumerate(shifts(rows))}
    frame = frame.sort_values(keys, key=lambda c: c.map(positions).fillna(0) if c.name != "contestant" else c)
    frame = frame.reset_index(drop=True)
    return Table(
        name=f"{task.id}-related-numbers",
        title="Numbers behind the figure" if len(n_related) > 1 else "Log-likelihood under shifts",
        caption="Log-likelihood per target (nats) with 95 % intervals over episodes, by prompts and number of related "
        "datasets. A dash means that related datasets are not used or were not evaluated."
        + (f" {ADJUSTED_NOTE}" if len(adjusted_rows) else ""),
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("shift", "prompts", shift_title),
            *(
                Column(f"r{n}", f"{n} related", fixed, True, f"r{n}_low", f"r{n}_high", episodes=f"r{n}_episodes")
                for n in n_related
            ),
        ),
        group="shift",
        folded=len(n_related) > 1,
    )
