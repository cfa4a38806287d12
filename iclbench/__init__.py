"""iclbench: compare in-context-learning architectures on the same frozen prompts.

This package exports the public names of `iclbench.api`. Each name is imported on first use:

>>> import iclbench as icl
>>> task = icl.task("linear", preset="smoke", dim=2)
>>> model = icl.GPT2(task, layers=1, width=16)
>>> task.sample(3, seed=0).context.x.shape
torch.Size([3, 11, 2])
"""

from __future__ import annotations

from typing import Any

import lazy_loader

# The names come from `__init__.pyi`, which type checkers also read.
_lazy_getattr, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = ["__version__", *_names]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from iclbench.core.version import version

        return version()
    return _lazy_getattr(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
