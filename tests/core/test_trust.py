"""Code that a card or a run names is not run before somebody trusts it; what the user types is trusted."""

import os
import re
import sys
from pathlib import Path

import pytest
import tomli_w

from iclbench import analysis, report
from iclbench.cli.main import main
from iclbench.core import trust
from iclbench.core.errors import UsageError
from iclbench.core.trust import UntrustedError
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES
from iclbench.sweep.grids import grid_runs
from iclbench.sweep.local import LocalPool
from tests.conftest import small_card

CODE = """
from pathlib import Path
from iclbench.backbones.gpt2 import GPT2
from iclbench.families.linear import Linear
(Path(__file__).parent / "was_run").touch()
class Mine(Linear): pass
class Net(GPT2): pass
"""


@pytest.fixture(autouse=True)
def nobody_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.VARIABLE, "")
    monkeypatch.setattr(trust, "ask", None)
    monkeypatch.setattr(trust, "_refused", set())


class Elsewhere:
    """A module from elsewhere in a folder that Python searches, and a card that names its family."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "from_elsewhere.py").write_text(CODE)
        monkeypatch.syspath_prepend(folder)
        self.card = folder / "mine.toml"
        self.card.write_text(tomli_w.dumps(small_card(family="from_elsewhere:Mine", baselines=["zero"], oracles=[])))

    def forget(self) -> None:
        """As in a process that has not yet seen the module."""
        sys.modules.pop("from_elsewhere", None)
        (self.folder / "was_run").unlink(missing_ok=True)
        os.environ[trust.VARIABLE] = ""

    @property
    def was_run(self) -> bool:
        return (self.folder / "was_run").exists()

    def main(self, *arguments: object) -> int:
        return main([*map(str, arguments), *(["--results", str(self.folder / "r")] if arguments[0] != "check" else [])])


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Elsewhere(tmp_path, monkeypatch)
    yield made
    made.forget()


@pytest.fixture
def trained(elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]) -> Elsewhere:
    """Two finished runs, one of which names the module."""
    card = elsewhere.folder / "ours.toml"
    card.write_text(tomli_w.dumps(small_card(baselines=["zero"], oracles=[])))
    options = ("--preset", "smoke", "-o", "train.steps=2")
    assert elsewhere.main("train", elsewhere.card, "gpt2", *options, "--trust", "from_elsewhere") == 0
    assert elsewhere.main("train", card, "gpt2", *options) == 0
    elsewhere.forget()
    capsys.readouterr()
    return elsewhere


def test_a_cards_family_is_not_run_before_its_module_is_trusted(
    elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("train", elsewhere.card, "gpt2", "--preset", "smoke", "-o", "train.steps=2")
    assert elsewhere.main(*command) == 1
    assert "--trust from_elsewhere" in capsys.readouterr().err and not elsewhere.was_run
    assert elsewhere.main(*command, "--trust", "other_module") == 1 and not elsewhere.was_run
    assert elsewhere.main(*command, "--trust", "from_elsewhere") == 0 and elsewhere.was_run


def test_a_card_is_checked_where_the_option_says_so(elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
    assert elsewhere.main("check", elsewhere.card) == 1
    assert "--trust from_elsewhere" in capsys.readouterr().err and not elsewhere.was_run
    elsewhere.main("check", elsewhere.card, "--trust", "from_elsewhere")
    assert elsewhere.was_run


def test_what_is_typed_is_the_users_word(elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("train", "linear", "from_elsewhere:Net", "--preset", "smoke", "--name", "../no")
    assert elsewhere.main(*command) == 2
    assert "cannot be a run name" in capsys.readouterr().err and elsewhere.was_run
    elsewhere.forget()
    elsewhere.main("check", "from_elsewhere:Mine")
    assert elsewhere.was_run


def test_a_trusted_backbone_does_not_vouch_for_the_cards_family(elsewhere: Elsewhere) -> None:
    (elsewhere.folder / "of_mine.py").write_text("from iclbench.backbones.gpt2 import GPT2\nclass Net(GPT2): pass\n")
    assert elsewhere.main("train", elsewhere.card, "of_mine:Net", "--preset", "smoke") == 1
    assert not elsewhere.was_run


def test_runs_that_name_code_are_skipped_by_name_and_the_others_evaluated(
    trained: Elsewhere, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained.main("eval") == 1
    out, err = capsys.readouterr()
    assert "skipped run 'mine-gpt2-smoke-s0'" in err and "--trust from_elsewhere" in err
    assert "tries them again" not in err  # it would be refused again
    assert "ours-gpt2-smoke-s0" in out + err and not trained.was_run
    for command in ("eval", "cost", "probe", "stream"):
        assert trained.main(command, "mine-gpt2-smoke-s0") == 1
        assert "--trust from_elsewhere" in capsys.readouterr().err and not trained.was_run
    assert trained.main("eval", "mine-gpt2-smoke-s0", "--trust", "from_elsewhere") == 0
    assert trained.was_run


def test_a_module_in_the_current_folder_is_asked_for_like_any_other(
    trained: Elsewhere, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python finds what lies there, an installed command only once it is trusted: nobody is told that it is not."""
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(trained.folder))])
    monkeypatch.chdir(trained.folder)
    options = ("--preset", "smoke", "-o", "train.steps=2", "--name", "net")
    assert trained.main("train", "linear", "from_elsewhere:Net", *options) == 0
    trained.forget()
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(trained.folder)])
    capsys.readouterr()
    for command in ("eval", "stream"):
        assert trained.main(command, "net") == 1 and not trained.was_run
        err = capsys.readouterr().err
        assert "--trust from_elsewhere" in err and "no module" not in err
    assert trained.main("eval", "net", "--trust", "from_elsewhere", "--baseline", "zero") == 0 and trained.was_run


def test_list_and_show_run_nothing_that_a_card_or_a_run_names(
    trained: Elsewhere, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = trained.folder / "grid.toml"
    part = {"tasks": [str(trained.card)], "backbones": ["from_elsewhere:Net"], "presets": ["smoke"], "seeds": [0]}
    grid.write_text(tomli_w.dumps({"summary": "a grid from elsewhere", **part}))
    for shown in (trained.card, grid, "mine-gpt2-smoke-s0"):
        assert trained.main("show", shown) == 0
        assert "from_elsewhere" in capsys.readouterr().out
    assert trained.main("list", "runs") == 0
    assert not trained.was_run and "from_elsewhere" not in sys.modules
    with pytest.raises(UntrustedError):
        grid_runs(str(grid))


def test_the_report_loads_no_class_and_reads_no_run() -> None:
    """It is made of tables alone, but for the words of tests that installed packages register."""
    folders = [Path(package.__file__).parent for package in (report, analysis)]
    files = {file: file.read_text() for folder in folders for file in folder.rglob("*.py")}
    imported = {line for text in files.values() for line in re.findall(r"(?:from|import) (iclbench[\w.]*)", text)}
    assert "iclbench.core.formats" in imported
    assert not imported & {"iclbench.config.resolution", "iclbench.store.runs"}
    lines = [line for text in files.values() for line in re.findall(r"iclbench\.registry import (.*)", text)]
    assert {name for line in lines for name in line.split(", ")} == {"BACKBONES", "Backbones", "TESTS"}
    assert not [
        file for file, text in files.items() if re.search(r"(TESTS|BACKBONES)\.(get|subclass|available)\(", text)
    ]


def test_on_a_terminal_the_user_is_asked_once(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no(target: str) -> bool:
        asked.append(target)
        return False

    monkeypatch.setattr(trust, "ask", no)
    for _ in range(2):
        with pytest.raises(UntrustedError):
            FAMILIES.get("from_elsewhere:Mine")
    assert asked == ["from_elsewhere:Mine"] and not elsewhere.was_run
    monkeypatch.setattr(trust, "_refused", set())
    monkeypatch.setattr(trust, "ask", lambda target: True)
    assert FAMILIES.get("from_elsewhere:Mine").__name__ == "Mine"
    assert os.environ[trust.VARIABLE] == "from_elsewhere"


@pytest.mark.slow
def test_workers_inherit_what_is_trusted(elsewhere: Elsewhere) -> None:
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
    with pytest.raises(UsageError, match="write the name of a module"):
        trust.trust("../evil")


def test_every_kind_of_class_goes_through_the_same_door(elsewhere: Elsewhere) -> None:
    for registry in (FAMILIES, BACKBONES, ESTIMATORS):
        with pytest.raises(UntrustedError):
            registry.get("from_elsewhere:Mine")
    assert not elsewhere.was_run


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ("from_elsewhere:net", "did you mean 'from_elsewhere:Net'?"),
        ("from_elsewhere.Net", "write from_elsewhere:Net"),
        ("from_elsewhere.py:Net", "write the module: from_elsewhere:Net"),
        ("./below/net.py:Net", "write the module: below.net:Net"),
    ],
)
def test_a_class_in_another_spelling_is_told_as_it_is_written(
    wrong: str, advice: str, elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (("train", "linear", wrong, "--preset", "smoke"), ("check", wrong)):
        assert elsewhere.main(*command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and line.endswith(advice)
