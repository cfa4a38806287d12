"""The tables that `iclbench tune` prints at its end or in a dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iclbench.cli.terminal import out, print_json, print_table
from iclbench.core.formats import fixed, plural
from iclbench.tuning.search import RateSearch
from iclbench.tuning.trials import FIRST_SEED
from iclbench.tuning.tune import TuningPair

# The training settings that a search may choose, with their names in texts. The optimiser is not listed, since weight
# decay implies AdamW.
SETTING_LABELS = {"lr": "rate", "warmup": "warm-up", "weight_decay": "weight decay", "betas": "betas"}


def print_dry_run(pairs: Sequence[TuningPair], json: bool) -> None:
    """Print the next trials and, for each pair, the tasks that will use the choice."""
    todo = [(pair, pair.next_trials()) for pair in pairs]
    if json:
        records = [
            {"task": pair.task, "contestant": pair.contestant, "to_do": len(trials), "holds_for": _tasks_of(pair)}
            for pair, trials in todo
        ]
        print_json(records)
        return
    rows = [
        [
            pair.task,
            pair.contestant,
            str(len(trials)),
            " ".join(f"{rate:g}" for rate in sorted({trial.config.train.lr for trial in trials})),
            ", ".join(_tasks_of(pair)),
        ]
        for pair, trials in todo
    ]
    print_table("", ["task", "contestant", "trials", "rates", "used for"], rows, numeric=[2])
    out.print(f"{plural(sum(len(trials) for _, trials in todo), 'trial')} to do")


def print_pairs(pairs: Sequence[TuningPair], json: bool) -> None:
    """Print the trials and the choices, with a table per task and a row per contestant."""
    if json:
        print_json([_record(pair) for pair in pairs])
        return
    for task in dict.fromkeys(pair.task for pair in pairs):
        task_pairs = [pair for pair in pairs if pair.task == task]
        first_pair = task_pairs[0]
        make_table = _rate_table if isinstance(first_pair.search, RateSearch) else _trial_table
        columns, rows, numeric = make_table(task_pairs)
        print_table(f"{task}: {first_pair.objective.description}", columns, rows, numeric)
        if any("*" in cell for row in rows for cell in row):
            out.print("* at the edge of the tried rates: a better rate may lie beyond")
        for pair in task_pairs:
            if points := pair.not_different():
                settings = "; ".join(settings_text(point.settings) for point in points)
                out.print(f"{pair.contestant}: not significantly different from the choice: {settings}")


def _rate_table(pairs: Sequence[TuningPair]) -> tuple[list[str], list[list[str]], range]:
    """Return a table with the score of every tried rate, with one row per contestant."""
    rates = sorted({point.lr for pair in pairs for point in pair.points()})
    rows = []
    for pair in pairs:
        points = pair.points()
        values = {point.lr: _value(point.value) for point in points}
        # If the choice comes from another search, it cannot be at the edge of this one.
        search, is_choice = pair.search, pair.choice() == pair.choice_of_search()
        edge_mark = "*" if isinstance(search, RateSearch) and is_choice and search.is_at_edge(points) else ""
        rows.append([pair.contestant, _chosen_rate(pair) + edge_mark, *(values.get(rate, "") for rate in rates)])
    return ["contestant", "rate", *(f"{rate:g}" for rate in rates)], rows, range(1, len(rates) + 2)


def _trial_table(pairs: Sequence[TuningPair]) -> tuple[list[str], list[list[str]], range]:
    """Return a table with the number of tried combinations, the scores of the preset's and of the chosen settings, and
    the chosen settings."""
    rows = []
    for pair in pairs:
        points, chosen_point = pair.points(), pair.choice()
        preset_settings, cells = pair.preset_settings, [""] * 3
        preset_value = next((point.value for point in points if point.settings == {"lr": preset_settings["lr"]}), None)
        chosen_value = None if chosen_point is None else chosen_point.value
        if chosen_point is not None:
            train = preset_settings | dict(chosen_point.settings)
            cells = [f"{value:g}" for value in (train["warmup"], train["weight_decay"], train["betas"][1])]
        scores = [_value(preset_value), _value(chosen_value)]
        rows.append([pair.contestant, str(len(points)), *scores, _chosen_rate(pair), *cells])
    columns = ["contestant", "tried", "preset", "chosen", "rate", "warm-up", "decay", "beta_2"]
    return columns, rows, range(1, len(columns))


def _chosen_rate(pair: TuningPair) -> str:
    chosen_point = pair.choice()
    return "none" if chosen_point is None or pair.problems else f"{chosen_point.lr:g}"


def _value(value: float | None) -> str:
    return "failed" if value is None else fixed(value, 4)


def _record(pair: TuningPair) -> dict[str, Any]:
    chosen_point = pair.choice()
    return {
        "task": pair.task,
        "contestant": pair.contestant,
        "preset": pair.curve.base.preset,
        "chosen": None if chosen_point is None or pair.problems else dict(chosen_point.settings),
        "metric": pair.objective.metric,
        "seeds": [FIRST_SEED + seed for seed in range(pair.curve.seeds)],
        "tried": [{**point.settings, "value": point.value, "sd": point.sd} for point in pair.points()],
        "not_different": [dict(point.settings) for point in pair.not_different()],
        "holds_for": _tasks_of(pair),
        "problems": pair.problems,
    }


def _tasks_of(pair: TuningPair) -> list[str]:
    """Return the tasks that use the choice of a pair."""
    return [pair.task, *pair.follower_tasks]


def settings_text(settings: Mapping[str, Any]) -> str:
    """Format training settings in words.

    >>> settings_text({"lr": 0.003, "optimiser": "adamw", "warmup": 30, "betas": [0.9, 0.99]})
    'rate 0.003, warm-up 30, betas 0.9 0.99'
    """
    return ", ".join(
        f"{name} {' '.join(f'{number:g}' for number in (value if isinstance(value, list) else [value]))}"
        for key, name in SETTING_LABELS.items()
        if (value := settings.get(key)) is not None
    )
