"""The share of sampling in a training step, for the benchmarks of samplers."""

from __future__ import annotations

from timing import least

from iclbench.config.resolution import resolve_run
from iclbench.core.seeds import generator
from iclbench.training.step import TrainingData, descend, make_optimiser

_BATCHES = 10
HEAD = ("data, ms", "model, ms", "share of the data")


def sampling_share(task: str, backbone: str, preset: str) -> str:
    """Return the cells `HEAD` of a row: CPU milliseconds of sampling and of the other parts of a training step.

    Sampling is a mean over batches, because batches take different times. The model is measured on one batch.
    The caller sets the number of threads.
    """
    run = resolve_run(task, backbone, preset)
    family = run.task.build()
    model = run.build(family).train()
    optimiser = make_optimiser(model, run.train)
    data = TrainingData.of(run.task, family)
    episodes = data.batch(run.train, 0, 0)

    def batches() -> None:
        for step in range(_BATCHES):
            data.batch(run.train, 0, step)

    def step() -> None:
        loss, _ = model.loss(episodes, 0.5, generator(0, "loss", 0))
        descend(loss, model, optimiser, run.train.clip)

    step()
    batches()
    sampling, training = least(batches, 5) / _BATCHES, least(step, 15)
    return f"{1e3 * sampling:.2f} | {1e3 * training:.1f} | {sampling / (sampling + training):.1%}"
