"""The commands `iclbench list runs`, `rm` and `prune`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iclbench import tables
from iclbench.cli.main import main
from iclbench.config.resolution import resolve_run
from iclbench.core.formats import nbytes
from iclbench.store.runs import Run, create
from iclbench.sweep.cleaning import leftovers

PROMPTS = "tiny-linear-smoke-none-0"


def values_row(run: str, **changes: object) -> dict[str, object]:
    return {
        "run": run,
        "task": "tiny-linear",
        "family": "linear",
        "contestant": "gpt2",
        "kind": "backbone",
        "preset": "smoke",
        "seed": 0,
        "shift": "none",
        "evaluator": "next",
        "metric": "score",
        "value": 0.5,
        "status": "ok",
        "prompt_set": PROMPTS,
        "card": "c",
        "version": "0",
    } | changes


def write_evaluation(results: Path, run: str, **changes: object) -> list[Path]:
    """Write the tables and sweep rows of an evaluation, and return their paths."""
    folder, cells = results / "tables" / PROMPTS, results / "cells" / "tiny-linear-smoke"
    paths = [folder / f"{run}.values.parquet", folder / f"{run}.errors.parquet"]
    tables.write("values", [values_row(run, **changes)], paths[0], {})
    error = {"run": run, "prompt_set": PROMPTS, "metric": "m", "episode": 0, "value": 1.0}
    tables.write("errors", [error], paths[1], {})
    for kind in ("evaluate", "cost"):
        row = {
            "cell": f"{run}{kind}",
            "kind": kind,
            "run": run,
            "task": "tiny-linear",
            "contestant": "gpt2",
            "preset": "smoke",
            "seed": 0,
            "status": "done",
            "version": "0",
        }
        paths.append(cells / f"{run}.{kind}-0123abcd.cells.parquet")
        tables.write("cells", [row], paths[-1], {})
    return paths


@pytest.fixture
def results(tmp_path: Path, card_path: Path) -> Path:
    """Evaluated runs `a` and `a.b`, a baseline, language models, and packed results that contain the runs."""
    results = tmp_path / "r"
    config = resolve_run(str(card_path), "gpt2", "smoke")
    for name in ("a", "a.b"):
        create(results, config, name).weights.write_bytes(bytes(1000))
        write_evaluation(results, name)
    write_evaluation(results, "zero", kind="baseline", seed=None)
    write_evaluation(results, "some-lm", preset="language")
    write_evaluation(results, "other-lm", seed=None)
    rows = [values_row("a", value=0.25), values_row("a.b", value=-1.0), values_row("zero", kind="baseline", seed=None)]
    scores = results / "tables" / PROMPTS / "summary" / "scores.values.parquet"
    tables.write("values", rows, scores, {})
    tables.write("values", rows, results / "reference" / "tiny-linear-smoke.values.parquet", {})
    return results


def run_command(*arguments: object, results: Path) -> int:
    return main([*map(str, arguments), "--results", str(results)])


def files(results: Path) -> set[Path]:
    return {path.relative_to(results) for path in results.rglob("*") if path.is_file() and path.name != ".lock"}


def test_rm_deletes_only_the_run_and_its_unpacked_results(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method_file = results / "tables" / PROMPTS / "a+deep-thinking-eta-0.02.values.parquet"
    tables.write("values", [values_row("a+deep-thinking-eta-0.02")], method_file, {})
    before = files(results)
    assert run_command("rm", "a", "--yes", results=results) == 0
    assert "'a'" in capsys.readouterr().err
    run_files = {path for path in before if path.name.startswith(("a.", "a+")) and not path.name.startswith("a.b.")}
    assert before - files(results) == run_files | {Path("runs/a/config.toml"), Path("runs/a/model.safetensors")}
    assert len(run_files) == 5 and not (results / "runs" / "a").exists()
    scores = tables.read("values", results / "tables" / PROMPTS / "summary" / "scores.values.parquet")
    assert list(scores["run"]) == ["a.b", "zero"] and list(scores["value"]) == [-1.0, 0.5]
    packed = tables.read("values", results / "reference" / "tiny-linear-smoke.values.parquet")
    assert list(packed["run"]) == ["a", "a.b", "zero"]


def test_rm_needs_confirmation_and_deletes_nothing_if_a_run_is_unknown_or_locked(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(results)
    assert run_command("rm", "a", results=results) == 2 and "--yes" in capsys.readouterr().err
    assert run_command("rm", "a", "nowhere", "--yes", results=results) == 2
    assert run_command("rm", "../a", "--yes", results=results) == 2
    with Run(results / "runs" / "a").lock():
        assert run_command("rm", "a", "--yes", results=results) == 1
    assert "'a'" in capsys.readouterr().err
    assert files(results) == before
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, code in ((False, 1), (True, 0)):
        monkeypatch.setattr("typer.confirm", lambda *_, answer=answer, **__: answer)
        assert run_command("rm", "a", results=results) == code
        assert (results / "runs" / "a").exists() is not answer


def test_prune_removes_stale_files_and_results_of_deleted_runs(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    folder = results / "tables" / PROMPTS
    unusable = results / "runs" / "a" / "checkpoints" / "step-000000003.unusable"
    unusable.parent.mkdir()
    unusable.write_bytes(bytes(4096))
    dead_file, live_file, new_file = (
        folder / f".x.values.parquet.{pid}.tmp" for pid in (process.pid, os.getpid(), f"0{process.pid}")
    )
    for path in (dead_file, live_file, new_file):
        path.write_bytes(bytes(100))
        os.utime(path, (time.time() - 1000,) * 2)
    new_file.touch()
    packed_file = results / "reference" / f".x.values.parquet.0123abcd.{process.pid}.tmp"
    other_file = results / "reference" / f".x.notes.{process.pid}.tmp"
    for path in (packed_file, other_file):
        path.write_bytes(b"")
        os.utime(path, (time.time() - 1000,) * 2)
    removed_run_files = write_evaluation(results, "removed")
    before = files(results)
    assert run_command("prune", "--dry-run", results=results) == 0
    assert files(results) == before and str(dead_file) in capsys.readouterr().out
    assert run_command("prune", results=results) == 0
    out = capsys.readouterr().out
    assert "2 temporary files: 100 B" in out and "1 unusable checkpoint: 4.00 KiB" in out
    # The row of the cost cell is not removed, because cost measurements do not need the run.
    removed = {path.relative_to(results) for path in (dead_file, packed_file, unusable, *removed_run_files[:3])}
    assert before - files(results) == removed
    assert run_command("prune", results=results) == 0 and before - files(results) == removed


def test_results_are_not_leftovers_if_the_runs_folder_is_missing(results: Path) -> None:
    (results / "runs").rename(results.parent / "runs")
    assert leftovers(results) == []


def test_runs_are_listed_with_task_size_date_and_score(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(results / "runs" / "a")
    os.utime(run.weights, (1_600_000_000,) * 2)
    (results / "runs" / "broken").mkdir()
    (results / "runs" / "broken" / "config.toml").write_text("")
    assert run_command("list", "runs", "--json", results=results) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    size = sum(path.stat().st_size for path in run.path.iterdir())
    columns = {key: rows["a"][key] for key in ("size", "date", "score", "backbone")}
    assert columns == {"size": size, "date": "2020-09-13", "score": 0.25, "backbone": "gpt2"}
    assert (rows["a.b"]["score"], rows["broken"]["score"]) == (-1.0, None)
    assert run_command("list", "runs", results=results) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("a "))
    task = rows["a"]["task"]
    assert line.split() == ["a", task, "finished", *nbytes(size).split(), "2020-09-13", "0.25"]


def test_listing_runs_does_not_import_torch_or_pandas(results: Path) -> None:
    code = "import sys; from iclbench.cli.main import main; main(sys.argv[1:]); "
    code += "print([m for m in ('torch', 'pandas', 'sklearn') if m in sys.modules], file=sys.stderr)"
    arguments = ["list", "runs", "--results", str(results)]
    process = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert process.stderr.strip() == "[]" and "a.b" in process.stdout
