"""Pretrained language models: loading, tokens, batches, caches."""

from iclbench.moved import handed_on

# The names of version 0.1.0, whose language.models was a module.
__getattr__ = handed_on(__name__, "iclbench.language.models.model")
