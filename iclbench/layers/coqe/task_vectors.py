"""CoQE for regression (section 4.1). The task encoder's output at the last label gives one task vector per raw output.
A raw output is the inner product of its task vector with the representation of the query (equation 11).

The task vectors before any point are learned. They are initialised with zero, or with different values if they belong
to the components of a mixture, because equal components would have equal gradients and remain equal. The released code
rolls the sequence instead, so that its first prediction sees every label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.episodes import Points, take
from iclbench.core.predictor import State
from iclbench.layers.coqe.task_space import TaskSpace
from iclbench.layers.perceptron import perceptron


@dataclass(frozen=True)
class TaskVectorState(State):
    """The task vectors after the points so far."""

    vectors: Float[Tensor, "B raw S"]


class TaskVectors(TaskSpace):
    """Task vectors of the same dimension S as sample representations.

    Args:
        width: width D of the hidden vectors at the labels.
        sample_dim: dimension S of a sample representation.
        outputs: number of raw outputs, each with its task vector.
        readout: map from a hidden vector to task vectors. `inner`: the identity, or a linear layer if sizes differ;
            `mlp`: two layers with a ReLU between them, as in the released code.
        distinct_starts: whether the learned vectors before any point are initialised with different values.
    """

    def __init__(
        self, width: int, sample_dim: int, outputs: int, readout: Literal["inner", "mlp"], distinct_starts: bool = False
    ) -> None:
        super().__init__()
        out = outputs * sample_dim
        self.initial = nn.Parameter(torch.zeros(outputs, sample_dim))
        if distinct_starts:
            nn.init.uniform_(self.initial, -(width**-0.5), width**-0.5)  # PyTorch's default for biases
        linear = nn.Identity() if out == width else nn.Linear(width, out)
        self.project: nn.Module = perceptron(width, width, out) if readout == "mlp" else linear

    def start(self, batch: int) -> TaskVectorState:
        return TaskVectorState(self.initial.expand(batch, -1, -1))

    def extend(self, memory: TaskVectorState, hidden: Float[Tensor, "B N D"], points: Points) -> TaskVectorState:
        positions = points.mask * torch.arange(1, points.count + 1, device=hidden.device)
        last_position = F.pad(positions, (1, 0)).amax(1, keepdim=True)
        return TaskVectorState(take(self._vectors_after(memory, hidden), last_position).squeeze(1))

    def answer(self, memory: TaskVectorState, features: Float[Tensor, "B Q S"]) -> Float[Tensor, "B Q raw"]:
        return features @ memory.vectors.mT

    def answer_prefixes(
        self, memory: TaskVectorState, hidden: Float[Tensor, "B N D"], points: Points, features: Float[Tensor, "B N S"]
    ) -> Float[Tensor, "B N raw"]:
        before = self._vectors_after(memory, hidden)[:, :-1]
        return (before @ features.unsqueeze(-1)).squeeze(-1)

    def _vectors_after(
        self, memory: TaskVectorState, hidden: Float[Tensor, "B N D"]
    ) -> Float[Tensor, "B N_and_1 raw S"]:
        """Return the task vectors so far, followed by the task vectors after each further point."""
        return torch.cat([memory.vectors.unsqueeze(1), self.project(hidden).unflatten(-1, self.initial.shape)], 1)
