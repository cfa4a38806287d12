"""Associative recall: pairs of a key and a value, followed by queries that are answered by the value of their key.

A sequence consists of n pairs (key, value), followed by queries (key, value) up to its end. Only the values of queries
are scored. All pairs and at least one query fit into a sequence; larger n are not drawn. The plain task is multi-query
associative recall (Arora et al. 2024, Zoology, arXiv 2312.04927). The variants are:

- `overwrite`: a pair may repeat the key of an earlier pair with another value, and the last value is the answer;
- compound keys (`key_tokens = [2, 2]` with few key tokens): each token of a key is also part of other keys;
- fuzzy recall (Poli et al. 2024, MAD, arXiv 2403.17844): keys and values have different numbers of tokens (`key_tokens`
  and `value_tokens` from 1 to 3);
- `gap_power`: fillers between queries, as in the released code of Zoology. Every pair has one query if there is space,
  and the distances of queries from the end of the pairs follow a power law.

Keys, values and the filler are different tokens. The released code of Zoology differs in three ways: fillers are random
tokens by default, which can overwrite keys of the context; the value of a query is only a label, not an element of the
sequence; and all values of a sequence are different.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.formats import plural
from iclbench.core.settings import BaseSettings, PositiveFloat, Range
from iclbench.families.request import Request
from iclbench.families.shifts import Kind, Number, Shift
from iclbench.families.streams.base import ProbeTarget, StreamFamily

Length = Annotated[int, Field(ge=1, le=8)]
Count = Annotated[int, Field(ge=1, le=100_000)]
_NUMBER_OF_PAIRS = "the number of pairs"
# Keys of one length are drawn by sorting all possible keys if their number is less than this factor times the square of
# the number of pairs. Otherwise, repeated keys are redrawn. Since keys are exchangeable, all sets of different keys are
# then equally likely.
_SORTED_BELOW = 0.5


class RecallParameters(BaseSettings):
    """Tokens and sizes; every range is (smallest, largest).

    Attributes:
        keys: number of key tokens.
        values: number of value tokens.
        key_tokens: range of the number of tokens of a key.
        value_tokens: range of the number of tokens of a value.
        pairs: range of the number of pairs of an episode.
        overwrite: probability that a pair repeats an earlier key with another value.
        gap_power: exponent of the power law of the distances of queries from the pairs. By default, queries follow the
            pairs without gaps.
    """

    keys: Annotated[int, Field(ge=2, le=100_000)] = 128
    values: Annotated[int, Field(ge=2, le=100_000)] = 128
    key_tokens: Range[Length] = (1, 1)
    value_tokens: Range[Length] = (1, 1)
    pairs: Range[Count] = (4, 32)
    overwrite: Annotated[float, Field(ge=0, lt=1)] = 0.0
    gap_power: PositiveFloat | None = None

    @model_validator(mode="after")
    def _check(self) -> RecallParameters:
        for name in ("key_tokens", "value_tokens", "pairs"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: expected the smaller number first, got {low}, {high}")
        if self.gap_power is not None and not self.has_fixed_lengths:
            raise ValueError("gap_power: expected keys and values of fixed lengths; leave it out")
        self.check_pairs(self.pairs[1])
        return self

    @property
    def has_fixed_lengths(self) -> bool:
        """Whether all keys have the same number of tokens, and all values have the same number of tokens."""
        return len(set(self.key_tokens)) == len(set(self.value_tokens)) == 1

    @property
    def longest_pair(self) -> int:
        """Largest number of tokens of a pair."""
        return self.key_tokens[1] + self.value_tokens[1]

    @property
    def shortest_pair(self) -> int:
        """Smallest number of tokens of a pair."""
        return self.key_tokens[0] + self.value_tokens[0]

    @property
    def different_keys(self) -> int:
        """Number of possible keys."""
        shortest, longest = self.key_tokens
        return sum(self.keys**length for length in range(shortest, longest + 1))

    def check_pairs(self, pairs: int) -> None:
        """Raise `ValueError` if there are fewer different keys than pairs."""
        if pairs > self.different_keys:
            raise ValueError(f"{pairs} pairs need more than {self.different_keys} different keys; raise task.keys")


class Pairs(NamedTuple):
    """The pairs of episodes.

    Attributes:
        count: number of pairs of each episode; later pairs are not used.
        tokens: the tokens of each key, followed by the tokens of its value.
        key_lengths, value_lengths: numbers of tokens of the keys and the values.
        latest: index of the last pair with the same key; None if all keys are different.
    """

    count: Int[Tensor, " B"]
    tokens: Int[Tensor, "B P L"]
    key_lengths: Int[Tensor, "B P"]
    value_lengths: Int[Tensor, "B P"]
    latest: Int[Tensor, "B P"] | None


class Recall(StreamFamily):
    """Tokens of pairs and queries; the question is `next`, and only values of queries are scored.

    Tokens 0 to `keys` - 1 are keys, the next `values` tokens are values, and the last token is the filler.
    `truth["pairs"]` contains the number of pairs of each episode.

    Shifts: with `pairs-N` all episodes have N pairs; `overwrite-P` sets the probability that a pair repeats a key.
    """

    Parameters = RecallParameters
    shift_kinds = {
        "pairs": Kind((_NUMBER_OF_PAIRS,), Number(is_integer=True)),
        "overwrite": Kind(("repeated keys",), Number(largest=1.0)),
    }
    oracles = frozenset({"oracle-recall"})
    parameters: RecallParameters

    def __init__(self, parameters: RecallParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.classes = parameters.keys + parameters.values + 1

    @property
    def filler(self) -> int:
        """The token between queries."""
        return self.parameters.keys + self.parameters.values

    def parse_shift(self, name: str) -> Shift:
        shift = super().parse_shift(name)
        if shift.value("overwrite", 0.0) >= 1:
            raise UsageError(f"shift '{name}': expected a probability below 1", code="bad-value")
        try:
            self.parameters.check_pairs(int(shift.value("pairs", 1.0)))
        except ValueError as error:
            raise UsageError(f"shift '{name}': {error}", code="bad-value") from None
        return shift

    def check_shift(self, shift: Shift, points: int) -> None:
        check_numbers_of_pairs(self.parameters.pairs, shift, points, self.parameters.longest_pair)

    def probe_targets(self, episodes: Episodes, elements: int, shift: str = "none") -> dict[str, ProbeTarget]:
        """Return the targets `value` and `previous_element`.

        `value` is the next token if it is part of the value of a query. After the value of a pair, `previous_element`
        is the last token of its key, which the first layer of an induction head attaches to the value.
        """
        value = ProbeTarget(episodes.context.y[:, elements], episodes.scored[:, elements])
        return {"value": value, **super().probe_targets(episodes, elements, shift)}

    def sample(self, request: Request) -> Episodes:
        parameters, generator = self.parameters, request.generator
        shift = self.parse_shift(request.shift)
        smallest, largest = numbers_of_pairs(parameters.pairs, shift, request.points, parameters.longest_pair)
        count = torch.randint(smallest, largest + 1, (request.episodes,), generator=generator, device=generator.device)
        pairs = self._pairs(count, largest, shift.value("overwrite", parameters.overwrite), generator)
        slots = -(-request.points // parameters.shortest_pair)
        uniform = torch.rand((request.episodes, slots), generator=generator, device=generator.device)
        if parameters.gap_power is not None:
            varied = count if smallest < largest else None
            tokens, scored = self._with_gaps(pairs, varied, parameters.gap_power, uniform)
        elif parameters.has_fixed_lengths:
            tokens, scored = self._without_gaps(pairs, *_pairs_of_slots(pairs, uniform))
        else:
            tokens, scored = _segments(pairs, *_pairs_of_slots(pairs, uniform), request.points)
        tokens, scored = tokens[:, : request.points], scored[:, : request.points]
        context = Points.full(torch.empty((*tokens.shape, 0), device=generator.device), tokens)
        return Episodes(context=context, scored=scored, classes=self.classes, truth={"pairs": count})

    def _without_gaps(
        self, pairs: Pairs, pair_of_slot: Int[Tensor, "B S"], is_query: Bool[Tensor, "B S"]
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return tokens and scored positions of sequences of slots of equal length. Each slot contains a pair or a
        query."""
        length = pairs.tokens.shape[-1]
        tokens = pairs.tokens.gather(1, pair_of_slot.unsqueeze(-1).expand(-1, -1, length))
        return tokens.flatten(1), (is_query.unsqueeze(-1) & self._is_value(pairs)).flatten(1)

    def _with_gaps(
        self, pairs: Pairs, count: Int[Tensor, " B"] | None, gap_power: float, uniform: Float[Tensor, "B S"]
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return tokens and scored positions of sequences of slots of equal length. The first slots contain all pairs,
        later slots contain one query of each pair, and the other slots contain fillers.

        Args:
            pairs: the pairs.
            count: number of pairs of each episode; None if all pairs are used in all episodes.
            gap_power: exponent of the power law.
            uniform: a uniform number for each slot.
        """
        (batch, slots), (_, largest, length) = uniform.shape, pairs.tokens.shape
        number = largest if count is None else count.unsqueeze(1)
        slot = _slots_of_queries(number, largest, gap_power, uniform).unsqueeze(-1).expand(-1, -1, length)
        queries = pairs.tokens
        if pairs.latest is not None:
            queries = queries.gather(1, pairs.latest.unsqueeze(-1).expand(-1, -1, length))
        is_scored = self._is_value(pairs)
        tokens = torch.full((batch, slots, length), self.filler, device=uniform.device)
        scored = torch.zeros(tokens.shape, dtype=torch.bool, device=uniform.device)
        if count is None:
            tokens.scatter_(1, slot, queries)[:, :largest] = pairs.tokens
            scored.scatter_(1, slot, is_scored.expand_as(slot))[:, :largest] = False
        else:
            is_pair = (torch.arange(largest, device=uniform.device) < number).unsqueeze(-1)
            first = tokens.scatter_(1, slot, torch.where(is_pair, queries, self.filler))[:, :largest]
            first.copy_(torch.where(is_pair, pairs.tokens, first))
            scored.scatter_(1, slot, (is_scored & is_pair).expand_as(slot))[:, :largest].masked_fill_(is_pair, False)
        return tokens.flatten(1), scored.flatten(1)

    def _is_value(self, pairs: Pairs) -> Bool[Tensor, " L"]:
        """Return which tokens of a pair belong to its value."""
        return torch.arange(pairs.tokens.shape[-1], device=pairs.tokens.device) >= self.parameters.key_tokens[0]

    def _pairs(self, count: Int[Tensor, " B"], largest: int, overwrite: float, generator: torch.Generator) -> Pairs:
        parameters, shape = self.parameters, (len(count), largest)
        keys, key_lengths = self._different_keys(shape, generator)
        shortest, longest = parameters.value_tokens
        value_lengths = _integers(shortest, longest, shape, generator)
        values = _integers(0, parameters.values - 1, (*shape, longest), generator)
        latest = None
        if overwrite:
            is_repeated = torch.rand(shape, generator=generator, device=generator.device) < overwrite
            source = torch.arange(largest, device=generator.device).repeat(len(count), 1)
            steps = _integers(1, parameters.values - 1, shape, generator)
            for i in range(1, largest):
                earlier = source.gather(1, _integers(0, i - 1, (len(count), 1), generator)).squeeze(1)
                source[:, i] = torch.where(is_repeated[:, i], earlier, i)
                _change_value(values, source, i, steps[:, i], parameters.values)
            keys = keys.gather(1, source.unsqueeze(-1).expand_as(keys))
            key_lengths = key_lengths.gather(1, source)
            latest = _last_pairs_of_keys(source, count)
        if parameters.has_fixed_lengths:
            tokens = torch.cat([keys, values.add_(parameters.keys)], -1)
        else:
            position = torch.arange(parameters.longest_pair, device=generator.device)
            value_position = (position - key_lengths.unsqueeze(-1)).clamp(0, longest - 1)
            key_position = position.clamp_max(keys.shape[-1] - 1).expand_as(value_position)
            value_tokens = values.add_(parameters.keys).gather(2, value_position)
            is_key = position < key_lengths.unsqueeze(-1)
            tokens = torch.where(is_key, keys.gather(2, key_position), value_tokens)
        return Pairs(count, tokens, key_lengths, value_lengths, latest)

    def _different_keys(
        self, shape: tuple[int, int], generator: torch.Generator
    ) -> tuple[Int[Tensor, "B P Lk"], Int[Tensor, "B P"]]:
        """Draw keys that are all different within an episode. Return them and their numbers of tokens."""
        (shortest, longest), size = self.parameters.key_tokens, self.parameters.keys
        if shortest == longest and size**longest < _SORTED_BELOW * shape[1] ** 2:
            uniform = torch.rand((shape[0], size**longest), generator=generator, device=generator.device)
            place = size ** torch.arange(longest, device=generator.device)
            keys = uniform.topk(shape[1], 1).indices.unsqueeze(-1) // place % size
            return keys, torch.full(shape, longest, device=generator.device)
        lengths = _integers(shortest, longest, shape, generator)
        keys = _integers(0, size - 1, (*shape, longest), generator)
        codes = _codes(keys, lengths, size)
        while len(rows := _rows_with_repeats(codes)):
            new_lengths = _integers(shortest, longest, shape, generator)
            new_keys = _integers(0, size - 1, (*shape, longest), generator)
            repeated = torch.zeros(shape, dtype=torch.bool, device=codes.device)
            repeated[rows] = _repeats(codes[rows])
            lengths = torch.where(repeated, new_lengths, lengths)
            keys = torch.where(repeated.unsqueeze(-1), new_keys, keys)
            codes = _codes(keys, lengths, size)
        return keys, lengths


def numbers_of_pairs(pairs: tuple[int, int], shift: Shift, points: int, length: int) -> tuple[int, int]:
    """Return the smallest and the largest number of pairs in sequences of `points` elements: the numbers that the task
    or the shift allows and that leave space for a query after the pairs.

    Args:
        pairs: the range of the task.
        shift: the shift, which may set the number of pairs.
        points: number of elements of a sequence.
        length: largest number of elements of a pair.

    Raises:
        UsageError: not even the smallest number of pairs fits.
    """
    smallest, largest = _requested_numbers(pairs, shift)
    space = points // length - 1
    if smallest > space:
        raise _no_space(smallest, smallest, shift, points, length)
    return smallest, min(largest, space)


def check_numbers_of_pairs(pairs: tuple[int, int], shift: Shift, points: int, length: int) -> None:
    """Raise `UsageError` if pairs and a query do not fit into sequences of `points` elements. The arguments are those
    of `numbers_of_pairs`.

    All requested numbers of pairs must fit, except under a shift that sets the number of points: there, larger numbers
    than those that fit are not sampled.
    """
    smallest, largest = _requested_numbers(pairs, shift)
    needed = largest if shift.examples is None else smallest
    if needed > points // length - 1:
        raise _no_space(smallest, needed, shift, points, length)


def _requested_numbers(pairs: tuple[int, int], shift: Shift) -> tuple[int, int]:
    number = int(shift.value("pairs", 0.0))
    return (number, number) if number else pairs


def _no_space(smallest: int, needed: int, shift: Shift, points: int, length: int) -> UsageError:
    """Return an error for the case that `needed` pairs do not fit. The message contains advice."""
    shortest, space = (needed + 1) * length, points // length - 1
    if not shift.parts:
        advice = f"set task.points={shortest - 1}"
        if space >= 1:
            advice += f" or task.pairs=[{min(smallest, space)},{space}]"
    elif shift.part("pairs") is None:
        advice = f"use the shift points-{shortest - 1}"
    else:
        advice = f"use the shift points-{shortest - 1}+pairs-{needed}"
    prefix = f"shift '{shift.name}': " if shift.parts else ""
    return UsageError(
        f"{prefix}{plural(needed, 'pair')} and a query need {shortest} elements, and a sequence has {points}; {advice}",
        code="conflict",
    )


def _integers(low: int, high: int, shape: tuple[int, ...], generator: torch.Generator) -> Int[Tensor, "*shape"]:
    """Draw uniform integers from `low` to `high`, both included."""
    return torch.randint(low, high + 1, shape, generator=generator, device=generator.device)


def _change_value(
    values: Int[Tensor, "B P Lv"], source: Int[Tensor, "B P"], i: int, step: Int[Tensor, " B"], size: int
) -> None:
    """If earlier pairs have the key of pair i, set the first value token of pair i to the first value token of the last
    such pair plus `step` (modulo `size`), so that the values differ."""
    index = torch.arange(1, i + 1, device=source.device)
    previous = ((source[:, :i] == source[:, i : i + 1]) * index).amax(1) - 1
    previous_value = values[..., 0].gather(1, previous.clamp_min(0).unsqueeze(1)).squeeze(1)
    values[:, i, 0] = torch.where(previous >= 0, (previous_value + step) % size, values[:, i, 0])


@cache
def _places(size: int, longest: int, device: torch.device) -> Int[Tensor, "lengths Lk"]:
    """Return a matrix. Row n contains the place values of the tokens of a key with n tokens, followed by zeros."""
    position = torch.arange(longest, device=device)
    return (size + 1) ** position * (position < torch.arange(longest + 1, device=device).unsqueeze(1))


def _codes(keys: Int[Tensor, "B P Lk"], lengths: Int[Tensor, "B P"], size: int) -> Int[Tensor, "B P"]:
    """Return a number for each key. Two keys are equal if their numbers are equal."""
    longest = keys.shape[-1]
    return keys.squeeze(-1) if longest == 1 else (_places(size, longest, keys.device)[lengths] * (keys + 1)).sum(-1)


def _rows_with_repeats(codes: Int[Tensor, "B P"]) -> Int[Tensor, " R"]:
    """Return the rows that have equal entries. NumPy sorts short rows several times as fast as torch."""
    ordered = np.sort(codes.cpu().numpy(), 1)
    rows = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(1))
    return torch.from_numpy(rows).to(codes.device)


def _repeats(codes: Int[Tensor, "B P"]) -> Bool[Tensor, "B P"]:
    """Return, for each entry, whether an earlier entry of its row is equal."""
    return (codes.unsqueeze(2) == codes.unsqueeze(1)).tril(-1).any(2)


def _last_pairs_of_keys(source: Int[Tensor, "B P"], count: Int[Tensor, " B"]) -> Int[Tensor, "B P"]:
    """Return, for each pair, the index of the last pair with the same key among the first `count` pairs. `source` holds
    a number for the key of each pair."""
    index = torch.arange(source.shape[1], device=source.device)
    same = (source.unsqueeze(2) == source.unsqueeze(1)) & (index < count[:, None, None])
    return (same * index).amax(2)


def _pairs_of_slots(pairs: Pairs, uniform: Float[Tensor, "B S"]) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
    """Return the pair of every slot, and whether the slot is a query. The first slots contain all pairs, and the other
    slots contain queries with the keys of random pairs."""
    count, slot = pairs.count.unsqueeze(1), torch.arange(uniform.shape[1], device=uniform.device)
    is_query = slot >= count
    query = uniform.mul_(count).long()
    if pairs.latest is not None:
        query = pairs.latest.gather(1, query)
    return torch.where(is_query, query, slot.clamp_max(pairs.tokens.shape[1] - 1)), is_query


def _slots_of_queries(
    count: int | Int[Tensor, "B 1"], largest: int, gap_power: float, uniform: Float[Tensor, "B S"]
) -> Int[Tensor, "B P"]:
    """Draw the slot of the query of every pair without replacement from the slots after the pairs. The r-th slot after
    the pairs has the weight r^(gap_power - 1).

    If there are more pairs than slots after them, the last entries are slots of pairs.
    """
    # Gumbel top-k trick: the slots with the largest sums of log weight and Gumbel noise are a weighted sample without
    # replacement, in the order of the draws.
    log_weights = _log_weights if isinstance(count, Tensor) else _equal_log_weights
    gumbel = uniform.clamp_min_(1e-12).log_().neg_().log_().neg_()
    return gumbel.add_(log_weights(count, uniform.shape[1], gap_power, uniform.device)).topk(largest, 1).indices


def _log_weights(
    count: int | Int[Tensor, "B 1"], slots: int, gap_power: float, device: torch.device
) -> Float[Tensor, "*B S"]:
    """Return the logarithms of the weights of all slots. Slots of pairs have the weight 0."""
    rank = torch.arange(1, slots + 1, device=device) - count
    return rank.clamp_min(1).log().mul_(gap_power - 1).masked_fill_(rank < 1, -torch.inf)


# The same weights, cached for batches in which all episodes have the same number of pairs.
_equal_log_weights = lru_cache(maxsize=16)(_log_weights)


def _segments(
    pairs: Pairs, pair_of_segment: Int[Tensor, "B S"], is_query: Bool[Tensor, "B S"], points: int
) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Return tokens and scored positions of sequences of pairs of different lengths, cut at `points` tokens."""
    batch, pair_length = len(pair_of_segment), pairs.tokens.shape[-1]
    lengths = (pairs.key_lengths + pairs.value_lengths).gather(1, pair_of_segment)
    ends = lengths.cumsum(1)
    position = torch.arange(points, device=ends.device).expand(batch, points).contiguous()
    segment = torch.searchsorted(ends, position, right=True)
    pair = pair_of_segment.gather(1, segment)
    offset = position - (ends - lengths).gather(1, segment)
    tokens = pairs.tokens.flatten(1).gather(1, pair * pair_length + offset)
    return tokens, is_query.gather(1, segment) & (offset >= pairs.key_lengths.gather(1, pair))
