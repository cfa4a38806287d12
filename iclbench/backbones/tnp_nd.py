"""TNP-ND (Nguyen and Grover 2022, section 3.3): TNP-D with a Gaussian over all targets together.

Means are read off the targets' vectors of a TNP-D; their covariance is made by `covariance_net` of the same vectors.
Beside what `tnp_d` lists, it differs from the released code in that

- the loss is divided by the number of targets; the released one is their sum, so that episodes with many targets weigh
  more (it divides in evaluation);
- masked targets are neither read nor scored, as if there were none;
- with `low-rank`, the released diagonal D is exp(r), even if `bound_std` bounds the diagonal of L; here it is exp(r)
  with `spread = "exp"`, and with `"floor"` and `"bounded-m"` the square of the standard deviation that all models read;
- the log-density is computed in double precision, and the diagonal of L is at least 1e-6;
- marginal scores are those of the exact marginals; the released code takes the standard deviations of 50 samples.

332,821 parameters for (dx, dy) = (1, 1), 332,885 for (2, 1), 338,431 for (2, 3), as released; with `low-rank` 374,294,
374,358 and 380,162.
"""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.joint_targets import JointSettings, JointTargets
from iclbench.backbones.tnp_d import TNPD, TNPDSettings
from iclbench.backbones.transformer_np import LayeredMemory


class TNPNDSettings(TNPDSettings, JointSettings):
    """The published sizes, the same for all tasks."""


class TNPND(JointTargets[TNPNDSettings], TNPD[TNPNDSettings]):
    Settings: ClassVar[type[TNPNDSettings]] = TNPNDSettings

    def hidden(self, state: LayeredMemory, x: Float[Tensor, "B Q Dx"]) -> Float[Tensor, "B Q D"]:
        *_, vectors = self.read_layers(state, x)
        return vectors
