"""Trials: a contestant is trained in memory with one choice of settings and one seed, and scored on validation
episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from iclbench import __version__
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import RunConfig
from iclbench.core.context import Context
from iclbench.core.errors import NonFiniteError, one_line
from iclbench.core.settings import validate
from iclbench.store import identity

# The first seed of trials. It is larger than the seeds of grids, so that trials differ from the runs of grids.
FIRST_SEED = 1000


@dataclass(frozen=True)
class Trial:
    """A training run in memory, whose score is used to choose settings.

    Attributes:
        config: the configuration of the training run, with the seed of the trial.
    """

    config: RunConfig

    @classmethod
    def of(cls, base: RunConfig, settings: Mapping[str, Any], seed: int) -> Trial:
        """Return a trial with the given training settings.

        Args:
            base: configuration of a contestant on a task, without settings from a table of learning rates.
            settings: training settings that override those of `base`.
            seed: index of the seed, from 0.
        """
        # A trial is only evaluated at its end.
        no_monitoring = {"evaluate_every": 0, "branches": []}
        train_settings = base.train.model_dump(mode="json") | dict(settings) | no_monitoring
        train = validate(TrainSettings, train_settings, f"task '{base.task.name}': train")
        return cls(base.model_copy(update={"train": train, "seed": FIRST_SEED + seed}))

    @cached_property
    def variant(self) -> str:
        """The hash of the configuration without the seed."""
        return identity.variant_id(self.config)

    def row(self, prompt_set: str, **columns: Any) -> dict[str, Any]:
        """Return a row of the table `trials`; `columns` contains the columns that describe the score."""
        config, train = self.config, self.config.train
        return {
            "task": config.task.name,
            "family": config.task.family,
            "contestant": config.backbone.name,
            "preset": config.preset,
            "seed": config.seed,
            "variant": self.variant,
            "lr": train.lr,
            "optimiser": train.optimiser,
            "warmup": train.warmup,
            "weight_decay": train.weight_decay,
            "beta_1": train.betas[0],
            "beta_2": train.betas[1],
            "steps": train.steps,
            "prompt_set": prompt_set,
            "status": "ok",
            "version": __version__,
            **columns,
        }


def run(trial: Trial, budget: int | None, context: Context) -> dict[str, Any]:
    """Train a model, score it, and return its row of the table `trials`. This function runs in a worker process.

    If training diverges, the row has the status "failed".

    Args:
        trial: the trial.
        budget: the parameter budget of the model, which is a column of the row.
        context: data sets and device.

    Raises:
        IclbenchError: the failure does not depend on the settings, for example missing data or insufficient memory.
    """
    from iclbench.evaluation.contestants import contestant_of_predictor
    from iclbench.evaluation.evaluate import evaluate
    from iclbench.training.fit import fit
    from iclbench.tuning.validation import Objective

    config, device = trial.config, context.device
    objective = Objective.of(config.task, config.preset, context.data_dir)
    columns = {"metric": objective.metric, "evaluator": objective.evaluators, "budget": budget}
    episodes = config.task.episodes
    try:
        model = config.build(config.task.build(context.data_dir)).to(device)
        fit(model, config.task, config.train, seed=config.seed, device=device, data_dir=context.data_dir)
        contestant = contestant_of_predictor(config.backbone.name, model, device, seed=config.seed)
        value = objective.value([evaluate([contestant], prompts) for prompts in objective.sets])
    except NonFiniteError as error:
        return trial.row(objective.id, **columns, status="failed", reason=one_line(error))
    return trial.row(objective.id, **columns, value=value, n_episodes=episodes)
