"""`iclbench lm eval`: scores language models on frozen prompts, with controls beside a method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, Results, Threads, Trust, set_up_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iclbench.deep_thinking.methods import Method
    from iclbench.evaluation.cells import Cell
    from iclbench.language.models.model import LanguageModel
    from iclbench.language.tasks.cards import LanguageTask

_DTYPES = ("float32", "bfloat16", "float16", "auto")
_OVERLENGTH = ("error", "skip", "drop")


def evaluate(
    model: Annotated[list[str], typer.Option("--model", "-m", help="Local folder, or id on the hub; may be repeated.")],
    tasks: Annotated[
        list[str],
        typer.Option(
            "--tasks",
            "-t",
            autocompletion=completion.language_tasks,
            help="a,b,c: tasks, families, suites (iclbench lm tasks), cards, own data.",
        ),
    ],
    shots: Annotated[
        str | None, typer.Option("--shots", help="Demonstrations: 5, or 0,2,4,8; default: what the card says.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=1, help="Queries; default: what the card says.")
    ] = None,
    demo_seeds: Annotated[
        str, typer.Option("--demo-seeds", help="Sets of demonstrations: 0:10 are ten; 0 is a quick look.")
    ] = "0:10",
    orders: Annotated[
        str, typer.Option("--orders", help="Orders of the same demonstrations: 0 as drawn; 0:10 are ten.")
    ] = "0",
    method: Annotated[str, typer.Option("--method", help="icl, deep-thinking or repeat.")] = "icl",
    override: Annotated[
        list[str] | None, typer.Option("-o", "--override", help="method.eta=0.01, method.passes=5 or dev, ...")
    ] = None,
    controls: Annotated[
        bool,
        typer.Option("--controls/--no-controls", help="Also zero-shot, shuffled labels, repetition, majority."),
    ] = True,
    overlength: Annotated[
        str, typer.Option("--overlength", help="Prompts beyond the context: error, skip, or drop demonstrations.")
    ] = "error",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences side by side; fewer where memory ends.")] = 64,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="float32, bfloat16, float16, or auto: as the checkpoint has it.")
    ] = "float32",
    offline: Annotated[bool, typer.Option("--offline", help="Ask nothing of the hub.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with a checkpoint.")
    ] = False,
    name: Annotated[str | None, typer.Option("--name", help="Name of the contestant; default: the model's.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Evaluation seed: which queries.")] = 0,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Score language models on in-context tasks. The same command again goes on where it stopped."""
    from iclbench.config.runs import check_name
    from iclbench.core.errors import Interrupted, UnknownNameError, UsageError
    from iclbench.deep_thinking.methods import method_as_typed
    from iclbench.language.models import loading
    from iclbench.language.tasks.cards import language_tasks
    from iclbench.language.tasks.ranges import parse

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
        "data_dir": data_dir,
        "controls": controls,
        "batch": batch,
        "overlength": overlength,
    }
    chosen = language_tasks(tasks)
    if not chosen:
        raise UsageError("--tasks names none; iclbench lm tasks lists them")
    for each in model:  # what can be known of a model before anything is imported
        loading.find(each, revision=revision, trust_remote_code=trust_remote_code, offline=offline)
    there, failed = with_data(chosen, data_dir)
    place = set_up_torch(device, threads)

    from iclbench.cli.lm.tables import print_language
    from iclbench.cli.terminal import say
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
            failed += evaluate_model(results, loaded, there, how, cells, asked)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; what is finished is kept, the same command goes on from there") from None
        except UsageError as error:
            if len(model) == 1:
                raise
            failed += 1  # the others go on
            say(f"skipped model '{each}': {error}")
    print_language(results, cells, json)
    if failed:
        say(f"{failed} failed; the same command tries them again")
        raise typer.Exit(1)


def with_data(tasks: list[LanguageTask], data_dir: Path | None) -> tuple[list[LanguageTask], int]:
    """The tasks whose data can be read, and how many cannot: those of one kind are named in one line.

    Raises:
        DataError: none is left.
    """

    from iclbench.cli.terminal import say
    from iclbench.core.errors import DataError

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


def evaluate_model(
    results: Path,
    model: LanguageModel,
    tasks: Sequence[LanguageTask],
    method: Method,
    cells: list[Cell],
    asked: dict[str, Any],
) -> int:
    """Evaluate one model under a bar and note its cells; returns how many cells and tasks failed.

    Raises:
        UsageError: none of the tasks can be asked; where some can, the others are named.
    """

    from iclbench.cli.terminal import say, step_bar
    from iclbench.core.errors import UsageError
    from iclbench.language.evaluate import evaluate_model as run_evaluation

    failed, before = 0, len(cells)
    with step_bar(f"{model.name}{method.suffix}", len(tasks)) as update:
        refused: list[tuple[str, UsageError]] = []
        for number, task in enumerate(tasks):
            first = len(cells)
            try:
                for cell in run_evaluation(results, model, [task], method, **asked):
                    cells.append(cell)
                    update(number, f"{cell.prompts.id}: {cell.contestant.name}{' (kept)' if cell.cached else ''}")
            except UsageError as error:
                refused.append((task.name, error))
            else:
                update(number + 1, task.name)
            for line in remarks(task.name, cells[first:]):
                say(line)
            failed += sum(bool(cell.reason) for cell in cells[first:])
    if refused and len(cells) == before:
        raise refused[0][1]
    for name, problem in refused:
        say(f"skipped {name}: {problem}")
    return failed + len(refused)


def remarks(task: str, cells: Sequence[Cell]) -> list[str]:
    """What is to be said of the cells of one task: a line for every contestant with cells that failed, one for every
    way of finding answers that is not plain."""
    broken: dict[str, list[str]] = {}
    for cell in cells:
        if cell.reason:
            broken.setdefault(cell.contestant.name, []).append(cell.reason)
    lines = [
        f"failed: {contestant} on {task}, {len(reasons)} of its prompt sets: {reasons[0]}"
        for contestant, reasons in broken.items()
    ]
    notes = dict.fromkeys(f"{cell.contestant.name} on {task}: {cell.note}" for cell in cells if cell.note)
    return [*lines, *notes]


def and_others(names: Sequence[str]) -> str:
    """The first of these names and how many others there are.

    >>> and_others(["a", "b"]), and_others(["a", "b", "c", "d"])
    ('a, b', 'a, b and 2 others')
    """
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} others"
