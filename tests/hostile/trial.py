"""The data of a trial, and functions shared by all categories."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.process import Outcome, call
from tests.hostile.stage import Stage
from tests.hostile.verdicts import check_outcome, check_same_numbers, value_tables


@dataclass(frozen=True)
class Trial:
    """One trial: the stage, the folder of the trial, which does not exist yet, and a random generator."""

    stage: Stage
    folder: Path
    dice: random.Random

    def copy(self, results: str = "results") -> Path:
        """Return the trial's copy of the stage, which is created by the first call."""
        return self.folder if self.folder.exists() else self.stage.copy(self.folder, results)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def run(self, arguments: Sequence[str], **options: object) -> Outcome:
        return call(arguments, self.folder, **options)

    def check_tables(self, damaged: Mapping[str, bytes] | None = None, complete: bool = True) -> list[str]:
        """Check that the value tables equal those of the stage. Files may also have the bytes in `damaged`."""
        return check_same_numbers(self.stage.values, value_tables(self.results), damaged, complete)

    def check_command(self, arguments: Sequence[str]) -> list[str]:
        """Check that the command has its usual output and writes its usual tables."""
        outcome = self.run(arguments)
        complaints = check_outcome(outcome, {0}) + self.check_tables()
        if outcome.code == 0 and outcome.out != self.stage.outputs[arguments]:
            complaints.append(f"{arguments[0]} prints different numbers")
        return [f"afterwards: {complaint}" for complaint in complaints]


Kind = Callable[[Trial], list[str]]
