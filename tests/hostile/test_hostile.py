"""A few hostile trials (hundreds with `make test-slow`), and tests that the checks of `verdicts` detect faults."""

import importlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import content, damage, verdicts
from tests.hostile.__main__ import CATEGORIES, TRIALS, choose_trials
from tests.hostile.process import Outcome
from tests.hostile.stage import Stage, write_inputs
from tests.hostile.trial import Trial


def make_outcome(code: int = 0, out: str = "", err: str = "", hung: bool = False) -> Outcome:
    return Outcome(("eval",), code, out, err, 1.0, hung)


@pytest.mark.parametrize(
    "outcome",
    [
        make_outcome(0, "x 1.0\n"),
        make_outcome(1, err="note: x\nerror: disk full\n"),
        make_outcome(2, err="error: unknown task\n"),
        make_outcome(130, err="interrupted\n"),
        make_outcome(1, "2 failed\n"),
    ],
)
def test_permitted_outcomes_give_no_complaints(outcome: Outcome) -> None:
    assert verdicts.check_outcome(outcome) == []


@pytest.mark.parametrize(
    ("outcome", "complaint"),
    [
        (make_outcome(-9), "exit code -9"),
        (make_outcome(139), "exit code 139"),
        (make_outcome(hung=True), "hangs"),
        (make_outcome(1, err="Traceback (most recent call last):\n  x\n"), "traceback"),
        (make_outcome(1, err="error: KeyError: 1 (this is a bug; --debug shows where)\n"), "this is a bug"),
        (make_outcome(2, err="error: a\nerror: b\n"), "2 lines"),
        (make_outcome(2, err="no\n"), "0 lines"),
        (make_outcome(1), "without output"),
        (make_outcome(130, err="error: stopped\n"), "without 'interrupted'"),
        (make_outcome(2, err=f"error: {'x' * 1000}\n"), "a line of 1007 characters"),
        (make_outcome(0, "\x1b[31mred"), "control characters"),
    ],
)
def test_each_kind_of_faulty_outcome_gives_a_complaint(outcome: Outcome, complaint: str) -> None:
    assert any(complaint in actual for actual in verdicts.check_outcome(outcome))


def test_missing_and_changed_files_are_detected() -> None:
    expected = {"a": b"1", "b": b"2"}
    assert verdicts.check_same_numbers(expected, expected) == []
    assert verdicts.check_same_numbers(expected, {"a": b"1", "b": b"3"}) == ["b has different numbers"]
    assert verdicts.check_same_numbers(expected, {"a": b"1"}) == ["b is missing"]
    assert verdicts.check_same_numbers(expected, {"a": b"1", "b": b"x"}, damaged={"b": b"x"}) == []
    assert verdicts.check_unchanged(expected, {"a": b"0"}) == ["a is changed", "b is lost"]


@pytest.mark.parametrize(
    ("html", "injected"),
    [
        ("<p>&lt;script&gt;canary()&lt;/script&gt;</p>", False),
        ('<a href="#canary">x</a>', False),
        ('<script>const data = "<\\/script><script>canary()"</script>', False),
        ("<script>canary()</script>", True),
        ('<p title=""><canary onclick="canary()">', True),
        ('<a href="javascript:canary()">x</a>', True),
    ],
)
def test_code_injected_into_a_report_is_detected(tmp_path: Path, html: str, injected: bool) -> None:
    (tmp_path / "index.html").write_text(f"<html>{html}</html>")
    assert bool(verdicts.check_page(tmp_path / "index.html")) == injected


def test_spreadsheet_formulas_are_detected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,value\nx,-1.5\n'=canary,+3\n")
    assert verdicts.check_formulas(tmp_path) == []
    (tmp_path / "a.csv").write_text("name,value\n=canary(),1\n")
    assert verdicts.check_formulas(tmp_path) != []


def test_every_kind_of_trial_is_sampled() -> None:
    counts = dict.fromkeys(CATEGORIES, 0)
    for category, _ in choose_trials(TRIALS):
        counts[category] += 1
    assert all(counts[category] >= len(kinds) for category, (kinds, _) in CATEGORIES.items()), counts


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    for module in (
        "cli.main",
        "config.cards",
        "config.resolution",
        "cli.show",
        "cli.list",
        "store.runs",
        "registry",
    ):  # imported once in this process, not in every fork
        importlib.import_module(f"iclbench.{module}")
    home = tmp_path_factory.mktemp("hostile")
    write_inputs(home)
    (home / "results/runs").mkdir(parents=True)
    return Stage(home)


@pytest.mark.parametrize("command", ["show", "list"])
def test_errors_about_hostile_arguments_are_one_line(stage: Stage, tmp_path: Path, command: str) -> None:
    trial = Trial(stage, tmp_path / "trial", random.Random(f"quick/{command}"))
    trial.copy()
    for text in trial.dice.sample([text for text in content.TEXTS if content.is_usable(text)], 6):
        assert verdicts.check_outcome(trial.run((command, text))) == [], text


@pytest.mark.parametrize("how", damage.DAMAGES)
def test_a_damaged_card_is_shown_or_refused_in_one_line(stage: Stage, tmp_path: Path, how: str) -> None:
    trial = Trial(stage, tmp_path / "trial", random.Random(f"quick/{how}"))
    trial.copy()
    damage.damage(trial, trial.folder / "tiny.toml", how)
    assert verdicts.check_outcome(trial.run(("show", "./tiny.toml")), {0, 1, 2}) == []


@pytest.mark.slow
def test_hundreds_of_hostile_trials_succeed(capfd: pytest.CaptureFixture[str]) -> None:
    """The trials run in a new process, without the checks of tensor shapes that are active in tests."""
    with capfd.disabled():
        process = subprocess.run([sys.executable, "-m", "tests.hostile"], cwd=Path(__file__).parents[2], check=False)
    assert process.returncode == 0
