"""The command `iclbench report`: files, selection of sections, processes, and pictures that cannot be drawn."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.cli.main import main
from iclbench.report import build, drawing, sections, subtitle, workers
from iclbench.report.data import load_results
from iclbench.report.drawing import Drawer
from iclbench.report.style import vega_lite
from tests.report.test_page import _rows, _write
from tests.sweep.test_kill import is_alive

# A program that crashes like V8 when it runs out of memory.
_OUT_OF_MEMORY = (
    "import sys, os; print('# Fatal process out of memory: Oilpan', file=sys.stderr, flush=True); os.abort()"
)


@pytest.mark.slow
def test_by_default_a_report_has_no_pictures(results: Path, tmp_path: Path) -> None:
    selection = ["--task", "linear", "--only", "learning-curves,leaderboard"]
    assert main(["report", "--results", str(results), "--out", str(tmp_path), *selection]) == 0
    assert (tmp_path / "index.html").is_file()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".csv"}
    assert (tmp_path / "tables" / "linear-small-leaderboard-next.csv").is_file()


@pytest.mark.slow
def test_tasks_and_sections_can_be_selected(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", "--results", str(results), "--out", str(tmp_path), "--task", "linear", "--only"]
    assert main([*arguments, "learning-curves,missing"]) == 0
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<section id="([^"]+)"', html) == ["linear-small", "linear-small-curves", "missing"]
    assert main([*arguments, "learning_curves"]) == 0, "names of sections may be written with underscores"
    assert main([*arguments, "learning-curve"]) == 2
    err = capsys.readouterr().err
    assert "'learning-curve'" in err and "learning-curves" in err
    assert main(["report", "--results", str(results), "--task", "linaer"]) == 2
    err = capsys.readouterr().err
    assert "'linaer'" in err and "'linear'" in err


@pytest.mark.slow
def test_a_failed_section_is_reported_and_the_others_are_written(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def section(results: object) -> None:
        raise KeyError("cnp")

    section.__module__ = "iclbench.report.sections.broken"
    monkeypatch.setattr(sections, "CLOSING_SECTIONS", [section, *sections.CLOSING_SECTIONS])
    arguments = ["report", "--results", str(results), "--out", str(tmp_path), "--task", "linear"]
    assert main([*arguments, "--only", "learning-curves,missing,broken"]) == 1
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    ids = re.findall(r'<section id="([^"]+)"', html)
    assert ids == ["linear-small", "linear-small-curves", "broken", "missing"]
    assert "KeyError" in html
    err = capsys.readouterr().err
    assert "'broken'" in err and "KeyError" in err


@pytest.mark.slow
@pytest.mark.parametrize("only", [["learning-curves", "leaderboard", "missing"], []], ids=str)
def test_several_processes_write_the_same_bytes(only: list[str], results: Path, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    page = build(results, tmp_path / "one", tasks=["linear"] if only else [], only=only).page
    report = build(
        results,
        tmp_path / "two",
        tasks=["linear"] if only else [],
        only=only,
        processes=2,
        progress=lambda done, total, _: progress.append((done, total)),
    )
    assert report.page.read_bytes() == page.read_bytes()
    for path in sorted((page.parent / "tables").iterdir()):
        assert (tmp_path / "two" / "tables" / path.name).read_bytes() == path.read_bytes()
    total = progress[0][1]
    assert total > 1 and [done for done, _ in progress] == list(range(1, total + 1))


def test_the_parent_runs_jobs_of_killed_processes() -> None:
    parent = os.getpid()

    def killed_job() -> int:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return 3

    assert sorted(workers.run_jobs([killed_job, killed_job], 2)) == [(0, 3), (1, 3)]


def test_an_error_in_a_process_is_raised_in_the_parent() -> None:
    def failing_job() -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError) as error:
        list(workers.run_jobs([failing_job, lambda: 1], 2))
    assert error.value.errno == 28


def test_the_parent_runs_all_jobs_if_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_fork() -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", failing_fork)
    assert sorted(workers.run_jobs([lambda: 1, os.getpid], 2)) == [(0, 1), (1, os.getpid())]


def test_all_jobs_are_run_even_if_they_do_not_fit_into_the_pipe() -> None:
    assert sorted(workers.run_jobs([lambda n=n: n * n for n in range(1500)], 2)) == [(n, n * n) for n in range(1500)]


def test_processes_end_if_the_parent_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def slow_job() -> None:
        with pids.open("a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(0.3)

    parent = os.fork()
    if parent == 0:
        list(workers.run_jobs([slow_job] * 1000, 2))
        os._exit(0)
    deadline = time.monotonic() + 30
    while len(set(pids.read_text().split() if pids.exists() else ())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    children = {int(pid) for pid in pids.read_text().split()}
    while any(is_alive(pid) for pid in children):
        assert time.monotonic() < deadline, "processes run without a parent"
        time.sleep(0.02)


def test_the_page_gives_the_reason_if_pictures_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drawing, "CHILD_CODE", _OUT_OF_MEMORY)
    monkeypatch.setattr(drawing.Script, "_scripts", {})
    folder, out = _write(tmp_path / "results", _rows()), tmp_path / "out"
    code = main(["report", "--results", str(folder), "--out", str(out), "--formats", "png", "--workers", "1"])
    err = capsys.readouterr().err
    assert code == 1
    assert len(err.splitlines()) < 8
    assert "1 of 1" in err and "ulimit -v" in err
    html = (out / "index.html").read_text(encoding="utf-8")
    assert html.count("ulimit -v") == 2, "the advice is given for the script and for the picture"
    assert '.png"' not in html, "the page does not link the missing picture"
    assert list((out / "figures").glob("*.csv"))


def test_a_picture_that_cannot_be_drawn_does_not_affect_others(tmp_path: Path) -> None:
    good = {"mark": "point", "data": {"values": [{"a": 1}]}, "encoding": {"x": {"field": "a"}}}
    drawer = Drawer(vega_lite())
    try:
        assert drawer.draw({"mark": {}}, tmp_path / "bad", ["svg"]) is not None
        assert drawer.draw(good, tmp_path / "good", ["svg"]) is None
    finally:
        drawer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["good.svg"]


def test_the_subtitle_of_the_page_does_not_count_variants(tmp_path: Path) -> None:
    columns = {"kind": "backbone", "contestant": "gpt2", "model": "gpt2", "seed": 0, "variant": "a"}
    gpt2 = _rows().iloc[:3].assign(**columns, run="linear-gpt2-smoke-s0")
    wide = gpt2.assign(variant="b", run="linear-gpt2-wide-smoke-s0")
    values = pd.concat([_rows(), gpt2, wide], ignore_index=True)
    tables.write("values", tables.frame("values", values), tmp_path / "a.values.parquet", {})
    results = load_results(tmp_path)
    assert results.rows.loc[results.rows["kind"] == "backbone", "contestant"].nunique() == 2
    assert "1 backbone," in subtitle(results)
