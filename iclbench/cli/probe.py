"""`iclbench probe [RUN...]`: what every layer of a model knows, beside gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from iclbench.cli.options import RESULTS, DataDir, Device, Json, Results, Threads, chosen_runs, set_up_torch

if TYPE_CHECKING:
    import pandas as pd

    from iclbench.evaluation.evaluate import Cell


def probe(
    run: Annotated[
        list[str] | None, typer.Argument(help="Runs to probe; none: all finished ones that have layers.")
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option("--context", min=1, help="Examples in context; may be repeated.", show_default="as trained"),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=2, help="Functions to probe on.")] = 128,
    fit: Annotated[int, typer.Option("--fit", min=2, help="Queries to fit scale and shift on, per task.")] = 10,
    test: Annotated[int, typer.Option("--test", min=1, help="Queries to score, per task.")] = 40,
    shift: Annotated[str, typer.Option("--shift", help="Probe under this shift.")] = "none",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the probe set.")] = 0,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Decode every layer by the model's own read-out, up to a scale and a shift per task, beside GD and GD++."""
    from iclbench.cli.summary import print_tables
    from iclbench.cli.terminal import say
    from iclbench.errors import UsageError
    from iclbench.registry import canonical

    runs = chosen_runs(results, run)
    chosen = set_up_torch(device, threads)
    from iclbench.probing.probe import NotProbedError
    from iclbench.probing.probe import probe as probe_run

    failed = 0
    probed: list[str] = []
    refused: dict[str, UsageError] = {}
    for each in runs:
        try:
            cells = probe_run(
                results, each, context, fit=fit, test=test, tasks=tasks, shift=canonical(shift), seed=seed,
                device=chosen, data_dir=data_dir,
            )  # fmt: skip
            failed += follow(each.name, cells, probed, say)
        except UsageError as error:
            if run:
                raise
            refused[each.name] = error  # nobody asked for this one by name: the others go on
    wrong = dict.fromkeys(str(why) for why in refused.values() if not isinstance(why, NotProbedError))
    if not probed:
        raise UsageError("; ".join(wrong) or f"no finished run in {results} has layers to probe")
    for name, why in refused.items():
        say(f"skipped run '{name}': {why}")
    print_tables(results, probed, json, depth_table, _examples)
    if failed:
        say(f"{failed} failed; the same command tries them again")
    if failed or wrong:
        raise typer.Exit(1)


def follow(name: str, cells: Iterator[Cell], probed: list[str], say: Callable[[str], None]) -> int:
    """Go through the cells of one run; returns the number of failed ones and notes the probe sets."""
    failed = 0
    for cell in cells:
        if cell.prompts.id not in probed:
            probed.append(cell.prompts.id)
            say(f"probe {name} with {cell.prompts.context_points} examples{' (kept)' if cell.cached else ''}")
        if cell.reason:
            failed += 1
            say(f"failed: {cell.contestant.run} on {cell.prompts.id}: {cell.reason}")
    return failed


def _examples(values: pd.DataFrame) -> str:
    """How many examples were in context, where that is known."""
    sizes = values["n_context"].dropna()
    return f"{int(sizes.iloc[0])} examples, " if len(sizes) else ""


def depth_table(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Column names and rows: the error after a quarter, half, three quarters and all layers (or steps), where it is
    smallest, and scale and shift (with their spread over tasks) after the last layer."""
    from iclbench.cli.summary import short

    ok = values[(values["status"] == "ok") & (values["evaluator"] == "probe")]
    lines: list[tuple[float, list[str]]] = []
    for run, rows in ok.groupby("run", sort=False):
        errors = rows[rows["metric"] == "squared_error"].sort_values("axis_value")
        ends = float(errors["value"].iloc[-1])
        name = f"[bold]{run}[/bold]" if rows["kind"].iloc[0] == "backbone" else str(run)
        if errors["axis"].isna().all():
            lines.append((ends, [name, "", "", "", "", short(ends), "", "", ""]))
            continue
        by_depth = errors.set_index(errors["axis_value"].astype(int))["value"]
        depth = int(by_depth.index.max())
        unit = "layer" if errors["axis"].iloc[0] == "layer" else "step"
        quarters = [_at_part(by_depth, depth, part) for part in (1, 2, 3)]
        best = f"{short(by_depth.min())} at {unit} {by_depth.idxmin()}"
        last = rows[rows["axis_value"] == depth].set_index("metric")["value"]
        fitted = [_with_spread(last, metric) for metric in ("scale", "shift")]
        lines.append((ends, [name, f"{depth} {unit}s", *quarters, short(ends), best, *fitted]))
    ordered = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
    return ["contestant", "depth", "1/4", "1/2", "3/4", "all", "best", "scale", "shift"], ordered


def _at_part(by_depth: pd.Series, depth: int, quarters: int) -> str:
    """The error after so many quarters, where that is a whole number of layers and there is one."""
    from iclbench.cli.summary import short

    at, rest = divmod(quarters * depth, 4)
    return "" if rest or at not in by_depth.index else short(by_depth[at])


def _with_spread(last: pd.Series, metric: str) -> str:
    from iclbench.report.formats import fixed

    if metric not in last.index:
        return ""
    return f"{fixed(last[metric], 2)} ±{fixed(last[f'{metric}_std'], 2)}"
