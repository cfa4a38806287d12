"""Standard streams and folders as they come: one line or an answer, never a bug."""

import io
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from iclbench.cli import list_rows, terminal
from iclbench.cli.main import main
from iclbench.cli.stream import _open_lines
from iclbench.core.errors import UsageError


def printed(encoding: str, errors: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, bytes]:
    """The exit code of a command and what it writes to a standard output of this encoding."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding, errors, write_through=True))
    return main([str(a) for a in arguments]), raw.getvalue()


@pytest.mark.parametrize(("task", "said"), [("linear", b"w*x"), ("combination", b"x2^2"), ("skewed-linear", b"1/i^2")])
def test_ascii_is_enough_for_every_letter(task: str, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = printed("ascii", "strict", monkeypatch, "show", task)
    assert code == 0 and said in out and b"?" not in out.replace(b"in-context?", b"").replace(b"learning?", b"")


def test_letters_without_a_spelling_become_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_rows, "_grids", lambda: [{"grid": "é ± 漢", "summary": "ﬁne"}])
    code, out = printed("ascii", "strict", monkeypatch, "list", "grids")
    assert code == 0 and b"e +- ?" in out and b"fine" in out


def test_a_folder_whose_name_is_no_text_is_worked_in(
    tmp_path: Path, card_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9"
    folder = Path(os.fsdecode(name))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes no such name")
    monkeypatch.chdir(folder)
    strict = ("utf-8", "strict", monkeypatch)
    assert printed(*strict, "train", card_path, "gpt2", "-p", "smoke", "-o", "train.steps=1", "--name", "r")[0] == 0
    assert (folder / "results" / "runs" / "r" / "model.safetensors").is_file()
    code, out = printed(*strict, "list", "runs", "--results", Path.cwd() / "none")
    assert code == 0 and rb"/caf\udce9" in out, "a byte that is not text is written out, as in every table"


def test_a_closed_standard_input_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="--csv"), _open_lines(None):
        pass


def test_an_exit_in_the_midst_of_a_command_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave() -> None:
        raise SystemExit(0)

    monkeypatch.setattr(list_rows, "_grids", leave)
    assert main(["list", "grids"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "called sys.exit(0)" in err


def test_a_reader_that_has_enough_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `iclbench list tasks | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(terminal, "out", Console(soft_wrap=True))  # one that nobody will need again
    with monkeypatch.context() as patched, open(writer, "w", closefd=False) as closed:
        patched.setattr(sys, "stdout", closed)
        assert main(["list", "tasks"]) == 1
    os.close(writer)
    assert capsys.readouterr().err == ""
