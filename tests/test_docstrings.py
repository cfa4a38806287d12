"""Docstring examples run and print the output that they show."""

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
# Modules with slow examples. Their functions are also tested in tests/api.
SLOW_MODULES = ("iclbench.api.architectures", "iclbench.api.plot", "iclbench.api.results")
# Functions without an example: `probe` needs the probe of a trained run, and `solutions` needs evaluations during
# training.
_WITHOUT_EXAMPLE = {"probe", "solutions"}


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=pytest.mark.docs if name in SLOW_MODULES else []) for name in MODULES]
)
def test_examples_print_the_output_that_they_show(module: str) -> None:
    results = doctest.testmod(import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted and not results.failed


def test_every_public_function_has_an_example() -> None:
    public = {name: getattr(iclbench, name) for name in iclbench.__all__ if name != "__version__"}
    public |= {name: getattr(iclbench.plot, name) for name in iclbench.plot.__all__}
    functions = {name for name, value in public.items() if inspect.isfunction(value)}
    without_example = {name for name in functions if ">>> " not in (public[name].__doc__ or "")}
    assert without_example == _WITHOUT_EXAMPLE and len(functions) > 20
