"""Convert the identities in packed results from those of commit `BEFORE` to those of this checkout.

    python benchmarks/convert_ids.py results/reference

The code of each commit computes its identities. Every identity in the packs must be an identity of commit `BEFORE`, and
the map from old to new identities must be one-to-one. The script writes the converted folder next to the old one,
compares both (rows, all other columns, tensors), and then replaces the old one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

BEFORE = "0a60ca7d"
ROOT = Path(__file__).resolve().parents[1]
# The grids whose results are packed.
GRIDS = ("reference",)
# Columns with identities.
COLUMNS = ("cell", "prompt_set", "variant", "card")
# Trials of a learning rate for an earlier mambaformer, which `iclbench tune` does not use.
STALE = {"34bbbc1e", "7925f71c", "c86e60b2"}
# The data folder of `tabular` and `events`.
DATA = Path(os.environ.get("ICLBENCH_DATA", "data"))


def identities(packs: Path) -> Iterator[tuple[str, str]]:
    """Yield descriptions that do not depend on the commit, each with the identity of the described object."""
    from iclbench.config.cards import load_task
    from iclbench.config.resolution import resolve_tables
    from iclbench.evaluation.prompts import PromptSet
    from iclbench.probing.probe_set import ProbeSet
    from iclbench.probing.rank import RankSet
    from iclbench.probing.representation import RepresentationSet
    from iclbench.sweep.cells import grid_cells
    from iclbench.tuning.trials import Trial
    from iclbench.tuning.validation import Objective

    for grid in GRIDS:
        for number, cell in enumerate(grid_cells([grid])):
            where = f"{cell.task}-{cell.preset}"
            yield f"cell {grid} {number} {cell.kind} {cell.run} {where}", cell.hash
            yield f"card {cell.task}", load_task(cell.task)[1].hash
            if cell.config is not None:
                yield f"variant {cell.run} {where}", variant(cell.config)
            if cell.kind in ("train", "cost") or cell.reason is not None:
                continue
            options, task = cell.options, cell.task_config
            if cell.kind == "evaluate":
                for shift in options["shifts"]:
                    yield _set(PromptSet(task, cell.preset, shift, options["seed"], DATA))
                for test in options["evaluators"]:
                    yield _set(PromptSet(task, cell.preset, "none", options["seed"], DATA, evaluator=test))
            elif options["probe"] == "representation":
                yield _set(RepresentationSet(task, cell.preset, data_dir=DATA))
            else:
                for context in options["contexts"]:
                    kind = {"rank": RankSet}.get(options["probe"], ProbeSet)
                    test = "two-labels" if kind is RankSet and task.head == "categorical" else ""
                    yield _set(kind(task, cell.preset, data_dir=DATA, context=context, evaluator=test))
    import pandas as pd

    for path in sorted(packs.glob("*.trials.parquet")):
        rows = pd.read_parquet(path)
        settings = ["lr", "optimiser", "warmup", "weight_decay", "beta_1", "beta_2", "steps"]
        for row in rows.drop_duplicates(["contestant", "seed", *settings]).to_dict("records"):
            task, preset, contestant = row["task"], row["preset"], row["contestant"]
            base = resolve_tables(task, contestant, preset, data_dir=DATA, tuned=False)
            train = {key: row[key] for key in settings[:4]} | {"betas": [row["beta_1"], row["beta_2"]]}
            trial = Trial.of(base, train | {"steps": int(row["steps"])}, 0)
            key = " ".join(f"{row[each]}" for each in settings)
            yield f"trial {task}-{preset} {contestant} {key}", variant(trial.config)
            yield f"prompts validation {task}-{preset}", Objective.of(base.task, preset, DATA).id


def _set(prompts: Any) -> tuple[str, str]:
    context = getattr(prompts, "context", "")
    kind, where = type(prompts).__name__, f"{prompts.task.name}-{prompts.preset}"
    sizes = f"{prompts.task.points} {prompts.task.episodes}"
    return f"prompts {kind} {where} {prompts.evaluator} {prompts.shift} {prompts.seed} {context} {sizes}", prompts.id


def variant(config: Any) -> str:
    """Return the identity of a run without its seed."""
    try:
        from iclbench.store.identity import variant_id
    except ImportError:  # in commit `BEFORE`
        return str(config.variant)
    return variant_id(config)


def archived(packs: Path) -> Iterator[tuple[str, str]]:
    """Yield the runs in the archives of weights, with their identities according to the running code."""
    import tomllib

    from iclbench.store import archives

    for path in sorted(packs.glob("*.weights.safetensors")):
        for run, entry in archives.entries(path).items():
            yield f"run {path.name} {run}", run_identity(tomllib.loads(entry.config))


def run_identity(plain: dict[str, Any]) -> str:
    """Return the identity of a run from its configuration in the format of commit `BEFORE` or of this commit."""
    try:
        from iclbench.config.cards import content_hash  # in commit `BEFORE`
        from iclbench.config.resolution import trained_part, without_codes

        return str(content_hash(without_codes(trained_part(plain))))
    except ImportError:
        from iclbench.store.identity import run_id

        return run_id(configuration(plain))


def configuration(plain: dict[str, Any]) -> Any:
    """Return the configuration of a run of commit `BEFORE` in the format of this commit, with the current codes.

    The runs must be up to date at commit `BEFORE`, so that `sweep reference --dry-run` has nothing to do at this
    commit.
    """
    from iclbench.config import codes
    from iclbench.config.resolution import RunConfig

    task, backbone = plain["task"], plain["backbone"]
    task |= {"code": codes.of_family(task["family"])}
    backbone |= {"code": codes.of_backbone(backbone["name"], backbone["settings"])}
    return RunConfig.model_validate({key: value for key, value in plain.items() if key != "loss"})


def convert(packs: Path) -> None:
    """Convert all files of a folder of packed results, as described at the top of the module."""
    packs = packs.resolve()
    old, new = _list(packs, BEFORE), _list(packs, None)
    if [key for key, _ in old] != [key for key, _ in new]:
        raise SystemExit("the two commits compute identities of different objects")
    ids: dict[str, str] = {}
    for (key, before), (_, after) in zip(old, new, strict=True):
        if ids.setdefault(before, after) != after:
            raise SystemExit(f"{key}: {before} would become {after} and {ids[before]}")
    if len(set(ids.values())) != len(ids):
        raise SystemExit("two old identities would become equal")
    runs = {key: before for key, before in old if key.startswith("run ")}
    with tempfile.TemporaryDirectory(dir=packs.parent, prefix=".converting-") as folder:
        converted = Path(folder) / packs.name
        shutil.copytree(packs, converted)
        for path in sorted(converted.glob("*.parquet")):
            _table(packs / path.name, path, ids)
        for path in sorted(converted.glob("*.weights.safetensors")):
            _archive(packs / path.name, path, runs)
        packs.rename(Path(folder) / "before")
        converted.rename(packs)
    names = {before: after for before, after in ids.items() if before != after}
    print(f"{len(names)} identities converted in {packs}")
    for pages in ([ROOT / "README.md"], sorted((ROOT / "docs").glob("*.md"))):
        for page in pages:
            text = page.read_text()
            for before, after in names.items():
                text = text.replace(before, after) if "-" in before else text
            page.write_text(text)


def _list(packs: Path, commit: str | None) -> list[tuple[str, str]]:
    """Return the identities according to the code of a commit (None: this checkout)."""
    with tempfile.TemporaryDirectory() as folder:
        place = ROOT
        if commit is not None:
            place = Path(folder) / "checkout"
            subprocess.run(["git", "worktree", "add", "--detach", place, commit], cwd=ROOT, check=True)
        try:
            command = [sys.executable, __file__, "--list", packs]
            listed = subprocess.run(
                command, cwd=place, env=os.environ | {"PYTHONPATH": str(place)}, check=True, stdout=subprocess.PIPE
            )
        finally:
            if commit is not None:
                subprocess.run(["git", "worktree", "remove", "--force", place], cwd=ROOT, check=True)
    return [(key, value) for key, value in json.loads(listed.stdout)]


def _table(before: Path, after: Path, ids: dict[str, str]) -> None:
    """Convert one table and compare it with the old one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from iclbench.core import digests

    old = pq.read_table(before)
    table = old
    for name in set(COLUMNS) & set(old.column_names):
        values = old[name].to_pylist()
        if unknown := {value for value in values if value is not None} - ids.keys() - STALE:
            raise SystemExit(f"{before.name}: commit {BEFORE} does not compute {name} {min(unknown)}")
        column = pa.array([ids.get(value, value) for value in values], type=old.schema.field(name).type)
        table = table.set_column(table.schema.get_field_index(name), old.schema.field(name), column)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, old.schema, compression="zstd") as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({digests.KEY: digests.BLANK})
    after.write_bytes(digests.with_digest(sink.getvalue().to_pybytes()))
    converted = pq.read_table(after)
    assert converted.num_rows == old.num_rows, before
    for name in set(old.column_names) - set(COLUMNS):
        assert converted[name].equals(old[name]), (before, name)


def _archive(before: Path, after: Path, runs: dict[str, str]) -> None:
    """Convert the configurations in one archive, and compare its tensors with those of the old one."""
    import tomllib

    import tomli_w
    from safetensors.torch import load_file

    from iclbench.store import archives
    from iclbench.store.identity import run_id

    packed = []
    for name, entry in archives.entries(before).items():
        if entry.metadata["config"] != runs[f"run {before.name} {name}"]:
            raise SystemExit(f"{before.name}: the identity of run {name} is not that of commit {BEFORE}")
        config = configuration(tomllib.loads(entry.config))
        about = {key: value for key, value in entry.metadata.items() if key != "configured"}
        about |= {"config": run_id(config)}
        packed.append(replace(entry, config=tomli_w.dumps(config.dump()), metadata=about))
    archives.write(after, packed)
    old, new = load_file(before), load_file(after)
    assert old.keys() == new.keys() and all(old[key].equal(new[key]) for key in old), before


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        place = Path(sys.argv[2])
        json.dump([*identities(place), *archived(place)], sys.stdout)
    else:
        convert(Path(sys.argv[1]))
