"""One trial: a contestant trained in memory with one choice of settings and one seed, and its score on validation
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

# Seeds of trials count on from here: grids train from small ones.
FIRST_SEED = 1000


@dataclass(frozen=True)
class Trial:
    """A training to be scored.

    Attributes:
        config: the run that it stands for, of its own seed.
    """

    config: RunConfig

    @classmethod
    def of(cls, base: RunConfig, settings: Mapping[str, Any], seed: int) -> Trial:
        """The trial of some settings.

        Args:
            base: the contestant on a task as no table of rates speaks of it.
            settings: of training, over those.
            seed: counted from 0.
        """
        # A run looks at itself on the way; a trial is looked at when it has ended.
        unobserved = {"evaluate_every": 0, "branches": []}
        train = base.train.model_dump(mode="json") | dict(settings) | unobserved
        checked = validate(TrainSettings, train, f"task '{base.task.name}': train")
        return cls(base.model_copy(update={"train": checked, "seed": FIRST_SEED + seed}))

    @cached_property
    def variant(self) -> str:
        """Hash of what is trained but for the seed."""
        return identity.variant_id(self.config)

    def row(self, prompt_set: str, **found: Any) -> dict[str, Any]:
        """A row of the table `trials`."""
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
            **found,
        }


def run(trial: Trial, budget: int | None, context: Context) -> dict[str, Any]:
    """Train and score; what diverges is a row that says so. Called in a worker process.

    Raises:
        IclbenchError: something stands in the way that has nothing to do with the settings, such as memory or data.
    """
    from iclbench.evaluation.contestants import in_memory
    from iclbench.evaluation.evaluate import evaluate
    from iclbench.training.fit import fit
    from iclbench.tuning.validation import Objective

    config, device = trial.config, context.device
    objective = Objective.of(config.task, config.preset, context.data_dir)
    asked = {"metric": objective.metric, "evaluator": objective.evaluators, "budget": budget}
    episodes = config.task.episodes
    try:
        model = config.build(config.task.build(context.data_dir)).to(device)
        fit(model, config.task, config.train, seed=config.seed, device=device, data_dir=context.data_dir)
        contestant = in_memory(config.backbone.name, model, device, seed=config.seed)
        value = objective.value([evaluate([contestant], prompts) for prompts in objective.sets])
    except NonFiniteError as error:
        return trial.row(objective.id, **asked, status="failed", reason=one_line(error))
    return trial.row(objective.id, **asked, value=value, n_episodes=episodes)
