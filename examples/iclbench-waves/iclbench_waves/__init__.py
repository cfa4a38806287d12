"""A third-party package for iclbench: waves, a smoother that learns its kernel, and one that does not."""
