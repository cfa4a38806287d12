"""CoQE for classification (section 4.2): all classes have static vectors, and each class in the context also has a
dynamic vector. The logit of a class combines the inner products of its vectors with the representation of the query.

The dynamic vector of a class is the mean of the task encoder's outputs at the labels of this class in the sequence. The
released code averages over the batch; here, predictions do not depend on the other sequences of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from iclbench.core.episodes import Points
from iclbench.core.predictor import State
from iclbench.layers.coqe.task_space import TaskSpace
from iclbench.layers.key_value_cache import causal_mask

ClassVectorVariant = Literal["released", "paper"]


@dataclass(frozen=True)
class LabelledOutputs(State):
    """The vectors of the points so far, their labels, and the mask of valid points."""

    vectors: Float[Tensor, "B N S"]
    labels: Int[Tensor, "B N"]
    mask: Bool[Tensor, "B N"]


class ClassVectors(TaskSpace):
    """Static and dynamic class vectors.

    Args:
        width: width of hidden vectors and features.
        classes: number of classes; each has a static vector and a bias.
        variant: how static and dynamic logits of classes in the context are combined. `released`: they are added,
            without a gradient through the static logits; `paper`: the dynamic logit replaces the static logit.

    Attributes:
        project: linear layer from the outputs of the task encoder to dynamic vectors, as in the released code (not in
            the paper).
        static: static vectors and biases.
    """

    def __init__(self, width: int, classes: int, variant: ClassVectorVariant) -> None:
        super().__init__()
        self.variant, self.classes = variant, classes
        self.project = nn.Linear(width, width)
        self.static = nn.Linear(width, classes)

    def start(self, batch: int) -> LabelledOutputs:
        weight = self.static.weight
        labels = torch.zeros(batch, 0, dtype=torch.long, device=weight.device)
        return LabelledOutputs(weight.new_zeros(batch, 0, weight.shape[1]), labels, labels.bool())

    def extend(self, memory: LabelledOutputs, hidden: Float[Tensor, "B N D"], points: Points) -> LabelledOutputs:
        return LabelledOutputs(
            torch.cat([memory.vectors, self.project(hidden)], 1),
            torch.cat([memory.labels, points.y], 1),
            torch.cat([memory.mask, points.mask], 1),
        )

    def answer(self, memory: LabelledOutputs, features: Float[Tensor, "B Q S"]) -> Float[Tensor, "B Q classes"]:
        return self._compose(memory, features, memory.mask.unsqueeze(1))

    def answer_prefixes(
        self, memory: LabelledOutputs, hidden: Float[Tensor, "B N D"], points: Points, features: Float[Tensor, "B N S"]
    ) -> Float[Tensor, "B N classes"]:
        past = memory.mask.shape[1]
        memory = self.extend(memory, hidden, points)
        before = causal_mask(points.count, past, hidden.device).tril(past - 1)
        return self._compose(memory, features, memory.mask.unsqueeze(1) & before)

    def _compose(
        self, memory: LabelledOutputs, features: Float[Tensor, "B Q S"], visible: Bool[Tensor, " B #Q N"]
    ) -> Float[Tensor, "B Q classes"]:
        """Return the logits of queries with these features. Each query sees only the visible points. Inner products
        with the vectors of points are averaged per class, so that the mean vectors of all classes need not be
        computed."""
        products = (features @ memory.vectors.mT) * visible
        counts = class_counts(memory.labels, visible, self.classes)
        sums = products @ F.one_hot(memory.labels, self.classes).to(products)
        dynamic, static = sums / counts.clamp(min=1), self.static(features)
        return static.detach() + dynamic if self.variant == "released" else torch.where(counts > 0, dynamic, static)


def class_counts(
    labels: Int[Tensor, "B N"], visible: Bool[Tensor, " B #Q N"], classes: int
) -> Int[Tensor, " B #Q classes"]:
    """Count the points with each label among the points that each query sees."""
    index = labels.unsqueeze(1).expand(visible.shape)
    zeros = torch.zeros(*visible.shape[:2], classes, dtype=torch.long, device=labels.device)
    return zeros.scatter_add(-1, index, visible.long())
