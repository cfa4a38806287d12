"""Mean scores of `oracle-kernel` over all episodes of the Gaussian-process task, computed by
`benchmarks/gp_ceilings.py`.

The ceiling of a frozen prompt set deviates from this mean by chance. All models on the set share the deviation, so
subtract it before you compare a score with one that was published for other episodes.
"""

from iclbench.families.base import Ceiling

# By largest context and shift, for the default kernels, lengthscales, noise and input ranges.
CEILINGS: dict[tuple[int, str], Ceiling] = {
    (64, "none"): Ceiling(-0.2864, 0.0007),
    (64, "ood-lengthscale"): Ceiling(-0.3454, 0.0007),
    (16, "none"): Ceiling(-0.6031, 0.0010),
    (16, "ood-lengthscale"): Ceiling(-0.6262, 0.0009),
}
