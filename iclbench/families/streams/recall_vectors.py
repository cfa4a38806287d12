"""Associative recall with vectors (Park et al. 2024, MambaFormer, arXiv 2402.04248, vector-valued MQAR).

A sequence has n pairs of a key and a value, both vectors, and then queries, each a key of the context followed by its
value; only the values of queries are scored. Keys and values are uniform on the sphere of radius sqrt(d), as in the
released code of MambaFormer. There, a sequence has one query, which is a new vector instead of a key of the context
with probability 1/(n + 1). Here, queries fill the rest of the sequence, and their keys are always from the context.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field, model_validator

from iclbench.core.episodes import Episodes, Points
from iclbench.core.settings import BaseSettings, Range
from iclbench.families.request import Request
from iclbench.families.sampling import normal
from iclbench.families.shifts import Kind, Number, Shift
from iclbench.families.streams.base import ProbeTarget, StreamFamily
from iclbench.families.streams.recall import Count, check_numbers_of_pairs, numbers_of_pairs


class RecallVectorParameters(BaseSettings):
    """Dimension d of keys and values, and the smallest and largest number of pairs of an episode."""

    dim: Annotated[int, Field(ge=2, le=10_000)] = 20
    pairs: Range[Count] = (4, 32)

    @model_validator(mode="after")
    def _check_pairs(self) -> RecallVectorParameters:
        if self.pairs[0] > self.pairs[1]:
            raise ValueError(f"pairs: expected the smaller number first, got {self.pairs[0]}, {self.pairs[1]}")
        return self


class RecallVectors(StreamFamily):
    """Vectors of pairs and queries; the question is `next`, and only values of queries are scored.

    `truth["pairs"]` contains the number of pairs of each episode. With the shift `pairs-N`, all episodes have N pairs.
    """

    Parameters = RecallVectorParameters
    shift_kinds = {"pairs": Kind(("the number of pairs",), Number(is_integer=True))}
    oracles = frozenset({"oracle-recall-vectors"})
    parameters: RecallVectorParameters

    @property
    def y_dim(self) -> int:  # type: ignore[override]
        return self.parameters.dim

    @property
    def normaliser(self) -> float:
        """The squared norm of a value."""
        return float(self.parameters.dim)

    def check_shift(self, shift: Shift, points: int) -> None:
        check_numbers_of_pairs(self.parameters.pairs, shift, points, 2)

    def probe_targets(self, episodes: Episodes, elements: int, shift: str = "none") -> dict[str, ProbeTarget]:
        """Return the targets `value`, which is the next vector if it is the value of a query, and
        `previous_element`."""
        value = ProbeTarget(episodes.context.y[:, elements], episodes.scored[:, elements])
        return {"value": value, **super().probe_targets(episodes, elements, shift)}

    def sample(self, request: Request) -> Episodes:
        generator, batch, dim = request.generator, request.episodes, self.parameters.dim
        shift = self.parse_shift(request.shift)
        smallest, largest = numbers_of_pairs(self.parameters.pairs, shift, request.points, 2)
        count = torch.randint(smallest, largest + 1, (batch,), generator=generator, device=generator.device)
        directions = normal((2, batch, largest, dim), generator)
        keys, values = directions * (math.sqrt(dim) / directions.norm(dim=-1, keepdim=True))
        slots = -(-request.points // 2)
        slot = torch.arange(slots, device=generator.device)
        uniform = torch.rand((batch, slots), generator=generator, device=generator.device)
        is_query = slot >= count.unsqueeze(1)
        pair = torch.where(is_query, (uniform * count.unsqueeze(1)).long(), slot.clamp_max(largest - 1))
        index = pair.unsqueeze(-1).expand(-1, -1, dim)
        y = torch.stack([keys.gather(1, index), values.gather(1, index)], 2).flatten(1, 2)[:, : request.points]
        scored = torch.stack([torch.zeros_like(is_query), is_query], 2).flatten(1, 2)[:, : request.points]
        return Episodes(context=Points.full(y.new_empty(*y.shape[:2], 0), y), scored=scored, truth={"pairs": count})
