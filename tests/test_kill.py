"""SIGKILL at random moments of training and evaluation: the same command continues to the same bytes."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from iclbench import tables
from tests.conftest import small_card

FILES = ("model.safetensors", "values.parquet")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "iclbench", *arguments]


def run(*arguments: str, kill_after: float | None = None) -> bool:
    """Run a command to its end, or kill it after some seconds; returns whether it ended by itself, well."""
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, stderr = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    assert process.returncode == 0, stderr
    return True


def killed_until_done(arguments: tuple[str, ...], seconds: float, kills: int, seed: int) -> int:
    """Kill the command `kills` times at random moments of its run, then let it finish; returns how often it really
    died."""
    dice = random.Random(seed)
    died = 0
    for _ in range(kills):
        died += not run(*arguments, kill_after=dice.uniform(0.3, 1.0) * seconds)
    assert run(*arguments)
    return died


def undisturbed(arguments: tuple[str, ...]) -> float:
    started = time.monotonic()
    assert run(*arguments)
    return time.monotonic() - started


def value_tables(results: Path) -> dict[str, bytes]:
    return {str(p.relative_to(results)): p.read_bytes() for p in tables.files("values", results)}


def kill_training(folder: Path, kills: int, seed: int) -> None:
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    settings = (
        "-o",
        "train.steps=400",
        "-o",
        "train.batch=32",
        "-o",
        "train.log_every=50",
        "-o",
        "train.checkpoint_every=20",
    )

    def train(name: str) -> tuple[str, ...]:
        return ("train", str(card), "gpt2", "--preset", "smoke", "--results", str(folder / name), *settings)

    seconds = undisturbed(train("whole"))
    died = killed_until_done(train("killed"), seconds, kills, seed)
    assert died > 0
    for file in FILES:
        whole, killed = (next((folder / name / "runs").glob(f"*/{file}")) for name in ("whole", "killed"))
        assert whole.read_bytes() == killed.read_bytes(), file


def kill_evaluation(folder: Path, kills: int, seed: int) -> None:
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    for name in ("whole", "killed"):
        assert run("train", str(card), "gpt2", "--preset", "smoke", "--results", str(folder / name))

    def evaluate(name: str) -> tuple[str, ...]:
        return ("eval", "--extrapolate", "400", "--shift", "all", "--results", str(folder / name))

    seconds = undisturbed(evaluate("whole"))
    assert killed_until_done(evaluate("killed"), seconds, kills, seed) > 0
    assert value_tables(folder / "whole") == value_tables(folder / "killed")


def test_killed_training_reaches_the_same_weights_and_tables(tmp_path: Path) -> None:
    kill_training(tmp_path, kills=2, seed=0)


def test_killed_evaluation_reaches_the_same_tables(tmp_path: Path) -> None:
    kill_evaluation(tmp_path, kills=1, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_training_killed_many_times(tmp_path: Path, seed: int) -> None:
    kill_training(tmp_path, kills=6, seed=10 + seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_evaluation_killed_many_times(tmp_path: Path, seed: int) -> None:
    kill_evaluation(tmp_path, kills=5, seed=20 + seed)
