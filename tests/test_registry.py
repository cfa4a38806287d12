"""Registries of built-in and plug-in classes."""

import logging
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from iclbench import registry
from iclbench.config.resolution import backbone_class
from iclbench.core.errors import UnknownNameError
from iclbench.core.formats import canonical
from iclbench.registry import BACKBONES, FAMILIES, Entry, Registry, noun_of_points
from tests.refusals import refused


@pytest.fixture
def plugins(monkeypatch):
    """Return a function that declares entry points `name = target` and returns a registry with them."""

    def declare(**targets):
        points = [EntryPoint(name, target, "iclbench.families") for name, target in targets.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
        return Registry("family", {"linear": Entry("iclbench.families.linear:Linear")})

    return declare


def test_all_builtin_families_can_be_imported():
    assert sorted(FAMILIES.available()) == FAMILIES.names()


def test_all_streams_and_the_backbones_that_read_them_are_registered_as_without_inputs():
    families = {name: FAMILIES.get(name) for name in FAMILIES.builtin_entries}
    streams = {name for name, family in families.items() if family.is_stream}
    assert streams == {name for name, entry in FAMILIES.builtin_entries.items() if entry.without_inputs}
    readers = {name for name in BACKBONES.builtin_entries if "tokens" in backbone_class(name).input_kinds}
    assert readers == {name for name, entry in BACKBONES.builtin_entries.items() if entry.without_inputs}


def test_spellings_of_a_name_are_normalised():
    assert canonical(" Sparse_Linear ") == "sparse-linear"
    assert FAMILIES.get("Sparse_Linear") is FAMILIES.get("sparse-linear")


def test_the_error_for_an_unknown_name_lists_similar_names():
    with refused("unknown-name", "family", "'linaer'", "'linear'"):
        FAMILIES.get("linaer")


def test_the_error_for_an_unknown_name_lists_at_most_32_names():
    message = str(UnknownNameError("run", "?", [f"run-{i:03}" for i in range(100)]))
    assert "run-000, run-001, " in message and "run-031" in message and "run-032" not in message and "68" in message
    assert "a, b" in str(UnknownNameError("run", "?", ["b", "a"]))


def test_a_class_can_be_given_by_its_import_path():
    assert FAMILIES.get("iclbench.families.linear:PooledLinear") is FAMILIES.get("linear")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("no_such_package:Thing", "missing-package"),
        ("iclbench.families.linear:Nothing", "unknown-name"),
        ("iclbench.families.linear:", "unknown-name"),
    ],
)
def test_targets_that_cannot_be_imported_raise_errors(target, code):
    with refused(code, f"'{target}'"):
        FAMILIES.get(target)


def test_a_plugin_is_registered_under_its_canonical_name(plugins):
    families = plugins(my_Line="iclbench.families.linear:NoisyLinear")
    assert families.names() == ["linear", "my-line"]
    assert families.get("my-line").__name__ == "NoisyLinear"


def test_checking_availability_does_not_import_the_package(tmp_path, monkeypatch):
    package = tmp_path / "failing_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "inner" / "net.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    def availability(module):
        return Entry(f"{module}:Net").availability()

    for module in ("failing_package", "failing_package.inner", "failing_package.inner.net"):
        assert availability(module) == "yes"
    for module in ("failing_package.net", "no_such_package", "no_such_package.net"):
        assert availability(module) == f"no module '{module}'"

    class FailingFinder:
        def find_spec(self, name, path=None, target=None):
            raise RuntimeError("no index")

    monkeypatch.setattr(sys, "meta_path", [FailingFinder(), *sys.meta_path])
    assert availability("no_such_package.net") == "RuntimeError: no index"


def test_two_packages_that_register_the_same_name_are_refused(plugins):
    families = plugins(linear="other.package:Linear")
    with refused("duplicate", "'linear'", "iclbench.families.linear:Linear", "other.package:Linear"):
        families.names()


def test_a_plugin_that_cannot_be_imported_gives_a_warning(plugins, caplog):
    families = plugins(broken="no_such_package:Thing")
    with caplog.at_level(logging.WARNING, "iclbench"):
        assert list(families.available()) == ["linear"]
    assert "broken" in caplog.text
    assert "no_such_package" in caplog.text


def test_reading_cards_does_not_import_torch():
    """`iclbench list` reads cards and must be fast."""
    heavy = "{'torch', 'pandas', 'sklearn'} & set(sys.modules)"
    code = f"import sys, iclbench.config.cards as cards; cards.load_task('linear'); print({heavy})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "set()"


def test_a_plugin_that_registers_a_builtin_class_does_not_change_its_entry(plugins):
    """Hashes use the code version of the built-in entry."""
    families = plugins(linear="iclbench.families.linear:Linear", other="iclbench.families.linear:SparseLinear")
    assert families.entry("linear").package == "iclbench" and list(families.builtin_entries) == ["linear"]


def test_all_streams_have_elements_as_points() -> None:
    streams = [name for name, entry in FAMILIES.builtin_entries.items() if entry.without_inputs]
    assert "state-tracking" in streams
    assert {noun_of_points(name) for name in streams} == {"elements"}
