"""Events as tokens: an embedding of the mark, and an encoding of the time (Zuo et al. 2020, section 3)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.errors import UsageError
from iclbench.core.events import GAP, MARK, TIME, marks_of
from iclbench.layers.time_encoding import time_encoding

EncodedTime = Literal["gap", "time"]
_COLUMNS = 1 + max(GAP, MARK, TIME)


class EventEmbedding(nn.Module):
    """An embedding of marks, and an encoding of times: the gap before each event, or the absolute time of the event.
    The initial embedding is standard normal, as in the released code.

    Args:
        marks: number of marks K.
        width: width D of a token.
        encode: the time that is encoded: the gap or the absolute time.
    """

    def __init__(self, marks: int, width: int, encode: EncodedTime) -> None:
        super().__init__()
        self.marks = nn.Embedding(marks, width)
        self.column = GAP if encode == "gap" else TIME

    def forward(
        self, y: Float[Tensor, "B N Dy"], weight: Float[Tensor, "K D"] | None = None
    ) -> tuple[Float[Tensor, "B N D"], Float[Tensor, "B N D"]]:
        """Return the vectors of the events' marks, and the encodings of their times.

        Args:
            y: gap, mark and time of events.
            weight: the vectors of all marks; None means the weights of this embedding.

        Raises:
            UsageError: `y` does not have the columns of events, or a mark is greater than K - 1. Marks are checked only
                on a CPU, because the check would synchronise with an accelerator.
        """
        weight = self.marks.weight if weight is None else weight
        if y.shape[-1] != _COLUMNS:
            raise UsageError(
                f"the outputs have dimension {y.shape[-1]}, but the model reads events; pass gap, mark and time of "
                "each event",
                code="bad-value",
            )
        marks = marks_of(y)
        if marks.device.type == "cpu" and marks.numel() and int(marks.max()) >= len(weight):
            raise UsageError(
                f"an event has mark {int(marks.max())}, but the model has marks 0 to {len(weight) - 1}; pass events of "
                "the task that it was trained on",
                code="bad-value",
            )
        times = y[..., self.column].to(torch.promote_types(y.dtype, weight.dtype))
        return F.embedding(marks, weight), time_encoding(times, weight.shape[1]).to(weight.dtype)
