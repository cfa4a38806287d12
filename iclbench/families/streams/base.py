"""The base class of families of streams."""

from __future__ import annotations

from iclbench.families.base import Family


class StreamFamily(Family):
    """Sequences of tokens (with `classes`) or vectors (of `y_dim` numbers) without inputs; the question is `next`."""

    is_stream = True

    @property
    def x_dim(self) -> int:
        return 0
