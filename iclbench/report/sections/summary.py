"""The first screen: what was compared, the heat map in small, the clearest findings, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import Difference
from iclbench.core.formats import fixed, plural
from iclbench.core.metrics import GIVEN_TRUTH, GUESSES
from iclbench.report.blocks import Glance, Section, Tile
from iclbench.report.data import Results
from iclbench.report.figures.heat_map import MARKS, NO_SCORE, colour, label, white_beyond
from iclbench.report.sections import missing
from iclbench.report.sections.heat_map import BEST, best, cells_of, ordered_backbones

# As much as fits beside each other and below each other on a screen of 1280 x 800.
COLUMNS, ROWS, FINDINGS = 15, 14, 3


def section(results: Results) -> Section:
    presets = normalised.presets(results)
    of_preset = {preset: normalised.contests(results, preset) for preset in presets}
    # The preset that compares most: its heat map and findings stand for all.
    preset = max(presets, key=lambda name: sum(len(c.scores) for c in of_preset[name]), default="")
    contests = of_preset.get(preset, [])
    columns, rows = heat_map(results, contests)
    glance = Glance(
        name="summary",
        scope=tuple(compared(results)),
        preset=preset,
        columns=columns,
        rows=rows[:ROWS],
        hidden_rows=max(0, len(rows) - ROWS),
        findings=tuple(findings(results, contests)),
        missing=tuple(lacking(results)),
    )
    return Section("summary", "Summary", (glance,))


def compared(results: Results) -> Iterator[str]:
    """What was compared, a sentence for each preset and one for language models."""
    measured = results.rows[results.rows["kind"] != "published"]
    for preset, rows in measured.groupby("preset"):
        backbones = rows[rows["kind"] == "backbone"]
        seeds = backbones.groupby(["task", "contestant"])["seed"].nunique()
        n_methods = rows.loc[rows["kind"].isin(["baseline", "oracle"]), "contestant"].nunique()
        parts = [plural(backbones["model"].nunique(), "model")] if len(backbones) else []
        parts += [plural(n_methods, "classical method")] if n_methods else []
        most = int(seeds.max()) if len(seeds) else 0
        trained = f", {'up to ' * bool(seeds.min() < most)}{plural(most, 'seed')}" if most else ""
        yield f"Preset {preset}: {' and '.join(parts)} on {plural(rows['task'].nunique(), 'task')}{trained}."
    cells = results.language.cells
    if len(cells):
        models = cells.loc[cells["kind"] == "backbone", "model"].nunique()
        yield f"{plural(models, 'language model')} on {plural(cells['task'].nunique(), 'language task')}."


def heat_map(
    results: Results, contests: Sequence[Contest]
) -> tuple[tuple[str, ...], tuple[tuple[str, list[Tile]], ...]]:
    """Contestants, and for every family a tile for each of them."""
    if not contests:
        return (), ()
    scores = normalised.all_scores(contests).assign(reason=None)
    names = ordered_backbones(results, contests, scores)[0][:COLUMNS]
    names += [BEST] if scores["kind"].eq("baseline").any() else []
    with_best = pd.concat([scores, best(scores)], ignore_index=True)
    cells = cells_of(results, contests, with_best, names)
    tiles: dict[str, list[Tile]] = {}
    for cell in cells.to_dict("records"):  # in the order of the columns
        tiles.setdefault(str(cell["row"]), []).append(_tile(cell))
    return tuple(names), tuple(tiles.items())


def _tile(cell: Mapping[Any, Any]) -> Tile:
    score, name, row = cell["score"], cell["contestant"], cell["row"]
    if pd.isna(score):
        status = str(cell["status"])
        return Tile(MARKS.get(status, "?"), NO_SCORE, "#000", f"{name} on {row}: {status}: {cell['reason']}")
    low, high = white_beyond()
    ink = "#fff" if float(score) < low or float(score) > high else "#000"
    red, green, blue = colour(score)
    reason_text = f" ({cell['reason']})" if cell["reason"] else ""
    return Tile(label(score), f"#{red:02x}{green:02x}{blue:02x}", ink, f"{name} on {row}: {fixed(score)}{reason_text}")


def findings(results: Results, contests: Sequence[Contest]) -> Iterator[str]:
    """The largest significant differences, each of another task: of the best model to the best baseline with a score
    above 0, and of the best model of one order to the best of the other."""
    differences = []
    for contest in contests:
        for first, second, words in _pairs(results, contest):
            gap = contest.difference(first, second)
            if gap is not None and gap.is_significant:
                differences.append((abs(gap.value), contest.title, _in_words(contest, first, second, words, gap)))
    by_title: dict[str, str] = {}
    for _, title, sentence in sorted(differences, key=lambda item: (-item[0], item[1])):
        by_title.setdefault(title, sentence)
    yield from list(by_title.values())[:FINDINGS]


def _pairs(results: Results, contest: Contest) -> Iterator[tuple[str, str, tuple[str, str]]]:
    scores = contest.scores.sort_values(["score", "contestant"], ascending=[False, True])
    scores = scores[~scores["contestant"].isin(GUESSES | GIVEN_TRUTH)]
    backbones = scores.loc[scores["kind"] == "backbone", "contestant"]
    baselines = scores.loc[scores["kind"].eq("baseline") & scores["score"].gt(0), "contestant"]
    if len(backbones) and len(baselines):
        yield str(backbones.iloc[0]), str(baselines.iloc[0]), ("the best model", "the best baseline")
    orders = backbones.map(results.orders)
    causal, sets = backbones[orders == "causal"], backbones[orders == "set"]
    if len(causal) and len(sets):
        yield str(causal.iloc[0]), str(sets.iloc[0]), ("the best causal model", "the best set model")


def _in_words(contest: Contest, first: str, second: str, words: tuple[str, str], gap: Difference) -> str:
    subject, object_ = f"{first}, {words[0]},", f"{second}, {words[1]}"
    side = "above" if gap.value > 0 else "below"
    ends = sorted((abs(gap.low), abs(gap.high)))
    return (
        f"{contest.title}: {subject} scores {fixed(abs(gap.value), 2)} {side} {object_} "
        f"(95 % interval {fixed(ends[0], 2)} to {fixed(ends[1], 2)}, paired by episode)."
    )


def lacking(results: Results) -> Iterator[str]:
    """What is not there, a line for each kind; nothing where all is there."""
    failures = missing.failed(results)
    for status, phrase in {"failed": "failed", "skipped": "with more examples than the model supports"}.items():
        if failures is not None and (count := int(failures.frame["status"].eq(status).sum())):
            yield f"{plural(count, 'evaluation')} {phrase}."
    counts = results.cells["status"].value_counts()
    words = {
        "failed": "failed in the sweep",
        "diverged": "diverged in training",
        "skipped": "not applicable",
    }
    for status, word in words.items():
        if counts.get(status, 0):
            yield f"{plural(int(counts[status]), 'cell')} {word}."
    if gaps := missing.gaps(results):
        yield f"{plural(len(gaps), 'evaluation')} not computed yet."
    if results.skipped_files:
        yield f"{plural(len(results.skipped_files), 'file')} could not be read."
    if results.excluded_rows:
        yield f"{plural(len(results.excluded_rows), 'group')} of rows left out, as they are not comparable."
