"""`import iclbench as icl`: quick, complete, and never replaced by a module of the same name."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import iclbench as icl
from iclbench.api import models
from iclbench.config.registry import BACKBONES


def test_the_import_waits_for_nothing_heavy() -> None:
    code = "import sys, iclbench; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "pandas", "numpy", "pydantic", "typer", "rich"} & set(loaded)


def test_every_public_name_is_still_itself_after_every_module_was_imported() -> None:
    before = {name: getattr(icl, name) for name in icl.__all__}
    for module in pkgutil.walk_packages(icl.__path__, "iclbench."):
        if not module.name.endswith("__main__") and "scan_triton" not in module.name and "mamba_ssm" not in module.name:
            importlib.import_module(module.name)
    assert {name: getattr(icl, name) for name in icl.__all__} == before
    top = {module.name for module in pkgutil.iter_modules(icl.__path__)}
    assert not top & set(icl.__all__)
    assert set(icl.__all__) <= set(dir(icl))


@pytest.mark.parametrize("name", icl.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    found = getattr(icl, name)
    if name != "__version__":
        assert (inspect.getdoc(found) and callable(found)) or inspect.ismodule(found)


def test_every_architecture_has_a_function_by_the_name_of_its_class() -> None:
    for name in BACKBONES.architectures():
        entry = BACKBONES.entry(name)
        if entry.package == "iclbench":
            class_name = entry.target.partition(":")[2]
            assert class_name in icl.__all__ and f'"{name}"' in str(getattr(models, class_name).__doc__)


def test_type_checkers_see_every_public_name() -> None:
    """The list that they read and the one that is loaded from are two, since neither can be made of the other."""
    (block,) = (node for node in ast.parse(Path(icl.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen.keys() | {"__version__"} == set(icl.__all__)
    for name, module in seen.items():
        found = getattr(icl, name)  # imports it: `plot` is a module, which its package has from then on
        assert getattr(importlib.import_module(module), name) is found


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = icl.trian
