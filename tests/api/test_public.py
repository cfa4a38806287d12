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
from iclbench.registry import BACKBONES


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


def stub() -> dict[str, list[str]]:
    """The names in `iclbench/__init__.pyi` by the module that they are imported from."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(Path(icl.__file__).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1 and all(alias.asname == alias.name for alias in node.names)
            found.setdefault(f"iclbench.{node.module}", []).extend(alias.name for alias in node.names)
    return found


def test_the_stub_names_the_architectures_of_the_registry() -> None:
    entries = {name: BACKBONES.entry(name) for name in BACKBONES.architectures()}
    own = {name: entry.target.partition(":")[2] for name, entry in entries.items() if entry.package == "iclbench"}
    assert sorted(stub()["iclbench.api.architectures"]) == sorted(own.values())
    for name, class_name in own.items():
        function = getattr(icl, class_name)
        assert f'"{name}"' in function.__doc__ and function.__name__ == class_name
        assert list(inspect.signature(function).parameters) == ["task", "seed", "settings"]


def test_every_name_of_the_stub_is_that_of_its_module() -> None:
    names = [name for own in stub().values() for name in own]
    assert sorted([*names, "__version__"]) == sorted(icl.__all__)
    for module, own in stub().items():
        for name in own:
            assert getattr(importlib.import_module(module), name) is getattr(icl, name)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="trian"):
        _ = icl.trian
