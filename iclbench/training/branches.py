"""Branches: shorter training runs that share the beginning of a longer run and have their own learning-rate decay.

With the schedule warm-up, constant, decay (`iclbench.training.schedule`), the first four fifths of a run of n steps
equal the first steps of a longer run. At the end of these steps, the state of the longer run is copied, the branch is
trained for its remaining steps with its own decay, and the weights of the branch are written (`Run.branch`). The longer
run then continues from the copied state, so its result is bitwise the same as without branches.

At each step, a branch uses the same episodes, curriculum and scheduled noise as the longer run. A schedule that depends
on the share of finished steps is therefore less advanced at the end of a branch than at the end of a separate run of
the same length.

An interrupted branch continues from its own checkpoints. The training run continues only after the branch is finished,
so until then its newest checkpoint is at the step at which the branch starts. If the weights of a branch are missing
later, checkpoints past this step are not used.
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
def restore_after(training: Training) -> Iterator[Progress]:
    """After the block, restore the weights, the optimiser and the progress of the training.

    Yields:
        A copy of the progress, from which a branch starts.
    """
    progress, end, weights = training.progress, training.end, _copy_weights(training)
    optimiser_state = copy.deepcopy(training.optimiser.state_dict())
    try:
        yield replace(
            progress,
            pending=progress.pending.clone(),
            steps=[*progress.steps],
            losses=[*progress.losses],
            scored=[],  # branches are not evaluated during training
        )
    finally:
        training.backbone.load_state_dict(weights)
        training.optimiser.load_state_dict(optimiser_state)
        training.resume(progress, end)


def train_branch(training: Training, progress: Progress, steps: int, callbacks: Sequence[Callback]) -> Weights:
    """Train the branch that ends after `steps` steps and return its weights.

    Raises:
        TrainingDivergedError: the loss or a weight is NaN or infinite.
    """
    training.resume(progress, steps)
    try:
        training.run(callbacks)
        training.check()
    except TrainingDivergedError as error:
        raise TrainingDivergedError(error.step, f"{error.problem}, on the branch of {steps} steps") from None
    return _copy_weights(training)


def _copy_weights(training: Training) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in training.backbone.state_dict().items()}
