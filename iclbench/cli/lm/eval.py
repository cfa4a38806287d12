"""`iclbench lm eval`: scores language models on frozen prompts, with controls beside a method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from iclbench.cli.options import set_up_torch
from iclbench.cli.terminal import say
from iclbench.config.runs import check_name
from iclbench.core.context import Context
from iclbench.core.errors import DataError, Interrupted, UnknownNameError, UsageError
from iclbench.deep_thinking.methods import method_as_typed
from iclbench.language.models import loading
from iclbench.language.tasks.cards import LanguageTask
from iclbench.language.tasks.chosen import language_tasks
from iclbench.language.tasks.ranges import parse

if TYPE_CHECKING:
    from iclbench.evaluation.cells import Cell

_DTYPES = ("float32", "bfloat16", "float16", "auto")
_OVERLENGTH = ("error", "skip", "drop")


def evaluate(
    model: list[str],
    tasks: list[str],
    shots: str | None,
    episodes: int | None,
    demo_seeds: str,
    orders: str,
    method: str,
    override: list[str] | None,
    controls: bool,
    overlength: str,
    batch: int,
    revision: str | None,
    dtype: str,
    offline: bool,
    trust_remote_code: bool,
    name: str | None,
    seed: int,
    results: Path,
    data_dir: Path | None,
    device: str,
    threads: int,
    json: bool,
) -> None:
    """Score language models on in-context tasks. The same command again goes on where it stopped."""
    for option, value, known in (("--dtype", dtype, _DTYPES), ("--overlength", overlength, _OVERLENGTH)):
        if value not in known:
            raise UnknownNameError(option, value, known)
    if len(model) > 1 and (name or revision):
        raise UsageError("--name and --revision are of one model; give a single --model")
    if name is not None:
        check_name(name)
    how = method_as_typed(method, override or [])
    asked = {
        "shots": None if shots is None else parse(shots, "--shots"),
        "episodes": episodes,
        "seed": seed,
        "demo_seeds": parse(demo_seeds, "--demo-seeds"),
        "orders": parse(orders, "--orders"),
        "controls": controls,
        "batch": batch,
        "overlength": overlength,
    }
    chosen = language_tasks(tasks)
    if not chosen:
        raise UsageError("--tasks names none; iclbench lm tasks lists them")
    called: dict[str, str] = {}
    for each in model:  # what can be known of a model before anything is imported
        found = loading.find(each, revision=revision, trust_remote_code=trust_remote_code, offline=offline)
        if (other := called.setdefault(found.called, each)) != each:
            raise UsageError(
                f"'{other}' and '{each}' would both be '{found.called}' in the tables, one over the other; give a "
                "single --model with --name, one at a time"
            )
    there, failed = with_data(chosen, data_dir)
    place = set_up_torch(device, threads)

    from iclbench.cli.lm import eval_models, tables
    from iclbench.language.models.model import load

    cells: list[Cell] = []
    for each in model:
        try:
            loaded = load(
                each,
                revision=revision,
                dtype=dtype,
                device=place,
                trust_remote_code=trust_remote_code,
                offline=offline,
                called=name,
            )
            failed += eval_models.evaluate_model(Context(results, data_dir), loaded, there, how, cells, asked)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; what is finished is kept, the same command goes on from there") from None
        except UsageError as error:
            if len(model) == 1:
                raise
            failed += 1  # the others go on
            say(f"skipped model '{each}': {error}")
    tables.print_language(results, cells, json)
    if failed:
        say(f"{failed} failed; the same command tries them again")
        raise typer.Exit(1)


def with_data(tasks: list[LanguageTask], data_dir: Path | None) -> tuple[list[LanguageTask], int]:
    """The tasks whose data can be read, and how many cannot: those of one kind are named in one line.

    Raises:
        DataError: none is left.
    """
    there: list[LanguageTask] = []
    missing: dict[str, list[tuple[str, DataError]]] = {}
    for task in tasks:
        try:
            task.pool(data_dir)
            there.append(task)
        except DataError as error:
            kind = task.card.reader if task.subset else task.name
            missing.setdefault(kind, []).append((task.name, error))
    without = [pair for pairs in missing.values() for pair in pairs]
    if without and not there:
        raise without[0][1]
    for pairs in missing.values():
        say(f"skipped {and_others([name for name, _ in pairs])}: {pairs[0][1]}")
    return there, len(without)


def and_others(names: Sequence[str]) -> str:
    """The first of these names and how many others there are.

    >>> and_others(["a", "b"]), and_others(["a", "b", "c", "d"])
    ('a, b', 'a, b and 2 others')
    """
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} others"
