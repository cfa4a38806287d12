"""Names to classes, built in and from other packages."""

import logging
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from iclbench import registry
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.registry import FAMILIES, Entry, Registry


@pytest.fixture
def plugins(monkeypatch):
    """Declare entry points `name = target` as if a package had them."""

    def declare(**targets):
        points = [EntryPoint(name, target, "iclbench.families") for name, target in targets.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
        return Registry("family", {"linear": Entry("iclbench.families.linear:Linear")})

    return declare


def test_every_builtin_family_loads():
    assert sorted(FAMILIES.available()) == FAMILIES.names()


def test_names_have_one_spelling():
    assert canonical(" Sparse_Linear ") == "sparse-linear"
    assert FAMILIES.get("Sparse_Linear") is FAMILIES.get("sparse-linear")


def test_unknown_names_list_near_matches():
    with pytest.raises(UnknownNameError, match="unknown family 'linaer'; did you mean 'linear'"):
        FAMILIES.get("linaer")


def test_known_names_beyond_a_line_are_counted():
    message = str(UnknownNameError("run", "?", [f"run-{i:03}" for i in range(100)]))
    assert "known: run-000, run-001, " in message and message.endswith("run-031 and 68 more")
    assert str(UnknownNameError("run", "?", ["b", "a"])).endswith("known: a, b")


def test_a_class_can_be_named_without_registration():
    assert FAMILIES.get("iclbench.families.linear:Linear") is FAMILIES.get("linear")


@pytest.mark.parametrize(
    "target", ["no_such_package:Thing", "iclbench.families.linear:Nothing", "iclbench.families.linear:"]
)
def test_what_cannot_be_loaded_says_why(target):
    with pytest.raises(UsageError, match=f"cannot load '{target}'"):
        FAMILIES.get(target)


def test_a_plugin_is_found_by_its_name(plugins):
    families = plugins(my_Line="iclbench.families.linear:NoisyLinear")
    assert families.names() == ["linear", "my-line"]
    assert families.get("my-line").__name__ == "NoisyLinear"


def test_whether_a_class_can_be_had_is_found_out_without_its_package(tmp_path, monkeypatch):
    package = tmp_path / "angry_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "inner" / "net.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    def said(module):
        return Entry(f"{module}:Net").availability()

    assert {said(name) for name in ("angry_package", "angry_package.inner", "angry_package.inner.net")} == {"yes"}
    for missing in ("angry_package.net", "no_such_package", "no_such_package.net"):
        assert said(missing) == f"no module '{missing}'"

    class Angry:
        def find_spec(self, name, path=None, target=None):
            raise RuntimeError("no index")

    monkeypatch.setattr(sys, "meta_path", [Angry(), *sys.meta_path])
    assert said("no_such_package.net") == "RuntimeError: no index"


def test_two_packages_with_one_name_are_an_error_that_shows_both(plugins):
    families = plugins(linear="other.package:Linear")
    with pytest.raises(UsageError, match=r"iclbench\.families\.linear:Linear .* and other\.package:Linear"):
        families.names()


def test_a_broken_plugin_warns_and_takes_nothing_down(plugins, caplog):
    families = plugins(broken="no_such_package:Thing")
    with caplog.at_level(logging.WARNING, "iclbench"):
        assert list(families.available()) == ["linear"]
    assert "broken" in caplog.text
    assert "no_such_package" in caplog.text


def test_reading_cards_imports_no_torch():
    """`iclbench list` goes through here."""
    heavy = "{'torch', 'pandas', 'sklearn'} & set(sys.modules)"
    code = f"import sys, iclbench.config.cards as cards; cards.load_task('linear'); print({heavy})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_a_package_that_registers_a_class_of_ours_under_its_name_changes_nothing(plugins):
    """Its hashes stay those of our number, however the package is called."""
    found = plugins(linear="iclbench.families.linear:Linear", other="iclbench.families.linear:SparseLinear")
    assert found.entry("linear").package == "iclbench" and list(found.shipped) == ["linear"]
