"""Running out of memory is one line that says what to make smaller, whoever runs out of it."""

import errno
import os
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


def greedy(*arguments: object, **options: object) -> None:
    """More than any machine has."""
    torch.empty(10**15)


def refuse(*arguments: object, **options: object) -> None:
    """As the system does."""
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("trained")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card(baselines=["zero"], oracles=[])))
    run = new_run(card, folder)
    train(run)
    return run


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.empty(10**15),
        lambda: torch.nn.Linear(10**10, 10**10),
        lambda: np.empty(10**15),
        lambda: b"0" * 10**15,
        refuse,
    ],
)
def test_libraries_own_errors_are_known(ask: Callable[[], object]) -> None:
    with pytest.raises(Exception) as short:
        ask()
    assert is_out_of_memory(short.value)


@pytest.mark.parametrize(
    ("command", "where", "smaller"),
    [
        ("train", "loss", "-o train.batch, -o backbone.width or --preset"),
        ("eval", "predict_next", "fewer points (--extrapolate"),
        ("probe", "predict_by_layer", "fewer --tasks"),
        ("cost", "condition", "fewer --points, --queries, --update or --episodes"),
        ("cost", "loss", "fewer --points, --queries, --update or --episodes"),
    ],
)
def test_commands_say_what_to_make_smaller(
    command: str,
    where: str,
    smaller: str,
    trained: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(GPT2, where, greedy)
    results = trained.path.parents[1]
    arguments = [trained.name] if command != "train" else [str(results / "tiny-linear.toml"), "gpt2", "-p", "smoke"]
    code = main([command, *arguments, "--results", str(results if command != "train" else tmp_path)])
    out, err = capfd.readouterr()
    told = " ".join((out + err).split())
    assert "out of memory (3638 TiB wanted at once): take" in told, "4e15 bytes / 1024**4"
    assert smaller in told
    assert "this is a bug" not in told and "Traceback" not in told
    assert code == 1, "also where the sizes that were left out are told and others are shown"


@pytest.mark.parametrize("where", ["families.tabular.table_file.read_csv", "evaluation.whole_table.out_of_fold"])
def test_a_table_too_large_for_the_memory_is_to_be_smaller(
    where: str, trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether it is too large to be read, or for XGBoost to be fitted on all of it."""
    table, results = tmp_path / "own.csv", tmp_path / "results"
    np.savetxt(table, np.random.default_rng(0).normal(size=(40, 4)), delimiter=",")
    copytree(trained.path.parents[1], results)
    monkeypatch.setattr(f"iclbench.{where}", greedy)
    code = main(
        ["eval", trained.name, "--csv", str(table), "--target", "4", "--baseline", "zero", "--results", str(results)]
    )
    _, err = capfd.readouterr()
    assert err.splitlines()[-1] == (
        "error: out of memory (3638 TiB wanted at once): take a table (--csv, --data-dir) of fewer rows or columns, or "
        "a machine with more memory"
    )
    assert code == 1


def test_want_of_memory_is_not_taken_for_damage(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told that a file is damaged deletes it."""
    monkeypatch.setattr(GPT2, "load_state_dict", greedy)
    with pytest.raises(OutOfMemoryError):
        trained.load()
    monkeypatch.setattr("safetensors.safe_open", refuse)
    with pytest.raises(OutOfMemoryError):
        holds_tensors(trained.weights)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", refuse)
    for read in (tables.is_intact, lambda path: tables.read("values", path)):
        with pytest.raises(OutOfMemoryError):
            read(trained.path / "values.parquet")


@pytest.mark.parametrize(
    "error",
    [
        ImportError("_acero.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
def test_libraries_and_threads_that_get_no_memory_are_no_bug(error: Exception) -> None:
    """What the loader and Python say under a limit on addresses."""
    assert is_out_of_memory(error)
