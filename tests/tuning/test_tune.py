"""Tuning: what is tried and kept, in the face of divergence, death and Ctrl-C, and what the table then says."""

import json
from collections.abc import Callable
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
from iclbench.config.cards import cards_folder, names
from iclbench.config.rates import Rates, TunedSettings, read_table, results_path, shipped_path
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError
from iclbench.evaluation.prompts import PromptSet
from iclbench.sweep.executor import WorkerDiedError
from iclbench.sweep.grids import is_grid, load_grid
from iclbench.tuning import trials
from iclbench.tuning.curves import Point, choose
from iclbench.tuning.search import RateSearch
from iclbench.tuning.trials import FIRST_SEED, Trial
from iclbench.tuning.tune import Pair, curves, tune
from iclbench.tuning.validation import Objective, ValidationSet
from tests.inline_executor import InlineExecutor


class Heard:
    """A report that only remembers."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def scheduled(self, pair: Pair, todo: Any) -> None:
        self.said.append(("scheduled", sorted({trial.config.train.lr for trial in todo})))

    def finished(self, pair: Pair, trial: Trial, row: dict[str, Any]) -> None:
        self.said.append((row["status"], trial.config.train.lr))

    def retried(self, pair: Pair, trial: Trial, reason: str) -> None:
        self.said.append(("retried", reason))

    def failed(self, pair: Pair, trial: Trial, reason: str) -> None:
        self.said.append(("failed for good", reason))

    def decided(self, pair: Pair, choice: Point | None) -> None:
        self.said.append(("decided", choice and choice.lr))


def pairs(card: Path, results: Path, contestants: list[str], rates: list[float], seeds: int = 2) -> list[Pair]:
    objective, found = curves(str(card), contestants, "smoke", seeds, Context(results))
    return [Pair(curve, objective, RateSearch(rates, objective.sign)) for curve in found]


def scored(values: dict[float, float]) -> Callable[..., dict[str, Any]]:
    """Trials that train nothing: seed n is n beside the value of its rate."""

    def run(trial: Trial, budget: int | None, context: Context) -> dict[str, Any]:
        objective = Objective.of(trial.config.task, trial.config.preset)
        value = values[trial.config.train.lr] + trial.config.seed - FIRST_SEED
        about = {"metric": objective.metric, "evaluator": objective.evaluators}
        return trial.row(objective.id, **about, value=value, n_episodes=8)

    return run


def test_trials_train_from_their_seeds_and_are_scored_on_validation_episodes(card_path: Path, tmp_path: Path) -> None:
    """By a training and an evaluation of our own."""
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


def test_validation_episodes_are_those_of_no_prompt_set(card_path: Path) -> None:
    task = resolve_task(str(card_path), "smoke")[0]
    own = ValidationSet(task, "smoke")
    for seed in range(3):
        prompts = PromptSet(task, "smoke", seed=seed)
        assert prompts.id != own.id and not torch.equal(prompts.episodes.context.x, own.episodes.context.x)
    assert torch.equal(own.episodes.context.x, ValidationSet(task, "smoke").episodes.context.x)


def test_what_decides_is_asked_of_data_that_are_kept_for_it() -> None:
    task = resolve_task("bursty", "smoke")[0]
    kept, prompts = task.build().validation(), task.build()
    for own in Objective.of(task, "smoke").sets:
        assert torch.equal(own.family.split().glyph, kept.split().glyph)
        assert not torch.equal(own.family.split().glyph, prompts.split().glyph)


def test_no_grid_trains_from_the_seeds_of_trials() -> None:
    paths = [str(cards_folder("grids") / f"{name}.toml") for name in names("grids")]
    cards = [load_grid(path)[1] for path in paths if is_grid(path)]
    seeds = {seed for card in cards for part in [card, *card.more] for seed in part.seeds}
    assert len(cards) > 5 and seeds and max(seeds) < FIRST_SEED


def test_a_point_is_the_mean_over_seeds_of_what_no_table_of_rates_speaks_of(card_path: Path, tmp_path: Path) -> None:
    (pair,) = pairs(card_path, tmp_path, ["gpt2"], [1e-3], seeds=3)
    about = {"metric": "auc", "evaluator": "next", "n_episodes": 8}
    for trial, value in zip(pair.curve.trials({"lr": 1e-3}), (1.0, 2.0, 6.0), strict=True):
        pair.curve.add(trial.row(pair.objective.id, **about, value=value))
    assert pair.curve.point({"lr": 1e-3}) == Point({"lr": 1e-3}, 3.0, pytest.approx(np.std([1, 2, 6], ddof=1)))
    choose(pair.curve, TunedSettings(lr=0.25), "by hand")
    assert resolve_run(str(card_path), "gpt2", "smoke", results=tmp_path).train.lr == 0.25
    (again,) = pairs(card_path, tmp_path, ["gpt2"], [1e-3], seeds=3)
    assert again.curve.base.train.lr == pair.curve.base.train.lr != 0.25 and again.curve.points()


def test_the_best_mean_is_written_and_read_by_whoever_trains_next(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {1e-3: 3.0, 1e-2: 2.0, 3e-2: 1.0, 1e-1: 5.0}
    monkeypatch.setattr(trials, "run", scored(values))
    found, heard, executor = pairs(card_path, tmp_path, ["gpt2", "cnp"], [1e-3, 1e-2]), Heard(), InlineExecutor()
    tune(found, executor, Context(tmp_path), heard)
    steps = [("scheduled", [1e-3, 1e-2]), ("scheduled", [3e-2]), ("scheduled", [1e-1]), ("decided", 3e-2)]
    assert all(heard.said.count(step) == 2 for step in steps)
    assert executor.calls == 2 * 2 * len(values)
    for who in ("gpt2", "cnp"):
        assert resolve_run(str(card_path), who, "smoke", results=tmp_path).train.lr == 3e-2
    (tuning,) = read_table(results_path(tmp_path, "smoke")).tuned
    assert (tuning.tasks, tuning.seeds, tuning.steps, [*tuning.train]) == (["tiny-linear"], 2, 12, ["cnp", "gpt2"])
    assert tuning.train["cnp"].tried == sorted(values)
    assert Rates.of("smoke", "tiny-linear", results=tmp_path).settings("cnp") == {"lr": 3e-2}
    curve = tables.read_all("trials", tmp_path)
    assert len(curve) == executor.calls and set(curve["seed"]) == {FIRST_SEED, FIRST_SEED + 1}
    mean = curve[curve["contestant"].eq("cnp")].groupby("lr")["value"].mean()
    assert mean.to_dict() == pytest.approx({rate: value + 0.5 for rate, value in values.items()})

    again = InlineExecutor()
    tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2]), again, Context(tmp_path), Heard())
    assert again.calls == 0, "what is finished is kept"
    tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2], seeds=3), again, Context(tmp_path), Heard())
    assert again.calls == len(values), "one more seed of each"
    text = card_path.read_text().replace("steps = 12", "steps = 13")
    card_path.write_text(text)
    tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2]), again, Context(tmp_path), Heard())
    assert again.calls == len(values) + 2 * len(values), "other trainings are other trials"
    assert {each.steps: [*each.train] for each in read_table(results_path(tmp_path, "smoke")).tuned} == {
        12: ["cnp"],
        13: ["gpt2"],
    }


def test_a_rate_that_diverges_is_a_point_of_the_curve(card_path: Path, tmp_path: Path) -> None:
    heard = Heard()
    tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e30], seeds=1), InlineExecutor(), Context(tmp_path), heard)
    rows = tables.read_all("trials", tmp_path).set_index("lr")
    assert rows.loc[1e30, "status"] == "failed" and pd.isna(rows.loc[1e30, "value"])
    assert "diverged at step" in rows.loc[1e30, "reason"]
    assert heard.said[-1][0] == "decided" and heard.said[-1][1] < 1


def test_killed_anywhere_it_goes_on(card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "run", scored({1e-3: 2.0, 1e-2: 1.0, 1e-1: 3.0}))
    rates = [1e-3, 1e-2, 1e-1]

    def stop(call: int) -> None:
        if call == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(pairs(card_path, tmp_path, ["gpt2"], rates), InlineExecutor(stop), Context(tmp_path), Heard())
    assert len(tables.read_all("trials", tmp_path)) == 3 and not results_path(tmp_path, "smoke").exists()
    executor = InlineExecutor()
    tune(pairs(card_path, tmp_path, ["gpt2"], rates), executor, Context(tmp_path), Heard())
    assert executor.calls == 3 and results_path(tmp_path, "smoke").exists()
    whole = tmp_path / "whole"
    tune(pairs(card_path, whole, ["gpt2"], rates), InlineExecutor(), Context(whole), Heard())
    name = "rates/smoke/tiny-linear-gpt2.trials.parquet"
    assert (whole / name).read_bytes() == (tmp_path / name).read_bytes()


def test_trials_that_cannot_be_read_are_not_written_over(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run", scored({1e-3: 2.0, 1e-2: 1.0}))
    path = tmp_path / "rates/smoke/tiny-linear-gpt2.trials.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"of a later version")
    with pytest.raises(tables.TableError, match=path.name):
        tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2]), InlineExecutor(), Context(tmp_path), Heard())
    assert path.read_bytes() == b"of a later version"


def test_a_worker_that_dies_is_tried_once_more_and_what_fails_leaves_no_choice(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "run", scored({1e-3: 2.0, 1e-2: 1.0, 3e-4: 3.0, 3e-2: 3.0}))

    def die_once(call: int) -> None:
        if call == 2:
            raise WorkerDiedError("killed")

    heard = Heard()
    tune(pairs(card_path, tmp_path, ["gpt2"], [1e-3, 1e-2]), InlineExecutor(die_once), Context(tmp_path), heard)
    assert ("retried", "killed") in heard.said and heard.said[-1] == ("decided", 1e-2)

    def always(call: int) -> None:
        raise IclbenchError("no memory")

    (other,) = pairs(card_path, tmp_path / "other", ["gpt2"], [1e-3])
    tune([other], InlineExecutor(always), Context(tmp_path), Heard())
    assert other.problems == ["no memory"] * 2 and not results_path(tmp_path / "other", "smoke").exists()


def test_what_decides_is_what_ranks_the_family() -> None:
    """The mean of ICL and IWL; the likelihood with all related datasets; the area under the learning curve."""
    bursty = Objective.of(resolve_task("bursty", "smoke")[0], "smoke")
    assert bursty.metric == "accuracy_within_choices" and bursty.evaluators == "icl, iwl" and bursty.sign == -1
    accuracies = [rows(bursty.metric, {0: value}) for value in (0.5, 0.25)]
    assert bursty.value(accuracies) == pytest.approx(0.375)
    processes = Objective.of(resolve_task("gp-mixture", "smoke")[0], "smoke")
    assert processes.metric == "log_likelihood" and processes.sign == -1
    assert processes.value([rows("log_likelihood", {0: -3.0, 1: -2.0, 2: -1.5})]) == -1.5
    linear = Objective.of(resolve_task("linear", "smoke")[0], "smoke")
    assert (linear.metric, linear.evaluators, linear.sign) == ("auc", "next", 1)
    failed = rows("auc", {0: 1.0}).assign(status="failed", reason="loss is nan")
    with pytest.raises(IclbenchError, match="loss is nan"):
        linear.value([failed])


def rows(metric: str, values: dict[int, float]) -> pd.DataFrame:
    each = [{"n_related": n, "value": value} for n, value in values.items()]
    other = [{"n_related": 0, "value": 99.0, "axis": "n_context"}]
    return pd.DataFrame(each + other).assign(metric=metric, status="ok", kind="backbone", reason=None)


@pytest.mark.slow
def test_the_command_prints_the_curve_and_trains_nothing_twice(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "gpt2", "--tasks", str(card_path), "-p", "smoke", "--seeds", "1", "--results", str(tmp_path / "r")]
    assert main([*words, "--rates", "1e-3,1e-2", "-j", "1"]) == 0
    capsys.readouterr()
    assert main([*words, "--rates", "1e-3,1e-2", "-j", "1", "--json"]) == 0
    printed = capsys.readouterr()
    (found,) = json.loads(printed.out)
    assert "seed" not in printed.err
    values = {point["lr"]: point["value"] for point in found["tried"]}
    assert {1e-3, 1e-2} <= values.keys() and found["seeds"] == [FIRST_SEED]
    assert found["chosen"] == {"lr": min(values, key=lambda rate: values[rate])}
    assert main(["tune", "gpt2", "--rates", "0,1"]) == 2 and "--rates" in capsys.readouterr().err
    assert main(["tune", "gpt2", "--tasks", "linaer"]) == 2 and "'linear'" in capsys.readouterr().err


def test_an_edge_is_told_of_the_rates_alone(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pair,) = pairs(card_path, tmp_path, ["gpt2"], [1e-3, 3e-3], seeds=1)
    about = {"metric": "auc", "evaluator": "next"}

    def keep(settings: dict[str, float], **found: object) -> None:
        (trial,) = pair.curve.trials(settings)
        pair.curve.add(trial.row(pair.objective.id, **about, **found))

    keep({"lr": 1e-2, "warmup": 7}, value=1.0, n_episodes=8)
    for rate in (1e-3, 3e-3):
        keep({"lr": rate}, status="failed", reason="it diverged")
    _View().scheduled(pair, pair.next_trials())
    assert "0.0003" in capsys.readouterr().err
    keep({"lr": 3e-4}, value=2.0, n_episodes=8)
    assert _rate_table([pair])[1][0][1] == "0.01", "which is in the midst of nothing"
    keep({"lr": 1e-4}, value=0.5, n_episodes=8)
    assert _rate_table([pair])[1][0][1] == "0.0001*"


def test_a_task_that_stands_for_others_is_chosen_on_for_all_of_them(tmp_path: Path) -> None:
    def tuned(contestant: str, task: str, rate: float) -> list[Any]:
        (curve,) = curves(task, [contestant], "grid", 1, Context(tmp_path))[1]
        choose(curve, TunedSettings(lr=rate), "by hand")
        return read_table(results_path(tmp_path, "grid")).tuned

    followers = {name for each in read_table(shipped_path("grid")).tuned if each.on == "linear" for name in each.tasks}
    assert {"linear", "quadratic", "sparse-linear"} <= followers
    (quadratic,) = tuned("cnp", "quadratic", 0.5)
    assert (quadratic.tasks, quadratic.on) == (["quadratic"], "")
    tuned("cnp", "linear", 0.25)
    chosen = {name: Rates.of("grid", name, results=tmp_path).chosen_settings["cnp"]["lr"] for name in followers}
    assert chosen == dict.fromkeys(followers, 0.25) | {"quadratic": 0.5}, "but where it was itself tuned"
    again = {each.on: each for each in tuned("cnp", "linear", 0.125)}
    assert again["linear"].train["cnp"].lr == 0.125 and set(again["linear"].tasks) == followers - {"quadratic"}
    tuned("gpt2", "linear", 0.25)
    assert Rates.of("grid", "sparse-linear", results=tmp_path).chosen_settings["gpt2"]["lr"] != 0.25, (
        "it was tuned there"
    )


def test_a_dry_run_names_the_trials_and_the_tasks_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "gpt2", "--tasks", "linear", "--preset", "grid", "--results", str(tmp_path / "r"), "--dry-run"]
    assert main([*words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["to_do"] == 9, "three rates from three seeds"
    assert found["holds_for"][0] == "linear" and "decision-tree" in found["holds_for"]
    assert main(words) == 0 and "decision-tree" in capsys.readouterr().out
    assert not (tmp_path / "r").exists()
