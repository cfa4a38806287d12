"""The base class of families of streams."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.episodes import Episodes
from iclbench.core.records import TensorRecord
from iclbench.families.base import Family


@dataclass(frozen=True)
class ProbeTarget(TensorRecord):
    """A quantity that a linear probe decodes from the hidden state after the first elements of each episode.

    Attributes:
        values: tokens, or vectors of K numbers.
        is_defined: whether the quantity is defined in each episode.
    """

    values: Int[Tensor, " B"] | Float[Tensor, "B K"]
    is_defined: Bool[Tensor, " B"]

    @classmethod
    def of_all(cls, values: Int[Tensor, " B"] | Float[Tensor, "B K"]) -> ProbeTarget:
        """Create a target with a value for every episode."""
        return cls(values, torch.ones(len(values), dtype=torch.bool, device=values.device))


class StreamFamily(Family):
    """Sequences of tokens (with `classes`) or vectors (of `y_dim` numbers) without inputs; the question is `next`.

    Models predict the next element after each prefix, or a label of each prefix (`Episodes.targets`) if
    `predicts_labels` is true.
    """

    is_stream = True

    @property
    def x_dim(self) -> int:
        return 0

    def probe_targets(self, episodes: Episodes, elements: int, shift: str = "none") -> dict[str, ProbeTarget]:
        """Return the targets of linear probes (`iclbench probe`) by name.

        The default target is `previous_element`, the element before the last element that was read. A model that
        relates neighbouring elements, by a convolution, a recurrence or the first attention layer of an induction head
        (Olsson et al. 2022, arXiv 2209.11895), represents this element in its hidden state.

        Args:
            episodes: episodes with more than `elements` elements.
            elements: number of elements that the model has read.
            shift: the shift of the episodes.
        """
        values = episodes.context.y[:, max(0, elements - 2)]
        is_defined = torch.full((len(values),), elements > 1, device=values.device)
        return {"previous_element": ProbeTarget(values, is_defined)}
