"""iclbench: every in-context-learning architecture on every task family, on the same frozen prompts."""

__version__ = "0.1.0"

from iclbench import moved

moved.install()
