"""What `oracle-kernel` scores on average over all episodes of the Gaussian-process task, as `benchmarks/gp_ceilings.py`
computed it.

A frozen prompt set has a ceiling of its own, a little above or below. The difference between the two is common to all
models on the set, and has to be subtracted before a score is compared with one that was published for other draws.
"""

from iclbench.families.base import Ceiling

# By the largest context and the shift, for the task's own kernels, lengthscales, noise and ranges of inputs.
CEILINGS: dict[tuple[int, str], Ceiling] = {
    (64, "none"): Ceiling(-0.2864, 0.0007),
    (64, "ood-lengthscale"): Ceiling(-0.3454, 0.0007),
    (16, "none"): Ceiling(-0.6031, 0.0010),
    (16, "ood-lengthscale"): Ceiling(-0.6262, 0.0009),
}
