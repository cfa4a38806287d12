"""The public names of `import iclbench as icl` are imported on first use, documented, listed in the stub, and not
hidden by modules."""

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


def test_importing_iclbench_imports_no_large_package() -> None:
    code = "import sys, iclbench; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "pandas", "numpy", "pydantic", "typer", "rich"} & set(loaded)


def test_importing_all_modules_does_not_replace_public_names() -> None:
    values = {name: getattr(icl, name) for name in icl.__all__}
    for module in pkgutil.walk_packages(icl.__path__, "iclbench."):
        if not module.name.endswith("__main__") and "scan_triton" not in module.name and "mamba_ssm" not in module.name:
            importlib.import_module(module.name)
    assert {name: getattr(icl, name) for name in icl.__all__} == values
    top_level_modules = {module.name for module in pkgutil.iter_modules(icl.__path__)}
    assert not top_level_modules & set(icl.__all__)
    assert set(icl.__all__) <= set(dir(icl))


@pytest.mark.parametrize("name", icl.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(icl, name)
    if name != "__version__":
        assert (inspect.getdoc(value) and callable(value)) or inspect.ismodule(value)


def stub_names() -> dict[str, list[str]]:
    """Return the names in `iclbench/__init__.pyi`, grouped by the module from which they are imported."""
    names: dict[str, list[str]] = {}
    for node in ast.parse(Path(icl.__file__).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1 and all(alias.asname == alias.name for alias in node.names)
            names.setdefault(f"iclbench.{node.module}", []).extend(alias.name for alias in node.names)
    return names


def test_the_stub_lists_all_registered_architectures() -> None:
    entries = {name: BACKBONES.entry(name) for name in BACKBONES.architectures()}
    classes = {name: entry.target.partition(":")[2] for name, entry in entries.items() if entry.package == "iclbench"}
    assert sorted(stub_names()["iclbench.api.architectures"]) == sorted(classes.values())
    for name, class_name in classes.items():
        function = getattr(icl, class_name)
        assert f'"{name}"' in function.__doc__ and function.__name__ == class_name
        assert list(inspect.signature(function).parameters) == ["task", "seed", "settings"]


def test_names_in_the_stub_exist_in_their_modules() -> None:
    all_names = [name for names in stub_names().values() for name in names]
    assert sorted([*all_names, "__version__"]) == sorted(icl.__all__)
    for module, names in stub_names().items():
        for name in names:
            assert getattr(importlib.import_module(module), name) is getattr(icl, name)


def test_unknown_names_raise_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="trian"):
        _ = icl.trian
