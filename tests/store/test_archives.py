"""Weight archives: unpacked runs equal the trained runs, and damaged archives raise errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import iclbench as icl
from iclbench.cli.main import main
from iclbench.core.files import save_tensors
from iclbench.store import archives
from iclbench.store.runs import Run, create
from iclbench.training import run as training
from tests.refusals import refused


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    results = tmp_path_factory.mktemp("trained")
    task = icl.task("linear", "smoke")
    return [icl.train(task, name, results=results, steps=4) for name in ("mamba2", "cnp")]


@pytest.fixture
def archive(trained_runs: list[Run], tmp_path: Path) -> Path:
    path = archives.archive_path(tmp_path / "reference", "linear", "smoke")
    archives.write(path, [packed for run in trained_runs if (packed := archives.of_run(run))])
    return path


def test_an_unpacked_run_is_identical_to_the_packed_run(trained_runs: list[Run], archive: Path, tmp_path: Path) -> None:
    for run in trained_runs:
        unpacked = archives.find(tmp_path, run.name)
        for name in ("config.toml", "model.safetensors", "model.safetensors.sha256"):
            assert (unpacked.path / name).read_bytes() == (run.path / name).read_bytes()
        assert unpacked.digest == run.digest


def test_archives_do_not_depend_on_the_order_of_runs(trained_runs: list[Run], archive: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    other = tmp_path / "other" / archive.name
    archives.write(other, reversed(list(archives.entries(archive).values())))
    assert other.read_bytes() == content
    archives.write(archive, archives.entries(archive).values())
    assert archive.read_bytes() == content


def test_load_unpacks_a_run_from_an_archive(trained_runs: list[Run], archive: Path, tmp_path: Path) -> None:
    loaded = icl.load(f"reference/{trained_runs[0].name}", tmp_path, device="cpu")
    model = trained_runs[0].load()
    assert all(torch.equal(a, b) for a, b in zip(loaded.model.parameters(), model.parameters(), strict=True))
    assert icl.load(f"reference/{trained_runs[0].name}", tmp_path).run.path == loaded.run.path


def test_a_run_with_the_same_name_but_different_settings_does_not_count_as_the_archived_run(
    trained_runs: list[Run], archive: Path, tmp_path: Path
) -> None:
    run = icl.train(icl.task("linear", "smoke"), "cnp", results=tmp_path, steps=3)
    assert run.name == trained_runs[1].name
    with refused("exists", f"'{run.name}'", f"'reference/{run.name}'"):
        archives.find(tmp_path, f"reference/{run.name}")
    assert archives.find(tmp_path, run.name).config.train.steps == 3


def test_a_run_with_equal_settings_but_different_weights_does_not_count_as_the_archived_run(
    trained_runs: list[Run], archive: Path, tmp_path: Path
) -> None:
    """One weight differs by one bit, as may happen after training on another machine."""
    name = trained_runs[1].name
    run = archives.find(tmp_path, name)
    weights = load_file(run.weights)
    key = min(weights)
    weights[key] = torch.nextafter(weights[key], torch.tensor(torch.inf))
    save_tensors(run.weights, weights, run.signature, digest=True)
    (run.path / run.UNPACKED).unlink()
    for find in (icl.load, lambda name, results: archives.find(results, name)):
        with refused("exists", f"'{name}'", f"'reference/{name}'"):
            find(f"reference/{name}", tmp_path)
    assert main(["eval", f"reference/{name}", "--results", str(tmp_path)]) == 2
    assert not (tmp_path / "tables").exists()
    assert torch.equal(load_file(icl.load(name, tmp_path).run.weights)[key], weights[key]), (
        "without the archive name, the run in the folder is loaded"
    )


def test_an_unfinished_run_with_equal_settings_does_not_count_as_the_archived_run(
    trained_runs: list[Run], archive: Path, tmp_path: Path
) -> None:
    run = create(tmp_path, trained_runs[1].config)
    with refused("exists", f"'reference/{run.name}'"):
        archives.find(tmp_path, f"reference/{run.name}")
    assert not run.is_finished


def test_missing_runs_and_archives_raise_errors(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("reference/linear-cnp-smoke-s1", "linear-cnp-smoke-s1"):
        with refused("unknown-name", f"'{name}'", "reference/linear-cnp-smoke-s0"):
            archives.find(tmp_path, name)
    with refused("missing-file", tmp_path / "absent", "results/reference"):
        archives.find(tmp_path, "absent/linear-cnp-smoke-s0")
    for name in ("a/b/linear-cnp-smoke-s0", "*/linear-cnp-smoke-s0", "../linear-cnp-smoke-s0", "/linear-cnp-smoke-s0"):
        with refused("bad-syntax"):
            archives.find(tmp_path, name)
    monkeypatch.setattr(
        archives, "results_folders", lambda results: [results]
    )  # hide the results folder of the checkout
    with refused("unknown-name", tmp_path / "absent", "'linear-cnp-smoke-s0'"):
        archives.find(tmp_path / "absent", "linear-cnp-smoke-s0")


def test_damaged_archives_raise_errors(archive: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = bytearray(archive.read_bytes())
    content[-1] ^= 1
    archive.write_bytes(content)
    with refused("unreadable-file", archive):
        archives.find(tmp_path, "linear-cnp-smoke-s0")
    archive.write_bytes(content[:100])
    with refused("unknown-name", "'linear-cnp-smoke-s0'"):
        archives.find(tmp_path, "linear-cnp-smoke-s0")
    assert str(archive) in caplog.text


def test_unpacking_does_not_overwrite_runs_or_weights(trained_runs: list[Run], archive: Path, tmp_path: Path) -> None:
    """The folder may contain weights without a configuration, or a run that another process has trained."""
    run = Run(tmp_path / "runs" / trained_runs[1].name)
    run.path.mkdir(parents=True)
    shutil.copy(trained_runs[1].weights, run.weights)
    with refused("missing-file", run.path, "config.toml"):
        archives.find(tmp_path, run.name)
    run.weights.unlink()
    packed = archives.entries(archive)[run.name]
    other_run = icl.train(icl.task("linear", "smoke"), "cnp", results=tmp_path, steps=3)
    with refused("exists", f"'{run.name}'"):
        archives.unpack(packed, run, tmp_path)
    assert Run(other_run.path).config.train.steps == 3


def test_an_unpacked_run_without_weights_can_be_unpacked_again_or_trained(archive: Path, tmp_path: Path) -> None:
    name = "linear-cnp-smoke-s0"
    run = archives.find(tmp_path, name)
    assert run.is_unpacked and not all(path.is_file() for path in run.training_files)
    run.weights.unlink()
    assert archives.find(tmp_path, name).is_finished
    run.weights.unlink()
    training.train(run)
    assert not Run(run.path).is_unpacked and all(path.is_file() for path in run.training_files)
