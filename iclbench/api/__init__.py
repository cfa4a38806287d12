"""The Python API. The package `iclbench` exports its names, and the commands use it."""

import lazy_loader

# `iclbench.plot` is a module of this package.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["plot"])
