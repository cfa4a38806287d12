"""Standard streams that are closed or have a limited encoding, and folder names that are not text."""

import io
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from iclbench.cli import list_rows, terminal
from iclbench.cli.main import main
from iclbench.cli.stream import _open_lines
from tests.refusals import refused


def print_output(encoding: str, errors: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, bytes]:
    """Run a command with a standard output of this encoding. Return the exit code and the written bytes."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding, errors, write_through=True))
    return main([str(a) for a in arguments]), raw.getvalue()


@pytest.mark.parametrize(("task", "text"), [("linear", b"w*x"), ("combination", b"x2^2"), ("skewed-linear", b"1/i^2")])
def test_tasks_are_shown_in_ascii(task: str, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = print_output("ascii", "strict", monkeypatch, "show", task)
    assert code == 0 and text in out and b"?" not in out.replace(b"in-context?", b"").replace(b"learning?", b"")


def test_letters_without_an_ascii_spelling_become_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_rows, "_grids", lambda: [{"grid": "é ± 漢", "summary": "ﬁne"}])
    code, out = print_output("ascii", "strict", monkeypatch, "list", "grids")
    assert code == 0 and b"e +- ?" in out and b"fine" in out


def test_commands_work_in_a_folder_whose_name_is_not_text(
    tmp_path: Path, card_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9"
    folder = Path(os.fsdecode(name))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("the file system does not allow such names")
    monkeypatch.chdir(folder)
    strict = ("utf-8", "strict", monkeypatch)
    assert (
        print_output(*strict, "train", card_path, "gpt2", "-p", "smoke", "-o", "train.steps=1", "--name", "r")[0] == 0
    )
    assert (folder / "results" / "runs" / "r" / "model.safetensors").is_file()
    code, out = print_output(*strict, "list", "runs", "--results", Path.cwd() / "none")
    assert code == 0 and rb"/caf\udce9" in out, "a byte that is not text is escaped"


def test_a_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with refused("missing-value", "--csv"), _open_lines(None):
        pass


def test_an_exit_with_code_0_within_a_command_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exit_process() -> None:
        raise SystemExit(0)

    monkeypatch.setattr(list_rows, "_grids", exit_process)
    assert main(["list", "grids"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "sys.exit(0)" in err


def test_a_closed_pipe_is_not_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An example is `iclbench list tasks | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(terminal, "out", Console(soft_wrap=True))  # other tests do not share this console
    with monkeypatch.context() as patched, open(writer, "w", closefd=False) as closed:
        patched.setattr(sys, "stdout", closed)
        assert main(["list", "tasks"]) == 1
    os.close(writer)
    assert capsys.readouterr().err == ""
