"""What every engine keeps: the same tables as the local one, whoever is killed, and lines that name the fix."""

import json
import os
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from tests.engines.conftest import Engine, wait_for

pytestmark = pytest.mark.engines
KILLS = 10


def tables(results: Path) -> dict[str, bytes]:
    """Tables of values and weights, by path."""
    found = [*results.rglob("*values.parquet"), *results.rglob("model.safetensors")]
    return {path.relative_to(results).as_posix(): path.read_bytes() for path in found}


def until_done(engine: Engine, grid: Path, results: Path) -> str:
    """The same command, until nothing is left; cells whose workers were killed twice are tried again by it."""
    for _ in range(8):
        code, said = engine.sweep(grid, results)
        if code == 0:
            return said
    raise AssertionError(said)


def test_tables_are_those_of_the_local_engine(engine: Engine, wide: Path, expected: Path, tmp_path: Path) -> None:
    code, said = engine.sweep(wide, tmp_path / "r")
    assert code == 0, said
    assert tables(tmp_path / "r") == tables(expected)
    assert len(list((tmp_path / "r" / "cells").rglob("*.parquet"))) >= 40
    code, said = engine.sweep(wide, tmp_path / "r")
    assert code == 0 and "done in" not in said  # nothing is done twice


def test_workers_that_are_killed_change_nothing(engine: Engine, wide: Path, expected: Path, tmp_path: Path) -> None:
    killed = 0
    while killed < KILLS:  # cells whose workers were killed twice are tried again by the same command
        process = engine.start(wide, tmp_path / "r")
        while killed < KILLS and process.poll() is None:
            time.sleep(3)
            killed += engine.kill_one()
        said, _ = process.communicate(timeout=900)
        assert process.returncode == 1 or killed == KILLS, f"done after {killed} kills: {said}"
    until_done(engine, wide, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_a_parent_that_is_killed_is_followed_by_the_same_command(
    engine: Engine, wide: Path, expected: Path, tmp_path: Path
) -> None:
    for _ in range(3):
        process = engine.start(wide, tmp_path / "r")
        time.sleep(12)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    until_done(engine, wide, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_ctrl_c_keeps_checkpoints_and_leaves_no_job(engine: Engine, wide: Path, expected: Path, tmp_path: Path) -> None:
    process = engine.start(wide, tmp_path / "r")
    wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "the same command does the other" in said
    wait_for(lambda: not engine.workers(), 60)
    until_done(engine, wide, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_a_second_ctrl_c_ends_at_once_and_nothing_is_lost(
    engine: Engine, wide: Path, expected: Path, tmp_path: Path
) -> None:
    process = engine.start(wide, tmp_path / "r")
    wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    until_done(engine, wide, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_what_cannot_be_trained_fails_alone_with_its_reason(engine: Engine, wide: Path, tmp_path: Path) -> None:
    (tmp_path / "r" / "runs").mkdir(parents=True)
    (tmp_path / "r" / "runs" / "tiny-linear-gpt2-smoke-s0").write_text("a file, where the run has its folder")
    code, said = engine.sweep(wide, tmp_path / "r")
    assert code == 1 and "failed: train tiny-linear-gpt2-smoke-s0" in said
    assert len(list((tmp_path / "r").rglob("model.safetensors"))) == 11


def test_pre_empted_jobs_go_on_where_they_were(slurm: Engine, wide: Path, expected: Path, tmp_path: Path) -> None:
    process = slurm.start(wide, tmp_path / "r")
    wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
    environment = os.environ | slurm.environment
    urgent = ["sbatch", "-p", "high", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3"]
    subprocess.run(urgent, env=environment, check=True, capture_output=True)
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    logs = "".join(path.read_text() for path in (tmp_path / "r" / "jobs" / "slurm" / "logs").glob("*.out"))
    assert "this job is preempted" in logs and "Requeued job" in logs
    assert tables(tmp_path / "r") == tables(expected)


def test_a_job_that_is_taken_out_of_the_queue_does_not_come_back(
    slurm: Engine, wide: Path, expected: Path, tmp_path: Path
) -> None:
    process = slurm.start(wide, tmp_path / "r")
    wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
    subprocess.run(["scancel", "--state=RUNNING", "--name=iclbench"], env=os.environ | slurm.environment, check=True)
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    logs = "".join(path.read_text() for path in (tmp_path / "r" / "jobs" / "slurm" / "logs").glob("*.out"))
    assert "this job is preempted" in logs and "Requeued job" not in logs
    assert tables(tmp_path / "r") == tables(expected)


def test_a_detached_sweep_is_watched_and_collected(slurm: Engine, wide: Path, expected: Path, tmp_path: Path) -> None:
    code, said = slurm.sweep(wide, tmp_path / "r", "--detach")
    assert code == 0 and "jobs submitted with" in said and "the same command" in said

    def there() -> dict[str, object]:
        code, said = slurm.sweep(wide, tmp_path / "r", "--status", "--json")
        assert code == 0, said
        found: dict[str, object] = json.loads(said)
        return found

    first = there()
    assert first["jobs"] and {job["state"] for job in first["jobs"]} <= {
        "PENDING",
        "RUNNING",
        "COMPLETED",
        "COMPLETING",
    }  # type: ignore[attr-defined]
    code, said = slurm.sweep(wide, tmp_path / "r", "--detach")
    assert code == 0 and "0 jobs submitted" in said
    wait_for(lambda: all(job["state"] == "COMPLETED" for job in there()["jobs"]), 300)  # type: ignore[attr-defined]
    until_done(slurm, wide, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_a_node_that_is_lost_takes_nothing_with_it(ray: Engine, wide: Path, expected: Path, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    try:
        node = cluster.add_node(**small)
        config = tmp_path / "config" / "iclbench"
        config.mkdir(parents=True)
        (config / "engines.toml").write_text(f'[ray]\naddress = "{cluster.address}"\nworth = 10\njobs = 2\n')
        own = Engine("ray", {"XDG_CONFIG_HOME": str(config.parent)}, ray.worker)
        process = own.start(wide, tmp_path / "r")
        wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
        cluster.remove_node(node, allow_graceful=False)
        said, _ = process.communicate(timeout=900)
        assert process.returncode == 0, said
    finally:
        cluster.shutdown()
    assert tables(tmp_path / "r") == tables(expected)


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"partition": "nowhere"}, "Invalid partition name specified"),
        ({"memory": "900G"}, "Requested node configuration is not available"),
        ({"account": "x", "options": {"nosuch": 1}}, "unrecognized option"),
    ],
)
def test_what_slurm_refuses_is_one_line(
    slurm: Engine, wide: Path, tmp_path: Path, table: dict[str, object], line: str
) -> None:
    from tests.engines.conftest import _told

    own = Engine("slurm", slurm.environment | _told(tmp_path / "c", "slurm", poll=0.2, **table), slurm.worker)
    code, said = own.sweep(wide, tmp_path / "r", timeout=60)
    assert code == 1 and line in said and "engines.toml" in said
    assert said.startswith("error: SLURM takes no job:") and len(said.splitlines()) == 1


def test_what_ray_lacks_is_one_line(ray: Engine, wide: Path, tmp_path: Path) -> None:
    from tests.engines.conftest import _told

    known = tomllib.loads(Path(ray.environment["XDG_CONFIG_HOME"], "iclbench", "engines.toml").read_text())["ray"]
    for table, code, line in (
        ({"address": "127.0.0.1:1"}, 2, "engine 'ray': no cluster at address '127.0.0.1:1'"),
        ({"address": known["address"], "gpus": 1}, 1, "no node of the Ray cluster has 1 GPU"),
        ({"address": known["address"], "cpus": 64}, 1, "no node of the Ray cluster has 64 CPU"),
    ):
        own = Engine("ray", _told(tmp_path / "c", "ray", **table), ray.worker)
        found, said = own.sweep(wide, tmp_path / "r", timeout=120)
        assert found == code and line in said and len(said.strip().splitlines()) == 1, said
