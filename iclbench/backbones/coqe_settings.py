"""What can be set about CoQE, and what is meant where nothing is said."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from iclbench.backbones.base import BackboneSettings
from iclbench.backbones.causal_transformer import Positions
from iclbench.backbones.class_vectors import Variant
from iclbench.backbones.logit_noise import LogitNoise, Where
from iclbench.cards import NonNegativeFloat, PositiveFloat, PositiveInt
from iclbench.errors import UsageError

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]


class CoQESettings(BackboneSettings):
    """Sizes and, for regression, the sample representation; for classification, how vectors are composed and the noise.

    Task encoder: `layers` (3 for regression, 4 for classification), `width`, `heads` (2, 8), `positions` (`none`,
    `sinusoidal`) and `init_std`, the standard deviation of its initial weights (GPT-2's 0.02; 1 / sqrt(width), that of
    Chan et al.).

    Regression: `sample_dim`, the width of the sample representation (that of the task encoder), and `readout` of the
    task vectors.

    Classification: `variant`; `noise`, the mean of the noise on the logits in training at the start (0: there is none);
    `noise_std`, its standard deviation (`released` 3, `paper` 1); both grow by `noise_growth` with every further
    `noise_every` of training, for the first time at `noise_first` (`released` 0.2, `paper` 0.1); `noise_on`, the logits
    that get it (`released` the `lowest`, `paper` `all`), and `noise_lowest`, which share of them is the lowest.
    """

    layers: PositiveInt | None = None
    width: PositiveInt = 64
    heads: PositiveInt | None = None
    positions: Positions | None = None
    init_std: PositiveFloat | None = None
    sample_dim: PositiveInt | None = None
    readout: Literal["inner", "mlp"] = "inner"
    variant: Variant = "released"
    noise: NonNegativeFloat = 5.0
    noise_std: NonNegativeFloat | None = None
    noise_growth: NonNegativeFloat = 1.0
    noise_every: PositiveFraction = 0.1
    noise_first: Fraction | None = None
    noise_on: Where | None = None
    noise_lowest: PositiveFraction = 0.924

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
    "variant", "noise", "noise_std", "noise_growth", "noise_every", "noise_first", "noise_on", "noise_lowest",
)  # fmt: skip
# Standard deviation, time of the first growth and place of the noise.
_NOISE: dict[Variant, tuple[float, float, Where]] = {"released": (3.0, 0.2, "lowest"), "paper": (1.0, 0.1, "all")}
