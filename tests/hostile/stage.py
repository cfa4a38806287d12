"""The inputs of trials: a small task, three trained runs and an interrupted one, their tables, a report and a grid.

The commands of iclbench create these files once, and each trial works on a copy.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from tests.conftest import small_card
from tests.hostile.process import Command, Outcome, call
from tests.hostile.verdicts import value_tables
from tests.language.tiny_models import save_tiny_model

TRAIN = ("train", "tiny.toml", "gpt2", "--preset", "smoke", "--name", "gpt")
CNP = ("train", "tiny.toml", "cnp", "--preset", "smoke", "--name", "cnp", "-o", "backbone.width=16")
LONG = ("train", "tiny.toml", "gpt2", "--preset", "smoke", "--name", "long", "-o", "train.steps=160")
EVAL = ("eval", "--shift", "orthants")
PROBE = ("probe", "gpt", "--tasks", "16", "--test", "8")
SWEEP = ("sweep", "grid.toml", "--workers", "2")
REPORT = ("report", "--formats", "none")
STREAM = ("stream", "cnp", "--csv", "points.csv", "--save", "state")
LANGUAGE = (
    "lm",
    "eval",
    "--model",
    "model",
    "--tasks",
    "mine.jsonl",
    "--shots",
    "1",
    "--demo-seeds",
    "0",
    "--episodes",
    "4",
    "--no-controls",
    "--offline",
)
# Commands whose output depends on the trained runs.
READERS = (EVAL, PROBE, ("cost", "cnp", "--points", "4", "--episodes", "2"), ("list", "runs"), ("show", "gpt"), REPORT)

LINES = 400


@dataclass
class Stage:
    """The folder with the inputs, and the output of the commands that created them.

    Attributes:
        home: the folder, with `results` (after all commands), `trained` (runs without tables), `half` (a run killed in
            training), `swept` (a completed grid) and the input files.
        outputs: the standard output of each command.
        seconds: the duration of each command in seconds.
    """

    home: Path
    outputs: dict[Sequence[str], str] = field(default_factory=dict)
    seconds: dict[Sequence[str], float] = field(default_factory=dict)

    def copy(self, folder: Path, results: str = "results") -> Path:
        """Copy the input files, and one of the results folders as `results`."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.home.iterdir():
            if path.is_file():
                shutil.copy(path, folder)
        if results:
            shutil.copytree(self.home / results, folder / "results", symlinks=True)
        return folder

    @property
    def values(self) -> dict[str, bytes]:
        return value_tables(self.home / "results")

    @property
    def weights(self) -> bytes:
        """The weights of the uninterrupted run `long`."""
        return (self.home / "results/runs/long/model.safetensors").read_bytes()


def build(home: Path, sweep: bool = True) -> Stage:
    """Create the inputs, and run the grid if `sweep`. Raise `RuntimeError` if a command fails."""
    home.mkdir(parents=True, exist_ok=True)
    stage = Stage(home)
    write_inputs(home)

    def run_command(arguments: Sequence[str], **options: Any) -> Outcome:
        outcome = call(arguments, home, **options)
        if outcome.code:
            raise RuntimeError(f"iclbench {' '.join(arguments)} failed without a disturbance: {outcome.err[-2000:]}")
        stage.outputs[arguments], stage.seconds[arguments] = outcome.out, outcome.seconds
        return outcome

    for command in (TRAIN, CNP, LONG):
        run_command(command)
    shutil.copytree(home / "results", home / "trained")
    for command in (STREAM, *READERS):
        run_command(command)
    if sweep:
        run_command(SWEEP, fresh=True, environment={"ICLBENCH_RESULTS": "swept"})
    _build_partial_run(home)
    with contextlib.redirect_stderr(io.StringIO()):  # hides progress bars
        save_tiny_model("gpt2", home / "model")
    return stage


def _build_partial_run(home: Path) -> None:
    """Train a run that is killed after two checkpoints."""
    for _ in range(20):
        training = Command(LONG, home, environment={"ICLBENCH_RESULTS": "half"}).start()
        checkpoints = home / "half/runs/long/checkpoints"
        while training.poll() is None and len(list(checkpoints.glob("step-*.safetensors"))) < 2:
            time.sleep(0.001)
        training.kill(signal.SIGKILL)
        training.end()
        if len(list(checkpoints.glob("step-*.safetensors"))) == 2:
            return
        shutil.rmtree(home / "half")
    raise RuntimeError("the run could not be killed between its second checkpoint and its end")


def write_inputs(home: Path) -> None:
    """Write the cards, points and tables that are inputs of commands."""
    card = small_card()
    (home / "tiny.toml").write_text(tomli_w.dumps(card))
    preset: dict[str, Any] = card["presets"]["smoke"]  # type: ignore[index]
    short_preset = preset | {
        "train": preset["train"] | {"steps": 4},
        "backbones": preset["backbones"] | {"cnp": {"width": 16}},
    }
    (home / "swept.toml").write_text(tomli_w.dumps(card | {"presets": {"smoke": short_preset}}))
    grid = {
        "summary": "tiny",
        "tasks": ["swept.toml"],
        "backbones": ["gpt2", "cnp"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"shifts": ["orthants"]},
        "probe": {},
    }
    (home / "grid.toml").write_text(tomli_w.dumps(grid))
    lines = [f"{i % 7 / 3},{i % 5 - 2},{i % 3},{'?' if i % 4 == 3 else i % 9 / 4}" for i in range(LINES)]
    (home / "points.csv").write_text("\n".join(lines) + "\n")
    rows = [f"{i % 11},{i * 7 % 13},{i * i % 17},{(i % 11) * 2 + (i * 7 % 13)}" for i in range(120)]
    (home / "table.csv").write_text("a,b,c,y\n" + "\n".join(rows) + "\n")
    (home / "table.csv.gz").write_bytes(gzip.compress((home / "table.csv").read_bytes(), mtime=0))
    import pandas as pd

    pd.read_csv(home / "table.csv").to_parquet(home / "table.parquet")


def write_mnist(data: Path) -> None:
    """Write the four files of MNIST, with 80 synthetic images in the training part and 80 in the test part."""
    folder = data / "mnist"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        images = bytes(i * 3 % 256 for i in range(80 * 28 * 28))
        labels = bytes(i % 10 for i in range(80))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 80, 28, 28) + images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 80) + labels)
