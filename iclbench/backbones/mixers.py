"""Sequence models with the same mixer in every layer. The mixers are in `iclbench.layers.mixers`."""

from __future__ import annotations

from iclbench.backbones.sequence_model import (
    SequenceSettings,
    UniformModel,
    WithFilter,
    WithHeads,
    WithInner,
    WithRank,
    WithState,
)


class WithStateAndRank(WithState, WithRank):
    """Settings of mixers whose heads have a matrix as state, and with low-rank maps."""


class WithHeadsAndRank(WithHeads, WithRank):
    """Settings of mixers with heads and low-rank maps."""


class Attention(UniformModel[WithInner]):
    """`attention` in every layer."""

    Settings = WithInner
    mixer = "attention"


class LinearAttention(UniformModel[WithState]):
    """`linear-attention` in every layer."""

    Settings = WithState
    mixer = "linear-attention"


class Based(UniformModel[WithState]):
    """`based` in every layer."""

    Settings = WithState
    mixer = "based"


class RetNet(UniformModel[WithState]):
    """`retnet` in every layer."""

    Settings = WithState
    mixer = "retnet"


class Mamba2(UniformModel[WithState]):
    """`mamba2` in every layer."""

    Settings = WithState
    mixer = "mamba2"


class GLA(UniformModel[WithStateAndRank]):
    """`gla` in every layer."""

    Settings = WithStateAndRank
    mixer = "gla"


class DeltaNet(UniformModel[WithState]):
    """`deltanet` in every layer."""

    Settings = WithState
    mixer = "deltanet"


class GatedDeltaNet(UniformModel[WithState]):
    """`gated-deltanet` in every layer."""

    Settings = WithState
    mixer = "gated-deltanet"


class KDA(UniformModel[WithStateAndRank]):
    """`kda` in every layer."""

    Settings = WithStateAndRank
    mixer = "kda"


class RWKV7(UniformModel[WithHeadsAndRank]):
    """`rwkv7` in every layer."""

    Settings = WithHeadsAndRank
    mixer = "rwkv7"


class MLSTM(UniformModel[WithState]):
    """`mlstm` in every layer."""

    Settings = WithState
    mixer = "mlstm"


class LSTM(UniformModel[SequenceSettings]):
    """`lstm` in every layer."""

    Settings = SequenceSettings
    mixer = "lstm"


class GRU(UniformModel[SequenceSettings]):
    """`gru` in every layer."""

    Settings = SequenceSettings
    mixer = "gru"


class Hyena(UniformModel[WithFilter]):
    """`hyena` in every layer."""

    Settings = WithFilter
    mixer = "hyena"
