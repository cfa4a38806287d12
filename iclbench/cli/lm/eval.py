"""`iclbench lm eval`: score language models on frozen prompts, with controls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, Results, Threads, Trust, set_up_torch
from iclbench.core.errors import DataError, Interrupted, UnknownNameError, UsageError

if TYPE_CHECKING:
    from iclbench.evaluation.cells import CellResult
    from iclbench.language.tasks.cards import LanguageTask

_DTYPES = ("float32", "bfloat16", "float16", "auto")
_OVERLENGTH_ACTIONS = ("error", "skip", "drop")


def command(
    model: Annotated[
        list[str], typer.Option("--model", "-m", help="Folder of a model, or its id on the hub. May be repeated.")
    ],
    tasks: Annotated[
        list[str],
        typer.Option(
            "--tasks",
            "-t",
            autocompletion=completion.language_tasks,
            help="Tasks, families or suites (iclbench lm tasks), paths to cards or data, separated by commas.",
        ),
    ],
    shots: Annotated[
        str | None,
        typer.Option("--shots", help="Numbers of demonstrations, like 5 or 0,2,4,8 (default: as on the card)."),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=1, help="Number of queries (default: as on the card).")
    ] = None,
    demo_seeds: Annotated[
        str, typer.Option("--demo-seeds", help="Seeds of sets of demonstrations: 0:10 for ten sets, 0 for one.")
    ] = "0:10",
    orders: Annotated[
        str,
        typer.Option(
            "--orders", help="Orders of the same demonstrations: 0 for the sampled order, 0:10 for ten orders."
        ),
    ] = "0",
    method: Annotated[
        str, typer.Option("--method", help="Method that uses the demonstrations: icl, deep-thinking or repeat.")
    ] = "icl",
    override: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--override",
            help="Setting of the method, like method.eta=0.01 or method.passes=dev. May be repeated.",
        ),
    ] = None,
    controls: Annotated[
        bool,
        typer.Option(
            "--controls/--no-controls",
            help="Also evaluate zero-shot, shuffled labels, repeated demonstrations and the majority label.",
        ),
    ] = True,
    overlength: Annotated[
        str,
        typer.Option(
            "--overlength",
            help="For prompts longer than the context: error, skip (the prompt) or drop (demonstrations).",
        ),
    ] = "error",
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Maximum number of sequences in a batch; reduced if memory runs out.")
    ] = 64,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")] = None,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype", help="Precision of the weights: float32, bfloat16, float16, or auto (as in the checkpoint)."
        ),
    ] = "float32",
    offline: Annotated[bool, typer.Option("--offline", help="Do not connect to the hub.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Allow the checkpoint to run its own code.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the contestant (default: the model's name).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the queries.")] = 0,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Score language models on in-context tasks. Run the same command again to continue after an interruption."""
    from iclbench.cli.terminal import say
    from iclbench.core.context import Context
    from iclbench.deep_thinking.methods import parse_method
    from iclbench.language.models import loading
    from iclbench.language.tasks.ranges import parse
    from iclbench.language.tasks.selection import language_tasks
    from iclbench.store.runs import check_name

    for option, value, names in (("--dtype", dtype, _DTYPES), ("--overlength", overlength, _OVERLENGTH_ACTIONS)):
        if value not in names:
            raise UnknownNameError(option, value, names)
    if len(model) > 1 and (name or revision):
        raise UsageError("--name and --revision need a single --model", code="conflict")
    if name is not None:
        check_name(name)
    context_method = parse_method(method, override or [])
    options = {
        "shots": None if shots is None else parse(shots, "--shots"),
        "episodes": episodes,
        "seed": seed,
        "demo_seeds": parse(demo_seeds, "--demo-seeds"),
        "orders": parse(orders, "--orders"),
        "controls": controls,
        "batch": batch,
        "overlength": overlength,
    }
    named_tasks = language_tasks(tasks)
    if not named_tasks:
        raise UsageError("--tasks is empty; iclbench lm tasks lists the tasks", code="missing-value")
    references_by_name: dict[str, str] = {}
    for model_reference in model:  # check the models before large packages are imported
        source = loading.find(model_reference, revision=revision, trust_remote_code=trust_remote_code, offline=offline)
        if (first_reference := references_by_name.setdefault(source.model_name, model_reference)) != model_reference:
            raise UsageError(
                f"'{first_reference}' and '{model_reference}' have the same name '{source.model_name}' in the "
                "tables; evaluate each in a separate command with --name",
                code="duplicate",
            )
    available_tasks, failed_count = _with_readable_data(named_tasks, data_dir)
    torch_device = set_up_torch(device, threads)
    from iclbench.cli.lm.eval_models import evaluate_model
    from iclbench.cli.lm.tables import print_language
    from iclbench.language.models.model import load

    cells: list[CellResult] = []
    for model_reference in model:
        try:
            language_model = load(
                model_reference,
                revision=revision,
                dtype=dtype,
                device=torch_device,
                trust_remote_code=trust_remote_code,
                offline=offline,
                contestant_name=name,
            )
            failed_count += evaluate_model(
                Context(results, data_dir), language_model, available_tasks, context_method, cells, options
            )
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; finished prompts are stored; run the same command again to continue"
            ) from None
        except UsageError as error:
            if len(model) == 1:
                raise
            failed_count += 1  # continue with the other models
            say(f"skipped model '{model_reference}': {error}")
    print_language(results, cells, json)
    if failed_count:
        say(f"{failed_count} failed; run the same command again to retry")
        raise typer.Exit(1)


def _with_readable_data(tasks: list[LanguageTask], data_dir: Path | None) -> tuple[list[LanguageTask], int]:
    """Return the tasks with readable data, and the number of other tasks. Print one line for each kind of missing data.

    Raises:
        DataError: no task has readable data.
    """
    from iclbench.cli.terminal import say

    readable_tasks: list[LanguageTask] = []
    errors_by_kind: dict[str, list[tuple[str, DataError]]] = {}
    for task in tasks:
        try:
            task.pool(data_dir)
            readable_tasks.append(task)
        except DataError as error:
            kind = task.card.reader if task.subset else task.name
            errors_by_kind.setdefault(kind, []).append((task.name, error))
    unreadable_tasks = [pair for pairs in errors_by_kind.values() for pair in pairs]
    if unreadable_tasks and not readable_tasks:
        raise unreadable_tasks[0][1]
    for pairs in errors_by_kind.values():
        say(f"skipped {abbreviated_names([name for name, _ in pairs])}: {pairs[0][1]}")
    return readable_tasks, len(unreadable_tasks)


def abbreviated_names(names: Sequence[str]) -> str:
    """Join names by commas. Abbreviate more than three names to two names and the number of the others.

    >>> abbreviated_names(["a", "b"]), abbreviated_names(["a", "b", "c", "d"])
    ('a, b', 'a, b and 2 others')
    """
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} others"
