"""Sequence models with the same mixer in every layer. The mixers are in `iclbench.layers.mixers`."""

from __future__ import annotations

from iclbench.backbones.sequence_model import (
    SequenceSettings,
    SettingsWithEigenvalues,
    SettingsWithFilter,
    SettingsWithHeads,
    SettingsWithInnerWidth,
    SettingsWithRank,
    SettingsWithState,
    UniformModel,
)
from iclbench.core.settings import PositiveInt
from iclbench.layers.mixers.mixer import Eigenvalues


class SettingsWithStateAndRank(SettingsWithState, SettingsWithRank):
    """Settings of mixers with low-rank maps whose heads have a matrix as state."""


class SettingsWithEigenvaluesAndRank(SettingsWithEigenvalues, SettingsWithRank):
    """Settings of delta rules with low-rank maps."""


class SettingsWithHouseholders(SettingsWithEigenvalues):
    """Settings of products of delta rules."""

    eigenvalues: Eigenvalues = "negative"
    """Eigenvalues of the transition of a step: positive (beta = sigmoid), negative (beta = 2 sigmoid, so that the
    product of two steps can rotate a state)."""
    householders: PositiveInt = 2
    """Steps of the delta rule per token (n_h in the paper)."""


class SettingsWithHeadsAndRank(SettingsWithHeads, SettingsWithRank):
    """Settings of mixers with heads and low-rank maps."""


class SettingsWithInnerWidthAndRank(SettingsWithInnerWidth, SettingsWithRank):
    """Settings of mixers with low-rank maps whose values may be wider or narrower than tokens."""


class Attention(UniformModel[SettingsWithInnerWidth]):
    """A sequence model with the mixer `attention` in every layer."""

    Settings = SettingsWithInnerWidth
    mixer = "attention"


class LinearAttention(UniformModel[SettingsWithState]):
    """A sequence model with the mixer `linear-attention` in every layer."""

    Settings = SettingsWithState
    mixer = "linear-attention"


class Based(UniformModel[SettingsWithState]):
    """A sequence model with the mixer `based` in every layer."""

    Settings = SettingsWithState
    mixer = "based"


class RetNet(UniformModel[SettingsWithState]):
    """A sequence model with the mixer `retnet` in every layer."""

    Settings = SettingsWithState
    mixer = "retnet"


class Mamba2(UniformModel[SettingsWithState]):
    """A sequence model with the mixer `mamba2` in every layer."""

    Settings = SettingsWithState
    mixer = "mamba2"


class GLA(UniformModel[SettingsWithStateAndRank]):
    """A sequence model with the mixer `gla` in every layer."""

    Settings = SettingsWithStateAndRank
    mixer = "gla"


class DeltaNet(UniformModel[SettingsWithEigenvalues]):
    """A sequence model with the mixer `deltanet` in every layer."""

    Settings = SettingsWithEigenvalues
    mixer = "deltanet"


class GatedDeltaNet(UniformModel[SettingsWithEigenvalues]):
    """A sequence model with the mixer `gated-deltanet` in every layer."""

    Settings = SettingsWithEigenvalues
    mixer = "gated-deltanet"


class KDA(UniformModel[SettingsWithEigenvaluesAndRank]):
    """A sequence model with the mixer `kda` in every layer."""

    Settings = SettingsWithEigenvaluesAndRank
    mixer = "kda"


class RWKV7(UniformModel[SettingsWithHeadsAndRank]):
    """A sequence model with the mixer `rwkv7` in every layer."""

    Settings = SettingsWithHeadsAndRank
    mixer = "rwkv7"


class MLSTM(UniformModel[SettingsWithState]):
    """A sequence model with the mixer `mlstm` in every layer."""

    Settings = SettingsWithState
    mixer = "mlstm"


class LSTM(UniformModel[SequenceSettings]):
    """A sequence model with the mixer `lstm` in every layer."""

    Settings = SequenceSettings
    mixer = "lstm"


class GRU(UniformModel[SequenceSettings]):
    """A sequence model with the mixer `gru` in every layer."""

    Settings = SequenceSettings
    mixer = "gru"


class Hyena(UniformModel[SettingsWithFilter]):
    """A sequence model with the mixer `hyena` in every layer."""

    Settings = SettingsWithFilter
    mixer = "hyena"


class GatedDeltaProduct(UniformModel[SettingsWithHouseholders]):
    """A sequence model with the mixer `gated-deltaproduct` in every layer."""

    Settings = SettingsWithHouseholders
    mixer = "gated-deltaproduct"


class Mesa(UniformModel[SettingsWithState]):
    """A sequence model with the mixer `mesa` in every layer."""

    Settings = SettingsWithState
    mixer = "mesa"


class FoX(UniformModel[SettingsWithInnerWidth]):
    """A sequence model with the mixer `fox` in every layer."""

    Settings = SettingsWithInnerWidth
    mixer = "fox"


class PaTH(UniformModel[SettingsWithInnerWidthAndRank]):
    """A sequence model with the mixer `path` in every layer."""

    Settings = SettingsWithInnerWidthAndRank
    mixer = "path"


class Mamba3(UniformModel[SettingsWithState]):
    """A sequence model with the mixer `mamba3` in every layer."""

    Settings = SettingsWithState
    mixer = "mamba3"
