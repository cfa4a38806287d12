"""Signals at random moments: repeating the interrupted command gives identical files."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.hostile.process import Command, Outcome
from tests.hostile.stage import EVAL, LONG, PROBE, REPORT, STREAM, SWEEP
from tests.hostile.trial import Kind, Trial
from tests.hostile.verdicts import (
    check_no_temporary_files,
    check_outcome,
    check_page,
    check_same_numbers,
    contents,
    value_tables,
)

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
_NAMES = {KILL: "SIGKILL", TERM: "SIGTERM", INT: "Ctrl-C"}


def run_and_signal(
    trial: Trial, arguments: Sequence[str], sent_signal: signal.Signals, fresh: bool = False, **options: object
) -> Outcome:
    """Run a command and send it a signal at a random moment."""
    seconds = trial.stage.seconds[arguments] + (2.0 if fresh else 0.0)
    command = Command(arguments, trial.folder, fresh=fresh, **options).start()  # type: ignore[arg-type]
    time.sleep(trial.dice.uniform(0, 1.0) * seconds)
    command.kill(sent_signal)
    return command.end()


def check_end(outcome: Outcome, sent_signal: signal.Signals, polite: bool = True) -> list[str]:
    """Check how a command ended after a signal. If `polite`, a command must handle every signal except SIGKILL, with a
    message and an exit code.
    """
    if outcome.code == -sent_signal and (sent_signal == KILL or not polite):
        return []
    return check_outcome(outcome, {0, 130})


def _training(trial: Trial, sent_signal: signal.Signals, fresh: bool) -> list[str]:
    trial.copy(results="")
    complaints, run = [], trial.results / "runs/long"
    for _ in range(trial.dice.randint(1, 3)):
        before = _checkpoints(run)
        outcome = run_and_signal(trial, LONG, sent_signal, fresh)
        # Before the first step of training, the signal may kill the process.
        complaints += check_end(outcome, sent_signal, polite=_checkpoints(run) != before)
        if outcome.code == 130 and (run / "checkpoints").exists() and not _checkpoints(run):
            complaints.append("interrupted during training without a checkpoint")
    complaints += check_outcome(trial.run(LONG), {0})
    expected = contents(trial.stage.home / "results/runs/long", "*")
    files = contents(run, "*")
    for name in ("model.safetensors", "values.parquet", "config.toml"):
        if files.get(name) != expected[name]:
            complaints.append(f"{name} differs from that of the undisturbed run")
    return complaints + check_no_temporary_files(trial.results)


def _checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("checkpoints/step-*.safetensors"))


def _evaluation(trial: Trial, sent_signal: signal.Signals, fresh: bool) -> list[str]:
    trial.copy("trained")
    outcome = run_and_signal(trial, EVAL, sent_signal, fresh)
    complaints = check_end(outcome, sent_signal, polite=sent_signal == INT and not fresh)
    undisturbed = {name: content for name, content in trial.stage.values.items() if "probe" not in name}
    # Summaries depend on all completed cells, so they may differ directly after the signal.
    cells = {name: content for name, content in undisturbed.items() if "/summary/" not in name}
    complaints += [
        f"after the signal: {c}" for c in check_same_numbers(cells, value_tables(trial.results), complete=False)
    ]
    repeated = trial.run(EVAL)
    complaints += check_outcome(repeated, {0}) + check_same_numbers(undisturbed, value_tables(trial.results))
    if repeated.code == 0 and repeated.out != trial.stage.outputs[EVAL]:
        complaints.append("eval prints different numbers than an undisturbed command")
    return complaints


def _probe(trial: Trial, sent_signal: signal.Signals) -> list[str]:
    trial.copy("trained")
    complaints = check_end(run_and_signal(trial, PROBE, sent_signal), sent_signal, polite=sent_signal == INT)
    repeated = trial.run(PROBE)
    undisturbed = {name: content for name, content in trial.stage.values.items() if "probe" in name}
    complaints += check_outcome(repeated, {0}) + check_same_numbers(undisturbed, value_tables(trial.results))
    if repeated.code == 0 and repeated.out != trial.stage.outputs[PROBE]:
        complaints.append("probe prints different numbers than an undisturbed command")
    return complaints


def _report(trial: Trial, sent_signal: signal.Signals) -> list[str]:
    """Interrupt a report. The page must be either the old one or the new one."""
    trial.copy()
    index = trial.results / "report/index.html"
    old = index.read_bytes()
    complaints = check_end(run_and_signal(trial, REPORT, sent_signal), sent_signal, polite=sent_signal == INT)
    if index.read_bytes() != old:
        complaints.append("the page differs from that of an undisturbed report")
    repeated = trial.run(REPORT)
    complaints += check_outcome(repeated, {0}) + trial.check_tables() + check_page(index)
    if index.read_bytes() != old:
        complaints.append("the repeated command writes a different page")
    return complaints


def _stream(trial: Trial, sent_signal: signal.Signals) -> list[str]:
    """Interrupt a stream. Ctrl-C and SIGTERM save the state, and SIGKILL does not damage the old state."""
    trial.copy()
    lines = (trial.folder / "points.csv").read_text().splitlines() * 40
    (trial.folder / "points.csv").write_text("\n".join(lines) + "\n")
    undisturbed = trial.run(STREAM)
    complaints, state = check_outcome(undisturbed, {0}), trial.folder / "state"
    old = state.read_bytes()
    command = Command(STREAM, trial.folder).start()
    time.sleep(trial.dice.uniform(0.0, 1.1) * undisturbed.seconds)
    command.kill(sent_signal)
    outcome = command.end()
    saved = re.search(r"(\d+) points? and (\d+) quer(?:y|ies)", outcome.err)
    complaints += check_end(outcome, sent_signal, polite=saved is not None)
    if saved is None:
        if state.read_bytes() != old:
            complaints.append("the state is neither the old one nor a reported one")
        return complaints + check_outcome(trial.run(("stream", "cnp", "--state", "state"), stdin=b"1,2,0,?\n"), {0})
    remaining_lines = _lines_after(lines, int(saved[1]))
    (trial.folder / "rest.csv").write_text("\n".join(remaining_lines) + "\n")
    continued = trial.run(("stream", "cnp", "--csv", "rest.csv", "--state", "state"))
    complaints += check_outcome(continued, {0})
    answers, expected = _numbers(continued.out), _numbers(undisturbed.out)
    if len(answers) > len(expected) or any(
        abs(a - b) > 1e-4 for a, b in zip(answers[::-1], expected[::-1], strict=False)
    ):
        complaints.append("answers after continuing differ from those of an undisturbed stream")
    return complaints + check_no_temporary_files(trial.folder)


def _lines_after(lines: list[str], points: int) -> list[str]:
    """Return the lines after the given number of points."""
    for index, line in enumerate(lines):
        if points == 0:
            return lines[index:]
        points -= not line.endswith("?")
    return []


def _numbers(out: str) -> list[float]:
    return [float(line.rsplit(",", 1)[1]) for line in out.splitlines()[1:]]


def _sweep(trial: Trial, sent_signal: signal.Signals) -> list[str]:
    """Interrupt a sweep by a signal to its parent process. The repeated command gives the undisturbed tables."""
    trial.copy("")
    outcome = run_and_signal(trial, SWEEP, sent_signal, fresh=True)
    complaints = check_end(outcome, sent_signal, polite=False)
    repeated = trial.run(SWEEP, fresh=True)
    expected = value_tables(trial.stage.home / "swept")
    complaints += (
        check_outcome(repeated, {0})
        + check_same_numbers(expected, value_tables(trial.results))
        + check_no_temporary_files(trial.results)
    )
    return complaints


def _with_each_signal(kind: str, run_trial: Callable[..., list[str]], **options: object) -> dict[str, Kind]:
    return {f"{kind}, {name}": partial(run_trial, sent_signal=number, **options) for number, name in _NAMES.items()}


KINDS: dict[str, Kind] = {
    **_with_each_signal("train", _training, fresh=False),
    **_with_each_signal("eval", _evaluation, fresh=False),
    **_with_each_signal("stream", _stream),
    **_with_each_signal("train from its start", _training, fresh=True),
    **_with_each_signal("probe", _probe),
    **_with_each_signal("eval from its start", _evaluation, fresh=True),
    **_with_each_signal("report", _report),
}
SWEEPS: dict[str, Kind] = _with_each_signal("sweep", _sweep)
