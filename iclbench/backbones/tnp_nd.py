"""TNP-ND (Nguyen and Grover 2022, section 3.3): TNP-D with a joint Gaussian over all targets.

TNP-D maps each target to a vector. The means and, with `covariance_net`, the covariance of all targets are computed
from these vectors. Differences from the released code, in addition to those of `tnp_d`:

- The loss is divided by the number of targets. In the released code, the training loss is a sum, so episodes with many
  targets have more weight; only the evaluation divides by the number of targets.
- Targets do not attend to masked targets, and masked targets are not scored.
- With `low-rank`, the diagonal D is exp(r) for `spread = "exp"`; for `"floor"` and `"bounded-m"` it is the square of
  the standard deviation as computed in all other models. In the released code it is exp(r), even if `bound_std` bounds
  the diagonal of L.
- The log-density is computed in double precision, and the diagonal of L is at least 1e-6.
- Marginal scores use the exact marginals; the released code uses the standard deviations of 50 samples.

The model has 332,821 parameters for (dx, dy) = (1, 1), 332,885 for (2, 1), 338,431 for (2, 3), as released. With
`low-rank`, it has 374,294, 374,358 and 380,162.
"""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.joint_targets import JointSettings, JointTargets
from iclbench.backbones.tnp_d import TNPD, TNPDSettings
from iclbench.backbones.transformer_np import LayeredMemory


class TNPNDSettings(TNPDSettings, JointSettings):
    """Settings of tnp-nd. The defaults are the published sizes, which are the same for all tasks."""


class TNPND(JointTargets[TNPNDSettings], TNPD[TNPNDSettings]):
    """TNP-D with a joint Gaussian over all targets (head `gaussian`). Its means and its covariance are computed from
    the targets' vectors."""

    Settings: ClassVar[type[TNPNDSettings]] = TNPNDSettings

    def hidden(self, state: LayeredMemory, x: Float[Tensor, "B Q Dx"]) -> Float[Tensor, "B Q D"]:
        *_, vectors = self.read_layers(state, x)
        return vectors
