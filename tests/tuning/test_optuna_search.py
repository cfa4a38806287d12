"""Choices of several settings at once: where they come from, and that nothing but what was found decides."""

from math import log
from pathlib import Path
from typing import Any

import pytest

from iclbench import tables
from iclbench.cli.main import main
from iclbench.config.cards import TrainSettings
from iclbench.config.rates import read_table, results_path
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import NonFiniteError
from iclbench.tuning import optuna_search, trials
from iclbench.tuning.curves import Point
from iclbench.tuning.optuna_search import RANGES, STARTUP, OptunaSearch
from iclbench.tuning.search import RateSearch, best
from iclbench.tuning.trials import Trial
from iclbench.tuning.tune import Pair, curves, tune
from iclbench.tuning.validation import Objective
from tests.inline_executor import InlineExecutor
from tests.tuning.test_tune import Heard

pytest.importorskip("optuna")

BASE = TrainSettings(steps=1000, lr=1e-3, warmup=50)


def bowl(train: TrainSettings) -> float:
    """Best at rate 2e-3, a warm-up of a tenth and beta_2 = 0.98; rates above 0.02 diverge."""
    if train.lr > 0.02:
        raise NonFiniteError("diverged")
    rate, warmup = log(train.lr / 2e-3) ** 2, 10 * (train.warmup / train.steps - 0.1) ** 2
    return rate + warmup + 0.1 * log((1 - train.betas[1]) / 0.02) ** 2


def point(settings: dict[str, Any], sign: int = 1) -> Point:
    try:
        return Point(settings, sign * bowl(BASE.model_copy(update=settings)))
    except NonFiniteError:
        return Point(settings, None)


def search(number: int, sign: int = 1, points: tuple[Point, ...] = ()) -> list[Point]:
    found, looking = list(points), OptunaSearch(number, BASE, sign)
    while wanted := looking.next(found):
        found += [point(each, sign) for each in wanted]
    return found


def test_it_finds_better_than_it_draws_whichever_way_is_better() -> None:
    found = search(40)
    assert len(found) == 40 and found[0] == point({"lr": BASE.lr})
    values = [each.value if each.value is not None else 99.0 for each in found]
    drawn, learned = values[:STARTUP], values[STARTUP:]
    assert min(learned) < min(drawn) and sorted(learned)[len(learned) // 2] < sorted(drawn)[len(drawn) // 2] / 2
    assert any(each.value is None for each in found[:STARTUP]), "a draw that diverged"
    assert max(each.lr for each in found[STARTUP + 5 :]) < 0.02, "and what was learned from it"
    turned = search(40, sign=-1)
    assert [each.settings for each in turned] == [each.settings for each in found]
    assert best(turned, -1).settings == best(found, 1).settings != found[0].settings  # type: ignore[union-attr]


def test_choices_lie_in_their_ranges_and_say_only_what_the_preset_does_not() -> None:
    for each in search(15)[1:]:
        train = TrainSettings(**BASE.model_dump() | dict(each.settings))
        assert RANGES["lr"][0] <= train.lr <= RANGES["lr"][1] and 0 <= train.warmup <= 200
        assert train.optimiser == "adamw" and RANGES["weight_decay"][0] <= train.weight_decay <= 0.3
        assert train.betas[0] == 0.9 and 0.9 <= train.betas[1] <= 0.999
        assert all(value != BASE.model_dump(mode="json")[key] for key, value in each.settings.items() if key != "lr")


def test_what_comes_next_follows_from_what_is_there_in_any_order() -> None:
    found = search(14)
    assert search(16)[:14] == found, "more trials go on from fewer"
    looking = OptunaSearch(14, BASE, 1)
    assert looking.next(found[:12][::-1]) == [found[12].settings]
    assert looking.next(found[:4] + found[5:10]) == [found[4].settings], "a draw that is missing"
    assert looking.next(found) == [] and search(3) == found[:3]


def test_earlier_points_count_and_are_learned_from() -> None:
    rates = tuple(point({"lr": rate}) for rate in (1e-3, 3e-3, 1e-2, 3e-2))
    found = search(14, points=rates)
    assert len(found) == 14 and sum(each.settings == {"lr": 1e-3} for each in found) == 1
    assert found[-1].settings != search(14)[-1].settings


def scored(trial: Trial, budget: int | None, context: Context) -> dict[str, Any]:
    objective = Objective.of(trial.config.task, trial.config.preset)
    about = {"metric": objective.metric, "evaluator": objective.evaluators}
    try:
        value = bowl(trial.config.train) + 1e-3 * trial.config.seed
    except NonFiniteError as error:
        return trial.row(objective.id, **about, status="failed", reason=str(error))
    return trial.row(objective.id, **about, value=value, n_episodes=8)


def pair(card: Path, results: Path, number: int) -> Pair:
    objective, (curve,) = curves(str(card), ["gpt2"], "smoke", 2, Context(results))
    return Pair(curve, objective, OptunaSearch(number, curve.base.train, objective.sign))


@pytest.mark.slow
def test_killed_anywhere_it_goes_on_and_the_choice_is_trained_with(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run", scored)
    whole = tmp_path / "whole"
    tune([pair(card_path, whole, 13)], InlineExecutor(), Context(whole), Heard())
    for calls in (3, STARTUP * 2 + 2):  # within the draws; between the seeds of a choice

        def stop(call: int, last: int = calls) -> None:
            if call > last:
                raise KeyboardInterrupt

        results = tmp_path / str(calls)
        with pytest.raises(KeyboardInterrupt):
            tune([pair(card_path, results, 13)], InlineExecutor(stop), Context(results), Heard())
        going_on = InlineExecutor()
        tune([pair(card_path, results, 13)], going_on, Context(results), Heard())
        assert going_on.calls == 2 * 13 - calls
        for name in ("rates/smoke.toml", "rates/smoke/tiny-linear-gpt2.trials.parquet"):
            assert (results / name).read_bytes() == (whole / name).read_bytes()
    assert len(tables.read_all("trials", whole)) == 2 * 13
    (tuning,) = read_table(results_path(whole, "smoke")).tuned
    chosen = tuning.train["gpt2"]
    train = resolve_run(str(card_path), "gpt2", "smoke", results=whole).train
    assert (train.lr, train.optimiser, train.warmup) == (chosen.lr, "adamw", chosen.warmup)
    assert (train.betas, train.weight_decay) == (chosen.betas, chosen.weight_decay)


def test_the_command_prints_the_choice_beside_the_presets(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker would have to import torch; the command has one in `test_tune.py`.
    monkeypatch.setattr("iclbench.cli.tune_run.pool", lambda slots, threads: InlineExecutor())
    words = ["tune", "gpt2", "--tasks", str(card_path), "-p", "smoke", "--seeds", "1", "--results", str(tmp_path)]
    assert main([*words, "--trials", "2", "-j", "1"]) == 0
    printed = capsys.readouterr()
    line = next(line for line in printed.out.splitlines() if line.startswith("gpt2"))
    found = pair(card_path, tmp_path, 2)
    found.curve = curves(str(card_path), ["gpt2"], "smoke", 1, Context(tmp_path))[1][0]
    own, other = (
        found.curve.points() if found.curve.points()[0].settings.keys() == {"lr"} else found.curve.points()[::-1]
    )
    assert line.split()[1:4] == ["2", f"{own.value:.4f}", f"{min(own.value, other.value):.4f}"]  # type: ignore[type-var]
    assert "warm-up" in printed.err and "weight decay" in printed.err
    assert main([*words, "--trials", "2", "--rates", "1e-3"]) == 2
    assert "--rates" in capsys.readouterr().err
    monkeypatch.setattr(optuna_search, "find_spec", lambda name: None)
    assert main([*words, "--trials", "2"]) == 2
    assert "iclbench[optuna]" in capsys.readouterr().err


@pytest.mark.slow
def test_rates_that_are_tried_later_do_not_replace_a_better_choice(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run", scored)
    tune([pair(card_path, tmp_path, 12)], InlineExecutor(), Context(tmp_path), Heard())
    before = read_table(results_path(tmp_path, "smoke")).tuned[0].train["gpt2"]
    rates = pair(card_path, tmp_path, 12)
    rates.search = RateSearch([1e-4], 1)
    tune([rates], InlineExecutor(), Context(tmp_path), Heard())
    after = read_table(results_path(tmp_path, "smoke")).tuned[0].train["gpt2"]
    assert after.model_copy(update={"tried": []}) == before.model_copy(update={"tried": []})
    assert set(after.tried) > set(before.tried)
