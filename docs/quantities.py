"""The numbers in the documentation, computed from packed results and cards: scores, paired differences, costs, cells.

Templates call these functions (`docs/render.py`). Scores, differences and ranks are those of the report. Tasks have the
names in the heat map (`linear`, `bursty · ICL`). If the results have no rows for a number, an error is raised.
"""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import PermutationMethod, mannwhitneyu, ttest_rel

from docs.checksums import checksum
from iclbench import tables
from iclbench.analysis import over_training
from iclbench.analysis.normalised import Contest, contests
from iclbench.analysis.pairs import ERROR_RATE, Difference, holm, score_difference
from iclbench.analysis.rate_curves import RateCurves, rate_curves
from iclbench.config.cards import TaskCard, load_task
from iclbench.config.pairs import shipped_pairs
from iclbench.config.rates import Tuning, read_table, shipped_path
from iclbench.config.resolution import RunConfig, resolve_run, resolve_task
from iclbench.core import limits
from iclbench.core.errors import CODES, IclbenchError, Interrupted, UsageError
from iclbench.registry import BACKBONES, MIXERS
from iclbench.report.data import Results, load_results
from iclbench.report.sections import named_pairs
from iclbench.report.sections import published as published_results
from iclbench.report.sections.over_training import scores_by_steps
from iclbench.sweep.grids import GridCard, GridPart, load_grid

ROOT = Path(__file__).parents[1]
# Tests of pairs besides Welch's test. All permutations of eight seeds are 12,870, so the ranks are tested exactly.
_OTHER_TESTS: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "ranks": partial(mannwhitneyu, method=PermutationMethod(n_resamples=20_000)),
    "paired": ttest_rel,
}
_NUMBER = re.compile(r"[−-]?\d[\d,]*(?:\.\d+)?")


@contextmanager
def packed_folder(packed: Path, tasks: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a temporary results folder with only the packed results of these tasks (default: all)."""
    with tempfile.TemporaryDirectory() as folder:
        packed_copy = Path(folder) / packed.name
        packed_copy.mkdir()
        names = [f"{task}-*.parquet" for task in tasks] or ["*.parquet"]
        for path in {path for name in names for path in packed.resolve().glob(name)}:
            (packed_copy / path.name).symlink_to(path)
        yield packed_copy.parent


class Quantities(Mapping[str, Any]):
    """The names that templates may use.

    Args:
        functions: the functions, by name.
        constants: functions that compute the constants, by name. Each is called when the constant is first used, so
            that a page that does not use the results can be rendered without them.
    """

    def __init__(self, functions: Mapping[str, Any], constants: Mapping[str, Callable[[], Any]]) -> None:
        self._values, self._constants = dict(functions), constants

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = self._constants[name]()
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._values, **self._constants})

    def __len__(self) -> int:
        return len({**self._values, **self._constants})


class Reference:
    """The packed results of a folder.

    Args:
        packed: the folder with the packed results. Other results of the user are not read.
        tasks: the tasks to read (default: all).
    """

    def __init__(self, packed: Path = ROOT / "results" / "reference", tasks: Sequence[str] = ()) -> None:
        self.packed, self.tasks = packed, tasks
        self._over_training: dict[tuple[str, str], pd.DataFrame] = {}
        self._scores: dict[tuple[str, str], dict[str, list[float]]] = {}
        self._significant_pairs: dict[str, list[tuple[str, str, str]]] = {}
        self._contestants: dict[str, list[str]] = {}

    @cached_property
    def results(self) -> Results:
        """The packed results.

        Raises:
            TableError: a file was edited or is damaged.
        """
        with packed_folder(self.packed, self.tasks) as folder:
            for path in sorted(folder.glob("*/*.parquet")):
                if not tables.is_intact(path):
                    name = _relative(self.packed / path.name)
                    raise tables.TableError(
                        f"{name} was edited or is damaged; restore it with 'git checkout {name}'",
                        code="unreadable-file",
                    )
            results = load_results(folder, self.tasks)
        if results.skipped_files:
            raise tables.TableError(results.skipped_files[0], code="unreadable-file")
        return results

    @cached_property
    def quantities(self) -> Quantities:
        """The names that templates may use: public methods, functions of this module, and lists of models and tasks."""
        methods = {name: getattr(self, name) for name, member in vars(type(self)).items() if _is_public(name, member)}
        others = [trained, card, published, verdict, is_equal, grid, benchmark, recalled_pairs, package]
        others += [excess_in_blocks, table_hash, leaderboard, tuning, checksum, exit_codes, default_bytes]
        others += [window_rule, mean, lowest_after_peak, accuracy_of_guesses, row_order_gains, spans, loop_scores]
        return Quantities(
            methods | {f.__name__: f for f in others},
            {
                "RANKED_CORE": self._ranked_core,
                "SET_MODELS": lambda: [model for model in self._core() if BACKBONES.get(model).order == "set"],
                "CAUSAL_MODELS": lambda: [model for model in self._core() if BACKBONES.get(model).order == "causal"],
                "MIXER_TASKS": lambda: ["linear", "skewed-linear", "sparse-linear", "decision-tree", "relu-network"],
                "HYENA_FILTER": lambda: 5 * 64 + 64 + 2 * (64 * 64 + 64) + 64,
                "DIMS": lambda: [card(task).presets["grid"].parameters["dim"] for task in self.quantities["FUNCTIONS"]],
                "POINTS": lambda: [card(task).presets["grid"].points for task in self.quantities["FUNCTIONS"]],
                "PAIRS": lambda: grid("reference").pairs,
                "PAIRS_TESTED": lambda: sum(len(named.tasks) for named in grid("reference").pairs),
                "PAIR_SEEDS": lambda: max(len(named.seeds) for named in grid("reference").pairs),
                "CLASSES": lambda: [c.title for c in self._contests("grid") if c.evaluator == "next"],
                "BACKBONES": self.contestants,
                "SEQUENCE": self._sequence_models,
                "CORE": self._core,
                "FUNCTIONS": self._functions,
                "ERROR_CODES": lambda: CODES,
                "TABLE_BASELINES": lambda: import_module("iclbench.cli.eval_runs").TABLE_BASELINES,
            },
        )

    def _core(self) -> list[str]:
        """The backbones that were trained on every applicable task."""
        return list(load_grid("reference")[1].parts[0].backbones)

    def _ranked_core(self) -> list[str]:
        """The core, by the mean score over classes of functions, highest first."""
        functions = self.quantities["FUNCTIONS"]
        return sorted(self._core(), key=lambda model: -mean(self.score(model, task) for task in functions))

    def _functions(self) -> list[str]:
        """The classes of functions on which all core backbones were trained, except `tabular`, whose episodes share
        real rows.
        """
        core = load_grid("reference")[1].parts[0]
        contestants = {each.title: set(each.rows["contestant"]) for each in self._contests("grid")}
        known = {task for task, names in contestants.items() if set(core.backbones) <= names}
        return [task for task in core.tasks if task in known and task != "tabular"]

    def _sequence_models(self) -> list[str]:
        """The backbones of docs/sequence-mixers.md, by the mean score of their first two seeds on `linear`, highest
        first.
        """
        names = {*_further_recurrences().backbones, "mamba", "mamba2", "gated-deltanet", "mambaformer", "gpt2-learned"}
        evaluated = names & set(self._contest("linear", "grid").rows["contestant"])
        return sorted(evaluated, key=lambda model: -sum(self.scores(model, "linear")[:2]))

    def usual_states(self) -> list[int]:
        """The state sizes on `linear` of the mixers of docs/sequence-mixers.md whose state does not grow with the
        context.
        """
        mixers = [name for name in self._sequence_models() if name in MIXERS.entries]
        return [self.state(name, "linear") for name in mixers if not MIXERS.subclass(name).state_grows]

    def contestants(self, preset: str = "grid") -> list[str]:
        """The backbones that have training cells of any status at a preset."""
        if preset not in self._contestants:
            self._contestants[preset] = sorted(self.cells(kind="train", preset=preset)["contestant"].unique())
        return self._contestants[preset]

    def backbones_on(self, task: str, preset: str = "grid") -> list[str]:
        """The backbones with a finished training run on a task."""
        return sorted(self.cells("done", kind="train", preset=preset, task=task)["contestant"].unique())

    def _contests(self, preset: str) -> list[Contest]:
        return contests(self.results, preset)

    def _contest(self, task: str, preset: str) -> Contest:
        matches = [contest for contest in self._contests(preset) if contest.title == task]
        if not matches:
            raise LookupError(f"{task} has no scores at {preset}")
        return matches[0]

    def score(self, model: str, task: str, preset: str = "grid") -> float:
        """The score, averaged over seeds."""
        return float(np.mean(self.scores(model, task, preset)))

    def scores(self, model: str, task: str, preset: str = "grid") -> list[float]:
        """The scores of all seeds."""
        if (task, preset) not in self._scores:
            rows = self._contest(task, preset).rows.sort_values("seed")
            self._scores[task, preset] = rows.groupby("contestant")["value"].agg(list).to_dict()
        if model not in self._scores[task, preset]:
            raise LookupError(f"{model} has no score on {task} at {preset}")
        return list(map(float, self._scores[task, preset][model]))

    def every_score(self, models: Iterable[str], task: str, preset: str = "grid") -> list[float]:
        """The scores of all training runs of several models."""
        return [score for model in models for score in self.scores(model, task, preset)]

    def ranked_on(self, task: str, models: Sequence[str], preset: str = "grid") -> list[str]:
        """The models by their mean score, highest first."""
        return sorted(models, key=lambda model: -self.score(model, task, preset))

    def score_increases(self, preset: str = "grid") -> list[float]:
        """The increase in the mean score over the second half of training, for each model of the core and each task."""
        quantities = self.quantities
        return [
            self.score(model, task, preset) - self.score_after(model, task, 0.5, preset)
            for model in quantities["CORE"]
            for task in quantities["FUNCTIONS"]
        ]

    def shifted(self, model: str, task: str, shift: str, preset: str = "grid") -> float:
        """The score under a shift, averaged over seeds."""
        return self.value(model, task, preset, "score", shift)

    def seed_values(self, model: str, task: str, metric: str, shift: str = "none", preset: str = "grid") -> list[float]:
        """The value of a metric for each seed."""
        rows = self._contest(task, preset).rows
        seeds = rows.loc[rows["contestant"].eq(model), "seed"].unique()
        return [self.value(model, task, preset, metric, shift, evaluator="next", seed=seed) for seed in sorted(seeds)]

    def seed_values_of(self, models: Iterable[str], task: str, metric: str, shift: str = "none") -> list[float]:
        """The value of a metric for each training run of several models."""
        return [value for model in models for value in self.seed_values(model, task, metric, shift)]

    def excess(self, model: str, task: str, oracle: str, shift: str = "none", preset: str = "grid") -> list[float]:
        """The area under the error curve of every seed minus the area of an oracle, on the same prompts."""
        exact = self.value(oracle, task, preset, "auc", shift, evaluator="next")
        return [error - exact for error in self.seed_values(model, task, "auc", shift, preset)]

    def excess_of(self, models: Iterable[str], task: str, oracle: str, shift: str = "none") -> list[float]:
        """The excess errors of all training runs of several models."""
        return [excess for model in models for excess in self.excess(model, task, oracle, shift)]

    def last_step_at(self, solution: str, model: str, task: str, preset: str = "grid") -> float:
        """The last measured training step at which a run is closer to this solution than to all others of the task, or
        0 if no step meets this condition."""
        rows = self.results.rows
        rows = rows[rows["evaluator"].eq("solutions") & rows["axis"].eq("train_step").fillna(False)]
        rows = rows[rows["task"].eq(task) & rows["preset"].eq(preset) & rows["contestant"].eq(model)]
        if rows.empty:
            raise LookupError(f"{model} has no distances from solutions on {task} at {preset}")
        wide = rows.pivot_table("value", ["run", "axis_value"], "metric").astype(float)
        steps = wide.index[wide.idxmin(axis=1).eq(f"kl_to_{solution}")].get_level_values("axis_value")
        return float(steps.max()) if len(steps) else 0.0

    def seed_gap(self, model: str, task: str, preset: str = "grid") -> float:
        """The difference between the highest and the lowest score over seeds."""
        scores = self.scores(model, task, preset)
        return max(scores) - min(scores)

    def lead(self, a: str, b: str, task: str, preset: str = "grid") -> Difference:
        """The score of a minus the score of b, paired by episode, with its 95 % interval."""
        difference = self._contest(task, preset).difference(a, b)
        if difference is None:
            raise LookupError(f"{a} and {b} have no scores of single episodes on {task} at {preset}")
        return difference

    def gain(self, model: str, task: str, n_related: int, preset: str = "grid", shift: str = "none") -> Difference:
        """The gain in log-likelihood per target from `n_related` related datasets, paired by episode."""
        contest = self._contest(task, preset)
        runs = sorted(contest.rows.loc[contest.rows["contestant"].eq(model), "run"].unique())
        rows = self._rows(task, preset, model, "log_likelihood")
        prompts = contest.prompt_set if shift == "none" else rows.loc[rows["shift"].eq(shift), "prompt_set"].iloc[0]
        scores = [self.results.errors.targets(runs, prompts, "log_likelihood", n) for n in (n_related, 0)]
        if not runs or scores[0] is None or scores[1] is None or (difference := score_difference(*scores)) is None:
            raise LookupError(
                f"{model} has no scores of single episodes with {n_related} related datasets on {task} at {preset}"
            )
        return difference

    def ahead(self, a: str, b: str, tasks: Sequence[str] = (), preset: str = "grid") -> list[str]:
        """The tasks (default: function classes) on which every training run of a scores higher than every run of b."""
        tasks = tasks or self.quantities["FUNCTIONS"]
        return [task for task in tasks if min(self.scores(a, task, preset)) > max(self.scores(b, task, preset))]

    def undecided(self, a: str, b: str, tasks: Sequence[str] = (), preset: str = "grid") -> list[str]:
        """The tasks (default: function classes) on which neither model is ahead of the other (`ahead`)."""
        tasks = tasks or self.quantities["FUNCTIONS"]
        decided = {*self.ahead(a, b, tasks, preset), *self.ahead(b, a, tasks, preset)}
        return [task for task in tasks if task not in decided]

    def best_baseline(self, task: str, preset: str = "grid") -> tuple[str, float]:
        """The baseline with the highest score, and its score. Oracles, which are optimal on the task, are not
        baselines.
        """
        rows = self._contest(task, preset).rows
        means = rows[rows["kind"].eq("baseline")].groupby("contestant")["value"].mean()
        return str(means.idxmax()), float(means.max())

    def n_runs(self, models: Sequence[str], tasks: Sequence[str], preset: str = "grid") -> int:
        """The number of training runs of several models on several tasks."""
        return sum(len(self.scores(model, task, preset)) for model in models for task in tasks)

    def run_counts(self, models: Sequence[str], task: str, preset: str = "grid", over: str = "-") -> str:
        """The distinct numbers of training runs per model on a task, joined by "and". For an interval over
        prompts or runs, it is the number of common seeds.
        """
        cells = self.cells("done", kind="train", preset=preset, task=task)
        seeds = [set(cells.loc[cells["contestant"].eq(model), "seed"]) for model in models]
        if not all(seeds):
            raise LookupError(f"one of {models} has no training runs on {task} at {preset}")
        if over != "-":
            return str(len(set.intersection(*seeds)))
        return " and ".join(dict.fromkeys(str(len(each)) for each in seeds))

    def stuck(self, models: Sequence[str], tasks: Sequence[str], preset: str = "grid") -> list[tuple[str, str]]:
        """The model and task of every training run whose score is more than 0.15 below the highest score of the same
        model on the task.
        """
        runs = [(model, task, self.scores(model, task, preset)) for model in models for task in tasks]
        return [(model, task) for model, task, scores in runs for score in scores if score < max(scores) - 0.15]

    def pair(self, a: str, b: str, task: str, preset: str = "grid") -> Difference:
        """The mean score of a minus the mean score of b, with Welch's 95 % interval over seeds.

        Raises:
            LookupError: no grid card names the pair, or seeds are missing.
        """
        contest = self._contest(task, preset)
        named = (pair for pair in shipped_pairs() if (pair.a, pair.b, pair.preset) == (a, b, preset))
        pair = next((pair for pair in named if contest.task.task in pair.tasks), None)
        if pair is None:
            raise LookupError(f"{a} and {b} on {task} are, in this order, not a pair of a grid card")
        difference_and_p = named_pairs.mean_difference(pair, named_pairs.scores_by_seed(pair, contest))
        if difference_and_p is None:
            raise LookupError(f"{a} and {b} lack some of the seeds {pair.seeds} on {task} at {preset}")
        return difference_and_p[0]

    def open_tasks(self, a: str, b: str) -> list[str]:
        """The tasks on which the difference of a prespecified pair is not significant after Holm's correction."""
        tasks = next(named.tasks for named in grid("reference").pairs if (named.a, named.b) == (a, b))
        significant = self.significant_pairs()
        return [task for task in tasks if (a, b, task) not in significant]

    def loss_from_other_label(self, model: str) -> float:
        """The decrease in the log-likelihood of a model when it is given two images of another character."""
        without, given = (
            self.value(model, "image-completion", "grid", "log_likelihood", "other-label", n_related=n) for n in (0, 2)
        )
        return without - given

    def periodic_gap(self, model: str) -> float:
        """The gap of a model to `oracle-bayes` on periodic functions of `gp-mixture`."""
        gaps = (
            self.value(name, "gp-mixture", "grid", "gap", axis="stratum:periodic", n_related=0)
            for name in (model, "oracle-bayes")
        )
        return float(np.subtract(*gaps))

    def periodic_gaps(self) -> list[float]:
        """The gaps of all models to `oracle-bayes` on periodic functions."""
        return [self.periodic_gap(model) for model in self.backbones_on("gp-mixture")]

    def noise_agreements(self) -> list[float]:
        """Kendall's tau between the rankings of the core without and with label noise, by class of functions."""
        tasks = [task for task in self.quantities["FUNCTIONS"] if task != "noisy-linear"]
        return [self.shift_agreement(self.quantities["CORE"], task, "noisy-1") for task in tasks]

    def input_agreements(self) -> list[float]:
        """Kendall's tau between the rankings of the core on training inputs and on shifted inputs, by class and
        shift.
        """
        return [
            self.shift_agreement(self.quantities["CORE"], task, shift)
            for task in self.quantities["FUNCTIONS"]
            for shift in ("isotropic" if task == "skewed-linear" else "skewed", "orthants", "input-scale-2")
        ]

    def inputs_beyond_seeds(self) -> list[tuple[str, str]]:
        """The classes and shifts of inputs that change the ranking of the core more than the second seed does."""
        core, shifts = self.quantities["CORE"], ("skewed", "isotropic", "orthants", "input-scale-2")
        return [
            (task, shift)
            for task in self.quantities["FUNCTIONS"]
            for shift in shifts
            if shift != ("skewed" if task == "skewed-linear" else "isotropic")
            and self.shift_agreement(core, task, shift) < self.seed_agreement(core, task)
        ]

    def seed_agreements(self) -> list[float]:
        """Kendall's tau between the rankings of the core by the first and by the second seed, by class of functions."""
        return [self.seed_agreement(self.quantities["CORE"], task) for task in self.quantities["FUNCTIONS"]]

    def early_agreements(self) -> list[float]:
        """Kendall's tau between the rankings of the core after half of the steps and after all, by class of
        functions.
        """
        return [self.early_agreement(self.quantities["CORE"], task, 0.5) for task in self.quantities["FUNCTIONS"]]

    def compute_agreements(self) -> list[float]:
        """Kendall's tau between the rankings of the core at equal training FLOPs and at equal steps, by class of
        functions.
        """
        return [self.compute_agreement(self.quantities["CORE"], task) for task in self.quantities["FUNCTIONS"]]

    def models_at_compute(self) -> list[int]:
        """The number of models of the core in these rankings, by class of functions."""
        return [len(self.at_compute(self.quantities["CORE"], task)) for task in self.quantities["FUNCTIONS"]]

    def significant_pairs(self, preset: str = "grid") -> list[tuple[str, str, str]]:
        """The prespecified pairs whose differences are significant after Holm's correction, with their tasks."""
        if preset not in self._significant_pairs:
            rows = named_pairs.compare_pairs(self._contests(preset), preset)
            held = rows[rows["among_all"].eq("holds").fillna(False)] if len(rows) else rows
            self._significant_pairs[preset] = [(row.a, row.b, row.row) for row in held.itertuples()]
        return self._significant_pairs[preset]

    def significant_by(self, test: str, preset: str = "grid") -> list[tuple[str, str, str]]:
        """As `significant_pairs`, with another test: `ranks` (exact Mann-Whitney test) or `paired` (t-test paired by
        seed)."""
        p_values: dict[tuple[str, str, str], float] = {}
        for pair in (pair for pair in shipped_pairs() if pair.preset == preset):
            for contest in (each for each in self._contests(preset) if each.task.task in pair.tasks):
                scores = named_pairs.scores_by_seed(pair, contest)
                if len(scores) == len(pair.seeds):
                    result = _OTHER_TESTS[test](scores["a"].to_numpy(), scores["b"].to_numpy())
                    p_values[pair.a, pair.b, contest.title] = float(result.pvalue)
        corrected = holm(list(p_values.values()))
        return [pair for pair, p in zip(p_values, corrected, strict=True) if p <= ERROR_RATE]

    def further_pairs(self, test: str) -> list[tuple[str, str, str]] | None:
        """The pairs that are significant by this test (see `significant_by`), but not by Welch's test; None if Welch's
        test finds others."""
        found = self.significant_by(test)
        if not set(self.significant_pairs()) <= set(found):
            return None
        return [pair for pair in found if pair not in self.significant_pairs()]

    def agreement(self, order: Sequence[str], task: str, preset: str = "grid") -> float:
        """Kendall's tau between a published ranking (best first) and the ranking by the mean of the first two seeds."""
        return over_training.kendall(
            pd.Series(range(len(order), 0, -1), order, dtype=float),
            pd.Series({model: mean(self.scores(model, task, preset)[:2]) for model in order}),
        )

    def seed_agreement(self, names: Sequence[str], task: str, shift: str = "none", preset: str = "grid") -> float:
        """Kendall's tau between the rankings by the first and by the second seed."""
        if shift == "none":
            return _agreement({model: self.scores(model, task, preset)[:2] for model in names})
        return _agreement(
            {model: [-self.value(model, task, preset, "auc", shift, seed=s) for s in (0, 1)] for model in names}
        )

    def shift_agreement(self, names: Sequence[str], task: str, shift: str, preset: str = "grid") -> float:
        """Kendall's tau between the rankings with and without a shift."""
        # Areas are compared, because they cover all context sizes. The score on a prompt set may cover fewer.
        shifts = (shift, "none")
        return _agreement(
            {model: [-self.value(model, task, preset, "auc", each) for each in shifts] for model in names}
        )

    def score_after(self, model: str, task: str, share: float, preset: str = "grid") -> float:
        """The score after a fraction of the steps, averaged over seeds."""
        scores = self._trainings(task, preset)
        scores = scores[np.isclose(scores["share"], share) & scores["contestant"].eq(model)]
        if scores.empty:
            raise LookupError(f"{model} has no training run with {share:g} of the steps on {task} at {preset}")
        return float(scores["value"].iloc[0])

    def seed_scores_after(self, model: str, task: str, share: float, preset: str = "grid") -> list[float]:
        """The scores of all seeds after a fraction of the steps, lowest first."""
        scores = over_training.by_run(self._contest(task, preset))
        is_selected = np.isclose(scores["share"], share) & scores["contestant"].eq(model)
        return sorted(scores.loc[is_selected, "score"].astype(float))

    def early_agreement(self, names: Sequence[str], task: str, share: float, preset: str = "grid") -> float:
        """Kendall's tau between the rankings after a fraction of the steps and after all steps."""
        shares = (share, 1.0)
        return _agreement({model: [self.score_after(model, task, each, preset) for each in shares] for model in names})

    def compute_agreement(self, names: Sequence[str], task: str, preset: str = "grid") -> float:
        """Kendall's tau between the rankings at equal training FLOPs and at equal steps. Models whose shortest training
        run needs more FLOPs than this are omitted."""
        at_compute = self.at_compute(names, task, preset)
        return _agreement({model: [score, self.score(model, task, preset)] for model, score in at_compute.items()})

    def at_compute(self, names: Sequence[str], task: str, preset: str = "grid") -> dict[str, float]:
        """The scores at the number of training FLOPs that all models reach, best first."""
        scores = self._trainings(task, preset)
        scores = scores[scores["contestant"].isin(list(names))]
        compute = over_training.shared_flops(scores)
        return over_training.scores_at_flops(scores, compute).sort_values(ascending=False).to_dict()

    def _trainings(self, task: str, preset: str) -> pd.DataFrame:
        """The scores of complete and shorter training runs, with their FLOPs."""
        if (task, preset) not in self._over_training:
            self._over_training[task, preset] = scores_by_steps(self._contest(task, preset))
        return self._over_training[task, preset]

    def rates(self, task: str, preset: str = "grid") -> RateCurves:
        """The scores by learning rate, from the tuning trials."""
        curves = self._rates.get((task, preset))
        if curves is None:
            raise LookupError(f"{task} has no trials of several rates at {preset}")
        return curves

    @cached_property
    def _rates(self) -> dict[tuple[str, str], RateCurves | None]:
        grouped = self.results.trials.groupby(["task", "preset"])
        return {(str(task), str(preset)): rate_curves(rows) for (task, preset), rows in grouped}

    def above_one(self, task: str) -> list[str]:
        """The mixers of docs/sequence-mixers.md whose first two seeds both score above 1."""
        return [mixer for mixer in self._sequence_models() if min(self.scores(mixer, task)[:2]) > 1]

    def first_two_on_linear_functions(self) -> list[str] | None:
        """The two mixers with the highest mean scores, if they are the same on all linear tasks."""
        firsts = {
            tuple(sorted(self.ranked_on(task, self._sequence_models())[:2]))
            for task in ("linear", "skewed-linear", "sparse-linear")
        }
        return list(*firsts) if len(firsts) == 1 else None

    def worst_under_noise(self) -> str:
        """The mixer with the lowest score on `linear` with label noise of standard deviation 1."""
        return min(self._sequence_models(), key=lambda mixer: self.shifted(mixer, "linear", "noisy-1"))

    def mad_agreements(self) -> list[float]:
        """Kendall's tau between the ranking of mixers on MAD and their ranking here, for each task in `MIXER_TASKS`."""
        order = ["gpt2-learned", "mlstm", "rwkv7", "mamba", "gated-deltanet", "deltanet", "gla"]
        return [self.agreement(order, task) for task in self.quantities["MIXER_TASKS"]]

    def rate_loss(self, mixer: str) -> float:
        """The difference between a mixer's mean area over learning rates and its area at the best of three rates."""
        return float(self.rates("linear").expected_score(mixer, 1) - self.rates("linear").expected_score(mixer, 3))

    def rate_agreements(self) -> list[float]:
        """Kendall's tau between the rankings of mixers at one common learning rate and at their best rates, by
        common rate.
        """
        rates = self.rates("linear").of_contestants(self._sequence_models())
        return [rates.rank_agreement(rate) for rate in rates.common_rates]

    def delta_rules_are_first_at_every_rate(self) -> bool:
        """Whether DeltaNet and KDA are the best two mixers at every learning rate."""
        rates = self.rates("linear")
        firsts = [{name for name, place in rates.ranks(rate).items() if place in (1, 2)} for rate in rates.common_rates]
        return all(first == {"deltanet", "kda"} for first in firsts)

    def hours(self, preset: str = "grid", kind: str = "train") -> float:
        """The total time of the cells of a kind, in hours of one worker."""
        return float(self.cells("done", kind=kind, preset=preset)["seconds"].sum() / 3600)

    def value(self, model: str, task: str, preset: str, metric: str, shift: str = "none", **where: Any) -> float:
        """A measured value, averaged over seeds. `evaluator`, `n_context`, `n_related`, `axis` and `seed` select a row
        (default: the summary of all episodes and context sizes)."""
        positions = self._positions[5].get((task, preset, model, metric, shift), np.empty(0, dtype=int))
        for column, wanted in {"status": "ok", "n_context": None, "n_related": None, "axis": None, **where}.items():
            positions = positions[self._arrays[column][positions] == wanted]
        runs = self._arrays["run"][positions]
        if not len(runs) or len(set(runs)) < len(runs):
            description = ", ".join([shift, *(f"{k} {v}" for k, v in where.items())])
            raise LookupError(f"{model} has {len(runs)} values of {metric} on {task} at {preset} ({description})")
        return float(self._arrays["value"][positions].mean())

    def smaller_errors(self, a: str, b: str, task: str, preset: str, shift: str = "none") -> list[int]:
        """The context sizes at which the mean squared error of a is smaller than that of b."""
        rows = {name: self._rows(task, preset, name, "squared_error") for name in (a, b)}
        means = {
            name: each[each["evaluator"].eq("next") & each["shift"].eq(shift) & each["axis"].isna()]
            .groupby("n_context")["value"]
            .mean()
            for name, each in rows.items()
        }
        if not len(means[a]) or not means[a].index.equals(means[b].index):
            raise LookupError(f"{a} and {b} have no errors at the same context sizes on {task} at {preset} ({shift})")
        return [int(n) for n in means[a].index[means[a] < means[b]]]

    def accuracy(
        self, model: str, test: str, preset: str = "grid", seed: int | None = None, task: str = "bursty"
    ) -> float:
        """The accuracy on a test of `bursty` or `bursty-vectors` if predictions are restricted to the labels of the
        test, for one seed or averaged over all seeds."""
        rows = self._accuracies(task, model, test, preset)
        rows = rows[rows["axis"].isna() & (rows["seed"].eq(seed) if seed is not None else True)]
        if rows.empty:
            raise LookupError(f"{model} has no accuracy on {test} at {preset}")
        return float(rows["value"].mean())

    def every_accuracy(
        self, models: Iterable[str], test: str, preset: str = "grid", task: str = "bursty"
    ) -> list[float]:
        """The accuracies of all training runs of several models on a test of `bursty` or `bursty-vectors`."""
        rows = [self._accuracies(task, model, test, preset) for model in models]
        return [float(value) for each in rows for value in each.loc[each["axis"].isna(), "value"]]

    def learners(self, task: str) -> dict[str, list[str]]:
        """The models of the core by what decides their answers on a task of vectors, in every training run.

        The flip decides for models whose accuracy on sequences as in training is at least 0.8: the `context` from an
        accuracy of 0.8, the `weights` up to 0.2, and otherwise `both`. All other models are `neither`.
        """
        groups: dict[str, list[str]] = {"context": [], "weights": [], "both": [], "neither": []}
        for model in self._core():
            flips = self.every_accuracy([model], "flip", task=task)
            if min(self.every_accuracy([model], "targets", task=task)) < 0.8:
                group = "neither"
            elif min(flips) >= 0.8:
                group = "context"
            else:
                group = "weights" if max(flips) <= 0.2 else "both"
            groups[group].append(model)
        return groups

    def in_training(self, model: str, test: str, preset: str = "grid") -> list[float]:
        """The accuracy on a test of `bursty` after every evaluated step of training, averaged over seeds."""
        rows = self._accuracies("bursty", model, test, preset)
        means = rows[rows["axis"].eq("train_step")].groupby("axis_value")["value"].mean()
        if means.empty:
            raise LookupError(f"{model} has no accuracy on {test} during training at {preset}")
        return means.astype(float).tolist()

    def _accuracies(self, task: str, model: str, test: str, preset: str) -> pd.DataFrame:
        rows = self._rows(task, preset, model, "accuracy_within_choices")
        return rows[rows["evaluator"].eq(test) & rows["status"].eq("ok")]

    def _rows(self, *key: str) -> pd.DataFrame:
        """The values of a task, preset, contestant and metric."""
        return self.results.rows.take(self._positions[4].get(key, []))

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        """The columns of the values, in which missing entries are None."""
        names = ["run", "evaluator", "status", "seed", "n_context", "n_related", "axis", "value"]
        return {name: self.results.rows[name].to_numpy(object, na_value=None) for name in names}

    @cached_property
    def _positions(self) -> dict[int, dict[tuple[str, ...], np.ndarray]]:
        """The positions of rows, by task, preset, contestant and metric, and by these and the shift."""
        keys = ["task", "preset", "contestant", "metric", "shift"]
        return {n: self.results.rows.groupby(keys[:n]).indices for n in (4, 5)}

    def extrapolation_ratio(self, model: str, times: int = 4, tasks: Sequence[str] = (), preset: str = "grid") -> float:
        """The ratio of the error at `times` the training length to the error at the training length on the same
        prompts, as a geometric mean over tasks (default: function classes)."""
        ratios = []
        for task in tasks or self.quantities["CLASSES"]:
            n = card(task).presets[preset].points
            shift = f"points-{times * n}"
            here, far = (self.value(model, task, preset, "squared_error", shift, n_context=m) for m in (n, times * n))
            ratios.append(far / here)
        return float(np.exp(np.mean(np.log(ratios))))

    def published_comparison(self, task: str) -> pd.DataFrame:
        """The published numbers of a task that were also measured, one per row, with our numbers at each preset."""
        tasks = [each for each in self.results.slices if each.task == task]
        rows = pd.concat([frame for task in tasks if (frame := published_results.comparison(task)) is not None])
        keys = ["contestant", "shift", "n_context", "n_related", "metric", "published", "published_preset"]
        # For a task with a ceiling, adjusted log-likelihoods are compared, as in the report.
        ours = rows["adjusted"].fillna(rows["ours"]).astype(float)
        wide = rows.assign(ours=ours).dropna(subset="ours").pivot_table("ours", keys, "our_preset", dropna=False)
        return wide.dropna(how="all").reset_index()

    def expense(self, models: Sequence[str], task: str, preset: str = "grid") -> Expense:
        """The cost of all training runs of several models on a task. `models` are values of the column `contestant`."""
        cells = self.cells("done", kind="train", preset=preset, task=task)
        cells = cells[cells["contestant"].isin(list(models))]
        if set(models) != set(cells["contestant"]):
            raise LookupError(f"{set(models) - set(cells['contestant'])} have no training runs on {task} at {preset}")
        # FLOPs are counted for the first seeds, and are the same for the other seeds.
        each = self._costs(task, preset, "train", "flops", None)
        flops = float(each.astype(float).reindex(cells["contestant"]).sum(skipna=False))
        names = cells["hardware"].str.replace("(R)", "", regex=False).str.split(r"[(,]| Processor", regex=True)
        devices = sorted({parts[0].strip() for parts in names})
        return Expense(len(cells), float(cells["seconds"].sum() / 3600), flops, devices)

    def tasks_with_flops(self, preset: str) -> list[str]:
        """The tasks on which the FLOPs of training runs were counted."""
        costs = self.results.costs
        rows = costs[costs["preset"].eq(preset) & costs["phase"].eq("train") & costs["metric"].eq("flops")]
        return sorted(rows["task"].unique())

    def probe_results(self, model: str, task: str, metric: str, preset: str = "grid") -> list[float]:
        """The results of linear probes from the first layer to the last, averaged over seeds."""
        rows = self._rows(task, preset, model, metric)
        rows = rows[rows["evaluator"].eq("probe") & rows["axis"].eq("layer") & rows["status"].eq("ok")]
        if rows.empty:
            raise LookupError(f"{model} was not probed on {task} at {preset}")
        return rows.groupby("axis_value")["value"].mean().astype(float).tolist()

    def _costs(self, task: str, preset: str, phase: str, metric: str, n: int | None) -> pd.Series:
        """The cost of every backbone, averaged over seeds."""
        rows = self._phases.get((task, preset, phase, metric), self.results.costs.iloc[:0])
        rows = rows[rows["contestant"].isin(self.contestants(preset))]
        rows = rows[rows["n_points"].notna()] if phase == "train_step" else rows
        return rows[rows["n_points"].eq(n).fillna(False) if n else slice(None)].groupby("contestant")["value"].mean()

    @cached_property
    def _phases(self) -> dict[tuple[Any, ...], pd.DataFrame]:
        """The costs, by task, preset, phase and metric."""
        return dict(iter(self.results.costs.groupby(["task", "preset", "phase", "metric"])))

    def cost(self, model: str, task: str, phase: str, metric: str, n: int | None = None, preset: str = "grid") -> float:
        """The FLOPs, bytes or seconds of a phase for n points (of a training step: for the number of points of the
        preset), or the number of parameters."""
        costs = self._costs(task, preset, phase, metric, n)
        if model not in costs:
            raise LookupError(f"{model} has no {metric} of {phase} on {task} at {preset}")
        return float(costs[model])

    def state(self, model: str, task: str, preset: str = "grid") -> int:
        """The number of float32 values that a model stores per episode after the context of the preset."""
        points = load_task(task)[1].presets[preset].points
        return round(self.cost(model, task, "condition", "state_bytes", points, preset) / 4)

    def cells(self, *statuses: str, **where: str) -> pd.DataFrame:
        """The cells with one of these statuses (default: all). `kind`, `preset`, `task` and `kernels` select cells."""
        cells = self.results.cells
        is_selected = cells["status"].isin(statuses) if statuses else cells["status"].notna()
        for column, wanted in where.items():
            is_selected &= cells[column].eq(wanted).fillna(False)
        return cells[is_selected]

    def libraries(self) -> dict[str, str]:
        """The library versions, which are the same in all cells."""
        versions = [json.loads(text) for text in self.results.cells["libraries"].dropna().unique()]
        if any(each != versions[0] for each in versions):
            raise LookupError("cells were computed with different library versions")
        return {name: version.partition("+")[0] for name, version in versions[0].items()}


def _relative(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _is_public(name: str, member: object) -> bool:
    return callable(member) and not name.startswith("_")


def _further_recurrences() -> GridPart:
    """The part of the reference grid with additional recurrences, on some classes of functions."""
    return next(part for part in load_grid("reference")[1].parts if "deltanet" in part.backbones)


def _agreement(pairs: dict[str, list[float]]) -> float:
    """Kendall's tau between the rankings by the first and by the second score of each model."""
    scores = pd.DataFrame(pairs)
    return over_training.kendall(scores.iloc[0], scores.iloc[1])


def lowest_after_peak(values: Sequence[float]) -> float:
    """The lowest value after the highest one."""
    return min(values[list(values).index(max(values)) :])


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


@cache
def trained(task: str, backbone: str, preset: str = "grid") -> RunConfig:
    """The configuration of a training run of a backbone on a task, resolved from the cards."""
    return resolve_run(task, backbone, preset)


@cache
def card(task: str) -> TaskCard:
    return load_task(task)[1]


def tuning(task: str, backbone: str) -> Tuning:
    """The entry of `grids/rates/grid.toml` with the learning rate of a backbone on a task."""
    for entry in read_table(shipped_path("grid")).tuned:
        if task in entry.tasks and backbone in entry.train:
            return entry
    raise LookupError(f"grids/rates/grid.toml has no rate of {backbone} on {task}")


def published(task: str, contestant: str, **where: Any) -> float:
    """A published number from the card of a task, language task or suite.

    Args:
        task: the name of the card.
        contestant: the name of the model or method in the card.
        where: other fields of the number, such as `evaluator`, `shift`, `n_related` or `source`.
    """
    rows = [
        each
        for each in published_card(task).published
        if each.contestant == contestant and all(getattr(each, name) == value for name, value in where.items())
    ]
    if len(rows) != 1:
        raise LookupError(f"the card {task} has {len(rows)} published numbers of {contestant} with {where}")
    return rows[0].value


@cache
def published_card(name: str) -> Any:
    """The card with the published numbers of a task, language task or suite."""
    cards = import_module("iclbench.language.tasks.cards")
    for load_card in (load_task, cards.load_language_card, cards.load_suite):
        try:
            return load_card(name)[1]
        except UsageError:
            continue
    raise LookupError(f"no card {name}")


@dataclass(frozen=True)
class Expense:
    """The cost of training runs.

    Attributes:
        runs: the number of training runs.
        hours: their total time in hours of one worker.
        flops: their total FLOPs, or NaN if the FLOPs of a model were not counted.
        devices: the processors.
    """

    runs: int
    hours: float
    flops: float
    devices: list[str]


def verdict(is_replicated: bool, preset: str = "grid") -> str:
    """The verdict on a claim.

    Args:
        is_replicated: whether the claimed direction holds in the packed results.
        preset: the preset of these results.

    Raises:
        TypeError: `is_replicated` is not a Boolean.
    """
    if not isinstance(is_replicated, bool | np.bool_):
        raise TypeError(f"expected True or False, got {is_replicated!r}")
    return f"{'replicates' if is_replicated else 'does not replicate'} at preset {preset}"


def spans(numbers: Sequence[int]) -> str:
    """Ascending integers, with neighbours joined to spans; a dash without integers.

    >>> spans([0, 1, 2, 5, 7, 8]), spans([])
    ('0–2, 5, 7–8', '–')
    """
    groups: list[list[int]] = []
    for n in numbers:
        if groups and n == groups[-1][-1] + 1:
            groups[-1].append(n)
        else:
            groups.append([n])
    return ", ".join(f"{each[0]}–{each[-1]}" if len(each) > 1 else str(each[0]) for each in groups) or "–"


def is_equal(difference: Difference, margin: float) -> bool:
    """Whether the interval of a difference lies within ± `margin`."""
    return -margin < difference.low and difference.high < margin


def grid(name: str) -> GridCard:
    return load_grid(name)[1]


def table_hash(table: str) -> str:
    """The fingerprint of a real table, from the notes of the grid `tables`."""
    match = re.search(rf"(?<![\w-]){re.escape(table)} ([0-9a-f]{{12}})\b", grid("tables").notes)
    if match is None:
        raise LookupError(f"the notes of the grid 'tables' have no hash of {table}")
    return match[1]


def package() -> dict[str, Any]:
    """The project table of `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def exit_codes() -> list[int]:
    """The exit codes for success, failure, usage errors and interruption."""
    return [0, IclbenchError.exit_code, UsageError.exit_code, Interrupted.exit_code]


def default_bytes() -> int:
    """The default size limit of files and models."""
    return limits.DEFAULT


def window_rule() -> list[int]:
    """The maximum number of steps between recomputations of a sliding window, and the window size up to which every
    step recomputes."""
    window = import_module("iclbench.streaming.window")  # imports torch
    return [window.MAX_STEPS, window.CHEAP_SIZE]


def benchmark(file: str, row: str | Sequence[str], column: str, folder: Path = ROOT / "benchmarks") -> float:
    """The first number of a cell in a table of `benchmarks/FILE`, given the first cells of its row and the heading of
    its column. An empty cell at the beginning of a row has the value of the row above."""
    keys = [row] if isinstance(row, str) else list(row)
    for head, cells in _tables(folder / file):
        if cells[: len(keys)] == keys and column in head and (match := _NUMBER.search(cells[head.index(column)])):
            return float(match[0].replace(",", "").replace("−", "-"))
    raise LookupError(f"benchmarks/{file} has no number of '{', '.join(keys)}' in '{column}'")


def excess_in_blocks(mixers: Sequence[str], block: str, span: float) -> list[float]:
    """The excess cross-entropy of each run of some mixers on `markov` in a block of `benchmarks/blocks.md`.

    Args:
        mixers: the mixers.
        block: "with" or "without" (the convolution).
        span: the cross-entropy of equal probabilities less that of the exact prediction.
    """
    columns = [f"{block}, seed {seed}" for seed in (0, 1)]
    return [(1 - benchmark("blocks.md", ("markov", mixer), column)) * span for mixer in mixers for column in columns]


@dataclass(frozen=True)
class Leaderboard:
    """A printed leaderboard over several tables.

    Attributes:
        tables: the names of the tables.
        critical_difference: the smallest significant difference of mean ranks.
        rows: the numbers of each contestant, by column. Intervals and empty cells are omitted.
    """

    tables: list[str]
    critical_difference: float
    rows: dict[str, dict[str, float]]

    def column(self, name: str) -> dict[str, float]:
        """The numbers of a column, by contestant, in the order of the leaderboard."""
        return {contestant: row[name] for contestant, row in self.rows.items() if name in row}


def leaderboard(file: str, task: str, folder: Path = ROOT / "benchmarks") -> Leaderboard:
    """The leaderboard of a task in a fenced block of `benchmarks/FILE`."""
    blocks = re.findall(r"^```\n(.*?)^```$", (folder / file).read_text(), re.MULTILINE | re.DOTALL)
    matches = [block for block in blocks if block.startswith(f"{task}, ")]
    if len(matches) != 1:
        raise LookupError(f"benchmarks/{file} has {len(matches)} leaderboards of {task}")
    lines = matches[0].split("\n\n")[0].splitlines()
    # Columns are right-aligned, except the first, and headings may contain single spaces.
    columns = [(match[0], match.end()) for match in re.finditer(r"\S+(?: \S+)*", lines[1])]
    rows: dict[str, dict[str, float]] = {}
    for line in lines[2:-1]:
        cells = {match.end(): match[0] for match in re.finditer(r"\S+(?: \S+)*", line)}
        contestant = next(iter(cells.values()))
        rows[contestant] = {name: float(cells[end].split()[0]) for name, end in columns[1:] if end in cells}
    note = re.search(r"over \d+ tables \((.*)\); mean ranks that differ by less than ([\d.]+)", lines[-1])
    if note is None:
        raise LookupError(f"the leaderboard of {task} in benchmarks/{file} names no tables")
    return Leaderboard(note[1].split(", "), float(note[2]), rows)


def recalled_pairs(mixers: Sequence[str], budget: str) -> list[float]:
    """The mean number of recalled pairs of each mixer at a given state budget, as in `benchmarks/states.md`."""
    return [benchmark("states.md", (mixer, budget), "recalled pairs") for mixer in mixers]


def loop_scores(task: str, model: str) -> list[float]:
    """The scores of the training runs of a model in `benchmarks/loops.md`."""
    return [benchmark("loops.md", (task, model), f"seed {seed}") for seed in range(3)]


def row_order_gains(folder: Path = ROOT / "benchmarks") -> list[float]:
    """By how many percent averages over four orders of the rows lower the squared error, for each model and table of
    `benchmarks/row_orders.md`."""
    return [
        100 - 100 * float(cells[head.index("4 orders")]) / float(cells[head.index("1 order")])
        for head, cells in _tables(folder / "row_orders.md")
        if "---" not in cells
    ]


@cache
def accuracy_of_guesses(task: str, shift: str = "none", preset: str = "grid", episodes: int = 2000) -> float:
    """The accuracy of a prediction that ignores the key: the most frequent value of a sequence of recall so far.

    Args:
        task: a task of family `recall`.
        shift: the shift.
        preset: the preset.
        episodes: number of sampled sequences.
    """
    config = resolve_task(task, preset)[0]
    family = config.build()
    parsed = family.parse_shift(shift)
    points = (parsed.examples or config.points) + 1
    request, seeds = import_module("iclbench.families.request"), import_module("iclbench.core.seeds")  # import torch
    generator = seeds.generator(0, "guesses")
    sampled = family.sample(request.Request(episodes, points, generator, shift=parsed.distribution))
    assert sampled.scored is not None
    # Values are the tokens after the keys.
    values = sampled.context.y.numpy() - config.parameters["keys"]
    counts = np.zeros((episodes, config.parameters["values"]))
    hits = []
    for value, is_scored in zip(values.T, sampled.scored.numpy().T, strict=True):
        hits.append((counts.argmax(1) == value)[is_scored])
        is_value = (value >= 0) & (value < counts.shape[1])
        counts[np.flatnonzero(is_value), value[is_value]] += 1
    return float(np.concatenate(hits).mean())


def _tables(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the rows of the tables in a text, each with the headings of its columns."""
    head: list[str] = []
    above: list[str] = []
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if head and cells:
            filled = next((n for n, cell in enumerate(cells) if cell), 0)
            above = [*above[:filled], *cells[filled:]]
            yield head, above
        head = head or cells if cells else []
