"""`iclbench lm eval`: scores language models on frozen prompts, with controls beside a method."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, DataDir, Device, Json, MaxBytes, Results, Threads, Trust


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
