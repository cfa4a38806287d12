"""What can be set about CoQE, and what is meant where nothing is said."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from iclbench.backbones.base import BackboneSettings
from iclbench.config.cards import NonNegativeFloat, PositiveFloat, PositiveInt
from iclbench.core.errors import UsageError
from iclbench.layers.coqe.class_vectors import Variant
from iclbench.layers.coqe.logit_noise import LogitNoise, Where
from iclbench.layers.positions import Positions

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]


class CoQESettings(BackboneSettings):
    """Sizes; for regression the sample representation, for classification how vectors are composed and the noise."""

    layers: PositiveInt | None = None
    """Blocks of the task encoder; by default 3 for regression, 4 for classification."""
    width: PositiveInt = 64
    """Width D of the task encoder."""
    heads: PositiveInt | None = None
    """Attention heads per layer; by default 2 for regression, 8 for classification."""
    positions: Positions | None = None
    """Of the task encoder: none, learned, sinusoidal, rotary, as the contestant's name says; by default none for
    regression, sinusoidal for classification."""
    init_std: PositiveFloat | None = None
    """Standard deviation of the task encoder's initial weights; by default 0.02, for classification 1 / sqrt(width)."""
    sample_dim: PositiveInt | None = None
    """Regression: width of the sample representation; by default that of the task encoder."""
    readout: Literal["inner", "mlp"] = "inner"
    """Regression: how task vector and sample meet: inner product or mlp."""
    variant: Variant = "released"
    """Classification: as the released code composes vectors and adds noise, or as the paper says."""
    noise: NonNegativeFloat = 5.0
    """Classification: mean of the noise on the logits when training starts; 0: there is none."""
    noise_std: NonNegativeFloat | None = None
    """Classification: standard deviation of that noise; by default 3 as released, 1 in the paper."""
    noise_growth: NonNegativeFloat = 1.0
    """Classification: what both grow by with every further `noise_every` of training."""
    noise_every: PositiveFraction = 0.1
    """Classification: the part of training between two steps of growth."""
    noise_first: Fraction | None = None
    """Classification: the part of training before the first; by default 0.2 as released, 0.1 in the paper."""
    noise_on: Where | None = None
    """Classification: the logits that get noise, lowest or all; by default lowest as released, all in the paper."""
    noise_lowest: PositiveFraction = 0.924
    """Classification: the share of logits that counts as the lowest."""

    def refuse_unused(self, labelled: bool) -> None:
        """Raise `UsageError` when something is set that this kind of task (class labels or numbers) has no use for."""
        unused, kind = (_OF_NUMBERS, "numbers") if labelled else (_OF_LABELS, "class labels")
        for name in unused:
            if getattr(self, name) != type(self).model_fields[name].default:
                own = "class labels" if labelled else "numbers"
                raise UsageError(f"backbone.{name} is for tasks with {kind} and this one has {own}; leave it out")

    @property
    def logit_noise(self) -> LogitNoise | None:
        if self.noise == 0:
            return None
        std, first, where = _NOISE[self.variant]
        return LogitNoise(
            mean=self.noise,
            std=std if self.noise_std is None else self.noise_std,
            growth=self.noise_growth,
            every=self.noise_every,
            first=first if self.noise_first is None else self.noise_first,
            where=self.noise_on or where,
            share=self.noise_lowest,
        )


_OF_NUMBERS = ("sample_dim", "readout")
_OF_LABELS = (
    "variant",
    "noise",
    "noise_std",
    "noise_growth",
    "noise_every",
    "noise_first",
    "noise_on",
    "noise_lowest",
)
# Standard deviation, time of the first growth and place of the noise.
_NOISE: dict[Variant, tuple[float, float, Where]] = {"released": (3.0, 0.2, "lowest"), "paper": (1.0, 0.1, "all")}
