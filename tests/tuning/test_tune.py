"""Tuning: trials, divergence, killed workers, Ctrl-C and the table of rates."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from iclbench import tables
from iclbench.cli.main import main
from iclbench.cli.tune_run import _View
from iclbench.cli.tune_tables import _rate_table
from iclbench.config.cards import card_names, cards_folder, load_task
from iclbench.config.rates import Rates, TunedSettings, read_table, shipped_path
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.rates import read_rates, results_path
from iclbench.sweep.executor import WorkerDiedError
from iclbench.sweep.grids import is_grid, load_grid
from iclbench.tuning import trials
from iclbench.tuning.curves import Point, write_choice
from iclbench.tuning.search import RateSearch
from iclbench.tuning.trials import FIRST_SEED, Trial
from iclbench.tuning.tune import TuningPair, objective_and_curves, tune
from iclbench.tuning.validation import Objective, ValidationSet
from tests.inline_executor import InlineExecutor


class ListObserver:
    """An observer that stores its calls in a list."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_schedule(self, pair: TuningPair, todo: Any) -> None:
        self.calls.append(("scheduled", sorted({trial.config.train.lr for trial in todo})))

    def on_finish(self, pair: TuningPair, trial: Trial, row: dict[str, Any]) -> None:
        self.calls.append((row["status"], trial.config.train.lr))

    def on_retry(self, pair: TuningPair, trial: Trial, reason: str) -> None:
        self.calls.append(("retried", reason))

    def on_failure(self, pair: TuningPair, trial: Trial, reason: str) -> None:
        self.calls.append(("given up", reason))

    def on_choice(self, pair: TuningPair, choice: Point | None) -> None:
        self.calls.append(("decided", choice and choice.lr))


def pairs(card: Path, results: Path, contestants: list[str], rates: list[float], seeds: int = 2) -> list[TuningPair]:
    objective, contestant_curves = objective_and_curves(str(card), contestants, "smoke", seeds, Context(results))
    return [TuningPair(curve, objective, RateSearch(rates, objective.sign)) for curve in contestant_curves]


def fake_trials(values: dict[float, float]) -> Callable[..., dict[str, Any]]:
    """Return a replacement for `trials.run` that trains nothing. The score of a trial is the value of its rate, plus 0
    for the first seed, 1 for the second, and so on.
    """

    def run(trial: Trial, budget: int | None, context: Context) -> dict[str, Any]:
        objective = Objective.of(trial.config.task, trial.config.preset)
        value = values[trial.config.train.lr] + trial.config.seed - FIRST_SEED
        columns = {"metric": objective.metric, "evaluator": objective.evaluators}
        return trial.row(objective.id, **columns, value=value, n_episodes=8)

    return run


def test_trials_are_trained_with_their_seeds_and_scored_on_validation_episodes(card_path: Path, tmp_path: Path) -> None:
    """The reference trains and evaluates a model without the code for tuning."""
    from iclbench.training.fit import fit

    (pair,) = pairs(card_path, tmp_path, ["gpt2"], [3e-3], seeds=1)
    (trial,) = pair.next_trials()
    row = trials.run(trial, 7, Context(tmp_path))
    config = resolve_run(str(card_path), "gpt2", "smoke", FIRST_SEED, ["train.lr=3e-3"])
    model = config.build(config.task.build())
    fit(model, config.task, config.train, seed=FIRST_SEED)
    episodes = ValidationSet(config.task, "smoke").episodes
    with torch.inference_mode():
        answers = model.predict_next(episodes.context)
    errors = (answers.mean - episodes.context.y).square().mean((0, 2)) / config.task.build().normaliser
    expected = np.trapezoid(errors, dx=1 / (len(errors) - 1))
    assert row["value"] == pytest.approx(expected, rel=1e-4)
    assert (row["seed"], row["lr"], row["steps"], row["budget"], row["metric"]) == (FIRST_SEED, 3e-3, 12, 7, "auc")
    tables.frame("trials", [row])


def test_validation_episodes_differ_from_the_episodes_of_prompt_sets(card_path: Path) -> None:
    task = resolve_task(str(card_path), "smoke")[0]
    validation = ValidationSet(task, "smoke")
    for seed in range(3):
        prompts = PromptSet(task, "smoke", seed=seed)
        assert prompts.id != validation.id and not torch.equal(
            prompts.episodes.context.x, validation.episodes.context.x
        )
    assert torch.equal(validation.episodes.context.x, ValidationSet(task, "smoke").episodes.context.x)


def test_the_objective_uses_separate_validation_data() -> None:
    task = resolve_task("bursty", "smoke")[0]
    validation_family, prompt_family = task.build().validation(), task.build()
    for validation_set in Objective.of(task, "smoke").sets:
        assert torch.equal(validation_set.family.split().data_classes, validation_family.split().data_classes)
        assert not torch.equal(validation_set.family.split().data_classes, prompt_family.split().data_classes)


def test_no_grid_uses_the_seeds_of_trials() -> None:
    paths = [str(cards_folder("grids") / f"{name}.toml") for name in card_names("grids")]
    cards = [load_grid(path)[1] for path in paths if is_grid(path)]
    seeds = {seed for card in cards for part in [card, *card.more] for seed in part.seeds}
    assert len(cards) > 5 and seeds and max(seeds) < FIRST_SEED


def test_a_point_of_a_curve_is_a_mean_over_seeds_and_ignores_tuned_rates(card_path: Path, tmp_path: Path) -> None:
    (pair,) = pairs(card_path, tmp_path, ["gpt2"], [1e-3], seeds=3)
    columns = {"metric": "auc", "evaluator": "next", "n_episodes": 8}
    for trial, value in zip(pair.curve.trials({"lr": 1e-3}), (1.0, 2.0, 6.0), strict=True):
        pair.curve.add(trial.row(pair.objective.id, **columns, value=value))
    assert pair.curve.point({"lr": 1e-3}) == Point({"lr": 1e-3}, 3.0, pytest.approx(np.std([1, 2, 6], ddof=1)))
    write_choice(pair.curve, TunedSettings(lr=0.25), "by hand")
    assert resolve_run(str(card_path), "gpt2", "smoke", read_rates=partial(read_rates, tmp_path)).train.lr == 0.25
    (reloaded,) = pairs(card_path, tmp_path, ["gpt2"], [1e-3], seeds=3)
    assert reloaded.curve.base.train.lr == pair.curve.base.train.lr != 0.25 and reloaded.curve.points()


@pytest.mark.slow
def test_the_chosen_rate_is_written_and_used(card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {1e-3: 3.0, 1e-2: 2.0, 3e-2: 1.0, 1e-1: 5.0}
    monkeypatch.setattr(trials, "run", fake_trials(values))
    tuned_pairs, observer, executor = (
        pairs(card_path, tmp_path, ["gpt2", "cnp"], [1e-3, 1e-2]),
        ListObserver(),
        InlineExecutor(),
    )
    tune(tuned_pairs, executor, Context(tmp_path), observer)
    steps = [("scheduled", [1e-3, 1e-2]), ("scheduled", [3e-2]), ("scheduled", [1e-1]), ("decided", 3e-2)]
    assert all(observer.calls.count(step) == 2 for step in steps)
    assert executor.calls == 2 * 2 * len(values)
    for contestant in ("gpt2", "cnp"):
        run = resolve_run(str(card_path), contestant, "smoke", read_rates=partial(read_rates, tmp_path))
        assert run.train.lr == 3e-2
    (tuning,) = read_rates(tmp_path, "smoke").tuned
    assert (tuning.tasks, tuning.seeds, tuning.steps, [*tuning.train]) == (["tiny-linear"], 2, 12, ["cnp", "gpt2"])
    assert tuning.train["cnp"].tried == sorted(values)
    assert Rates.of("smoke", "tiny-linear", results_table=read_rates(tmp_path, "smoke")).settings("cnp") == {"lr": 3e-2}
    curve = tables.read_all("trials", tmp_path)
    assert len(curve) == executor.calls and set(curve["seed"]) == {FIRST_SEED, FIRST_SEED + 1}
    mean = curve[curve["contestant"].eq("cnp")].groupby("lr")["value"].mean()
    assert mean.to_dict() == pytest.approx({rate: value + 0.5 for rate, value in values.items()})

    second_executor = InlineExecutor()
    tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2]), second_executor, Context(tmp_path), ListObserver())
    assert second_executor.calls == 0, "finished trials are cached"
    tune(
        pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2], seeds=3), second_executor, Context(tmp_path), ListObserver()
    )
    assert second_executor.calls == len(values), "one additional seed for each rate"
    text = card_path.read_text().replace("steps = 12", "steps = 13")
    card_path.write_text(text)
    tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2]), second_executor, Context(tmp_path), ListObserver())
    assert second_executor.calls == len(values) + 2 * len(values), "a change of the steps invalidates trials"
    assert {each.steps: [*each.train] for each in read_rates(tmp_path, "smoke").tuned} == {
        12: ["cnp"],
        13: ["gpt2"],
    }


def test_a_diverged_trial_is_a_failed_row_and_its_rate_is_not_chosen(card_path: Path, tmp_path: Path) -> None:
    observer = ListObserver()
    tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e30], seeds=1), InlineExecutor(), Context(tmp_path), observer)
    rows = tables.read_all("trials", tmp_path).set_index("lr")
    assert rows.loc[1e30, "status"] == "failed" and pd.isna(rows.loc[1e30, "value"])
    assert "diverged" in rows.loc[1e30, "reason"]
    assert observer.calls[-1][0] == "decided" and observer.calls[-1][1] < 1


def test_an_interrupted_tuning_run_continues_with_identical_results(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run", fake_trials({1e-3: 2.0, 1e-2: 1.0, 1e-1: 3.0}))
    rates = [1e-3, 1e-2, 1e-1]

    def stop(call: int) -> None:
        if call == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(pairs(card_path, tmp_path, ["gpt2"], rates), InlineExecutor(stop), Context(tmp_path), ListObserver())
    assert len(tables.read_all("trials", tmp_path)) == 3 and not results_path(tmp_path, "smoke").exists()
    executor = InlineExecutor()
    tune(pairs(card_path, tmp_path, ["gpt2"], rates), executor, Context(tmp_path), ListObserver())
    assert executor.calls == 3 and results_path(tmp_path, "smoke").exists()
    uninterrupted = tmp_path / "uninterrupted"
    tune(pairs(card_path, uninterrupted, ["gpt2"], rates), InlineExecutor(), Context(uninterrupted), ListObserver())
    name = "rates/smoke/tiny-linear-gpt2.trials.parquet"
    assert (uninterrupted / name).read_bytes() == (tmp_path / name).read_bytes()


def test_unreadable_trials_are_not_overwritten(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run", fake_trials({1e-3: 2.0, 1e-2: 1.0}))
    path = tmp_path / "rates/smoke/tiny-linear-gpt2.trials.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"of a later version")
    with pytest.raises(tables.TableError, match=path.name):
        tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2]), InlineExecutor(), Context(tmp_path), ListObserver())
    assert path.read_bytes() == b"of a later version"


def test_a_trial_is_repeated_if_its_worker_is_killed_and_failed_trials_give_no_choice(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run", fake_trials({1e-3: 2.0, 1e-2: 1.0, 3e-4: 3.0, 3e-2: 3.0}))

    def die_once(call: int) -> None:
        if call == 2:
            raise WorkerDiedError("killed")

    observer = ListObserver()
    tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2]), InlineExecutor(die_once), Context(tmp_path), observer)
    assert ("retried", "killed") in observer.calls and observer.calls[-1] == ("decided", 1e-2)

    def fail(call: int) -> None:
        raise IclbenchError("no memory")

    (failed_pair,) = pairs(card_path, tmp_path / "other", ["gpt2"], [1e-3])
    tune([failed_pair], InlineExecutor(fail), Context(tmp_path), ListObserver())
    assert failed_pair.problems == ["no memory"] * 2 and not results_path(tmp_path / "other", "smoke").exists()


def test_the_objective_is_the_metric_that_ranks_the_family() -> None:
    """The objectives are the mean accuracy of ICL and IWL, the log-likelihood with all related datasets, the squared
    error, and the area under the curve over context sizes.
    """
    bursty = Objective.of(resolve_task("bursty", "smoke")[0], "smoke")
    assert bursty.metric == "accuracy_within_choices" and bursty.evaluators == "icl, iwl" and bursty.sign == -1
    accuracies = [rows(bursty.metric, {0: value}) for value in (0.5, 0.25)]
    assert bursty.value(accuracies) == pytest.approx(0.375)
    processes = Objective.of(resolve_task("gp-mixture", "smoke")[0], "smoke")
    assert processes.metric == "log_likelihood" and processes.sign == -1
    assert processes.value([rows("log_likelihood", {0: -3.0, 1: -2.0, 2: -1.5})]) == -1.5
    images = Objective.of(resolve_task("image-completion", "smoke")[0], "smoke")
    assert (images.metric, images.sign) == ("squared_error", 1), "without an oracle, scores are of squared errors"
    linear = Objective.of(resolve_task("linear", "smoke")[0], "smoke")
    assert (linear.metric, linear.evaluators, linear.sign) == ("auc", "next", 1)
    failed = rows("auc", {0: 1.0}).assign(status="failed", reason="loss is nan")
    with pytest.raises(IclbenchError, match="loss is nan"):
        linear.value([failed])


def rows(metric: str, values: dict[int, float]) -> pd.DataFrame:
    scores = [{"n_related": n, "value": value} for n, value in values.items()]
    along_axis = [{"n_related": 0, "value": 99.0, "axis": "n_context"}]
    return pd.DataFrame(scores + along_axis).assign(metric=metric, status="ok", kind="backbone", reason=None)


@pytest.mark.slow
def test_the_command_prints_the_curve_and_caches_trials(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "gpt2", "--tasks", str(card_path), "-p", "smoke", "--seeds", "1", "--results", str(tmp_path / "r")]
    assert main([*words, "--rates", "1e-3,1e-2", "-j", "1"]) == 0
    capsys.readouterr()
    assert main([*words, "--rates", "1e-3,1e-2", "-j", "1", "--json"]) == 0
    printed = capsys.readouterr()
    (printed_pair,) = json.loads(printed.out)
    assert "seed" not in printed.err
    values = {point["lr"]: point["value"] for point in printed_pair["tried"]}
    assert {1e-3, 1e-2} <= values.keys() and printed_pair["seeds"] == [FIRST_SEED]
    assert printed_pair["chosen"] == {"lr": min(values, key=lambda rate: values[rate])}
    assert main(["tune", "gpt2", "--rates", "0,1"]) == 2 and "--rates" in capsys.readouterr().err
    assert main(["tune", "gpt2", "--tasks", "linaer"]) == 2 and "'linear'" in capsys.readouterr().err


def test_a_chosen_rate_at_the_edge_of_the_range_is_marked_unless_the_warm_up_was_also_chosen(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pair,) = pairs(card_path, tmp_path, ["gpt2"], [1e-3, 3e-3], seeds=1)
    columns = {"metric": "auc", "evaluator": "next"}

    def add_trial(settings: dict[str, float], **columns_of_score: object) -> None:
        (trial,) = pair.curve.trials(settings)
        pair.curve.add(trial.row(pair.objective.id, **columns, **columns_of_score))

    add_trial({"lr": 1e-2, "warmup": 7}, value=1.0, n_episodes=8)
    for rate in (1e-3, 3e-3):
        add_trial({"lr": rate}, status="failed", reason="it diverged")
    _View().on_schedule(pair, pair.next_trials())
    assert "0.0003" in capsys.readouterr().err
    add_trial({"lr": 3e-4}, value=2.0, n_episodes=8)
    assert _rate_table([pair])[1][0][1] == "0.01", "a choice that includes the warm-up is not marked"
    add_trial({"lr": 1e-4}, value=0.5, n_episodes=8)
    assert _rate_table([pair])[1][0][1] == "0.0001*"


def test_a_rate_chosen_on_one_task_is_used_for_all_tasks_that_share_its_rates(tmp_path: Path) -> None:
    def choose_rate(contestant: str, task: str, rate: float) -> list[Any]:
        (curve,) = objective_and_curves(task, [contestant], "grid", 1, Context(tmp_path))[1]
        write_choice(curve, TunedSettings(lr=rate), "by hand")
        return read_rates(tmp_path, "grid").tuned

    sharing_tasks = {
        name for each in read_table(shipped_path("grid")).tuned if each.on == "linear" for name in each.tasks
    }
    assert {"linear", "quadratic", "sparse-linear"} <= sharing_tasks
    (quadratic,) = choose_rate("gla", "quadratic", 0.5)
    assert (quadratic.tasks, quadratic.on) == (["quadratic"], "")
    choose_rate("gla", "linear", 0.25)
    table = read_rates(tmp_path, "grid")
    rates = {name: Rates.of("grid", name, None, table).chosen_settings["gla"]["lr"] for name in sharing_tasks}
    assert rates == dict.fromkeys(sharing_tasks, 0.25) | {"quadratic": 0.5}, "gla was also tuned on `quadratic` itself"
    by_task = {each.on: each for each in choose_rate("gla", "linear", 0.125)}
    assert by_task["linear"].train["gla"].lr == 0.125 and set(by_task["linear"].tasks) == sharing_tasks - {"quadratic"}
    choose_rate("gpt2", "linear", 0.25)
    rates_of_task = Rates.of("grid", "sparse-linear", results_table=read_rates(tmp_path, "grid"))
    assert rates_of_task.chosen_settings["gpt2"]["lr"] != 0.25, "gpt2 was tuned on this task itself"


def test_a_dry_run_lists_trials_and_tasks_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "gpt2", "--tasks", "linear", "--preset", "grid", "--results", str(tmp_path / "r"), "--dry-run"]
    assert main([*words, "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["to_do"] == 9, "three rates with three seeds each"
    assert plan["holds_for"][0] == "linear" and "decision-tree" in plan["holds_for"]
    assert main(words) == 0 and "decision-tree" in capsys.readouterr().out
    assert not (tmp_path / "r").exists()


def test_the_warm_up_is_shortened_in_proportion_to_the_steps_of_trials(tmp_path: Path) -> None:
    """The trials have a quarter of the steps of the preset `grid`, and the rows contain this number of steps."""
    preset_training = load_task("markov")[1].presets["grid"].train
    _, (curve,) = objective_and_curves("markov", ["gru"], "grid", 1, Context(tmp_path), preset_training.steps // 4)
    (trial,) = curve.trials({"lr": 1e-2})
    train = trial.config.train
    assert (train.steps, train.warmup) == (preset_training.steps // 4, round(preset_training.warmup / 4))
    assert trial.row("set")["steps"] == train.steps
    assert curve.base.train.schedule == preset_training.schedule
