"""SIGKILL at random moments of training and evaluation: the same command continues to the same bytes."""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomli_w

from iclbench import tables
from tests.conftest import small_card
from tests.forked import Command

FILES = ("model.safetensors", "values.parquet")


def run(*arguments: str, kill_after: float | None = None) -> bool:
    """Run a command to its end, or kill it after some seconds; returns whether it ended by itself, well."""
    with tempfile.TemporaryDirectory() as folder:
        return Command(arguments, Path(folder) / "errors").ends(kill_after)


def kill_and_finish(arguments: tuple[str, ...], seconds: float, kills: int, dice: random.Random) -> int:
    """Kill the command at random moments, at most `kills` times, then let it finish; returns how often it died."""
    for died in range(kills):
        if run(*arguments, kill_after=dice.uniform(0.3, 1.0) * seconds):
            return died
    assert run(*arguments)
    return kills


def killed(
    arguments: Callable[[str], tuple[str, ...]], seconds: float, kills: int, dice: random.Random
) -> Iterator[str]:
    """The names of finished runs, each killed again and again before, until `kills` processes have died."""
    died = attempt = 0
    while died < kills:
        name = f"killed-{attempt}"
        started = time.monotonic()
        here = kill_and_finish(arguments(name), seconds, kills - died, dice)
        if not here:  # the undisturbed one ran on a busier machine
            seconds = time.monotonic() - started
        died, attempt = died + here, attempt + 1
        yield name


def undisturbed(arguments: tuple[str, ...]) -> float:
    started = time.monotonic()
    assert run(*arguments)
    return time.monotonic() - started


def value_tables(results: Path) -> dict[str, bytes]:
    return {str(p.relative_to(results)): p.read_bytes() for p in tables.files("values", results)}


def kill_training(folder: Path, kills: int, seed: int) -> None:
    """Train once undisturbed and then, killed again and again, until `kills` processes have died; all end the same."""
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    settings = ("train.steps=400", "train.batch=32", "train.log_every=50", "train.checkpoint_every=20")
    overrides = [part for setting in settings for part in ("-o", setting)]

    def train(name: str) -> tuple[str, ...]:
        return ("train", str(card), "gpt2", "--preset", "smoke", "--results", str(folder / name), *overrides)

    def outcome(name: str) -> list[bytes]:
        return [next((folder / name / "runs").glob(f"*/{file}")).read_bytes() for file in FILES]

    for name in killed(train, undisturbed(train("whole")), kills, random.Random(seed)):
        assert outcome(name) == outcome("whole")


def kill_evaluation(folder: Path, kills: int, seed: int) -> None:
    """The same for an evaluation of one trained run."""
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    assert run("train", str(card), "gpt2", "--preset", "smoke", "--results", str(folder / "whole"))
    trained = folder / "trained"
    shutil.copytree(folder / "whole", trained)

    def evaluate(name: str) -> tuple[str, ...]:
        return ("eval", "--extrapolate", "400", "--shift", "orthants", "--results", str(folder / name))

    def afresh(name: str) -> tuple[str, ...]:
        shutil.copytree(trained, folder / name)
        return evaluate(name)

    for name in killed(afresh, undisturbed(evaluate("whole")), kills, random.Random(seed)):
        assert value_tables(folder / name) == value_tables(folder / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seed"), [(1, 0), (6, 10), (6, 11)])
def test_killed_training_reaches_the_same_weights_and_tables(tmp_path: Path, kills: int, seed: int) -> None:
    kill_training(tmp_path, kills, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seed"), [(1, 1), (5, 20), (5, 21)])
def test_killed_evaluation_reaches_the_same_tables(tmp_path: Path, kills: int, seed: int) -> None:
    kill_evaluation(tmp_path, kills, seed)
