"""`iclbench sweep GRID`: all cells of a grid, those that are finished skipped before anything starts."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import typer

from iclbench.cli import sweep_jobs, sweep_results
from iclbench.cli.options import set_up_torch
from iclbench.cli.sweep_run import run
from iclbench.cli.sweep_summary import print_dry_run
from iclbench.cli.terminal import say
from iclbench.config.registry import canonical
from iclbench.config.resolution import backbone_class
from iclbench.config.trust import typed
from iclbench.core import cores
from iclbench.core.context import Context
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.signals import sigterm_like_ctrl_c
from iclbench.sweep import plan as plans
from iclbench.sweep.cells import KINDS, SUMMARY, GridCell, grid_cells
from iclbench.sweep.language_grids import is_language_grid, language_cells
from iclbench.sweep.local import LocalPool
from iclbench.sweep.pack import missing
from iclbench.sweep.plan import Plan
from iclbench.sweep.store import Store
from iclbench.sweep.there import check_data
from iclbench.sweep.work import set_up


def sweep(
    grid: list[str],
    dry_run: bool,
    workers: int | None,
    per_gpu: int,
    engine: str,
    jobs: int | None,
    detach: bool,
    status: bool,
    preset: str | None,
    tasks: str | None,
    contestants: str | None,
    add: list[str] | None,
    only: str | None,
    pack: Path | None,
    replace: str | None,
    verify: int | None,
    verify_seed: int,
    results: Path,
    data_dir: Path | None,
    device: str,
    json: bool,
) -> None:
    """Train, evaluate, probe and measure all that a grid asks for. The same command goes on where it stopped."""
    sweeping = dry_run or only or contestants or workers or per_gpu != 1
    if (pack is not None or verify is not None) and (sweeping or engine != "local" or jobs or detach or status):
        raise UsageError(
            "--pack and --verify sweep nothing: no --dry-run, --only, --contestants, --workers, --per-gpu, --engine, "
            "--jobs, --detach or --status with them"
        )
    if replace is not None and pack is None:
        raise UsageError("--replace says what --pack is to leave out: write --pack FOLDER --replace REASON")
    if pack is not None and verify is not None:
        raise UsageError("--pack and --verify are two commands: pack first, then verify")
    if pack is not None or verify is not None:
        _refuse_language_grids(grid)
    if dry_run and (detach or status):
        raise UsageError("--dry-run does nothing: leave --detach and --status out")
    cluster = sweep_jobs.cluster(engine, grid, jobs, workers, detach, status)
    if cluster is not None and per_gpu != 1:
        raise UsageError(f"--per-gpu is of this machine; jobs of engine '{engine}' have a GPU each")
    kinds = _named("kind of cell", only, KINDS)
    with sigterm_like_ctrl_c():
        kind, gpus = devices(device) if cluster is None else (cluster.device(device), [])
        store, cells = Store(results), _of(preset, tasks, _cells(grid, add or [], results))
        if pack is not None:
            sweep_results.print_packed(cells, store, pack, json, replace)
            return
        if verify is not None:
            context = Context(results, data_dir, kind)
            if not sweep_results.print_verified(cells, store, verify, verify_seed, context, json):
                raise typer.Exit(1)
            return
        if (line := missing(grid, cells, results)) is not None:
            say(line)
        known = {cell.contestant for cell in cells if cell.run != SUMMARY}
        wanted = _named("contestant", contestants, known, "(of these grids)") if contestants else None
        plan = plans.only(plans.plan(cells, store), store, kinds, wanted)
        check_data(plan, Context(results, data_dir, kind))
        slots: list[str | None] = [gpu for gpu in gpus for _ in range(per_gpu)] or one_per_core()
        if workers:
            slots = [slots[i % len(slots)] for i in range(workers)]
        if cluster is not None:
            cluster.sweep(plan, store, Context(results, data_dir, kind), dry_run, json, add or [])
            return
        if dry_run:
            print_dry_run(plan, store, kind, data_dir, len(slots), json, added=add or [])
            return
        work_through(plan, store, slots, Context(results, data_dir, kind), json)


def one_per_core() -> list[str | None]:
    """Workers of a machine without a GPU."""
    return [None] * cores.available()


def work_through(plan: Plan, store: Store, slots: Sequence[str | None], context: Context, json: bool = False) -> None:
    """Do what is to do in processes of this machine, as many cells at a time as there are slots.

    Args:
        slots: the GPU that each worker sees; None: none.

    Raises:
        Interrupted: Ctrl-C; what is finished is kept.
        typer.Exit: with 1, where cells failed.
    """
    run(plan, store, lambda: pool(slots[: max(1, len(plan.todo))], context.threads), context, json, len(slots))


def _cells(grids: list[str], added: list[str], results: Path) -> list[GridCell]:
    """The cells of all grids, those of language models behind the others; `added` are further backbones."""
    of_models = [name for name in grids if is_language_grid(name)]
    if added and of_models:
        raise UsageError(f"grid '{of_models[0]}' asks pretrained language models: no backbone can be added to it")
    for name in added:
        typed(name)
        backbone_class(name)
    cells = grid_cells((name for name in grids if name not in of_models), added, results)
    answered = {cell.hash: cell for name in of_models for cell in language_cells(name)}
    return [*cells, *answered.values()]


def _refuse_language_grids(grids: list[str]) -> None:
    """Packed results and what is verified hold values of backbones and baselines alone."""
    for name in grids:
        if is_language_grid(name):
            raise UsageError(f"grid '{name}' asks pretrained language models, whose cells are not packed or verified")


def _named(what: str, typed: str | None, known: Collection[str], hint: str = "") -> list[str]:
    """The names that were typed, by commas; all that are known, where none was."""
    words = [word.strip() for word in typed.split(",")] if typed else known
    names = [word if word in known else canonical(word) for word in words]
    for name in names:
        if name not in known:
            raise UnknownNameError(what, name, known, hint=hint)
    return names


def _of(preset: str | None, tasks: str | None, cells: list[GridCell]) -> list[GridCell]:
    """The cells of one preset and of these tasks; None: of all."""
    known = {cell.preset for cell in cells}
    if preset is not None and canonical(preset) not in known:
        raise UnknownNameError("preset", preset, known, hint="(presets of these grids)")
    wanted = _named("task", tasks, {cell.task for cell in cells}, "(tasks of these grids)")
    return [cell for cell in cells if (preset is None or cell.preset == canonical(preset)) and cell.task in wanted]


def devices(device: str) -> tuple[str, list[str]]:
    """The kind of device that cells compute on, and the GPUs that workers may see, as `CUDA_VISIBLE_DEVICES` names
    them."""
    chosen = set_up_torch(device, 1)
    if not chosen.startswith("cuda"):
        return chosen, []
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    index = torch.device(chosen).index
    return "cuda", names[: torch.cuda.device_count()] if index is None else [names[index]]


def pool(slots: Sequence[str | None], threads: int) -> LocalPool:
    """Worker processes, each of which sees the GPU of its slot."""
    return LocalPool([(threads, gpu) for gpu in slots], set_up)
