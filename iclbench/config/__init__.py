"""Configuration: cards, their resolution into frozen configurations, the registry, plug-ins, run folders."""

from iclbench.moved import handed_on

# The names of version 0.1.0, whose config was a module.
__getattr__ = handed_on(__name__, "iclbench.config.resolution")
