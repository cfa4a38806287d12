"""Branches: shorter trainings that share the beginning of a longer one, each with its own decay of the learning rate.

With the schedule warm-up, constant, decay (`iclbench.training.schedule`) a training of n steps is the first part of a
longer one up to where its last fifth begins. There the state is kept, the decay is trained, its weights are written
(`Run.branch`), and the training goes on from the kept state: bit for bit as without branches. Steps of a branch draw
the episodes that the training draws at these steps, and their curriculum and scheduled noise are the training's: where
those are told in shares of the steps, a branch has not come as far with them as a training of its length.

A branch that is interrupted goes on from checkpoints of its own. Until it is done the training stands where the branch
left it: its newest checkpoint is of that step, and none of a later one is gone on from while a branch is missing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from iclbench.training.fit import Callback, Progress, Training, TrainingDivergedError

Weights = dict[str, Tensor]


@contextmanager
def restored_after(training: Training) -> Iterator[Progress]:
    """Within the block the weights, the optimiser and the progress may go anywhere; afterwards they are what they were.

    Yields the progress for a branch to go on from, which shares nothing with the training's.
    """
    progress, end, weights = training.progress, training.end, _copied(training)
    moments = copy.deepcopy(training.optimiser.state_dict())
    try:
        yield replace(
            progress,
            pending=progress.pending.clone(),
            steps=[*progress.steps],
            losses=[*progress.losses],
            scored=[],  # of the training alone
        )
    finally:
        training.backbone.load_state_dict(weights)
        training.optimiser.load_state_dict(moments)
        training.resume(progress, end)


def train_branch(training: Training, progress: Progress, steps: int, callbacks: Sequence[Callback]) -> Weights:
    """Train the branch that ends after `steps` steps; returns its weights.

    Raises:
        TrainingDivergedError: the loss or a weight is NaN or infinite.
    """
    training.resume(progress, steps)
    try:
        training.run(callbacks)
        training.check()
    except TrainingDivergedError as error:
        raise TrainingDivergedError(error.step, f"{error.what}, on the branch of {steps} steps") from None
    return _copied(training)


def _copied(training: Training) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in training.backbone.state_dict().items()}
