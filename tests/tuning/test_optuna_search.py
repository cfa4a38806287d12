"""The joint search over several settings, which continues after interruptions."""

from functools import partial
from math import log
from pathlib import Path
from typing import Any

import pytest

from iclbench import tables
from iclbench.cli.main import main
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import NonFiniteError
from iclbench.store.rates import read_rates
from iclbench.tuning import optuna_search, trials
from iclbench.tuning.curves import Point
from iclbench.tuning.optuna_search import RANGES, STARTUP_CHOICES, OptunaSearch
from iclbench.tuning.search import RateSearch, find_best
from iclbench.tuning.trials import Trial
from iclbench.tuning.tune import TuningPair, objective_and_curves, tune
from iclbench.tuning.validation import Objective
from tests.inline_executor import InlineExecutor
from tests.tuning.test_tune import ListObserver

pytest.importorskip("optuna")

BASE = TrainSettings(steps=1000, lr=1e-3, warmup=50)


def bowl(train: TrainSettings) -> float:
    """Return a loss with its minimum at rate 2e-3, warm-up 10 % and beta_2 = 0.98. Rates above 0.02 diverge."""
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
    all_points, joint_search = list(points), OptunaSearch(number, BASE, sign)
    while choices := joint_search.next(all_points):
        all_points += [point(each, sign) for each in choices]
    return all_points


@pytest.mark.slow
def test_proposals_are_better_than_random_choices_for_minimisation_and_maximisation() -> None:
    all_points = search(40)
    assert len(all_points) == 40 and all_points[0] == point({"lr": BASE.lr})
    values = [each.value if each.value is not None else 99.0 for each in all_points]
    random_values, proposed_values = values[:STARTUP_CHOICES], values[STARTUP_CHOICES:]
    assert (
        min(proposed_values) < min(random_values)
        and sorted(proposed_values)[len(proposed_values) // 2] < sorted(random_values)[len(random_values) // 2] / 2
    )
    assert any(each.value is None for each in all_points[:STARTUP_CHOICES]), "at least one random choice diverges"
    assert max(each.lr for each in all_points[STARTUP_CHOICES + 5 :]) < 0.02, "proposals avoid rates that diverge"
    negated_points = search(40, sign=-1)
    assert [each.settings for each in negated_points] == [each.settings for each in all_points]
    assert find_best(negated_points, -1).settings == find_best(all_points, 1).settings != all_points[0].settings  # type: ignore[union-attr]


def test_choices_are_within_their_ranges_and_omit_settings_equal_to_the_preset() -> None:
    for each in search(15)[1:]:
        train = TrainSettings(**BASE.model_dump() | dict(each.settings))
        assert RANGES["lr"][0] <= train.lr <= RANGES["lr"][1] and 0 <= train.warmup <= 200
        assert train.optimiser == "adamw" and RANGES["weight_decay"][0] <= train.weight_decay <= 0.3
        assert train.betas[0] == 0.9 and 0.9 <= train.betas[1] <= 0.999
        assert all(value != BASE.model_dump(mode="json")[key] for key, value in each.settings.items() if key != "lr")


def test_the_next_choice_depends_only_on_earlier_points_and_not_on_their_order() -> None:
    all_points = search(14)
    assert search(16)[:14] == all_points, "a longer search begins with the choices of a shorter one"
    joint_search = OptunaSearch(14, BASE, 1)
    assert joint_search.next(all_points[:12][::-1]) == [all_points[12].settings]
    assert joint_search.next(all_points[:4] + all_points[5:10]) == [all_points[4].settings], (
        "a missing random choice is proposed first"
    )
    assert joint_search.next(all_points) == [] and search(3) == all_points[:3]


def test_points_of_earlier_commands_count_as_trials_and_influence_proposals() -> None:
    rates = tuple(point({"lr": rate}) for rate in (1e-3, 3e-3, 1e-2, 3e-2))
    all_points = search(14, points=rates)
    assert len(all_points) == 14 and sum(each.settings == {"lr": 1e-3} for each in all_points) == 1
    assert all_points[-1].settings != search(14)[-1].settings


def scored_row(trial: Trial, budget: int | None, context: Context) -> dict[str, Any]:
    objective = Objective.of(trial.config.task, trial.config.preset)
    columns = {"metric": objective.metric, "evaluator": objective.evaluators}
    try:
        value = bowl(trial.config.train) + 1e-3 * trial.config.seed
    except NonFiniteError as error:
        return trial.row(objective.id, **columns, status="failed", reason=str(error))
    return trial.row(objective.id, **columns, value=value, n_episodes=8)


def pair(card: Path, results: Path, number: int) -> TuningPair:
    objective, (curve,) = objective_and_curves(str(card), ["gpt2"], "smoke", 2, Context(results))
    return TuningPair(curve, objective, OptunaSearch(number, curve.base.train, objective.sign))


@pytest.mark.slow
def test_an_interrupted_search_continues_and_training_uses_its_choice(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run", scored_row)
    uninterrupted = tmp_path / "uninterrupted"
    tune([pair(card_path, uninterrupted, 13)], InlineExecutor(), Context(uninterrupted), ListObserver())
    for calls in (3, STARTUP_CHOICES * 2 + 2):  # interrupted during the random choices, and during the proposals

        def stop(call: int, last: int = calls) -> None:
            if call > last:
                raise KeyboardInterrupt

        results = tmp_path / str(calls)
        with pytest.raises(KeyboardInterrupt):
            tune([pair(card_path, results, 13)], InlineExecutor(stop), Context(results), ListObserver())
        executor = InlineExecutor()
        tune([pair(card_path, results, 13)], executor, Context(results), ListObserver())
        assert executor.calls == 2 * 13 - calls
        for name in ("rates/smoke.toml", "rates/smoke/tiny-linear-gpt2.trials.parquet"):
            assert (results / name).read_bytes() == (uninterrupted / name).read_bytes()
    assert len(tables.read_all("trials", uninterrupted)) == 2 * 13
    (tuning,) = read_rates(uninterrupted, "smoke").tuned
    choice = tuning.train["gpt2"]
    train = resolve_run(str(card_path), "gpt2", "smoke", read_rates=partial(read_rates, uninterrupted)).train
    assert (train.lr, train.optimiser, train.warmup) == (choice.lr, "adamw", choice.warmup)
    assert (train.betas, train.weight_decay) == (choice.betas, choice.weight_decay)


@pytest.mark.slow
def test_the_command_prints_the_values_of_the_preset_and_of_the_choice(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker would import torch. `test_tune.py` tests the command with a worker.
    monkeypatch.setattr("iclbench.cli.tune_run.worker_pool", lambda slots, threads: InlineExecutor())
    words = ["tune", "gpt2", "--tasks", str(card_path), "-p", "smoke", "--seeds", "1", "--results", str(tmp_path)]
    assert main([*words, "--trials", "2", "-j", "1"]) == 0
    printed = capsys.readouterr()
    line = next(line for line in printed.out.splitlines() if line.startswith("gpt2"))
    tuned_pair = pair(card_path, tmp_path, 2)
    tuned_pair.curve = objective_and_curves(str(card_path), ["gpt2"], "smoke", 1, Context(tmp_path))[1][0]
    preset_point, drawn_point = (
        tuned_pair.curve.points()
        if tuned_pair.curve.points()[0].settings.keys() == {"lr"}
        else tuned_pair.curve.points()[::-1]
    )
    assert line.split()[1:4] == ["2", f"{preset_point.value:.4f}", f"{min(preset_point.value, drawn_point.value):.4f}"]  # type: ignore[type-var]
    assert "warm-up" in printed.err and "weight decay" in printed.err
    assert main([*words, "--trials", "2", "--rates", "1e-3"]) == 2
    assert "--rates" in capsys.readouterr().err
    monkeypatch.setattr(optuna_search, "find_spec", lambda name: None)
    assert main([*words, "--trials", "2"]) == 2
    assert "iclbench[optuna]" in capsys.readouterr().err


@pytest.mark.slow
def test_worse_rates_in_a_later_search_do_not_replace_the_choice(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run", scored_row)
    tune([pair(card_path, tmp_path, 12)], InlineExecutor(), Context(tmp_path), ListObserver())
    choice_before = read_rates(tmp_path, "smoke").tuned[0].train["gpt2"]
    rates = pair(card_path, tmp_path, 12)
    rates.search = RateSearch([1e-4], 1)
    tune([rates], InlineExecutor(), Context(tmp_path), ListObserver())
    choice_after = read_rates(tmp_path, "smoke").tuned[0].train["gpt2"]
    assert choice_after.model_copy(update={"tried": []}) == choice_before.model_copy(update={"tried": []})
    assert set(choice_after.tried) > set(choice_before.tried)
