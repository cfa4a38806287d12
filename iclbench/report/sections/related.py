"""The gain from related datasets: log-likelihood against their number, on the training distribution and shifted."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.gains import NAMED_SHARE, gains
from iclbench.analysis.target_scores import overall, related_counts, repeated_over_counts, shifts
from iclbench.core.formats import fixed, signed
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import KINDS, Slice, data_note
from iclbench.report.figures import targets
from iclbench.report.titles import ADJUSTED, shift_title


def section(task: Slice) -> Section | None:
    published = _published(task)
    lines = overall(task.targets_by_run, "log_likelihood")
    asked = related_counts(lines)
    if lines.empty or (len(asked) < 2 and lines["shift"].nunique() < 2):
        return None
    blocks: list[Block] = []
    if len(asked) > 1:
        beside = _adjusted(task.targets_by_run, lines, published)
        panels = {
            shift_title(shift): pd.concat(
                [repeated_over_counts(beside[beside["shift"] == shift], asked), published[published["shift"] == shift]]
            )
            for shift in shifts(lines)
        }
        blocks.append(
            targets.figure(
                task,
                panels,
                targets.related_axis(related_counts(pd.concat(panels.values()))),
                name="related",
                title=f"{task.task}: log-likelihood against the number of related datasets",
                caption="Log-likelihood per target (nats, higher is better) against the number of related datasets; "
                "level lines: models that do not use them."
                + (f" {ADJUSTED}" if len(beside) and beside is not lines else ""),
            )
        )
    blocks.append(_numbers(task, overall(task.targets, "log_likelihood"), published))
    if (table := _gains(task)) is not None:
        blocks.append(table)
    title = "Related datasets" if len(asked) > 1 else "Shifts"
    return Section(f"{task.id}-related", title, tuple(blocks))


def _adjusted(rows: pd.DataFrame, plain: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Log-likelihoods; adjusted to the task's ceiling on prompts for which numbers are published and it is known."""
    found = overall(rows, "log_likelihood_adjusted")
    found = found[found["shift"].isin(published["shift"])]
    if found.empty:
        return plain
    return pd.concat([plain[~plain["shift"].isin(found["shift"])], found], ignore_index=True)


def _gains(task: Slice) -> Table | None:
    """A row per contestant and number of related datasets; None if no model uses them."""
    rows = overall(task.targets, "log_likelihood")
    most = rows[rows["shift"] == "none"].groupby("contestant")["n_related"].max()
    asked = {str(name): int(n) for name, n in most.items() if n > 0}
    found = gains(lambda name, n: _likelihoods(task, name, n), asked)
    if not found:
        return None
    frame = pd.DataFrame(
        {
            "contestant": name,
            "n_related": n,
            "gain": own.value,
            "gain_low": own.low,
            "gain_high": own.high,
            "median": own.median,
            "largest": own.largest_share if abs(own.largest_share) >= NAMED_SHARE else None,
        }
        for (name, n), own in found.items()
    )
    return Table(
        name=f"{task.id}-related-gains",
        title="Gains from related datasets",
        caption="Gain in log-likelihood per target (nats) from related datasets, paired over episodes, with 95 % "
        f"intervals. One episode: share of the sum due to the largest gain or loss, if at least {NAMED_SHARE:.0%}.",
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
    """The log-likelihood of every episode, averaged over runs."""
    lines = overall(task.targets_by_run, "log_likelihood")
    runs = lines.loc[(lines["shift"] == "none") & (lines["contestant"] == contestant), "run"].unique()
    prompt_set = task.target_prompts
    if prompt_set is None:
        return None
    return task.results.errors.targets(sorted(runs), prompt_set, "log_likelihood", n_related)


def _published(task: Slice) -> pd.DataFrame:
    """Published log-likelihoods of any preset; a model without related datasets is at none."""
    rows = task.results.rows
    rows = rows[(rows["kind"] == "published") & (rows["task"] == task.task) & rows["axis"].isna()]
    rows = rows[(rows["metric"] == "log_likelihood") & rows["n_context"].isna()]
    source = " (published, preset " + rows["preset"] + data_note(rows) + ")"
    return rows.assign(note=source, level=False, n_related=rows["n_related"].fillna(0))


def _numbers(task: Slice, rows: pd.DataFrame, published: pd.DataFrame) -> Table:
    """A row per shift and contestant, a column per number of related datasets."""
    theirs = published.assign(contestant=published["contestant"] + published["note"])
    theirs = theirs.drop_duplicates(["shift", "contestant", "n_related"])
    theirs = theirs[theirs["shift"].isin(rows["shift"])]
    adjusted = overall(task.targets, "log_likelihood_adjusted")
    adjusted = adjusted[adjusted["shift"].isin(theirs["shift"])]
    adjusted = adjusted.assign(contestant=adjusted["contestant"] + ", ceiling-adjusted")
    both = pd.concat([rows, adjusted, theirs], ignore_index=True)
    asked = related_counts(both)
    frame = both[["shift", "kind", "contestant"]].drop_duplicates()
    for n in asked:
        own = both.loc[both["n_related"] == n, ["shift", "kind", "contestant", "value", "low", "high", "n_episodes"]]
        names = {"value": f"r{n}", "low": f"r{n}_low", "high": f"r{n}_high", "n_episodes": f"r{n}_episodes"}
        frame = frame.merge(own.rename(columns=names), "left", ["shift", "kind", "contestant"])
    ranked = {kind: i for i, kind in enumerate(KINDS)} | {shift: i for i, shift in enumerate(shifts(rows))}
    order = ["shift", "kind", "contestant"]
    frame = frame.sort_values(order, key=lambda c: c.map(ranked).fillna(0) if c.name != "contestant" else c)
    frame = frame.reset_index(drop=True)
    return Table(
        name=f"{task.id}-related-numbers",
        title="Numbers behind the figure" if len(asked) > 1 else "Log-likelihood under shifts",
        caption="Log-likelihood per target (nats) with 95 % intervals over episodes, by prompts and number of related "
        "datasets. A dash: not used, or not evaluated." + (f" {ADJUSTED}" if len(adjusted) else ""),
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("shift", "prompts", shift_title),
            *(
                Column(f"r{n}", f"{n} related", fixed, True, f"r{n}_low", f"r{n}_high", episodes=f"r{n}_episodes")
                for n in asked
            ),
        ),
        group="shift",
        folded=len(asked) > 1,
    )
