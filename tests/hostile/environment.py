"""Unusual environments: no disk space, no permissions, little memory, no terminal, or another locale."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.hostile.process import Limits
from tests.hostile.stage import EVAL, LONG, PROBE, READERS, REPORT, STREAM, TRAIN
from tests.hostile.trial import Kind, Trial
from tests.hostile.verdicts import check_no_temporary_files, check_outcome, check_unchanged, contents, value_tables

WRITERS: tuple[Sequence[str], ...] = (TRAIN, EVAL, PROBE, REPORT, LONG, STREAM)


def _check_recovery(trial: Trial, arguments: Sequence[str]) -> list[str]:
    """Check that the same command succeeds in a normal environment."""
    outcome = trial.run(arguments)
    complaints = check_outcome(outcome, {0})
    if arguments == LONG and outcome.code == 0:
        complaints += ["the weights differ"] * (
            (trial.results / "runs/long/model.safetensors").read_bytes() != trial.stage.weights
        )
    tables = value_tables(trial.results)
    complaints += [
        f"{name} has different numbers"
        for name, content in trial.stage.values.items()
        if tables.get(name, content) != content
    ]
    if arguments in (EVAL, PROBE) and outcome.code == 0 and outcome.out != trial.stage.outputs[arguments]:
        complaints.append("prints different numbers")
    return [f"afterwards: {c}" for c in complaints + check_no_temporary_files(trial.results)]


def _full_disk(trial: Trial) -> list[str]:
    """Limit file sizes. The command ends with exit code 0, 1 or 2, does not change weights or configurations of runs,
    and can be repeated."""
    arguments = trial.dice.choice(WRITERS)
    results = {TRAIN: "", LONG: "half", REPORT: "results"}.get(arguments, "trained")
    trial.copy(results)
    before = contents(trial.results) if trial.results.exists() else {}
    size = trial.dice.choice((0, 100, 4096, 10_000, 50_000, trial.dice.randrange(200_000)))
    outcome = trial.run(arguments, limits=Limits(file_size=size))
    complaints = check_outcome(outcome, {0, 1, 2})
    keep = [n for n in before if n.endswith((".safetensors", "config.toml")) and "checkpoints" not in n]
    complaints += check_unchanged(before, contents(trial.results) if trial.results.exists() else {}, keep)
    return [
        f"files of at most {size} bytes, {arguments[0]}: {c}" for c in complaints + _check_recovery(trial, arguments)
    ]


def _read_only(trial: Trial) -> list[str]:
    """Use a read-only folder. Reading works, and writing is refused in one line."""
    arguments = trial.dice.choice((*READERS, TRAIN, LONG, STREAM))
    trial.copy(trial.dice.choice(("results", "results", "half", "trained")) if arguments != EVAL else "results")
    before = contents(trial.results)
    for path in [trial.results, *trial.results.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    outcome = trial.run(arguments, limits=Limits(powerless=True), environment={"HOME": "/nonexistent"})
    for path in [trial.results, *(p for p in trial.results.rglob("*") if p.is_dir())]:
        path.chmod(0o755)
    complaints = check_outcome(outcome, {0, 1, 2}) + check_unchanged(before, contents(trial.results))
    if arguments == EVAL and (outcome.code != 0 or outcome.out != trial.stage.outputs[EVAL]):
        complaints.append(f"eval of completed cells does not print its table: {outcome.last[:200]!r}")
    return [f"read-only results, {arguments[0]}: {c}" for c in complaints]


def _little_memory(trial: Trial) -> list[str]:
    """Limit memory. The command succeeds or reports an error in one line, and can be repeated."""
    arguments = trial.dice.choice((*WRITERS, ("cost", "gpt", "--points", "4", "--episodes", "2")))
    results = {TRAIN: "", LONG: "half", REPORT: "results"}.get(arguments, "trained")
    trial.copy(results)
    memory = int(10 ** trial.dice.uniform(5.5, 8.3))
    outcome = trial.run(arguments, limits=Limits(memory=memory))
    complaints = check_outcome(outcome, {0, 1, 2})
    if arguments[0] != "cost":
        complaints += _check_recovery(trial, arguments)
    return [f"{memory / 1e6:.1f} MB of memory, {arguments[0]}: {c}" for c in complaints]


def _closed(trial: Trial) -> list[str]:
    """Close standard streams, send no input, or write to a full device."""
    arguments = trial.dice.choice(
        (*READERS, TRAIN, STREAM, ("stream", "cnp"), ("list", "tasks"), ("--help",), ("doctor",))
    )
    trial.copy()
    how = trial.dice.choice(("stdin", "stdout", "stderr", "all", "full", "nothing to read"))
    closed = {"stdin": (0,), "stdout": (1,), "stderr": (2,), "all": (0, 1, 2)}.get(how, ())
    outcome = trial.run(arguments, limits=Limits(closed=closed), stdout="/dev/full" if how == "full" else None)
    complaints = check_outcome(outcome)
    if how in ("stderr", "all"):
        complaints = [c for c in complaints if "without" not in c and "with 0 lines" not in c]
    if how == "full" and outcome.code == 0 and arguments != TRAIN:
        complaints.append("exit code 0, but no output was written")
    return [f"{how}, {' '.join(arguments[:2])}: {c}" for c in complaints + trial.check_tables(complete=False)]


def _language(trial: Trial) -> list[str]:
    """Use another locale, a narrow terminal, or a folder name that is not UTF-8."""
    trial.copy()
    how = trial.dice.choice(("ascii", "latin", "folder", "narrow", "folder and ascii"))
    environment: dict[str, str | None] = {}
    if "ascii" in how or how == "latin":
        environment = {
            "LC_ALL": "C" if "ascii" in how else "en_US.ISO-8859-1",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
        }
        environment["PYTHONIOENCODING"] = "ascii" if "ascii" in how else "latin-1"
    if how == "narrow":
        environment = {"COLUMNS": trial.dice.choice(("80", "40", "20", "1", "0", "x"))}
    folder = trial.folder
    if "folder" in how:
        folder = Path(os.fsdecode(os.fsencode(trial.folder) + b"/caf\xe9"))
        trial.stage.copy(folder)
    arguments = trial.dice.choice(
        (*READERS, (*TRAIN[:-1], "again"), STREAM, ("list", "tasks"), ("show", "linear"), ("eval", "n\u00e9t"))
    )
    from tests.hostile.process import call

    outcome = call(arguments, folder, environment=environment, fresh=True)
    complaints = check_outcome(outcome, {0, 1, 2} if arguments[:2] != ("list", "tasks") else {0})
    if arguments in (EVAL, PROBE) and "ascii" not in how:
        outputs = ["".join(text.split()) for text in (outcome.out, trial.stage.outputs[arguments])]
        if how != "narrow" and outputs[0] != outputs[1]:
            complaints.append("prints different numbers")
        for number in trial.stage.outputs[arguments].split() if environment.get("COLUMNS") in ("80", "40") else ():
            if number not in outcome.out:
                complaints.append(f"{number} is missing at a width of {environment['COLUMNS']} columns")
                break
    return [f"{how} {environment.get('COLUMNS', '')}, {' '.join(arguments[:2])}: {c}" for c in complaints]


def _variables(trial: Trial) -> list[str]:
    """Set environment variables to invalid values or missing folders."""
    trial.copy()
    name, value = trial.dice.choice(
        [
            ("ICLBENCH_RESULTS", "tiny.toml"),
            ("ICLBENCH_RESULTS", "/dev/null"),
            ("ICLBENCH_RESULTS", ""),
            ("ICLBENCH_THREADS", "x"),
            ("ICLBENCH_THREADS", "0"),
            ("ICLBENCH_DEVICE", "quantum"),
            ("ICLBENCH_DATA", "/nowhere"),
            ("ICLBENCH_DATA", "tiny.toml"),
            ("HOME", "/nonexistent"),
            ("HOME", ""),
            ("TMPDIR", "/nowhere"),
            ("TERM", "dumb"),
            ("PATH", ""),
            ("ICLBENCH_WORKERS", "x"),
            ("ICLBENCH_MAX_BYTES", "x"),
            ("ICLBENCH_MAX_BYTES", "-1"),
            ("ICLBENCH_TRUST", "os:sys, ,"),
            ("NO_COLOR", "1"),
            ("FORCE_COLOR", ""),
            ("XDG_CACHE_HOME", "/dev/null"),
            ("ICLBENCH_RESULTS", "a/b/c/d"),
            ("LANG", "xx_YY"),
        ]
    )
    arguments = trial.dice.choice((*READERS, TRAIN, STREAM, ("doctor",), ("list", "tasks")))
    outcome = trial.run(arguments, environment={name: value})
    return [
        f"{name}={value}, {arguments[0]}: {c}"
        for c in check_outcome(outcome, {0, 1, 2}) + trial.check_tables(complete=False)
    ]


def _moved(trial: Trial) -> list[str]:
    """Delete or move the results folder during training. The command succeeds with weights or reports an error."""
    import time

    from tests.hostile.process import Command

    trial.copy("")
    command = Command(LONG, trial.folder).start()
    time.sleep(trial.dice.uniform(0.1, 1.0) * trial.stage.seconds[LONG])
    moved, run = trial.dice.random() < 0.5, trial.results / "runs/long"
    if (run / "model.safetensors").exists():  # training has finished
        return check_outcome(command.end(), {0})
    if trial.results.exists():
        try:
            trial.results.rename(trial.folder / "elsewhere") if moved else shutil.rmtree(trial.results)
        except OSError:
            return [*check_outcome(command.end())]  # the command wrote a file during the deletion
    outcome = command.end()
    complaints = check_outcome(outcome, {0, 1, 2})
    if (
        outcome.code == 0
        and not ((run / "model.safetensors").is_file() and (run / "config.toml").is_file())
        and not (trial.folder / "elsewhere/runs/long/model.safetensors").is_file()
    ):
        complaints.append("exit code 0, but weights or their configuration are missing")
    return [f"results {'moved' if moved else 'deleted'} during training: {c}" for c in complaints]


KINDS: dict[str, Kind] = {
    "a full disk": _full_disk,
    "little memory": _little_memory,
    "read-only results": _read_only,
    "closed streams": _closed,
    "language and terminal": _language,
    "results deleted in training": _moved,
    "environment variables": _variables,
}
