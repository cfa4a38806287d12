"""`iclbench report`: what is written by default, what is left out, and what is said when pictures cannot be drawn."""

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
from iclbench.report.data import load
from iclbench.report.drawing import Drawer
from iclbench.report.style import vega_lite
from tests.report.test_page import _rows, _write
from tests.sweep.test_kill import alive

# What V8 says of a limit on addresses, as a child that dies of it would.
_DIES = "import sys, os; print('# Fatal process out of memory: Oilpan', file=sys.stderr, flush=True); os.abort()"


@pytest.mark.slow
def test_by_default_there_is_a_page_with_tables_and_no_picture(results: Path, tmp_path: Path) -> None:
    few = ["--task", "linear", "--only", "learning-curves,leaderboard"]
    assert main(["report", "--results", str(results), "--out", str(tmp_path), *few]) == 0
    assert (tmp_path / "index.html").is_file()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".csv"}
    assert (tmp_path / "tables" / "linear-small-leaderboard-next.csv").is_file()


@pytest.mark.slow
def test_a_task_and_a_section_alone(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", "--results", str(results), "--out", str(tmp_path), "--task", "linear", "--only"]
    assert main([*arguments, "learning-curves,missing"]) == 0
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<section id="([^"]+)"', html) == ["linear-small", "linear-small-curves", "missing"]
    assert main([*arguments, "learning_curves"]) == 0, "either spelling"
    assert main([*arguments, "learning-curve"]) == 2
    err = capsys.readouterr().err
    assert "'learning-curve'" in err and "learning-curves" in err
    assert main(["report", "--results", str(results), "--task", "linaer"]) == 2
    assert "unknown task 'linaer'; did you mean 'linear'" in capsys.readouterr().err


def test_a_section_that_fails_is_told_in_its_place_and_the_others_stand(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def section(results: object) -> None:
        raise KeyError("cnp")

    section.__module__ = "iclbench.report.sections.broken"
    monkeypatch.setattr(sections, "CLOSING", [section, *sections.CLOSING])
    arguments = ["report", "--results", str(results), "--out", str(tmp_path), "--task", "linear"]
    assert main([*arguments, "--only", "learning-curves,missing,broken"]) == 1
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    found = re.findall(r'<section id="([^"]+)"', html)
    assert found == ["linear-small", "linear-small-curves", "broken", "missing"]
    assert "This section could not be made: KeyError" in html
    err = capsys.readouterr().err
    assert "'broken'" in err and "KeyError" in err


# Sections know nothing of processes: a few of them in every run, all by `make test-slow`.
@pytest.mark.parametrize(
    "only", [["learning-curves", "leaderboard", "missing"], pytest.param([], marks=pytest.mark.slow)], ids=str
)
def test_the_same_tables_give_the_same_bytes_also_from_processes_side_by_side(
    only: list[str], results: Path, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    page = build(results, tmp_path / "alone", tasks=["linear"] if only else [], only=only).page
    found = build(
        results,
        tmp_path / "both",
        tasks=["linear"] if only else [],
        only=only,
        processes=2,
        progress=lambda done, total, _: told.append((done, total)),
    )
    assert found.page.read_bytes() == page.read_bytes()
    for path in sorted((page.parent / "tables").iterdir()):
        assert (tmp_path / "both" / "tables" / path.name).read_bytes() == path.read_bytes()
    assert [done for done, _ in told] == list(range(1, told[0][1] + 1)) and told[0][1] > 1


def test_what_a_killed_process_leaves_is_done_all_the_same() -> None:
    here = os.getpid()

    def killed() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return 3

    assert sorted(workers.each([killed, killed], 2)) == [(0, 3), (1, 3)]


def test_an_error_in_a_process_is_raised_here() -> None:
    def fails() -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        list(workers.each([fails, lambda: 1], 2))


def test_where_no_process_can_be_started_everything_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", refused)
    assert sorted(workers.each([lambda: 1, os.getpid], 2)) == [(0, 1), (1, os.getpid())]


def test_more_jobs_than_are_dealt_out_are_all_done() -> None:
    assert sorted(workers.each([lambda n=n: n * n for n in range(1500)], 2)) == [(n, n * n) for n in range(1500)]


def test_a_report_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def slow() -> None:
        with pids.open("a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(0.3)

    parent = os.fork()
    if parent == 0:
        list(workers.each([slow] * 1000, 2))
        os._exit(0)
    deadline = time.monotonic() + 30
    while len(set(pids.read_text().split() if pids.exists() else ())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    left = {int(pid) for pid in pids.read_text().split()}
    while any(alive(pid) for pid in left):
        assert time.monotonic() < deadline, "still at work without a parent"
        time.sleep(0.02)


def test_without_memory_to_draw_the_page_is_written_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drawing, "CHILD", _DIES)
    monkeypatch.setattr(drawing.Script, "_known", {})
    folder, out = _write(tmp_path / "results", _rows()), tmp_path / "out"
    code = main(["report", "--results", str(folder), "--out", str(out), "--formats", "png", "--workers", "1"])
    said = capsys.readouterr().err
    assert code == 1
    assert len(said.splitlines()) < 8
    assert "1 of 1" in said and "V8, which draws, got no memory" in said
    html = (out / "index.html").read_text(encoding="utf-8")
    assert "cannot be drawn: V8, which draws, got no memory" in html
    assert "PNG missing: V8" in html
    assert '.png"' not in html, "no link to a picture that is not there"
    assert list((out / "figures").glob("*.csv"))


def test_a_specification_that_cannot_be_drawn_costs_its_own_picture(tmp_path: Path) -> None:
    good = {"mark": "point", "data": {"values": [{"a": 1}]}, "encoding": {"x": {"field": "a"}}}
    drawer = Drawer(vega_lite())
    try:
        assert str(drawer.draw({"mark": {}}, tmp_path / "bad", ["svg"])).startswith("it cannot be drawn: ")
        assert drawer.draw(good, tmp_path / "good", ["svg"]) is None
    finally:
        drawer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["good.svg"]


def test_the_header_counts_backbones_and_not_their_variants(tmp_path: Path) -> None:
    of_run = {"kind": "backbone", "contestant": "gpt2", "model": "gpt2", "seed": 0, "variant": "a"}
    gpt2 = _rows().iloc[:3].assign(**of_run, run="linear-gpt2-smoke-s0")
    wide = gpt2.assign(variant="b", run="linear-gpt2-wide-smoke-s0")
    values = pd.concat([_rows(), gpt2, wide], ignore_index=True)
    tables.write("values", tables.frame("values", values), tmp_path / "a.values.parquet", {})
    found = load(tmp_path)
    assert found.rows.loc[found.rows["kind"] == "backbone", "contestant"].nunique() == 2
    assert "1 backbone," in subtitle(found)
