"""A request for episodes of a family."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch


@dataclass(frozen=True)
class Request:
    """A batch of episodes to draw.

    Attributes:
        episodes: number of episodes.
        points: context points per episode; the largest number in families with contexts of variable size. For the
            question `next` the last point is only a query, so 40 examples need 41 points.
        generator: the source of all randomness; the episodes are on its device.
        active_dims: number of input dimensions in use in a curriculum; the others are 0 (default: all are used).
        shift: name of a distribution shift (default: none).
        related: number of related datasets in every episode (default: drawn per episode). The other parts of the
            episodes do not depend on this number.
        before: number of episodes of earlier requests for the same prompt set. A family with finitely many episodes
            continues after them, so that no episode is repeated before all have been used.
    """

    episodes: int
    points: int
    generator: torch.Generator
    _: KW_ONLY
    active_dims: int | None = None
    shift: str = "none"
    related: int | None = None
    before: int = 0
