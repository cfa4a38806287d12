"""SLURM without SLURM: what its programs say is read, and what cannot be is said in a line. With the real one:
`make test-engines`."""

import subprocess
from concurrent.futures import Future
from pathlib import Path

import pytest

from iclbench.core.context import Context
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.settings import validate
from iclbench.store.outcome import Outcome
from iclbench.sweep import engines, slurm
from iclbench.sweep.bundle import Bundle
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.grids import load_grid
from iclbench.sweep.slurm import SlurmExecutor, State
from tests.sweep.conftest import tiny_grid

SHOWN = """\
JobId=13 ArrayJobId=11 ArrayTaskId=3 JobName=iclbench JobState=RUNNING Reason=None ExitCode=0:0 NodeList=n7
JobId=11 ArrayJobId=11 ArrayTaskId=0-2,5%4 JobName=x JobState=PENDING Reason=Resources ExitCode=0:0 NodeList=(null)
"""
ALONE = "JobId=20 JobName=iclbench JobState=FAILED Reason=NonZeroExitCode ExitCode=137:0 NodeList=n1\n"


def test_states_of_arrays_and_of_single_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"11": SHOWN, "20": ALONE, "99": "slurm_load_jobs error: Invalid job id specified\n"}
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": said[words[-1]])
    found = slurm.states(["11_0", "11_3", "11_5", "20", "99"])
    assert found == {
        "11_0": State("PENDING", "Resources", "0:0", "(null)"),
        "11_3": State("RUNNING", "None", "0:0", "n7"),
        "11_5": State("PENDING", "Resources", "0:0", "(null)"),
        "20": State("FAILED", "NonZeroExitCode", "137:0", "n1"),
    }


def test_a_scheduler_that_is_not_there_for_a_moment_has_forgotten_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(code: int, what: str) -> None:
        done = subprocess.CompletedProcess(["scontrol"], code, "", what)
        monkeypatch.setattr(slurm.subprocess, "run", lambda *arguments, **more: done)

    say(1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(subprocess.SubprocessError, match="Unable to contact slurm controller"):
        slurm.states(["7"])
    say(1, "slurm_load_jobs error: Invalid job id specified\n")
    assert slurm.states(["7"]) == {}


def test_a_card_says_nothing_that_a_shell_would_run(tmp_path: Path) -> None:
    path = tiny_grid(tmp_path, engine={"gpus": 1, "constraint": "avx512"})
    card = load_grid(str(path))[1]
    assert card.engine is not None and (card.engine.gpus, card.engine.constraint) == (1, "avx512")
    for table in ({"setup": ["true"]}, {"python": "x"}, {"options": {"wrap": "x"}}, {"constraint": "a\ntouch b"}):
        with pytest.raises(UsageError):
            load_grid(str(tiny_grid(tmp_path, engine=table)))
    with pytest.raises(UsageError, match="partition"):
        validate(EngineSettings, {"partition": "low\ntouch b #"}, "x")


def test_arrays_are_as_long_as_the_scheduler_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": "MaxArraySize            = 101\n")
    assert slurm.array_limit() == 100
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": "")
    assert slurm.array_limit() == 1000


def test_the_schedulers_own_line_is_the_reason() -> None:
    error = subprocess.SubprocessError("sbatch: error: a\nsbatch: error: Batch job submission failed: Job violates QOS")
    assert slurm._refusal(error) == "Batch job submission failed: Job violates QOS"


def test_a_machine_without_slurm_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda program: None)
    with pytest.raises(UsageError, match="'sbatch'"):
        SlurmExecutor(tmp_path, EngineSettings())


def test_tables_go_over_each_other_and_mistakes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert engines.settings("slurm") == EngineSettings()
    path = tmp_path / "iclbench" / "engines.toml"
    path.parent.mkdir()
    path.write_text('[slurm]\npartition = "gpu"\nmemory = "8G"\n')
    found = engines.settings("slurm", {"memory": "2G"}, {"jobs": 7})
    assert (found.partition, found.memory, found.jobs, found.cpus) == ("gpu", "2G", 7, 1)
    path.write_text('[slurm]\npartitoin = "gpu"\n')
    with pytest.raises(
        UsageError, match=r"engines\.toml, \[slurm\]: unknown key 'partitoin'; did you mean 'partition'"
    ):
        engines.settings("slurm")
    path.write_text('[slrum]\npartition = "gpu"\n')
    with pytest.raises(UsageError, match="unknown engine 'slrum'; did you mean 'slurm'"):
        engines.settings("slurm")
    path.write_text('[slurm.options]\narray = "1-3"\n')
    with pytest.raises(UsageError, match="'array'"):
        engines.settings("slurm")
    path.write_text('slurm = "gpu"\n')
    with pytest.raises(UsageError, match=r"write a table \[slurm\]"):
        engines.settings("slurm")


def test_an_engine_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="unknown engine 'slrum'; did you mean 'slurm'"):
        engines.check("slrum")
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'iclbench\[slurm\]'"):
        engines.check("slurm")
    assert validate(EngineSettings, {"margin": 2}, "x").margin == 2


def test_a_refusal_names_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM says only that no node has it."""
    said = "sbatch: error: Batch job submission failed: Requested node configuration is not available"

    def refuse(*arguments: object) -> None:
        raise subprocess.SubprocessError(said)

    monkeypatch.setattr(slurm.shutil, "which", lambda program: program)
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": "")
    monkeypatch.setattr(SlurmExecutor, "_submit", refuse)
    asked = EngineSettings(cpus=3, gpus=1, memory="4G", minutes=77, partition="long", poll=60)
    executor = SlurmExecutor(tmp_path, asked)
    try:
        future: Future[dict[str, Outcome]] = Future()
        executor._enqueue(future, Bundle((), Context(tmp_path)), "work")
        executor.flush()
        why = str(future.exception(timeout=5))
    finally:
        executor.shutdown()
    assert "Requested node configuration is not available" in why and "\n" not in why
    assert all(word in why for word in ("3 CPUs", "1 GPU", "4G", "77 minutes", "'long'"))
