"""Signals at random moments: a repeated command ends with the same bytes."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.hostile.process import Command, Outcome
from tests.hostile.stage import EVAL, LONG, PROBE, REPORT, STREAM, SWEEP
from tests.hostile.trial import Kind, Trial
from tests.hostile.verdicts import contents, manners, no_rubbish, page, same_numbers, value_tables

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
_NAMES = {KILL: "SIGKILL", TERM: "SIGTERM", INT: "Ctrl-C"}


def struck(
    trial: Trial, arguments: Sequence[str], which: signal.Signals, fresh: bool = False, **more: object
) -> Outcome:
    """Run a command and send it a signal at a random moment."""
    seconds = trial.stage.seconds[arguments] + (2.0 if fresh else 0.0)
    command = Command(arguments, trial.folder, fresh=fresh, **more).start()  # type: ignore[arg-type]
    time.sleep(trial.dice.uniform(0, 1.0) * seconds)
    command.kill(which)
    return command.end()


def answered(outcome: Outcome, which: signal.Signals, polite: bool = True) -> list[str]:
    """Check the end of a command after a signal. If `polite`, it prints one line and exits with 130 where possible."""
    if outcome.code == -which and (which == KILL or not polite):
        return []
    return manners(outcome, {0, 130})


def _training(trial: Trial, which: signal.Signals, fresh: bool) -> list[str]:
    trial.copy(results="")
    found, run = [], trial.results / "runs/long"
    for _ in range(trial.dice.randint(1, 3)):
        before = _checkpoints(run)
        outcome = struck(trial, LONG, which, fresh)
        # Before its first step, a training may die from the signal.
        found += answered(outcome, which, polite=_checkpoints(run) != before)
        if outcome.code == 130 and (run / "checkpoints").exists() and not _checkpoints(run):
            found.append("interrupted in training, and no checkpoint is there")
    found += manners(trial.run(LONG), {0})
    expected = contents(trial.stage.home / "results/runs/long", "*")
    there = contents(run, "*")
    for name in ("model.safetensors", "values.parquet", "config.toml"):
        if there.get(name) != expected[name]:
            found.append(f"{name} differs from that of the undisturbed run")
    return found + no_rubbish(trial.results)


def _checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("checkpoints/step-*.safetensors"))


def _evaluation(trial: Trial, which: signal.Signals, fresh: bool) -> list[str]:
    trial.copy("trained")
    outcome = struck(trial, EVAL, which, fresh)
    found = answered(outcome, which, polite=which == INT and not fresh)
    whole = {name: content for name, content in trial.stage.values.items() if "probe" not in name}
    cells = {
        name: content for name, content in whole.items() if "/summary/" not in name
    }  # those are of all that is there
    found += [f"after the signal: {c}" for c in same_numbers(cells, value_tables(trial.results), whole=False)]
    again = trial.run(EVAL)
    found += manners(again, {0}) + same_numbers(whole, value_tables(trial.results))
    if again.code == 0 and again.out != trial.stage.said[EVAL]:
        found.append("eval prints other numbers than undisturbed")
    return found


def _probe(trial: Trial, which: signal.Signals) -> list[str]:
    trial.copy("trained")
    found = answered(struck(trial, PROBE, which), which, polite=which == INT)
    again = trial.run(PROBE)
    whole = {name: content for name, content in trial.stage.values.items() if "probe" in name}
    found += manners(again, {0}) + same_numbers(whole, value_tables(trial.results))
    if again.code == 0 and again.out != trial.stage.said[PROBE]:
        found.append("probe prints other numbers than undisturbed")
    return found


def _report(trial: Trial, which: signal.Signals) -> list[str]:
    """The report is the old one or the new one."""
    trial.copy()
    index = trial.results / "report/index.html"
    old = index.read_bytes()
    found = answered(struck(trial, REPORT, which), which, polite=which == INT)
    if index.read_bytes() != old:
        found.append("the page is not the one of an undisturbed report")
    again = trial.run(REPORT)
    found += manners(again, {0}) + trial.same_tables() + page(index)
    if index.read_bytes() != old:
        found.append("the page of the same command again is another one")
    return found


def _stream(trial: Trial, which: signal.Signals) -> list[str]:
    """Ctrl-C and SIGTERM save the state; SIGKILL does not damage the old state."""
    trial.copy()
    lines = (trial.folder / "points.csv").read_text().splitlines() * 40
    (trial.folder / "points.csv").write_text("\n".join(lines) + "\n")
    whole = trial.run(STREAM)
    found, state = manners(whole, {0}), trial.folder / "state"
    old = state.read_bytes()
    command = Command(STREAM, trial.folder).start()
    time.sleep(trial.dice.uniform(0.0, 1.1) * whole.seconds)
    command.kill(which)
    outcome = command.end()
    said = re.search(r"(\d+) points? and (\d+) quer(?:y|ies)", outcome.err)
    found += answered(outcome, which, polite=said is not None)
    if said is None:
        if state.read_bytes() != old:
            found.append("the state is neither the old one nor a reported one")
        return found + manners(trial.run(("stream", "cnp", "--state", "state"), stdin=b"1,2,0,?\n"), {0})
    rest = _after(lines, int(said[1]))
    (trial.folder / "rest.csv").write_text("\n".join(rest) + "\n")
    on = trial.run(("stream", "cnp", "--csv", "rest.csv", "--state", "state"))
    found += manners(on, {0})
    answers, expected = _numbers(on.out), _numbers(whole.out)
    if len(answers) > len(expected) or any(
        abs(a - b) > 1e-4 for a, b in zip(answers[::-1], expected[::-1], strict=False)
    ):
        found.append("answers after going on differ from those of an undisturbed stream")
    return found + no_rubbish(trial.folder)


def _after(lines: list[str], points: int) -> list[str]:
    """The lines after the first points."""
    for index, line in enumerate(lines):
        if points == 0:
            return lines[index:]
        points -= not line.endswith("?")
    return []


def _numbers(out: str) -> list[float]:
    return [float(line.rsplit(",", 1)[1]) for line in out.splitlines()[1:]]


def _sweep(trial: Trial, which: signal.Signals) -> list[str]:
    """After a signal to the parent, its workers end."""
    trial.copy("")
    outcome = struck(trial, SWEEP, which, fresh=True)
    found = answered(outcome, which, polite=False)
    again = trial.run(SWEEP, fresh=True)
    expected = value_tables(trial.stage.home / "swept")
    found += manners(again, {0}) + same_numbers(expected, value_tables(trial.results)) + no_rubbish(trial.results)
    return found


def _each(kind: str, trial: Kind, **options: object) -> dict[str, Kind]:
    return {f"{kind}, {name}": partial(trial, which=which, **options) for which, name in _NAMES.items()}


KINDS: dict[str, Kind] = {
    **_each("train", _training, fresh=False),
    **_each("eval", _evaluation, fresh=False),
    **_each("stream", _stream),
    **_each("train from its start", _training, fresh=True),
    **_each("probe", _probe),
    **_each("eval from its start", _evaluation, fresh=True),
    **_each("report", _report),
}
SWEEPS: dict[str, Kind] = _each("sweep", _sweep)
