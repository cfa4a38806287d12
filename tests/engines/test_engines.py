"""Every engine gives the tables of the local engine, even if processes are killed, and reports errors in one line."""

import json
import os
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from tests.engines.conftest import Engine, wait_for, write_engine_settings

pytestmark = pytest.mark.engines
KILLS = 10


def tables(results: Path) -> dict[str, bytes]:
    """Return the contents of the value tables and weights, by path."""
    paths = [*results.rglob("*values.parquet"), *results.rglob("model.safetensors")]
    return {path.relative_to(results).as_posix(): path.read_bytes() for path in paths}


def sweep_until_done(engine: Engine, grid: Path, results: Path) -> str:
    """Repeat the command until all cells are done. A cell fails if its worker is killed twice."""
    for _ in range(8):
        code, output = engine.sweep(grid, results)
        if code == 0:
            return output
    raise AssertionError(output)


def test_tables_equal_the_tables_of_the_local_engine(
    engine: Engine, large_grid: Path, expected: Path, tmp_path: Path
) -> None:
    code, output = engine.sweep(large_grid, tmp_path / "r")
    assert code == 0, output
    assert tables(tmp_path / "r") == tables(expected)
    assert len(list((tmp_path / "r" / "cells").rglob("*.parquet"))) >= 40
    code, output = engine.sweep(large_grid, tmp_path / "r")
    assert code == 0 and "done in" not in output  # the second sweep repeats no cell


def test_killed_workers_do_not_change_the_tables(
    engine: Engine, large_grid: Path, expected: Path, tmp_path: Path
) -> None:
    killed = 0
    while killed < KILLS:  # the repeated command retries cells whose workers were killed twice
        process = engine.start(large_grid, tmp_path / "r")
        while killed < KILLS and process.poll() is None:
            time.sleep(3)
            killed += engine.kill_worker()
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 1 or killed == KILLS, f"done after {killed} kills: {output}"
    sweep_until_done(engine, large_grid, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_a_sweep_continues_after_its_parent_is_killed(
    engine: Engine, large_grid: Path, expected: Path, tmp_path: Path
) -> None:
    for _ in range(3):
        process = engine.start(large_grid, tmp_path / "r")
        time.sleep(12)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    sweep_until_done(engine, large_grid, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_ctrl_c_writes_checkpoints_and_cancels_all_jobs(
    engine: Engine, large_grid: Path, expected: Path, tmp_path: Path
) -> None:
    process = engine.start(large_grid, tmp_path / "r")
    wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    wait_for(lambda: not engine.workers(), 60)
    sweep_until_done(engine, large_grid, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_a_second_ctrl_c_ends_the_sweep_without_losing_results(
    engine: Engine, large_grid: Path, expected: Path, tmp_path: Path
) -> None:
    process = engine.start(large_grid, tmp_path / "r")
    wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in output, output
    sweep_until_done(engine, large_grid, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_a_run_that_cannot_start_does_not_fail_other_runs(engine: Engine, large_grid: Path, tmp_path: Path) -> None:
    (tmp_path / "r" / "runs").mkdir(parents=True)
    (tmp_path / "r" / "runs" / "tiny-linear-gpt2-smoke-s0").write_text("a file")
    code, output = engine.sweep(large_grid, tmp_path / "r")
    assert code == 1 and "train tiny-linear-gpt2-smoke-s0" in output
    assert len(list((tmp_path / "r").rglob("model.safetensors"))) == 11


def test_pre_empted_jobs_continue_from_their_checkpoints(
    slurm: Engine, large_grid: Path, expected: Path, tmp_path: Path
) -> None:
    process = slurm.start(large_grid, tmp_path / "r")
    wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
    environment = os.environ | slurm.environment
    urgent_job = ["sbatch", "-p", "high", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3"]
    subprocess.run(urgent_job, env=environment, check=True, capture_output=True)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    logs = "".join(path.read_text() for path in (tmp_path / "r" / "jobs" / "slurm" / "logs").glob("*.out"))
    assert "this job is preempted" in logs and "Requeued job" in logs
    assert tables(tmp_path / "r") == tables(expected)


def test_a_cancelled_job_is_not_requeued(slurm: Engine, large_grid: Path, expected: Path, tmp_path: Path) -> None:
    process = slurm.start(large_grid, tmp_path / "r")
    wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
    subprocess.run(["scancel", "--state=RUNNING", "--name=iclbench"], env=os.environ | slurm.environment, check=True)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    logs = "".join(path.read_text() for path in (tmp_path / "r" / "jobs" / "slurm" / "logs").glob("*.out"))
    assert "this job is preempted" in logs and "Requeued job" not in logs
    assert tables(tmp_path / "r") == tables(expected)


def test_a_detached_sweep_reports_its_status_and_is_collected_by_the_next_command(
    slurm: Engine, large_grid: Path, expected: Path, tmp_path: Path
) -> None:
    code, output = slurm.sweep(large_grid, tmp_path / "r", "--detach")
    assert code == 0 and "jobs" in output

    def status() -> dict[str, object]:
        code, output = slurm.sweep(large_grid, tmp_path / "r", "--status", "--json")
        assert code == 0, output
        records: dict[str, object] = json.loads(output)
        return records

    first_status = status()
    assert first_status["jobs"] and {job["state"] for job in first_status["jobs"]} <= {
        "PENDING",
        "RUNNING",
        "COMPLETED",
        "COMPLETING",
    }  # type: ignore[attr-defined]
    code, output = slurm.sweep(large_grid, tmp_path / "r", "--detach")
    assert code == 0 and "0 jobs" in output
    wait_for(lambda: all(job["state"] == "COMPLETED" for job in status()["jobs"]), 300)  # type: ignore[attr-defined]
    sweep_until_done(slurm, large_grid, tmp_path / "r")
    assert tables(tmp_path / "r") == tables(expected)


def test_a_lost_node_does_not_change_the_tables(ray: Engine, large_grid: Path, expected: Path, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    node_arguments = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node_arguments)
    try:
        node = cluster.add_node(**node_arguments)
        config = tmp_path / "config" / "iclbench"
        config.mkdir(parents=True)
        (config / "engines.toml").write_text(f'[ray]\naddress = "{cluster.address}"\nworth = 10\njobs = 2\n')
        engine = Engine("ray", {"XDG_CONFIG_HOME": str(config.parent)}, ray.worker)
        process = engine.start(large_grid, tmp_path / "r")
        wait_for(lambda: list((tmp_path / "r").rglob("step-*.safetensors")))
        cluster.remove_node(node, allow_graceful=False)
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 0, output
    finally:
        cluster.shutdown()
    assert tables(tmp_path / "r") == tables(expected)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"partition": "nowhere"}, "Invalid partition name specified"),
        ({"memory": "900G"}, "Requested node configuration is not available"),
        ({"account": "x", "options": {"nosuch": 1}}, "unrecognized option"),
    ],
)
def test_slurm_errors_are_reported_in_one_line(
    slurm: Engine, large_grid: Path, tmp_path: Path, table: dict[str, object], text: str
) -> None:
    environment = slurm.environment | write_engine_settings(tmp_path / "c", "slurm", poll=0.2, **table)
    engine = Engine("slurm", environment, slurm.worker)
    code, output = engine.sweep(large_grid, tmp_path / "r", timeout=60)
    assert code == 1 and text in output and "engines.toml" in output
    assert output.startswith("error: ") and len(output.splitlines()) == 1


def test_unavailable_ray_clusters_and_resources_are_refused_in_one_line(
    ray: Engine, large_grid: Path, tmp_path: Path
) -> None:
    settings_file = Path(ray.environment["XDG_CONFIG_HOME"], "iclbench", "engines.toml")
    address = tomllib.loads(settings_file.read_text())["ray"]["address"]
    for table, expected_code, text in (
        ({"address": "127.0.0.1:1"}, 2, "'127.0.0.1:1'"),
        ({"address": address, "gpus": 1}, 1, "1 GPU"),
        ({"address": address, "cpus": 64}, 1, "64 CPU"),
    ):
        engine = Engine("ray", write_engine_settings(tmp_path / "c", "ray", **table), ray.worker)
        code, output = engine.sweep(large_grid, tmp_path / "r", timeout=120)
        assert code == expected_code and text in output and len(output.strip().splitlines()) == 1, output
