"""All measurements on a GPU in one call.

    python benchmarks/gpu.py                              # tens of minutes, most of them compilation; writes gpu.md
    python benchmarks/gpu.py --only check blocks          # some parts; the others remain as in gpu.json
    python benchmarks/gpu.py --smoke                      # a small trial on a CPU without files

- check: the Triton kernel, compared with the float64 scan on the CPU;
- blocks: the scan of one layer with several block sizes and by the other back ends, as CUDA graphs, so that only the
  time on the device counts;
- gpt2-*, mamba-*: training steps per second at the size of the papers in float32, TF32 and bfloat16: as in
  `iclbench train`, without waiting for the device, as one CUDA graph, and compiled.

Every part runs in a separate process (`gpu_parts.py`). gpu.json and gpu.md are rewritten after every row, so a killed
call loses no row. A failed measurement is a row with a reason.
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
from gpu_parts import NAMES, PARTS

from iclbench.core.files import write_text

HERE = Path(__file__).parent
Row = dict[str, Any]


def rows_of(part: str, smoke: bool, limit: float) -> Iterator[Row]:
    """The rows of a part, and one with a reason if it fails or takes longer than `limit` seconds."""
    command = [sys.executable, str(HERE / "gpu_parts.py"), part, *(["--smoke"] if smoke else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=lambda: [*map(lines.put, process.stdout or ()), lines.put(None)], daemon=True).start()
    end = time.monotonic() + limit
    try:
        while (line := lines.get(timeout=max(0.0, end - time.monotonic()))) is not None:
            if line.startswith("{"):
                yield json.loads(line)
        if process.wait() != 0:
            yield {"what": f"{part}, the rest", "reason": f"the process ended with status {process.returncode}"}
    except queue.Empty:
        yield {"what": f"{part}, the rest", "reason": f"not within {limit:g} s"}
    finally:
        process.kill()
        process.wait()


def versions() -> str:
    """Device and libraries in one line."""
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
    """The current rows as Markdown."""
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
    if "blocks" in rows:
        first = rows["blocks"][0] if rows["blocks"] else {}
        text += ["## One layer's scan", "", "Ratios to the first row.", ""]
        text += table(
            ["what", "forward (ms)", "with backward (ms)", "ratio", "peak (MB)", "note"],
            [
                [
                    row["what"],
                    cell(row, "forward_s", 1e3),
                    cell(row, "both_s", 1e3),
                    ratio(row, first, "both_s"),
                    cell(row, "peak_bytes", 1e-6),
                    row.get("reason", ""),
                ]
                for row in rows["blocks"]
            ],
        )
    steps = {part: rows[part] for part in PARTS if part in rows and part not in ("check", "blocks")}
    if steps:
        text += ["## Training steps", "", "Ratios to the same model's float32 as trained.", ""]
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
    return "\n".join(text).rstrip() + "\n"


def ratio(row: Row, base: Row, key: str) -> str:
    """The speed relative to the base."""
    return f"{base[key] / row[key]:.2f}x" if key in row and key in base else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure on a GPU; see the head of this file.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--limit", type=float, default=600, help="seconds per part (default: 600)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU, no files")
    arguments = parser.parse_args()
    if not arguments.smoke and not torch.cuda.is_available():
        print("benchmarks/gpu.py measures a CUDA device and found none; try --smoke", file=sys.stderr)
        sys.exit(2)
    kept = HERE / "gpu.json"
    rows: dict[str, list[Row]] = {}
    if not arguments.smoke and kept.exists() and set(arguments.only) != set(PARTS):
        rows = json.loads(kept.read_text())
    for part in arguments.only:
        rows[part] = []
        for row in rows_of(part, arguments.smoke, arguments.limit):
            rows[part].append(row)
            print(json.dumps(row), flush=True)
            if not arguments.smoke:
                write_text(kept, json.dumps(rows, indent=1) + "\n")
                write_text(HERE / "gpu.md", report(rows))
    print(report(rows))


if __name__ == "__main__":
    main()
