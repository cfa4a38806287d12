"""The tables that end `iclbench tune`, or a dry run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iclbench.cli.terminal import out, print_json, table
from iclbench.core.formats import fixed, plural
from iclbench.tuning.search import RateSearch
from iclbench.tuning.trials import FIRST_SEED
from iclbench.tuning.tune import Pair

# Settings of training that may be chosen, in words; weight decay means AdamW.
WORDS = {"lr": "rate", "warmup": "warm-up", "weight_decay": "weight decay", "betas": "betas"}


def print_dry_run(pairs: Sequence[Pair], json: bool) -> None:
    """The trials that are to do, and the tasks that the choices will hold for."""
    todo = [(pair, pair.wanted()) for pair in pairs]
    if json:
        lines = [
            {"task": pair.task, "contestant": pair.contestant, "to_do": len(trials), "holds_for": _holds_for(pair)}
            for pair, trials in todo
        ]
        print_json(lines)
        return
    rows = [
        [
            pair.task,
            pair.contestant,
            str(len(trials)),
            " ".join(f"{rate:g}" for rate in sorted({trial.config.train.lr for trial in trials})),
            ", ".join(_holds_for(pair)),
        ]
        for pair, trials in todo
    ]
    table("", ["task", "contestant", "trials", "rates", "holds for"], rows, numeric=[2])
    out.print(f"{plural(sum(len(trials) for _, trials in todo), 'trial')} to do")


def print_pairs(pairs: Sequence[Pair], json: bool) -> None:
    """Print the trials and the choice: a line for every contestant on every task."""
    if json:
        print_json([_plain(pair) for pair in pairs])
        return
    for task in dict.fromkeys(pair.task for pair in pairs):
        of_task = [pair for pair in pairs if pair.task == task]
        first = of_task[0]
        board = _rate_table if isinstance(first.search, RateSearch) else _trial_table
        columns, rows, numeric = board(of_task)
        table(f"{task}: {first.objective.words}", columns, rows, numeric)
        if any("*" in cell for row in rows for cell in row):
            out.print("* at the edge of what was tried: a better one may lie beyond")
        for pair in of_task:
            if same := pair.not_different():
                tried = "; ".join(words(point.settings) for point in same)
                out.print(f"{pair.contestant}: not significantly different from the choice: {tried}")


def _rate_table(pairs: Sequence[Pair]) -> tuple[list[str], list[list[str]], range]:
    """Every rate that was tried: a line for every contestant."""
    rates = sorted({point.lr for pair in pairs for point in pair.points()})
    rows = []
    for pair in pairs:
        points = pair.points()
        values = {point.lr: _value(point.value) for point in points}
        # The best of all may be that of another search, about which the rates that were tried here say nothing.
        search, here = pair.search, pair.best() == pair.best_found()
        edge = "*" if isinstance(search, RateSearch) and here and search.at_edge(points) else ""
        rows.append([pair.contestant, _chosen(pair) + edge, *(values.get(rate, "") for rate in rates)])
    return ["contestant", "rate", *(f"{rate:g}" for rate in rates)], rows, range(1, len(rates) + 2)


def _trial_table(pairs: Sequence[Pair]) -> tuple[list[str], list[list[str]], range]:
    """How many choices were tried, what the preset's settings and the best of all give, and what these are."""
    rows = []
    for pair in pairs:
        points, best_point = pair.points(), pair.best()
        preset_value = next((point.value for point in points if point.settings == {"lr": pair.plain["lr"]}), None)
        best = None if best_point is None else best_point.value
        of = {} if best_point is None else pair.plain | dict(best_point.settings)
        cells = [f"{value:g}" for value in (of["warmup"], of["weight_decay"], of["betas"][1])] if of else [""] * 3
        rows.append([pair.contestant, str(len(points)), _value(preset_value), _value(best), _chosen(pair), *cells])
    columns = ["contestant", "tried", "preset's", "best", "rate", "warm-up", "decay", "beta_2"]
    return columns, rows, range(1, len(columns))


def _chosen(pair: Pair) -> str:
    best = pair.best()
    return "none" if best is None or pair.problems else f"{best.lr:g}"


def _value(value: float | None) -> str:
    return "failed" if value is None else fixed(value, 4)


def _plain(pair: Pair) -> dict[str, Any]:
    best = pair.best()
    return {
        "task": pair.task,
        "contestant": pair.contestant,
        "preset": pair.curve.base.preset,
        "chosen": None if best is None or pair.problems else dict(best.settings),
        "metric": pair.objective.metric,
        "seeds": [FIRST_SEED + seed for seed in range(pair.curve.seeds)],
        "tried": [{**point.settings, "value": point.value, "sd": point.sd} for point in pair.points()],
        "not_different": [dict(point.settings) for point in pair.not_different()],
        "holds_for": _holds_for(pair),
        "problems": pair.problems,
    }


def _holds_for(pair: Pair) -> list[str]:
    return [pair.task, *pair.stands_for]


def words(settings: Mapping[str, Any]) -> str:
    """Settings of training in words.

    >>> words({"lr": 0.003, "optimiser": "adamw", "warmup": 30, "betas": [0.9, 0.99]})
    'rate 0.003, warm-up 30, betas 0.9 0.99'
    """
    return ", ".join(
        f"{name} {' '.join(f'{each:g}' for each in (value if isinstance(value, list) else [value]))}"
        for key, name in WORDS.items()
        if (value := settings.get(key)) is not None
    )
