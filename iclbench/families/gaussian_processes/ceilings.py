"""Expected scores of `oracle-kernel` on the Gaussian-process task, computed by `benchmarks/gp_ceilings.py`.

The mean score on a frozen prompt set deviates from the expected score by chance. All models share this deviation, so
subtract it before you compare a score with a score that was published for other episodes.
"""

from iclbench.families.base import Ceiling

# The keys are the largest context size and the shift. Kernels, lengthscales, noise and input ranges are the defaults.
CEILINGS: dict[tuple[int, str], Ceiling] = {
    (64, "none"): Ceiling(-0.2864, 0.0007),
    (64, "ood-lengthscale"): Ceiling(-0.3454, 0.0007),
    (16, "none"): Ceiling(-0.6031, 0.0010),
    (16, "ood-lengthscale"): Ceiling(-0.6262, 0.0009),
}
