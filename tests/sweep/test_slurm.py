"""The SLURM engine without a scheduler: output of SLURM programs, settings and errors.

`make test-engines` tests the engine with a real SLURM cluster.
"""

import subprocess
from concurrent.futures import Future
from pathlib import Path

import pytest

from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.settings import validate
from iclbench.store.outcome import Outcome
from iclbench.sweep import engines, slurm
from iclbench.sweep.bundle import Bundle
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.grids import load_grid
from iclbench.sweep.slurm import JobState, SlurmExecutor
from tests.refusals import refused
from tests.sweep.conftest import tiny_grid

ARRAY_OUTPUT = """\
JobId=13 ArrayJobId=11 ArrayTaskId=3 JobName=iclbench JobState=RUNNING Reason=None ExitCode=0:0 NodeList=n7
JobId=11 ArrayJobId=11 ArrayTaskId=0-2,5%4 JobName=x JobState=PENDING Reason=Resources ExitCode=0:0 NodeList=(null)
"""
JOB_OUTPUT = "JobId=20 JobName=iclbench JobState=FAILED Reason=NonZeroExitCode ExitCode=137:0 NodeList=n1\n"


def test_states_of_arrays_and_single_jobs_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = {"11": ARRAY_OUTPUT, "20": JOB_OUTPUT, "99": "slurm_load_jobs error: Invalid job id specified\n"}
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": outputs[words[-1]])
    assert slurm.query_job_states(["11_0", "11_3", "11_5", "20", "99"]) == {
        "11_0": JobState("PENDING", "Resources", "0:0", "(null)"),
        "11_3": JobState("RUNNING", "None", "0:0", "n7"),
        "11_5": JobState("PENDING", "Resources", "0:0", "(null)"),
        "20": JobState("FAILED", "NonZeroExitCode", "137:0", "n1"),
    }


def test_an_unavailable_scheduler_is_an_error_and_an_unknown_job_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_error(text: str) -> None:
        process = subprocess.CompletedProcess(["scontrol"], 1, "", text)
        monkeypatch.setattr(slurm.subprocess, "run", lambda *arguments, **options: process)

    set_error("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(subprocess.SubprocessError, match="slurm controller"):
        slurm.query_job_states(["7"])
    set_error("slurm_load_jobs error: Invalid job id specified\n")
    assert slurm.query_job_states(["7"]) == {}


def test_cards_and_settings_cannot_inject_shell_commands(tmp_path: Path) -> None:
    path = tiny_grid(tmp_path, engine={"gpus": 1, "constraint": "avx512"})
    card = load_grid(str(path))[1]
    assert card.engine is not None and (card.engine.gpus, card.engine.constraint) == (1, "avx512")
    for table in ({"setup": ["true"]}, {"python": "x"}, {"options": {"wrap": "x"}}, {"constraint": "a\ntouch b"}):
        with pytest.raises(UsageError):
            load_grid(str(tiny_grid(tmp_path, engine=table)))
    with pytest.raises(UsageError) as error:
        validate(EngineSettings, {"partition": "low\ntouch b #"}, "x")
    assert "partition" in str(error.value)


def test_the_array_limit_is_read_from_the_scheduler_or_is_1000(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": "MaxArraySize            = 101\n")
    assert slurm.array_limit() == 100
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": "")
    assert slurm.array_limit() == 1000


def test_a_refusal_quotes_the_last_error_line_of_the_scheduler() -> None:
    error = subprocess.SubprocessError("sbatch: error: a\nsbatch: error: Batch job submission failed: Job violates QOS")
    assert slurm._refusal(error) == "Batch job submission failed: Job violates QOS"


def test_the_engine_is_refused_on_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda program: None)
    with refused("not-supported", "'slurm'", "'sbatch'"):
        SlurmExecutor(tmp_path, EngineSettings())


def test_settings_are_merged_and_invalid_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert engines.settings("slurm") == EngineSettings()
    path = tmp_path / "iclbench" / "engines.toml"
    path.parent.mkdir()
    path.write_text('[slurm]\npartition = "gpu"\nmemory = "8G"\n')
    merged = engines.settings("slurm", {"memory": "2G"}, {"jobs": 7})
    assert (merged.partition, merged.memory, merged.jobs, merged.cpus) == ("gpu", "2G", 7, 1)
    path.write_text('[slurm]\npartitoin = "gpu"\n')
    with pytest.raises(UsageError) as error:
        engines.settings("slurm")
    assert all(name in str(error.value) for name in ("engines.toml", "[slurm]", "'partitoin'", "'partition'"))
    path.write_text('[slrum]\npartition = "gpu"\n')
    with refused("unknown-name", "'slrum'", "'slurm'", path):
        engines.settings("slurm")
    path.write_text('[slurm.options]\narray = "1-3"\n')
    with pytest.raises(UsageError) as error:
        engines.settings("slurm")
    assert "'array'" in str(error.value)
    path.write_text('slurm = "gpu"\n')
    with refused("bad-syntax", "[slurm]", path):
        engines.settings("slurm")


def test_unknown_and_uninstalled_engines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("unknown-name", "'slrum'", "'slurm'"):
        engines.check("slrum")
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with refused("missing-package", "pip install 'iclbench[slurm]'"):
        engines.check("slurm")
    assert validate(EngineSettings, {"margin": 2}, "x").margin == 2


def test_a_refusal_names_the_requested_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of SLURM does not name these resources."""
    message = "sbatch: error: Batch job submission failed: Requested node configuration is not available"

    def refuse(*arguments: object) -> None:
        raise subprocess.SubprocessError(message)

    monkeypatch.setattr(slurm.shutil, "which", lambda program: program)
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": "")
    monkeypatch.setattr(SlurmExecutor, "_submit", refuse)
    settings = EngineSettings(cpus=3, gpus=1, memory="4G", minutes=77, partition="long", poll=60)
    executor = SlurmExecutor(tmp_path, settings)
    try:
        future: Future[dict[str, Outcome]] = Future()
        executor._enqueue(future, Bundle((), Context(tmp_path)), "work")
        executor.flush()
        reason = str(future.exception(timeout=5))
    finally:
        executor.shutdown()
    assert "Requested node configuration is not available" in reason and "\n" not in reason
    assert all(word in reason for word in ("3 CPUs", "1 GPU", "4G", "77 minutes", "'long'"))
