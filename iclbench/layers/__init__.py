"""Layers: the components of the architectures in `iclbench.backbones`."""
