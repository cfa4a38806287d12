"""All measurements on a GPU in one call, which can be repeated until all are done.

    python benchmarks/gpu.py                              # measurements missing in gpu.json, then gpu.md; 25 min
    python benchmarks/gpu.py --only check mamba-icl-1     # some parts
    python benchmarks/gpu.py --again --only blocks        # repeat these measurements
    python benchmarks/gpu.py --smoke                      # a small trial on a CPU without files

- check: the Triton kernel, compared with the float64 scan on the CPU;
- scans, blocks: the scan of one layer by back end, and by the block size of the Triton kernel;
- recurrence: the linear recurrence of one layer, by the number of tokens per chunk;
- gpt2-*, mamba-*: training steps per second at the size of the papers in float32, TF32 and bfloat16, each as in
  `iclbench train`, without waiting for the device, as one CUDA graph, and compiled;
- the names of grids (mamba-icl-1, coqe-3, icicl-tnp-1, ...): a training step of every model of a published figure or
  table at preset `paper`, and the hours of all its trainings.

Every part runs in a separate process (`gpu_parts.py`) for at most a minute. gpu.json and gpu.md are rewritten after
every row, so an interrupted call loses no row. A failed measurement is a row with a reason, and is not repeated. A part
that takes longer is continued by the next call.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from gpu_parts import NAMES, PARTS, PRECISIONS, published_grids

from iclbench.core.files import write_text

HERE = Path(__file__).parent
Row = dict[str, Any]
# Parts with times of one layer, and the titles of their tables.
TIMED = {
    "scans": "One layer's scan, by back end",
    "blocks": "One layer's scan by the Triton kernel, by block size",
    "recurrence": "One layer's linear recurrence, by the number of tokens per chunk",
}


# The name of the row that says why a part has not measured all rows.
REST = "the rest"


def rows_of(part: str, measured: list[str], smoke: bool, limit: float) -> Iterator[Row]:
    """Yield the missing rows of a part, and a row with a reason if the part fails or takes longer than `limit`
    seconds.
    """
    command = [sys.executable, str(HERE / "gpu_parts.py"), part, *(["--smoke"] if smoke else [])]
    command += ["--measured", *measured]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=lambda: [*map(lines.put, process.stdout or ()), lines.put(None)], daemon=True).start()
    end = time.monotonic() + limit
    try:
        while (line := lines.get(timeout=max(0.0, end - time.monotonic()))) is not None:
            if line.startswith("{"):
                yield json.loads(line)
        if process.wait() != 0:
            yield {"what": REST, "reason": f"the process ended with status {process.returncode}"}
    except queue.Empty:
        yield {"what": REST, "reason": f"not within {limit:g} s"}
    finally:
        process.kill()
        process.wait()


def versions() -> str:
    """Return the device and the libraries in one line."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: a smoke run"
    parts = [device, f"torch {torch.__version__}", f"CUDA {torch.version.cuda}"]
    for package in ("triton", "mamba-ssm", "transformers"):
        try:
            parts.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            parts.append(f"no {package}")
    return ", ".join(parts)


def cell(row: Row, key: str, scale: float = 1.0, form: str = ".3g") -> str:
    return format(row[key] * scale, form) if key in row else "-"


def table(head: list[str], lines: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines]] + [""]


def report(rows: dict[str, list[Row]]) -> str:
    """Return the current rows as Markdown."""
    text = ["# On a GPU", "", f"`python benchmarks/gpu.py`, {date.today()}; {versions()}.", ""]
    if "check" in rows:
        text += ["## The Triton kernel against the float64 scan", ""]
        text += ["Largest error over largest value, outputs and gradients.", ""]
        text += table(
            ["what", *NAMES, "note"],
            [
                [row["what"], *(cell(row, name, form=".1e") for name in NAMES), row.get("reason", "")]
                for row in rows["check"]
            ],
        )
    for part, title in TIMED.items():
        if part in rows:
            text += [f"## {title}", "", "Ratios to the first row.", "", *timed(rows[part])]
    steps = {part: rows[part] for part in PARTS if part in rows and part.split("-")[-1] in PRECISIONS}
    if steps:
        text += ["## Training steps", "", "Ratios to the same model in float32, as trained.", ""]
        head = ["what", "steps/s", "ratio", "ms", "peak (GB)", "first step (s)", "note"]
        lines = []
        for part, part_rows in steps.items():
            base = next(iter(rows.get(part.split("-")[0] + "-float32", [])), {})
            for row in part_rows:
                rate = format(1 / row["step_s"], ".1f") if "step_s" in row else "-"
                lines.append(
                    [
                        row["what"],
                        rate,
                        ratio(row, base, "step_s"),
                        cell(row, "step_s", 1e3),
                        cell(row, "peak_bytes", 1e-9),
                        cell(row, "first_s"),
                        row.get("reason", ""),
                    ]
                )
        text += table(head, lines)
    if figures := [part for part in published_grids() if part in rows]:
        text += [
            "## Published figures and tables",
            "",
            "A training step at preset `paper`, at full context size, as in",
            "`iclbench train`. Hours are those of all trainings of the grid, without evaluations.",
            "",
        ]
        text += table(["grid", "trainings", "measured", "hours", "note"], [hours(grid, rows[grid]) for grid in figures])
        head = ["grid", "training", "steps", "trainings", "ms", "peak (GB)", "hours", "note"]
        lines = [[grid, *training(row)] for grid in figures for row in rows[grid] if row["what"] != REST]
        text += table(head, lines)
    return "\n".join(text).rstrip() + "\n"


def timed(rows: list[Row]) -> list[str]:
    """Return a table of the times of one layer."""
    head = ["what", "forward (ms)", "with backward (ms)", "ratio", "peak (MB)", "note"]
    lines = [
        [
            row["what"],
            cell(row, "forward_s", 1e3),
            cell(row, "both_s", 1e3),
            ratio(row, rows[0], "both_s"),
            cell(row, "peak_bytes", 1e-6),
            row.get("reason", ""),
        ]
        for row in rows
    ]
    return table(head, lines)


def row_hours(row: Row) -> float:
    """Return the hours of all trainings of a row."""
    return float(row["step_s"] * row["steps"] * row["trainings"] / 3600)


def hours(grid: str, rows: list[Row]) -> list[str]:
    """Return the hours of a grid, which are a lower bound if some trainings are not measured."""
    trainings = sum(row.get("trainings", 0) for row in rows)
    measured = [row for row in rows if "step_s" in row]
    note = next((row["reason"] for row in rows if row["what"] == REST), "")
    total = format(sum(map(row_hours, measured)), ".1f") if measured else "-"
    return [grid, str(trainings), str(sum(row["trainings"] for row in measured)), total, note]


def training(row: Row) -> list[str]:
    """Return the cells of one training of a grid."""
    counts = [str(row.get("steps", "-")), str(row.get("trainings", "-"))]
    times = [cell(row, "step_s", 1e3), cell(row, "peak_bytes", 1e-9)]
    return [
        row["what"],
        *counts,
        *times,
        format(row_hours(row), ".1f") if "step_s" in row else "-",
        row.get("reason", ""),
    ]


def ratio(row: Row, base: Row, key: str) -> str:
    """Return the speed relative to the base."""
    return f"{base[key] / row[key]:.2f}x" if key in row and key in base else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure on a GPU; see the docstring of this file.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--limit", type=float, default=60, help="seconds per part (default: 60)")
    parser.add_argument("--again", action="store_true", help="repeat measurements that gpu.json contains")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU, no files")
    arguments = parser.parse_args()
    if not arguments.smoke and not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a CUDA device, but torch finds none; try --smoke", file=sys.stderr)
        sys.exit(2)
    file = HERE / "gpu.json"
    rows: dict[str, list[Row]] = json.loads(file.read_text()) if file.exists() and not arguments.smoke else {}
    for part in arguments.only:
        rows[part] = [] if arguments.again else [row for row in rows.get(part, []) if row["what"] != REST]
        for row in rows_of(part, [row["what"] for row in rows[part]], arguments.smoke, arguments.limit):
            rows[part].append(row)
            print(json.dumps({"part": part} | row), flush=True)
            if not arguments.smoke:
                write_text(file, json.dumps(rows, indent=1) + "\n")
                write_text(HERE / "gpu.md", report(rows))
    print(report(rows))


if __name__ == "__main__":
    main()
