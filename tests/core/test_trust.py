"""Code that a card or a run names is executed only if the user trusts it. Classes typed on the command
line are trusted."""

import os
import re
import sys
from pathlib import Path

import pytest
import tomli_w

from iclbench import analysis, report
from iclbench.cli.main import main
from iclbench.core import trust
from iclbench.core.trust import UntrustedError
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES
from iclbench.sweep.grids import grid_runs
from iclbench.sweep.local import LocalPool
from tests.conftest import small_card
from tests.refusals import refused

CODE = """
from pathlib import Path
from iclbench.backbones.gpt2 import GPT2
from iclbench.families.linear import Linear
(Path(__file__).parent / "was_run").touch()
class Mine(Linear): pass
class Net(GPT2): pass
"""


@pytest.fixture(autouse=True)
def no_trusted_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.VARIABLE, "")
    monkeypatch.setattr(trust, "ask_user", None)
    monkeypatch.setattr(trust, "_refused_packages", set())


class UntrustedModule:
    """An untrusted module in a folder on Python's search path, and a card that names a family of this module."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "from_elsewhere.py").write_text(CODE)
        monkeypatch.syspath_prepend(folder)
        self.card = folder / "mine.toml"
        self.card.write_text(tomli_w.dumps(small_card(family="from_elsewhere:Mine", baselines=["zero"], oracles=[])))

    def forget(self) -> None:
        """Restore the state before the module was imported."""
        sys.modules.pop("from_elsewhere", None)
        (self.folder / "was_run").unlink(missing_ok=True)
        os.environ[trust.VARIABLE] = ""

    @property
    def was_run(self) -> bool:
        return (self.folder / "was_run").exists()

    def main(self, *arguments: object) -> int:
        return main([*map(str, arguments), *(["--results", str(self.folder / "r")] if arguments[0] != "check" else [])])


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    untrusted_module = UntrustedModule(tmp_path, monkeypatch)
    yield untrusted_module
    untrusted_module.forget()


@pytest.fixture
def module_with_runs(module: UntrustedModule, capsys: pytest.CaptureFixture[str]) -> UntrustedModule:
    """Add two trained runs, one of which names the module."""
    card = module.folder / "ours.toml"
    card.write_text(tomli_w.dumps(small_card(baselines=["zero"], oracles=[])))
    options = ("--preset", "smoke", "-o", "train.steps=2")
    assert module.main("train", module.card, "gpt2", *options, "--trust", "from_elsewhere") == 0
    assert module.main("train", card, "gpt2", *options) == 0
    module.forget()
    capsys.readouterr()
    return module


def test_the_family_of_a_card_is_not_executed_before_its_module_is_trusted(
    module: UntrustedModule, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("train", module.card, "gpt2", "--preset", "smoke", "-o", "train.steps=2")
    assert module.main(*command) == 1
    assert "--trust from_elsewhere" in capsys.readouterr().err and not module.was_run
    assert module.main(*command, "--trust", "other_module") == 1 and not module.was_run
    assert module.main(*command, "--trust", "from_elsewhere") == 0 and module.was_run


def test_checking_a_card_needs_trust(module: UntrustedModule, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main("check", module.card) == 1
    assert "--trust from_elsewhere" in capsys.readouterr().err and not module.was_run
    module.main("check", module.card, "--trust", "from_elsewhere")
    assert module.was_run


def test_a_class_typed_on_the_command_line_is_trusted(
    module: UntrustedModule, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("train", "linear", "from_elsewhere:Net", "--preset", "smoke", "--name", "../no")
    assert module.main(*command) == 2
    assert "../no" in capsys.readouterr().err and module.was_run
    module.forget()
    module.main("check", "from_elsewhere:Mine")
    assert module.was_run


def test_trusting_a_backbone_does_not_trust_the_family_of_the_card(module: UntrustedModule) -> None:
    (module.folder / "of_mine.py").write_text("from iclbench.backbones.gpt2 import GPT2\nclass Net(GPT2): pass\n")
    assert module.main("train", module.card, "of_mine:Net", "--preset", "smoke") == 1
    assert not module.was_run


@pytest.mark.slow
def test_runs_with_untrusted_code_are_skipped_and_other_runs_are_evaluated(
    module_with_runs: UntrustedModule, capsys: pytest.CaptureFixture[str]
) -> None:
    assert module_with_runs.main("eval") == 1
    out, err = capsys.readouterr()
    assert "mine-gpt2-smoke-s0" in err and "--trust from_elsewhere" in err
    assert "ours-gpt2-smoke-s0" in out + err and not module_with_runs.was_run
    for command in ("eval", "cost", "probe", "stream"):
        assert module_with_runs.main(command, "mine-gpt2-smoke-s0") == 1
        assert "--trust from_elsewhere" in capsys.readouterr().err and not module_with_runs.was_run
    assert module_with_runs.main("eval", "mine-gpt2-smoke-s0", "--trust", "from_elsewhere") == 0
    assert module_with_runs.was_run


def test_a_module_in_the_current_folder_needs_trust(
    module_with_runs: UntrustedModule, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed command searches the current folder only for trusted modules. The error must not say that an
    untrusted module is missing."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(module_with_runs.folder))])
    monkeypatch.chdir(module_with_runs.folder)
    options = ("--preset", "smoke", "-o", "train.steps=2", "--name", "net")
    assert module_with_runs.main("train", "linear", "from_elsewhere:Net", *options) == 0
    module_with_runs.forget()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(module_with_runs.folder)])
    capsys.readouterr()
    for command in ("eval", "stream"):
        assert module_with_runs.main(command, "net") == 1 and not module_with_runs.was_run
        err = capsys.readouterr().err
        assert "--trust from_elsewhere" in err
    assert (
        module_with_runs.main("eval", "net", "--trust", "from_elsewhere", "--baseline", "zero") == 0
        and module_with_runs.was_run
    )


def test_list_and_show_do_not_execute_code_that_a_card_or_a_run_names(
    module_with_runs: UntrustedModule, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = module_with_runs.folder / "grid.toml"
    keys = {
        "tasks": [str(module_with_runs.card)],
        "backbones": ["from_elsewhere:Net"],
        "presets": ["smoke"],
        "seeds": [0],
    }
    grid.write_text(tomli_w.dumps({"summary": "a grid from elsewhere", **keys}))
    for name in (module_with_runs.card, grid, "mine-gpt2-smoke-s0"):
        assert module_with_runs.main("show", name) == 0
        assert "from_elsewhere" in capsys.readouterr().out
    assert module_with_runs.main("list", "runs") == 0
    assert not module_with_runs.was_run and "from_elsewhere" not in sys.modules
    with refused("untrusted", "from_elsewhere", exit_code=1):
        grid_runs(str(grid))


def test_the_report_loads_no_classes_and_reads_no_runs() -> None:
    """The report reads only tables, and descriptions of tests that installed packages register."""
    folders = [Path(package.__file__).parent for package in (report, analysis)]
    files = {file: file.read_text() for folder in folders for file in folder.rglob("*.py")}
    imported = {line for text in files.values() for line in re.findall(r"(?:from|import) (iclbench[\w.]*)", text)}
    assert "iclbench.core.formats" in imported
    assert not imported & {"iclbench.config.resolution", "iclbench.store.runs"}
    lines = [line for text in files.values() for line in re.findall(r"iclbench\.registry import (.*)", text)]
    assert {name for line in lines for name in line.split(", ")} == {
        "BACKBONES",
        "Backbones",
        "TESTS",
        "needs_missing_inputs",
        "noun_of_points",
    }
    assert not [
        file
        for file, text in files.items()
        if re.search(r"(TESTS|BACKBONES|FAMILIES)\.(get|subclass|available)\(", text)
    ]


def test_on_a_terminal_the_user_is_asked_only_once(module: UntrustedModule, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []

    def answer_no(target: str) -> bool:
        questions.append(target)
        return False

    monkeypatch.setattr(trust, "ask_user", answer_no)
    for _ in range(2):
        with pytest.raises(UntrustedError):
            FAMILIES.get("from_elsewhere:Mine")
    assert questions == ["from_elsewhere:Mine"] and not module.was_run
    monkeypatch.setattr(trust, "_refused_packages", set())
    monkeypatch.setattr(trust, "ask_user", lambda target: True)
    assert FAMILIES.get("from_elsewhere:Mine").__name__ == "Mine"
    assert os.environ[trust.VARIABLE] == "from_elsewhere"


@pytest.mark.slow
def test_workers_inherit_trusted_modules(module: UntrustedModule) -> None:
    trust.trust("from_elsewhere")
    pool = LocalPool([()], _no_setup)
    try:
        assert pool.submit(trust.is_trusted, "from_elsewhere:Mine").result(60)
        assert not pool.submit(trust.is_trusted, "turtle:Turtle").result(60)
    finally:
        pool.shutdown()


def _no_setup() -> None:
    pass


def test_several_modules_are_separated_by_commas_or_colons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.VARIABLE, "json,decimal:this")
    trust.trust("antigravity", "a.b")
    assert os.environ[trust.VARIABLE] == "json,decimal,this,antigravity,a.b"
    assert trust.is_trusted("this:Zen") and trust.is_trusted("antigravity.below:X") and not trust.is_trusted("turtle:X")
    with refused("bad-syntax", "../evil", "--trust"):
        trust.trust("../evil")


def test_every_registry_refuses_untrusted_modules(module: UntrustedModule) -> None:
    for registry in (FAMILIES, BACKBONES, ESTIMATORS):
        with refused("untrusted", "from_elsewhere:Mine", "--trust from_elsewhere", exit_code=1):
            registry.get("from_elsewhere:Mine")
    assert not module.was_run


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("from_elsewhere:net", "from_elsewhere:Net"),
        ("from_elsewhere.Net", "from_elsewhere:Net"),
        ("from_elsewhere.py:Net", "from_elsewhere:Net"),
        ("./below/net.py:Net", "below.net:Net"),
    ],
)
def test_the_error_for_a_misspelt_class_suggests_the_correct_spelling(
    spelling: str, name: str, module: UntrustedModule, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (("train", "linear", spelling, "--preset", "smoke"), ("check", spelling)):
        assert module.main(*command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert spelling in line and name in line
