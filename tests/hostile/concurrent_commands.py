"""Several concurrent copies of a command: each succeeds or names the process that blocks it, and the tables equal those
of a single command."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from tests.hostile.process import Command, Outcome
from tests.hostile.stage import EVAL, LONG, PROBE, REPORT
from tests.hostile.trial import Kind, Trial
from tests.hostile.verdicts import check_no_temporary_files, check_outcome, check_page, check_same_numbers, value_tables


def _start_all(trial: Trial, arguments: Sequence[str], count: int) -> list[Outcome]:
    """Start several copies of the command with short delays, and wait for all of them."""
    commands = []
    for _ in range(count):
        commands.append(Command(arguments, trial.folder).start())
        time.sleep(trial.dice.choice((0.0, 0.0, 0.2)) * trial.dice.random())
    return [command.end() for command in commands]


def _run_at_once(trial: Trial, arguments: Sequence[str], results: str) -> list[str]:
    trial.copy(results)
    outcomes = _start_all(trial, arguments, trial.dice.choice((2, 2, 3)))
    complaints = []
    for outcome in outcomes:
        complaints += check_outcome(outcome, {0, 1})
        if outcome.code == 1 and "another process" not in outcome.err:
            complaints.append(f"failed while a copy of the command ran: {outcome.last[:200]!r}")
        if outcome.code == 0 and arguments in (EVAL, PROBE) and outcome.out != trial.stage.outputs[arguments]:
            complaints.append(f"{arguments[0]} prints different numbers while a copy of the command runs")
    if all(outcome.code for outcome in outcomes):
        complaints.append("all copies of the command failed")
    if arguments == LONG:
        weights = trial.results / "runs/long/model.safetensors"
        if not weights.is_file() or weights.read_bytes() != trial.stage.weights:
            complaints.append("the weights differ from those of a single run")
    if arguments == REPORT:
        complaints += check_page(trial.results / "report/index.html")
    tables = value_tables(trial.results)
    expected = {n: c for n, c in trial.stage.values.items() if n in tables or (arguments == EVAL and "probe" not in n)}
    return complaints + check_same_numbers(expected, tables) + check_no_temporary_files(trial.results)


KINDS: dict[str, Kind] = {
    "eval": partial(_run_at_once, arguments=EVAL, results="trained"),
    "train": partial(_run_at_once, arguments=LONG, results=""),
    "probe": partial(_run_at_once, arguments=PROBE, results="trained"),
    "report": partial(_run_at_once, arguments=REPORT, results="results"),
}
