"""Training and evaluation that are killed at random moments and repeated give the same files."""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomli_w

from tests.conftest import small_card
from tests.forked import Command
from tests.sweep.test_kill import value_tables

FILES = ("model.safetensors", "values.parquet")


def run(*arguments: str, kill_after: float | None = None) -> bool:
    """Run a command. Return False if it was killed after `kill_after` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        return Command(arguments, Path(folder) / "errors").wait(kill_after)


def kill_and_finish(arguments: tuple[str, ...], seconds: float, kills: int, rng: random.Random) -> int:
    """Kill the command at random moments, at most `kills` times, and finish it. Return the number of kills."""
    for killed in range(kills):
        if run(*arguments, kill_after=rng.uniform(0.3, 1.0) * seconds):
            return killed
    assert run(*arguments)
    return kills


def killed_runs(
    arguments: Callable[[str], tuple[str, ...]], seconds: float, kills: int, rng: random.Random
) -> Iterator[str]:
    """Finish killed commands until `kills` processes have been killed in total, and yield the name of each command."""
    total = attempt = 0
    while total < kills:
        name = f"killed-{attempt}"
        started = time.monotonic()
        count = kill_and_finish(arguments(name), seconds, kills - total, rng)
        if not count:  # the command ended before it was killed, so the expected duration is updated
            seconds = time.monotonic() - started
        total, attempt = total + count, attempt + 1
        yield name


def duration(arguments: tuple[str, ...]) -> float:
    """Run a command without kills, and return its duration in seconds."""
    started = time.monotonic()
    assert run(*arguments)
    return time.monotonic() - started


def check_killed_training(folder: Path, kills: int, seed: int) -> None:
    """Assert that training with `kills` kills gives the same weights and tables as training without kills."""
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    settings = ("train.steps=400", "train.batch=32", "train.log_every=50", "train.checkpoint_every=20")
    overrides = [word for setting in settings for word in ("-o", setting)]

    def train(name: str) -> tuple[str, ...]:
        return ("train", str(card), "gpt2", "--preset", "smoke", "--results", str(folder / name), *overrides)

    def outcome(name: str) -> list[bytes]:
        return [next((folder / name / "runs").glob(f"*/{file}")).read_bytes() for file in FILES]

    for name in killed_runs(train, duration(train("complete")), kills, random.Random(seed)):
        assert outcome(name) == outcome("complete")


def check_killed_evaluation(folder: Path, kills: int, seed: int) -> None:
    """Assert that evaluation with `kills` kills gives the same tables as evaluation without kills."""
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    assert run("train", str(card), "gpt2", "--preset", "smoke", "--results", str(folder / "complete"))
    trained = folder / "trained"
    shutil.copytree(folder / "complete", trained)

    def evaluate(name: str) -> tuple[str, ...]:
        return ("eval", "--extrapolate", "400", "--shift", "orthants", "--results", str(folder / name))

    def evaluate_copy(name: str) -> tuple[str, ...]:
        shutil.copytree(trained, folder / name)
        return evaluate(name)

    for name in killed_runs(evaluate_copy, duration(evaluate("complete")), kills, random.Random(seed)):
        assert value_tables(folder / name) == value_tables(folder / "complete")


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seed"), [(1, 0), (6, 10), (6, 11)])
def test_killed_training_gives_the_same_weights_and_tables(tmp_path: Path, kills: int, seed: int) -> None:
    check_killed_training(tmp_path, kills, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seed"), [(1, 1), (5, 20), (5, 21)])
def test_killed_evaluation_gives_the_same_tables(tmp_path: Path, kills: int, seed: int) -> None:
    check_killed_evaluation(tmp_path, kills, seed)
