"""Archives of weights: what is packed is what was trained, to the last bit, and what is damaged is not believed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import iclbench as icl
from iclbench.cli.main import main
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.files import save_tensors
from iclbench.store import archives
from iclbench.store.runs import Run, create
from iclbench.training import run as training


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    results = tmp_path_factory.mktemp("trained")
    task = icl.task("linear", "smoke")
    return [icl.train(task, name, results=results, steps=4) for name in ("mamba2", "cnp")]


@pytest.fixture
def archive(trained: list[Run], tmp_path: Path) -> Path:
    path = archives.archive_path(tmp_path / "reference", "linear", "smoke")
    archives.write(path, [packed for run in trained if (packed := archives.of_run(run))])
    return path


def test_an_unpacked_run_is_byte_for_byte_the_one_that_was_packed(
    trained: list[Run], archive: Path, tmp_path: Path
) -> None:
    for run in trained:
        again = archives.find(tmp_path, run.name)
        for name in ("config.toml", "model.safetensors", "model.safetensors.sha256"):
            assert (again.path / name).read_bytes() == (run.path / name).read_bytes()
        assert again.digest == run.digest


def test_an_archive_does_not_depend_on_order_and_can_be_written_from_itself(
    trained: list[Run], archive: Path, tmp_path: Path
) -> None:
    before = archive.read_bytes()
    other = tmp_path / "other" / archive.name
    archives.write(other, reversed(list(archives.entries(archive).values())))
    assert other.read_bytes() == before
    archives.write(archive, archives.entries(archive).values())
    assert archive.read_bytes() == before


def test_load_reads_a_run_by_the_name_of_the_folder(trained: list[Run], archive: Path, tmp_path: Path) -> None:
    found = icl.load(f"reference/{trained[0].name}", tmp_path, device="cpu")
    then = trained[0].load()
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), then.parameters(), strict=True))
    assert icl.load(f"reference/{trained[0].name}", tmp_path).run.path == found.run.path


def test_a_run_of_ones_own_is_not_taken_for_that_of_the_archive(
    trained: list[Run], archive: Path, tmp_path: Path
) -> None:
    own = icl.train(icl.task("linear", "smoke"), "cnp", results=tmp_path, steps=3)
    assert own.name == trained[1].name
    with pytest.raises(UsageError, match="trained under other settings"):
        archives.find(tmp_path, f"reference/{own.name}")
    assert archives.find(tmp_path, own.name).config.train.steps == 3


def test_a_run_of_equal_settings_and_other_weights_is_not_that_of_the_archive(
    trained: list[Run], archive: Path, tmp_path: Path
) -> None:
    """As when another machine trains the same run: one bit of one weight is enough."""
    name = trained[1].name
    own = archives.find(tmp_path, name)
    weights = load_file(own.weights)
    first = min(weights)
    weights[first] = torch.nextafter(weights[first], torch.tensor(torch.inf))
    save_tensors(own.weights, weights, own.signature, digest=True)
    (own.path / own.UNPACKED).unlink()
    asked = [lambda: icl.load(f"reference/{name}", tmp_path), lambda: archives.find(tmp_path, f"reference/{name}")]
    for ask in asked:
        with pytest.raises(UsageError) as error:
            ask()
        said = str(error.value)
        assert f"'{name}'" in said and f"'reference/{name}'" in said and "\n" not in said
    assert main(["eval", f"reference/{name}", "--results", str(tmp_path)]) == 2
    assert not (tmp_path / "tables").exists()
    assert torch.equal(load_file(icl.load(name, tmp_path).run.weights)[first], weights[first]), "its own name stays"


def test_an_unfinished_run_of_equal_settings_is_not_that_of_the_archive(
    trained: list[Run], archive: Path, tmp_path: Path
) -> None:
    own = create(tmp_path, trained[1].config)
    with pytest.raises(UsageError) as error:
        archives.find(tmp_path, f"reference/{own.name}")
    assert f"'reference/{own.name}'" in str(error.value) and not own.finished


def test_what_is_damaged_or_not_there_is_said_in_a_line(
    trained: list[Run],
    archive: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("reference/linear-cnp-smoke-s1", "linear-cnp-smoke-s1"):
        with pytest.raises(UnknownNameError, match="reference/linear-cnp-smoke-s0"):
            archives.find(tmp_path, name)
    with pytest.raises(UsageError, match="come with a checkout"):
        archives.find(tmp_path, "elsewhere/linear-cnp-smoke-s0")
    with monkeypatch.context() as installed, pytest.raises(UnknownNameError, match="come with a checkout alone"):
        installed.setattr(archives, "with_shipped", lambda results: [results])
        archives.find(tmp_path / "elsewhere", "linear-cnp-smoke-s0")
    for name in ("a/b/linear-cnp-smoke-s0", "*/linear-cnp-smoke-s0", "../linear-cnp-smoke-s0", "/linear-cnp-smoke-s0"):
        with pytest.raises(UsageError, match="cannot be a run name"):
            archives.find(tmp_path, name)
    whole = bytearray(archive.read_bytes())
    whole[-1] ^= 1
    archive.write_bytes(whole)
    with pytest.raises(UsageError, match="its digest is not in"):
        archives.find(tmp_path, "linear-cnp-smoke-s0")
    archive.write_bytes(whole[:100])
    with pytest.raises(UnknownNameError):
        archives.find(tmp_path, "linear-cnp-smoke-s0")
    assert "is no archive of weights, or is damaged" in caplog.text


def test_nothing_that_was_trained_is_overwritten(trained: list[Run], archive: Path, tmp_path: Path) -> None:
    """Weights without a configuration are somebody's; a run that came while the lock was awaited stays."""
    run = Run(tmp_path / "runs" / trained[1].name)
    run.path.mkdir(parents=True)
    shutil.copy(trained[1].weights, run.weights)
    with pytest.raises(UsageError, match="holds weights without config"):
        archives.find(tmp_path, run.name)
    run.weights.unlink()
    packed = archives.entries(archive)[run.name]
    own = icl.train(icl.task("linear", "smoke"), "cnp", results=tmp_path, steps=3)
    with pytest.raises(UsageError, match="trained under other settings"):
        archives._unpacked(packed, run, tmp_path)
    assert Run(own.path).config.train.steps == 3


def test_an_unpacked_run_whose_weights_are_gone_is_unpacked_again_or_trained_as_any_other(
    archive: Path, tmp_path: Path
) -> None:
    name = "linear-cnp-smoke-s0"
    run = archives.find(tmp_path, name)
    assert run.unpacked and not all(path.is_file() for path in run.training_files)
    run.weights.unlink()
    assert archives.find(tmp_path, name).finished
    run.weights.unlink()
    training.train(run)
    assert not Run(run.path).unpacked and all(path.is_file() for path in run.training_files)
