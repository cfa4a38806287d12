"""Completion of names in shells, and the completion scripts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from iclbench.cli import completion
from iclbench.cli.main import main


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name in ("my_run", "my-other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        shifts = {"my_run": ["noisy-1", "orthants"], "my-other": ["scale-2", "noisy-9"]}[name]
        (tmp_path / "runs" / name / "config.toml").write_text(f"[task]\nshifts = {shifts}\n")
    (tmp_path / "runs" / "my-folder").mkdir()
    return tmp_path


def complete(
    line: str, shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    monkeypatch.setenv(completion.VARIABLE, f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit) as exit_error:
        main([])
    return int(exit_error.value.code or 0), capsys.readouterr().out


@pytest.mark.parametrize("shell", completion.SHELLS)
@pytest.mark.parametrize(
    ("line", "included", "excluded"),
    [
        ("iclbench tr", "train", "eval"),
        ("iclbench train skewed", "skewed-linear", "sparse-linear"),
        ("iclbench train linear ma", "mamba", "gpt2"),
        ("iclbench train linear gpt2 --preset sm", "small", "paper"),
        ("iclbench eval --results RESULTS my_", "my_run", "my-other"),
        ("iclbench stream --results RESULTS my", "my-other", "my-folder"),
        ("iclbench eval --baseline ridge-", "ridge-1e-1", "knn-3"),
        ("iclbench eval --shift isotropic+noi", "isotropic+noisy-1", "isotropic+orthants"),
        ("iclbench eval my_run --results RESULTS --shift n", "noisy-1", "noisy-9"),
        ("iclbench eval --results RESULTS --shift s", "scale-2", "orthants"),
        ("iclbench eval --results RESULTS --shift a", "all", "noisy-1"),
        ("iclbench report --task skewed", "skewed-linear", "sparse-linear"),
        ("iclbench report --task linear,gp-mix", "linear,gp-mixture", "bursty"),
        ("iclbench sweep refe", "reference", "pools"),
        ("iclbench lm eval --tasks to-upper,list-f", "to-upper,list-first", "list-last"),
        ("iclbench show kn", "knn-3", "gpt2"),
    ],
)
def test_names_are_completed(
    line: str,
    included: str,
    excluded: str,
    shell: str,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out = complete(line.replace("RESULTS", str(results)), shell, monkeypatch, capsys)
    assert code == 0
    assert included in out and excluded not in out


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_of_a_shell_calls_iclbench(
    shell: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--show-completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{completion.VARIABLE}=complete_{shell}" in script
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    assert main(["--show-completion"]) == 0
    assert capsys.readouterr().out == script, "by default, the script for the user's shell is printed"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion"]) == 0
    contents = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(script.strip() in content for content in contents)
    assert shell in capsys.readouterr().out


def test_an_unknown_shell_gives_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SHELL", raising=False)
    for arguments in (["--show-completion", "tcsh"], ["--install-completion"]):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and all(name in err for name in completion.SHELLS)


def test_the_bash_script_completes_names_without_large_imports(tmp_path: Path) -> None:
    """Imports take most of the time of a completion."""
    heavy = ("torch", "pandas", "numpy", "sklearn", "transformers")
    (tmp_path / "iclbench").write_text(
        f"#!{sys.executable}\nimport atexit, json, sys\n"
        f"atexit.register(lambda: open({str(tmp_path / 'heavy')!r}, 'w').write("
        f"json.dumps([m for m in {heavy!r} if m in sys.modules])))\n"
        "from iclbench.cli.main import run\nrun()\n"
    )
    (tmp_path / "iclbench").chmod(0o755)
    command = (
        f'PATH="{tmp_path}:$PATH"; eval "$(iclbench --show-completion bash)"; COMP_WORDS=(iclbench train linear pt); '
        'COMP_CWORD=3; _iclbench_completion iclbench; echo "${COMPREPLY[@]}"'
    )
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["pt-tnp"], process.stderr
    assert json.loads((tmp_path / "heavy").read_text()) == []
