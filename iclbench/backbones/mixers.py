"""The sequence models of one mixer each; what the mixer computes says `iclbench.layers.mixers`."""

from __future__ import annotations

from iclbench.backbones.sequence_model import UniformModel


class Attention(UniformModel):
    """`attention` in every layer."""

    mixer = "attention"


class LinearAttention(UniformModel):
    """`linear-attention` in every layer."""

    mixer = "linear-attention"


class Based(UniformModel):
    """`based` in every layer."""

    mixer = "based"


class RetNet(UniformModel):
    """`retnet` in every layer."""

    mixer = "retnet"


class Mamba2(UniformModel):
    """`mamba2` in every layer."""

    mixer = "mamba2"


class GLA(UniformModel):
    """`gla` in every layer."""

    mixer = "gla"


class DeltaNet(UniformModel):
    """`deltanet` in every layer."""

    mixer = "deltanet"


class GatedDeltaNet(UniformModel):
    """`gated-deltanet` in every layer."""

    mixer = "gated-deltanet"


class KDA(UniformModel):
    """`kda` in every layer."""

    mixer = "kda"


class RWKV7(UniformModel):
    """`rwkv7` in every layer."""

    mixer = "rwkv7"


class MLSTM(UniformModel):
    """`mlstm` in every layer."""

    mixer = "mlstm"


class LSTM(UniformModel):
    """`lstm` in every layer."""

    mixer = "lstm"


class GRU(UniformModel):
    """`gru` in every layer."""

    mixer = "gru"


class Hyena(UniformModel):
    """`hyena` in every layer."""

    mixer = "hyena"
