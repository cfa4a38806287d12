"""Every example of a docstring runs and prints what it shows."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import iclbench

ROOT = Path(iclbench.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
# Examples that train, draw or build every backbone, for seconds; what they call has tests of its own (tests/api).
LONG = ("iclbench.api.architectures", "iclbench.api.plot", "iclbench.api.results")
# What it draws takes a probe of a trained run.
_SHOWN_ELSEWHERE = {"probe"}


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=pytest.mark.docs if name in LONG else []) for name in MODULES]
)
def test_examples_print_what_they_show(module: str) -> None:
    found = doctest.testmod(import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted and not found.failed


def test_every_public_function_has_an_example() -> None:
    public = {name: getattr(iclbench, name) for name in iclbench.__all__ if name != "__version__"}
    public |= {name: getattr(iclbench.plot, name) for name in iclbench.plot.__all__}
    functions = {name for name, each in public.items() if inspect.isfunction(each)}
    without = {name for name in functions if ">>> " not in (public[name].__doc__ or "")}
    assert without == _SHOWN_ELSEWHERE and len(functions) > 20
