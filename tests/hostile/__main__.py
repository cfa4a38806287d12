"""`python -m tests.hostile`: sample and run trials, and print how many of each kind succeed."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.hostile import concurrent_commands, content, damage, environment, kills, plugins, python_api
from tests.hostile.process import preload
from tests.hostile.stage import Stage, build
from tests.hostile.trial import Kind, Trial

# The categories, with their kinds of trials and their shares of all trials.
CATEGORIES: dict[str, tuple[dict[str, Kind], float]] = {
    "kills": (kills.KINDS, 0.18),
    "kills of a sweep": (kills.SWEEPS, 0.01),
    "damaged files": (damage.KINDS, 0.27),
    "hostile content": (content.KINDS, 0.24),
    "hostile plug-ins": (plugins.KINDS, 0.13),
    "odd environments": (environment.KINDS, 0.14),
    "side by side": (concurrent_commands.KINDS, 0.03),
    "callers in Python": (python_api.KINDS, 0.04),
}
TRIALS = 500


@dataclass(frozen=True)
class Verdict:
    """The outcome of one trial. The trial has succeeded if it has no complaints."""

    category: str
    index: int
    kind: str
    complaints: tuple[str, ...]
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.category}/{self.index}"


def choose_trials(trials: int, only: Sequence[str] = ()) -> list[tuple[str, int]]:
    """Return categories and indices of trials, restricted by `only` to categories or single trials
    (`CATEGORY/INDEX`).
    """
    single = [(name.rsplit("/", 1)[0], int(name.rsplit("/", 1)[1])) for name in only if "/" in name]
    shares = {c: share for c, (_, share) in CATEGORIES.items() if not only or c in only}
    total = sum(shares.values()) or 1
    return single + [(c, i) for c, share in shares.items() for i in range(max(1, round(trials * share / total)))]


def attempt(stage: Stage, category: str, index: int, seed: int, keep: bool = False) -> Verdict:
    """Run one trial in its own folder."""
    kinds = CATEGORIES[category][0]
    kind = list(kinds)[index % len(kinds)]
    folder = Path(tempfile.mkdtemp(prefix=f"{category.replace(' ', '-')}-{index}-", dir=stage.home.parent))
    started = time.monotonic()
    try:
        complaints = kinds[kind](Trial(stage, folder / "trial", random.Random(f"{seed}/{category}/{index}")))
    except Exception as error:  # a trial that raises an error has failed
        complaints = [f"the trial itself failed: {''.join(traceback.format_exception(error)[-2:])}"]
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return Verdict(category, index, kind, tuple(complaints), time.monotonic() - started)


def run(
    trials: int = TRIALS,
    seed: int = 0,
    only: Sequence[str] = (),
    jobs: int = 2,
    report: Callable[[Verdict], None] = lambda verdict: None,
    keep: bool = False,
) -> list[Verdict]:
    """Run trials concurrently in forks of a process that has imported all modules."""
    preload()
    home = Path(tempfile.mkdtemp(prefix="iclbench-hostile-"))
    trial_keys = choose_trials(trials, only)
    try:
        stage = build(home / "stage", sweep=any(c == "kills of a sweep" for c, _ in trial_keys))
        random.Random(seed).shuffle(trial_keys)
        verdicts = []
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
            for future in [pool.submit(attempt, stage, c, i, seed, keep) for c, i in trial_keys]:
                verdicts.append(future.result())
                report(verdicts[-1])
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    """Return a table with the number of trials and successes of each kind."""
    trials, good = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for verdict in verdicts:
        for kind in (verdict.kind, "all"):
            trials[verdict.category, kind] += 1
            good[verdict.category, kind] += not verdict.complaints
    lines = [f"{'category':<18}{'trial':<38}{'trials':>7}{'good':>6}{'bad':>5}"]
    for category, (kinds, _) in CATEGORIES.items():
        for kind in [k for k in (*kinds, "all") if trials[category, k]]:
            key = category, kind
            lines.append(f"{category:<18}{kind:<38}{trials[key]:>7}{good[key]:>6}{trials[key] - good[key]:>5}")
    count, good_count = len(verdicts), sum(not v.complaints for v in verdicts)
    return "\n".join([*lines, f"{'all':<56}{count:>7}{good_count:>6}{count - good_count:>5}"])


def failures(verdicts: Sequence[Verdict]) -> str:
    """List all complaints, each after the name of its trial. With `--only`, this name repeats the trial."""
    bad = sorted((v for v in verdicts if v.complaints), key=lambda v: (v.category, v.index))
    return "\n".join(f"{v.name} ({v.kind})\n" + "\n".join(f"    {c}" for c in v.complaints) for v in bad)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], metavar="CATEGORY[/INDEX]", help="; ".join(CATEGORIES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="do not delete the folders of the trials")
    arguments = parser.parse_args()

    def report(verdict: Verdict) -> None:
        if verdict.complaints:
            print(failures([verdict]), file=sys.stderr, flush=True)  # noqa: T201

    started = time.monotonic()
    verdicts = run(arguments.trials, arguments.seed, arguments.only, arguments.jobs, report, arguments.keep)
    print(table(verdicts))  # noqa: T201
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = f"{time.monotonic() - started:.0f} s, {usage.ru_utime + usage.ru_stime:.0f} s of CPU time"
    print(f"{cost}, seed {arguments.seed}")  # noqa: T201
    return int(any(v.complaints for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
