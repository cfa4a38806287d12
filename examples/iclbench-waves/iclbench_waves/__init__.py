"""A plug-in for iclbench: a family of waves, a learned kernel smoother and a Gaussian kernel smoother."""
