"""Sequence models with the same mixer in every layer. The mixers are in `iclbench.layers.mixers`."""

from __future__ import annotations

from iclbench.backbones.sequence_model import (
    SequenceSettings,
    SettingsWithFilter,
    SettingsWithHeads,
    SettingsWithInnerWidth,
    SettingsWithRank,
    SettingsWithState,
    UniformModel,
)


class SettingsWithStateAndRank(SettingsWithState, SettingsWithRank):
    """Settings of mixers whose heads have a matrix as state, and with low-rank maps."""


class SettingsWithHeadsAndRank(SettingsWithHeads, SettingsWithRank):
    """Settings of mixers with heads and low-rank maps."""


class Attention(UniformModel[SettingsWithInnerWidth]):
    """`attention` in every layer."""

    Settings = SettingsWithInnerWidth
    mixer = "attention"


class LinearAttention(UniformModel[SettingsWithState]):
    """`linear-attention` in every layer."""

    Settings = SettingsWithState
    mixer = "linear-attention"


class Based(UniformModel[SettingsWithState]):
    """`based` in every layer."""

    Settings = SettingsWithState
    mixer = "based"


class RetNet(UniformModel[SettingsWithState]):
    """`retnet` in every layer."""

    Settings = SettingsWithState
    mixer = "retnet"


class Mamba2(UniformModel[SettingsWithState]):
    """`mamba2` in every layer."""

    Settings = SettingsWithState
    mixer = "mamba2"


class GLA(UniformModel[SettingsWithStateAndRank]):
    """`gla` in every layer."""

    Settings = SettingsWithStateAndRank
    mixer = "gla"


class DeltaNet(UniformModel[SettingsWithState]):
    """`deltanet` in every layer."""

    Settings = SettingsWithState
    mixer = "deltanet"


class GatedDeltaNet(UniformModel[SettingsWithState]):
    """`gated-deltanet` in every layer."""

    Settings = SettingsWithState
    mixer = "gated-deltanet"


class KDA(UniformModel[SettingsWithStateAndRank]):
    """`kda` in every layer."""

    Settings = SettingsWithStateAndRank
    mixer = "kda"


class RWKV7(UniformModel[SettingsWithHeadsAndRank]):
    """`rwkv7` in every layer."""

    Settings = SettingsWithHeadsAndRank
    mixer = "rwkv7"


class MLSTM(UniformModel[SettingsWithState]):
    """`mlstm` in every layer."""

    Settings = SettingsWithState
    mixer = "mlstm"


class LSTM(UniformModel[SequenceSettings]):
    """`lstm` in every layer."""

    Settings = SequenceSettings
    mixer = "lstm"


class GRU(UniformModel[SequenceSettings]):
    """`gru` in every layer."""

    Settings = SequenceSettings
    mixer = "gru"


class Hyena(UniformModel[SettingsWithFilter]):
    """`hyena` in every layer."""

    Settings = SettingsWithFilter
    mixer = "hyena"
