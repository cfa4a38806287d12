"""`iclbench tune CONTESTANT...`: learning rates, chosen on validation episodes; what is finished is kept."""

from __future__ import annotations

import json as json_format
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from iclbench.cli.sweep import devices, one_per_core, pool
from iclbench.cli.sweep_view import duration
from iclbench.cli.terminal import out, say, table
from iclbench.config.cards import load_task, names
from iclbench.config.rates import own_path
from iclbench.config.registry import canonical
from iclbench.config.resolution import backbone_class
from iclbench.config.runs import writing
from iclbench.config.trust import typed
from iclbench.core.context import Context
from iclbench.core.errors import DataError, Interrupted, UsageError
from iclbench.core.formats import fixed, plural
from iclbench.core.signals import sigterm_like_ctrl_c
from iclbench.tuning.curves import Curve
from iclbench.tuning.optuna_search import OptunaSearch, check_optuna
from iclbench.tuning.search import Point, RateSearch, Search
from iclbench.tuning.trials import FIRST_SEED, Trial
from iclbench.tuning.tune import Pair, curves
from iclbench.tuning.tune import tune as tune_pairs

_RATES = "1e-3,3e-3,1e-2"
# Settings of training that may be chosen, in words; weight decay means AdamW.
_WORDS = {"lr": "rate", "warmup": "warm-up", "weight_decay": "weight decay", "betas": "betas"}


def tune(
    contestant: list[str],
    tasks: str | None,
    preset: str,
    rates: str | None,
    trials: int | None,
    seeds: int,
    workers: int | None,
    per_gpu: int,
    dry_run: bool,
    results: Path,
    data_dir: Path | None,
    device: str,
    json: bool,
) -> None:
    """Choose learning rates, or more settings of training, on validation episodes, which no result is about. The same
    command goes on where it stopped."""
    search, preset = _search(rates, trials), canonical(preset)
    for name in contestant:
        typed(name)
        backbone_class(name)
    with sigterm_like_ctrl_c():
        kind, gpus = devices(device)
        context = Context(results, data_dir, kind)
        pairs = _pairs(contestant, tasks, preset, seeds, search, context)
        if dry_run:
            _print_dry_run(pairs, json)
            return
        with writing(results):
            results.mkdir(parents=True, exist_ok=True)
        slots: list[str | None] = [gpu for gpu in gpus for _ in range(per_gpu)] or one_per_core()
        if workers:
            slots = [slots[i % len(slots)] for i in range(workers)]
        _work_through(pairs, slots, context)
    _print(pairs, json)
    if left := [pair for pair in pairs if pair.problems]:
        say(f"{plural(len(left), 'contestant')} without a choice: {left[0].name}: {left[0].problems[0]}")
        say("the same command tries again what failed")
        raise typer.Exit(1)
    say(f"rates: {own_path(results, preset)}")


def _search(rates: str | None, trials: int | None) -> Callable[[Curve, int], Search]:
    """The search that was asked for, of a curve and the sign of what decides."""
    if trials is None:
        asked = _rates(rates or _RATES)
        return lambda curve, sign: RateSearch(asked, sign)
    if rates is not None:
        raise UsageError("--trials draws learning rates itself; leave out --rates")
    check_optuna()
    return lambda curve, sign: OptunaSearch(trials, curve.base.train, sign)


def _rates(text: str) -> list[float]:
    """The rates that were typed."""
    try:
        found = sorted({float(word) for word in text.split(",")})
    except ValueError:
        found = []
    if not found or not all(rate > 0 and math.isfinite(rate) for rate in found):
        raise UsageError(f"--rates takes learning rates above 0, by commas, like 1e-3,3e-3,1e-2; got {text!r}")
    return found


def _pairs(
    contestants: Sequence[str],
    tasks: str | None,
    preset: str,
    seeds: int,
    search: Callable[[Curve, int], Search],
    context: Context,
) -> list[Pair]:
    """Every contestant on every task; of tasks that nobody named, those whose data are there."""
    named = [word.strip() for word in tasks.split(",") if word.strip()] if tasks else []
    wanted = named or [name for name in names("tasks") if preset in load_task(name)[1].presets]
    each = list(dict.fromkeys(name if ":" in name else canonical(name) for name in contestants))
    found: list[Pair] = []
    for task in dict.fromkeys(wanted):
        try:
            objective, all_curves = curves(task, each, preset, seeds, context)
        except DataError as error:
            if named:
                raise
            say(f"without {task}: {error}")
            continue
        found += [Pair(curve, objective, search(curve, objective.sign)) for curve in all_curves]
    if not found:
        raise UsageError(f"no task has preset '{preset}' and its data here; name some with --tasks")
    return found


def _work_through(pairs: Sequence[Pair], slots: Sequence[str | None], context: Context) -> None:
    """Do all trials; raises `Interrupted` on Ctrl-C."""
    view, workers = _View(), pool(slots, context.threads)
    try:
        tune_pairs(pairs, workers, context, view)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {plural(view.done, 'trial')} kept, the same command does the others") from None
    finally:
        workers.shutdown()


class _View:
    """One line for every trial and every choice."""

    def __init__(self) -> None:
        self.done = self._total = 0
        self._began = time.monotonic()

    def wanted(self, pair: Pair, todo: Sequence[Trial]) -> None:
        rates = sorted({trial.config.train.lr for trial in todo})
        tried = [point.lr for point in pair.points()]
        if tried and isinstance(pair.search, RateSearch) and not set(rates) & set(pair.search.rates):
            edge = "smallest" if max(rates) < min(tried) else "largest"
            why = f"the {edge} rate is best" if pair.best_found() else "every rate diverged"
            say(f"{pair.name}: {why}; trying {', '.join(f'{rate:g}' for rate in rates)}")
        self._total += len(todo)

    def finished(self, pair: Pair, trial: Trial, row: dict[str, Any]) -> None:
        self.done += 1
        found = row["reason"] if row["status"] == "failed" else f"{row['metric']} {fixed(row['value'], 4)}"
        per_trial = (time.monotonic() - self._began) / self.done
        left = f", {duration(per_trial * (self._total - self.done))} left" if self.done < self._total else ""
        say(f"{self.done}/{self._total} {_described(pair, trial)}: {found}{left}")

    def again(self, pair: Pair, trial: Trial, reason: str) -> None:
        say(f"once more: {_described(pair, trial)}: {reason}")

    def failed(self, pair: Pair, trial: Trial, reason: str) -> None:
        self._total -= 1
        say(f"failed: {_described(pair, trial)}: {reason}")

    def chosen(self, pair: Pair, point: Point | None) -> None:
        holds = f"; holds for {', '.join([pair.task, *pair.stands_for])}" if point and pair.stands_for else ""
        say(f"{pair.name}: " + ("nothing gives finite scores" if point is None else _words(point.settings) + holds))


def _described(pair: Pair, trial: Trial) -> str:
    train = trial.config.train.model_dump(mode="json")
    chosen = {key: train[key] for key in _WORDS if key == "lr" or train[key] != pair.plain[key]}
    return f"{pair.name} {_words(chosen)} seed {trial.config.seed}"


def _words(settings: Mapping[str, Any]) -> str:
    """Settings of training in words.

    >>> _words({"lr": 0.003, "optimiser": "adamw", "warmup": 30, "betas": [0.9, 0.99]})
    'rate 0.003, warm-up 30, betas 0.9 0.99'
    """
    return ", ".join(
        f"{words} {' '.join(f'{each:g}' for each in (value if isinstance(value, list) else [value]))}"
        for key, words in _WORDS.items()
        if (value := settings.get(key)) is not None
    )


def _print_dry_run(pairs: Sequence[Pair], json: bool) -> None:
    """The trials that are to do, and the tasks that the choices will hold for."""
    todo = [(pair, pair.wanted()) for pair in pairs]
    if json:
        about = [
            {"task": pair.task, "contestant": pair.contestant, "to_do": len(own), "holds_for": _holds_for(pair)}
            for pair, own in todo
        ]
        out.print(json_format.dumps(about, indent=2))
        return
    rows = [
        [
            pair.task,
            pair.contestant,
            str(len(own)),
            " ".join(f"{rate:g}" for rate in sorted({trial.config.train.lr for trial in own})),
            ", ".join(_holds_for(pair)),
        ]
        for pair, own in todo
    ]
    table("", ["task", "contestant", "trials", "rates", "holds for"], rows, numeric=[2])
    out.print(f"{plural(sum(len(own) for _, own in todo), 'trial')} to do")


def _holds_for(pair: Pair) -> list[str]:
    return [pair.task, *pair.stands_for]


def _print(pairs: Sequence[Pair], json: bool) -> None:
    """What was tried and chosen: a line for every contestant on every task."""
    if json:
        out.print(json_format.dumps([_plain(pair) for pair in pairs], indent=2))
        return
    for task in dict.fromkeys(pair.task for pair in pairs):
        own = [pair for pair in pairs if pair.task == task]
        columns, rows, numeric = _rate_table(own) if isinstance(own[0].search, RateSearch) else _trial_table(own)
        table(f"{task}: {own[0].objective.words}", columns, rows, numeric)
        if any("*" in cell for row in rows for cell in row):
            out.print("* at the edge of what was tried: a better one may lie beyond")
        for pair in own:
            if same := pair.not_different():
                tried = "; ".join(_words(point.settings) for point in same)
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
        points, found = pair.points(), pair.best()
        own = next((point.value for point in points if point.settings == {"lr": pair.plain["lr"]}), None)
        best = None if found is None else found.value
        of = {} if found is None else pair.plain | dict(found.settings)
        cells = [f"{value:g}" for value in (of["warmup"], of["weight_decay"], of["betas"][1])] if of else [""] * 3
        rows.append([pair.contestant, str(len(points)), _value(own), _value(best), _chosen(pair), *cells])
    columns = ["contestant", "tried", "preset's", "best", "rate", "warm-up", "decay", "beta_2"]
    return columns, rows, range(1, len(columns))


def _chosen(pair: Pair) -> str:
    found = pair.best()
    return "none" if found is None or pair.problems else f"{found.lr:g}"


def _value(value: float | None) -> str:
    return "failed" if value is None else fixed(value, 4)


def _plain(pair: Pair) -> dict[str, Any]:
    found = pair.best()
    return {
        "task": pair.task,
        "contestant": pair.contestant,
        "preset": pair.curve.base.preset,
        "chosen": None if found is None or pair.problems else dict(found.settings),
        "metric": pair.objective.metric,
        "seeds": [FIRST_SEED + seed for seed in range(pair.curve.seeds)],
        "tried": [{**point.settings, "value": point.value, "sd": point.sd} for point in pair.points()],
        "not_different": [dict(point.settings) for point in pair.not_different()],
        "holds_for": _holds_for(pair),
        "problems": pair.problems,
    }
