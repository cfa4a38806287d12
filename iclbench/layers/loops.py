"""Looped models: the same blocks are applied several times (Yang et al. 2023, "Looped Transformers are better at
learning learning algorithms", arXiv 2311.12424).

With the embedded tokens P, including added positions, and a model M of blocks and a final norm, iteration t + 1 is

    Y_{t+1} = M(Y_t + P),   Y_0 = 0.

As in the release, the norm is part of M. The release trains with fewer iterations for less than 1 % of the steps
(curriculum of loops), which is not implemented here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor


class Looped:
    """Base class of models that can apply their blocks several times.

    Attributes:
        loops: number of iterations; 1 means a model without loops.
        window: if set, hidden vectors are read after each of the last `window` iterations, on axis 2, and earlier
            iterations have no gradients. None means only after the last iteration, without this axis.
    """

    loops: int = 1
    window: int | None = None

    def finish(self, hidden: Float[Tensor, "B T _"]) -> Float[Tensor, "B T D"]:
        """Apply the final norm."""
        raise NotImplementedError

    def block_input(
        self, layer: int, blocks: int, hidden: Float[Tensor, "B T _"], embedded: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T _"]:
        """Return the input of a block.

        Args:
            layer: index of the block, counted over all iterations.
            blocks: number of blocks.
            hidden: the output of the previous block, or the embedded tokens.
            embedded: the embedded tokens.
        """
        iteration, block_index = divmod(layer, blocks)
        if iteration == 0 or block_index > 0:
            return hidden
        output = self.finish(hidden)
        if self.window is not None and iteration <= self.loops - self.window:
            output = output.detach()
        return output + embedded

    def read_hidden(self, outputs: Iterable[Tensor]) -> Float[Tensor, "B N *window D"]:
        """Return the hidden vectors of the last iteration or of the window.

        Args:
            outputs: outputs of blocks, `(B, N, D)`; the last ones are those of the last block in each iteration.
        """
        last = deque(outputs, maxlen=self.window or 1)
        if self.window is None:
            return self.finish(last[0])
        return torch.stack([self.finish(hidden) for hidden in last], 2)
