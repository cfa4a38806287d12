"""The first screen of a report: the compared models, a small heat map, the largest differences, and missing results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import Difference
from iclbench.core.formats import fixed, plural
from iclbench.core.metrics import BASELINES_GIVEN_TRUTH, GUESSING_BASELINES
from iclbench.report.blocks import FirstScreen, Section, Tile
from iclbench.report.data import Results
from iclbench.report.figures.heat_map import NO_SCORE_COLOUR, STATUS_MARKS, score_colour, score_label, white_text_limits
from iclbench.report.sections import missing
from iclbench.report.sections.heat_map import (
    BEST_BASELINE,
    best_baselines,
    heat_map_cells,
    main_scores,
    split_backbones,
    trained_contests,
)

# The largest numbers that fit on a screen of 1280 x 800.
MAX_COLUMNS, MAX_ROWS, MAX_FINDINGS = 15, 14, 3


def section(results: Results) -> Section:
    presets = normalised.presets(results)
    by_preset = {preset: normalised.contests(results, preset) for preset in presets}
    # The heat map and the findings are about the preset with the most scores.
    preset = max(presets, key=lambda name: sum(len(c.scores) for c in by_preset[name]), default="")
    contests = by_preset.get(preset, [])
    columns, rows = tiles_by_family(results, contests)
    first_screen = FirstScreen(
        name="summary",
        scope=tuple(scope_sentences(results)),
        preset=preset,
        columns=columns,
        rows=rows[:MAX_ROWS],
        hidden_row_count=max(0, len(rows) - MAX_ROWS),
        findings=tuple(findings(results, contests)),
        missing=tuple(missing_sentences(results)),
        local_runs=tuple(local_runs(results)),
    )
    return Section("summary", "Summary", (first_screen,))


def scope_sentences(results: Results) -> Iterator[str]:
    """The numbers of compared models, methods and tasks: a sentence per preset and one for language models."""
    measured_rows = results.rows[results.rows["kind"] != "published"]
    for preset, rows in measured_rows.groupby("preset"):
        backbones = rows[rows["kind"] == "backbone"]
        n_seeds = backbones.groupby(["task", "contestant"])["seed"].nunique()
        n_methods = rows.loc[rows["kind"].isin(["baseline", "oracle"]), "contestant"].nunique()
        subjects = [plural(backbones["model"].nunique(), "model")] if len(backbones) else []
        subjects += [plural(n_methods, "classical method")] if n_methods else []
        max_seeds = int(n_seeds.max()) if len(n_seeds) else 0
        seeds = f", {'up to ' * bool(n_seeds.min() < max_seeds)}{plural(max_seeds, 'seed')}" if max_seeds else ""
        yield f"Preset {preset}: {' and '.join(subjects)} on {plural(rows['task'].nunique(), 'task')}{seeds}."
    cells = results.language.cells
    if len(cells):
        n_models = cells.loc[cells["kind"] == "backbone", "model"].nunique()
        yield f"{plural(n_models, 'language model')} on {plural(cells['task'].nunique(), 'language task')}."


def local_runs(results: Results) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Id, title and names of local runs of each slice that contains any."""
    for task in results.slices:
        runs = sorted({str(run) for run in task.rows["run"].unique()} & results.local_runs)
        if runs:
            yield task.id, task.title, tuple(runs)


def tiles_by_family(
    results: Results, contests: Sequence[Contest]
) -> tuple[tuple[str, ...], tuple[tuple[str, list[Tile]], ...]]:
    """The names of contestants, and the tiles of each family, one per contestant."""
    contests = trained_contests(contests)
    if not contests:
        return (), ()
    scores = main_scores(results, contests)
    main_backbones, _ = split_backbones(results, contests, scores)
    names = main_backbones[:MAX_COLUMNS]
    names += [BEST_BASELINE] if scores["kind"].eq("baseline").any() and results.hidden_rows.empty else []
    scores = pd.concat([scores, best_baselines(scores)], ignore_index=True)
    tiles: dict[str, list[Tile]] = {}
    for cell in heat_map_cells(results, contests, scores, names).to_dict("records"):  # in the order of `names`
        tiles.setdefault(str(cell["row"]), []).append(_tile(cell))
    return tuple(names), tuple(tiles.items())


def _tile(cell: Mapping[Any, Any]) -> Tile:
    score, name, row = cell["score"], cell["contestant"], cell["row"]
    if pd.isna(score):
        status = str(cell["status"])
        return Tile(
            STATUS_MARKS.get(status, "?"), NO_SCORE_COLOUR, "#000", f"{name} on {row}: {status}: {cell['reason']}"
        )
    low, high = white_text_limits()
    ink = "#fff" if float(score) < low or float(score) > high else "#000"
    red, green, blue = score_colour(score)
    reason_text = f" ({cell['reason']})" if cell["reason"] else ""
    return Tile(
        score_label(score), f"#{red:02x}{green:02x}{blue:02x}", ink, f"{name} on {row}: {fixed(score)}{reason_text}"
    )


def findings(results: Results, contests: Sequence[Contest]) -> Iterator[str]:
    """Sentences on the largest significant differences, at most one per row of the heat map.

    The best model is compared with the best baseline that scores above 0, and the best causal model with the best
    set model.
    """
    differences = []
    for contest in contests:
        for first, second, roles in _pairs(results, contest):
            gap = contest.difference(first, second)
            if gap is not None and gap.is_significant:
                differences.append((-abs(gap.value), contest.title, _sentence(contest, first, second, roles, gap)))
    by_title: dict[str, str] = {}
    for _, title, sentence in sorted(differences, key=lambda difference: difference[:2]):
        by_title.setdefault(title, sentence)
    yield from list(by_title.values())[:MAX_FINDINGS]


def _pairs(results: Results, contest: Contest) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Pairs of contestants for `findings`, and the roles of both in words."""
    best = "the best" if results.hidden_rows.empty else "the best selected"
    scores = contest.scores.sort_values(["score", "contestant"], ascending=[False, True])
    scores = scores[~scores["contestant"].isin(GUESSING_BASELINES | BASELINES_GIVEN_TRUTH)]
    backbones = scores.loc[scores["kind"] == "backbone", "contestant"]
    baselines = scores.loc[scores["kind"].eq("baseline") & scores["score"].gt(0), "contestant"]
    if len(backbones) and len(baselines):
        yield str(backbones.iloc[0]), str(baselines.iloc[0]), (f"{best} model", f"{best} baseline")
    orders = backbones.map(results.orders)
    causal, sets = backbones[orders == "causal"], backbones[orders == "set"]
    if len(causal) and len(sets):
        yield str(causal.iloc[0]), str(sets.iloc[0]), (f"{best} causal model", f"{best} set model")


def _sentence(contest: Contest, first: str, second: str, roles: tuple[str, str], gap: Difference) -> str:
    side = "above" if gap.value > 0 else "below"
    low, high = sorted((abs(gap.low), abs(gap.high)))
    return (
        f"{contest.title}: {first}, {roles[0]}, scores {fixed(abs(gap.value), 2)} {side} {second}, {roles[1]} "
        f"(95 % interval {fixed(low, 2)} to {fixed(high, 2)}, paired by episode)."
    )


def missing_sentences(results: Results) -> Iterator[str]:
    """Lines that count failed, skipped and missing results, one per reason."""
    failures = missing.failure_table(results)
    for status, phrase in {"failed": "failed", "skipped": "skipped"}.items():
        if failures is not None and (count := int(failures.frame["status"].eq(status).sum())):
            yield f"{plural(count, 'evaluation')} {phrase}."
    counts = results.cells["status"].value_counts()
    phrases = {
        "failed": "failed in the sweep",
        "diverged": "diverged in training",
        "skipped": "not applicable",
    }
    for status, phrase in phrases.items():
        if counts.get(status, 0):
            yield f"{plural(int(counts[status]), 'cell')} {phrase}."
    if gaps := missing.missing_results(results):
        yield f"{plural(len(gaps), 'result')} not computed yet."
    if results.skipped_files:
        yield f"{plural(len(results.skipped_files), 'file')} could not be read."
    if results.excluded_rows:
        yield f"{plural(len(results.excluded_rows), 'group')} of rows excluded, because they are not comparable."
