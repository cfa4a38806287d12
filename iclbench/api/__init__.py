"""The Python API: what the commands do, without folders where none are needed. Its names are those of `iclbench`."""

import lazy_loader

# `iclbench.plot` is a module of this package.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["plot"])
