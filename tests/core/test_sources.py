"""The hash of a plug-in's code, and the changes that affect it."""

import shutil
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from iclbench.core.sources import source_hash
from tests.refusals import refused

NET = '''"""A net."""
import helper_of_net
from math import pi


class Net:
    """Its docstring."""

    size = 3  # a comment

    def double(self, x):
        return 2 * x
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lone_net.py").write_text(NET)
    (tmp_path / "helper_of_net.py").write_text("import further_helper\nfactor = 2\n")
    (tmp_path / "further_helper.py").write_text("offset = 1\n")
    (tmp_path / "unrelated.py").write_text("offset = 1\n")
    package = tmp_path / "net_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "inner" / "net.py").write_text(NET)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "changes_hash"),
    [
        ("  # a comment", "  # another one", False),
        ('"""Its docstring."""', '"""Another."""', False),
        ('    """Its docstring."""\n', "", False),
        ("\n\n\nclass", "\n\nclass", False),
        ("2 * x", "(2*x)", False),
        ("2 * x", "3 * x", True),
        ("size = 3", "size = 3.0", True),
        ("size = 3", "size = '3'", True),
        ("double(self, x)", "double(self, x=None)", True),
        ("class Net", "class Other", True),
        ("return 2 * x", "return {**x}", True),
    ],
)
@pytest.mark.parametrize("target", ["lone_net:Net", "net_package.inner.net:Net"])
def test_the_hash_depends_on_code_but_not_on_comments_docstrings_or_layout(
    folder: Path, target: str, old: str, new: str, changes_hash: bool
) -> None:
    original = source_hash(target)
    path = folder / f"{target.partition(':')[0].replace('.', '/')}.py"
    assert old in NET
    path.write_text(NET.replace(old, new, 1))
    assert (source_hash(target) != original) == changes_hash


def test_the_hash_includes_modules_that_are_imported_from_the_same_folder(folder: Path) -> None:
    original = source_hash("lone_net:Net")
    (folder / "unrelated.py").write_text("offset = 2\n")
    assert source_hash("lone_net:Net") == original
    (folder / "further_helper.py").write_text("offset = 2\n")
    assert source_hash("lone_net:Net") != original


def test_the_hash_includes_all_files_of_a_package(folder: Path) -> None:
    original = source_hash("net_package.inner.net:Net")
    (folder / "net_package" / "more.py").write_text("")
    assert source_hash("net_package.inner.net:Net") != original


def test_hashing_does_not_import_the_module(folder: Path) -> None:
    source_hash("net_package.inner.net:Net")
    source_hash("lone_net:Net")
    assert not {"net_package", "lone_net"} & set(sys.modules)


def test_a_package_in_editable_mode_is_found_by_its_import_finder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "flat"
    shutil.copytree(folder / "net_package", elsewhere)

    class Editable:
        def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            return spec_from_file_location(name, elsewhere / "__init__.py") if name == "flat_package" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable()])
    assert source_hash("flat_package.inner.net:Net") == source_hash("net_package.inner.net:Net")
    assert "flat_package" not in sys.modules


def test_a_missing_module_and_a_file_with_a_syntax_error_are_refused(folder: Path) -> None:
    (folder / "lone_net.py").write_text("class Net(:\n")
    with refused("bad-syntax", folder / "lone_net.py"):
        source_hash("lone_net:Net")
    with refused("unknown-name", "no_such_net:Net", "--trust no_such_net"):
        source_hash("no_such_net:Net")
