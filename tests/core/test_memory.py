"""If memory is exhausted, every command prints one line that names the options to reduce."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import tomli_w
import torch

from iclbench import tables
from iclbench.backbones.gpt2 import GPT2
from iclbench.cli.main import main
from iclbench.core.files import holds_tensors
from iclbench.core.memory import OutOfMemoryError, is_out_of_memory
from iclbench.store.runs import Run
from iclbench.training.run import train
from tests.conftest import small_card
from tests.training.test_run import new_run


def allocate_too_much(*arguments: object, **options: object) -> None:
    """Request more memory from torch than any machine has."""
    torch.empty(10**15)


def raise_system_error(*arguments: object, **options: object) -> None:
    """Raise the out-of-memory error of the operating system."""
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("trained")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card(baselines=["zero"], oracles=[])))
    run = new_run(card, folder)
    train(run)
    return run


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(10**15),
        lambda: torch.nn.Linear(10**10, 10**10),
        lambda: np.empty(10**15),
        lambda: b"0" * 10**15,
        raise_system_error,
    ],
)
def test_out_of_memory_errors_of_libraries_are_recognised(allocate: Callable[[], object]) -> None:
    with pytest.raises(Exception) as error:
        allocate()
    assert is_out_of_memory(error.value)


@pytest.mark.parametrize(
    ("command", "method", "options"),
    [
        ("train", "loss", ["-o train.batch", "-o backbone.width", "--preset"]),
        ("eval", "predict_next", ["--extrapolate"]),
        ("probe", "predict_by_layer", ["--tasks"]),
        ("cost", "condition", ["--points", "--queries", "--update", "--episodes"]),
        ("cost", "loss", ["--points", "--queries", "--update", "--episodes"]),
    ],
)
def test_the_error_of_each_command_names_the_options_to_reduce(
    command: str,
    method: str,
    options: list[str],
    trained_run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(GPT2, method, allocate_too_much)
    results = trained_run.path.parents[1]
    arguments = [trained_run.name] if command != "train" else [str(results / "tiny-linear.toml"), "gpt2", "-p", "smoke"]
    code = main([command, *arguments, "--results", str(results if command != "train" else tmp_path)])
    out, err = capfd.readouterr()
    output = " ".join((out + err).split())
    assert "out of memory" in output and "3638 TiB" in output, "4e15 bytes / 1024**4"
    assert all(option in output for option in options)
    assert not re.search(r"\bbug\b|Traceback", output)
    assert code == 1, "the exit code is 1 even if other sizes were measured"


@pytest.mark.parametrize("function", ["families.tabular.frame.read_text_columns", "cli.eval_runs.remarks_on"])
def test_the_out_of_memory_error_for_a_table_names_the_options_of_tables(
    function: str, trained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both reading and describing a table can run out of memory."""
    table, results = tmp_path / "mine.csv", tmp_path / "results"
    np.savetxt(table, np.random.default_rng(0).normal(size=(40, 4)), delimiter=",")
    copytree(trained_run.path.parents[1], results)
    monkeypatch.setattr(f"iclbench.{function}", allocate_too_much)
    code = main(
        [
            "eval",
            trained_run.name,
            "--csv",
            str(table),
            "--target",
            "4",
            "--baseline",
            "zero",
            "--results",
            str(results),
        ]
    )
    _, err = capfd.readouterr()
    assert all(text in err.splitlines()[-1] for text in ("out of memory", "3638 TiB", "--csv", "--data-dir"))
    assert code == 1


def test_out_of_memory_errors_are_not_reported_as_damage(trained_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of damage would lead users to delete intact files."""
    monkeypatch.setattr(GPT2, "load_state_dict", allocate_too_much)
    with pytest.raises(OutOfMemoryError):
        trained_run.load()
    monkeypatch.setattr("safetensors.safe_open", raise_system_error)
    with pytest.raises(OutOfMemoryError):
        holds_tensors(trained_run.weights)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", raise_system_error)
    for read in (tables.is_intact, lambda path: tables.read("values", path)):
        with pytest.raises(OutOfMemoryError):
            read(trained_run.path / "values.parquet")


@pytest.mark.parametrize(
    "error",
    [
        ImportError("_acero.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
def test_errors_caused_by_a_limit_on_address_space_are_recognised(error: Exception) -> None:
    """Under a limit on address space, the dynamic loader and Python's threads raise other errors."""
    assert is_out_of_memory(error)
