"""Code of this project, compared with libraries that could replace it, on inputs of typical size and one thread.

    python benchmarks/libraries.py           # about two minutes; prints one line per measurement

The script needs tabulate and playwright in addition to the packages of the project. Parts whose package is missing are
skipped. The conclusions are in libraries.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from iclbench.core import png
from iclbench.families.tabular.table_file import read_table
from iclbench.language.answering.generation import generate
from iclbench.language.models.batches import Batches
from iclbench.language.models.model import load
from iclbench.language.prompting.tokenised import Continuation, Question
from iclbench.report import exports
from iclbench.report.blocks import Table
from iclbench.report.data import load_results
from iclbench.report.sections import report_sections
from tests.language.tiny_models import save_tiny_model
from tests.report import browser

_SIZES = {
    "mamba": {"hidden_size": 128, "num_hidden_layers": 4, "state_size": 16},
    "mistral": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 1024,
        "max_position_embeddings": 2048,
        "sliding_window": 64,
    },
}


def least(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the seconds of the fastest repeat."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def tables_of_text(folder: Path) -> None:
    """Print the ratios to pandas for numbers, which Arrow parses, and for files with a leading blank line, which are
    parsed cell by cell."""
    for rows, columns in ((1_000, 20), (20_000, 20), (200_000, 10)):
        path = folder / "numbers.csv"
        names = [f"x{i}" for i in range(columns)]
        pd.DataFrame(np.random.default_rng(0).normal(size=(rows, columns)), columns=names).to_csv(path, index=False)
        ours, pandas = (least(partial(read, path)) for read in (read_table, pd.read_csv))
        print(
            f"CSV, {rows:,} x {columns}: ours {ours:.3f} s, pandas {pandas:.3f} s, ratio {ours / pandas:.1f}", end=", "
        )
        path.write_text(path.read_text().replace("\n", "\n\n", 1))
        ours = least(partial(read_table, path), 1)
        print(f"with a blank line {ours:.2f} s, ratio {ours / pandas:.0f}")


def pictures() -> None:
    ink = (np.random.default_rng(0).random((105, 105)) < 0.1).astype(np.uint8) * 255
    encoded = png.encode(ink)
    print(f"PNG, 105 x 105: read {1e6 * least(lambda: png.decode(encoded), 200):.0f} µs")
    sheet = np.tile(ink, (16, 10))
    print(f"PNG, 1680 x 1050: written {1e3 * least(lambda: png.encode(sheet)):.0f} ms")


def exported_tables() -> None:
    sections = report_sections(load_results(Path("results/reference")))
    tables = [block for section in sections for block in section.walk() if isinstance(block, Table)]

    def latex(table: Table) -> str:
        cells = [[exports._latex(cell.text) for cell in row] for row in table.rows()]
        frame = pd.DataFrame(cells, columns=[exports._latex(column.header) for column in table.columns])
        return frame.style.hide(axis="index").to_latex(hrules=True)

    print(f"{len(tables)} tables, LaTeX: ours {least(lambda: [exports.latex(t) for t in tables], 2):.2f} s", end=", ")
    print(f"Styler {least(lambda: [latex(t) for t in tables], 2):.2f} s")
    with suppress(ImportError):
        from tabulate import tabulate

        def markdown(table: Table) -> str:
            cells = [[exports._markdown(cell.text) for cell in row] for row in table.rows()]
            return tabulate(cells, [c.header for c in table.columns], tablefmt="pipe", disable_numparse=True)

        for name, write in (("ours", exports.markdown), ("tabulate", markdown)):
            size = sum(len(write(table)) for table in tables)
            print(f"Markdown, {name}: {least(lambda: [write(t) for t in tables], 2):.2f} s, {size:,} characters")  # noqa: B023


def greedy_answers(folder: Path) -> None:
    for kind, size in _SIZES.items():
        model = load(str(save_tiny_model(kind, folder / kind, **size)))
        for length, tokens in ((64, 6), (256, 20)):
            ids = torch.randint(3, 280, (4, length), generator=torch.Generator().manual_seed(0))
            queries = [Question((), (Continuation(tuple(row), length),)) for row in ids.tolist()]
            seconds, answers = [], []
            for model.can_generate in (False, True):
                start = time.perf_counter()
                answers.append(generate(model, queries, Batches(4), tokens, ("\N{SNOWMAN}",)))
                seconds.append(time.perf_counter() - start)
            reread_seconds, cached_seconds = seconds
            print(
                f"{tokens} tokens after 4 x {length}, {kind}: reading again {reread_seconds:.2f} s, "
                f"cache {cached_seconds:.2f} s",
                end="",
            )
            print(f", {'equal' if answers[0] == answers[1] else 'different'} answers")


def pages(folder: Path) -> None:
    path = folder / "page.html"
    path.write_text("<p>paragraph</p>" * 1000)
    with browser.page(folder / "profile") as view:
        view.open(path)
        print(f"browser, an expression: ours {1e3 * least(lambda: view.run('1 + 1'), 100):.2f} ms", end="")
    with suppress(ImportError):
        from playwright.sync_api import sync_playwright

        with sync_playwright() as session:
            opened = session.chromium.launch(executable_path=browser.executable(), args=["--no-sandbox"])
            other = opened.new_page()
            other.goto(path.as_uri())
            print(f", playwright {1e3 * least(lambda: other.evaluate('1 + 1'), 100):.2f} ms", end="")
            opened.close()
    print()


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures()
        tables_of_text(folder)
        exported_tables()
        greedy_answers(folder)
        if browser.executable():
            pages(folder)


if __name__ == "__main__":
    main()
