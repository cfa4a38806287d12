"""What commands print, beside the blocks of a text that show it.

Commands that only look are run. What `eval`, `probe` and `cost` print of packed runs is printed again from their packed
rows, by the code that prints it after an evaluation. Everything else is looked up in `benchmarks/commands.md`, where
`benchmarks/commands.py` keeps what it printed. A block may be an excerpt: a line `...` stands for any number of lines,
and a line that ends in `, ...` for a longer one.
"""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pandas as pd

from iclbench import tables
from iclbench.cli import cost_runs, probe_tables, summary
from iclbench.cli.main import main
from iclbench.tables.evaluators import PROBES
from tests.findings.quantities import ROOT, card, nothing_but
from tests.findings.text import Problem

COMMANDS = ROOT / "benchmarks" / "commands.md"
_LOOK = ("list", "show", "sweep")
_REPLAY = ("eval", "probe", "cost")
_MORE = "..."
# Letters per line that tables are broken at in the texts.
WIDTH = "112"


@dataclass(frozen=True)
class Shown:
    """A command and the lines that a text shows of its output.

    Attributes:
        line: of the command, counted from 1.
        command: as it is typed, without what stands behind a `#`.
        lines: what is shown, without the margin.
    """

    line: int
    command: str
    lines: tuple[str, ...]


def shown(markdown: str) -> Iterator[Shown]:
    """The commands of a text's indented blocks that have an output."""
    lines = markdown.split("\n")
    for at, line in enumerate(lines):
        if line.startswith("    $ "):
            end = at + 1
            while (
                end < len(lines)
                and not lines[end].startswith("    $ ")
                and (
                    lines[end].startswith("    ")
                    or (not lines[end] and "".join(lines[end + 1 : end + 2]).startswith("    "))
                )
            ):
                end += 1
            output = [each[4:] for each in lines[at + 1 : end]]
            while output and not output[-1]:
                output.pop()
            if output:
                yield Shown(at + 1, re.sub(r"\s+#.*", "", line[6:]), tuple(output))


def output_of(command: str, packed: Path) -> list[str]:
    """The lines that a command prints.

    Raises:
        LookupError: nobody knows.
    """
    name, *words = shlex.split(command.removeprefix("iclbench "))
    points = [int(n) for flag, n in pairwise(words) if flag == "--points"]
    runs = words[: len(words) - 2 * len(points)]
    if name in _LOOK:
        return _printed(lambda results: main([name, *words, "--results", str(results)]), packed)
    if name in _REPLAY and not any(word.startswith("-") for word in runs):
        return _printed(lambda results: _again(name, runs, points, packed, results), packed)
    return _kept(command)


def wrong(name: str, markdown: str, packed: Path) -> list[Problem]:
    """The commands of a text whose output is another."""
    found = []
    for each in shown(markdown):
        try:
            problem = _excerpt(each.lines, output_of(each.command, packed))
        except LookupError as error:
            problem = str(error)
        if problem:
            found.append(Problem(f"{name}:{each.line}", f"$ {each.command}", problem))
    return found


def rewritten(markdown: str, packed: Path) -> str:
    """The text with what its commands print today; excerpts have as many lines as before."""
    lines = markdown.split("\n")
    for each in reversed(list(shown(markdown))):
        try:
            output = output_of(each.command, packed)
        except LookupError:
            continue
        if _excerpt(each.lines, output):
            new = [f"    {line}".rstrip() for line in _shortened(each.lines, output)]
            lines[each.line : each.line + len(each.lines)] = new
    return "\n".join(lines)


def _excerpt(parts: Sequence[str], output: Sequence[str]) -> str:
    """What is not in the output; empty if all is, in order and without gaps but for those marked."""
    at, gap = 0, False
    for line in parts:
        gap = gap or line == _MORE
        if line == _MORE or (gap and not line):
            continue
        places = range(at, len(output)) if gap else range(at, min(at + 1, len(output)))
        found = next((n for n in places if _is(line, output[n])), None)
        if found is None:
            printed = output[at] if at < len(output) and not gap else "no such line"
            return f"'{line.strip()}' is printed as '{printed.strip()}'"
        at, gap = found + 1, False
    return "" if gap or at == len(output) else f"'{output[at].strip()}' is printed, too"


def _is(line: str, printed: str) -> bool:
    if line.endswith(f", {_MORE}"):
        return printed.startswith(line.removesuffix(_MORE))
    return line.rstrip() == printed.rstrip()


def _shortened(parts: Sequence[str], output: Sequence[str]) -> list[str]:
    """The output, cut as it is in an older excerpt."""
    if not any(line == _MORE or line.endswith(f", {_MORE}") for line in parts):
        return list(output)
    new: list[str] = []
    at = 0
    for number, line in enumerate(parts):
        if line == _MORE:
            new.append(line)
            rest = parts[number + 1 :]
            if anchor := next((each for each in rest if each), ""):
                blank = rest.index(anchor)
                found = (n for n in range(at + blank, len(output)) if output[n].rstrip() == anchor)
                at = next(found, len(output)) - blank
        elif at < len(output):
            cut = line.endswith(f", {_MORE}")
            new.append(output[at][: max(0, output[at].rfind(", ", 0, len(line)))] + f", {_MORE}" if cut else output[at])
            at += 1
    return new


def _printed(act: Callable[[Path], object], packed: Path) -> list[str]:
    """What is printed on stdout in a results folder that holds nothing but packed results."""
    text = io.StringIO()
    environment = {name: value for name, value in os.environ.items() if "ICLBENCH" not in name} | {"COLUMNS": WIDTH}
    with ExitStack() as stack:
        results = stack.enter_context(nothing_but(packed))
        stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        stack.enter_context(redirect_stdout(text))
        stack.enter_context(redirect_stderr(io.StringIO()))
        act(results)
    lines = text.getvalue().rstrip().split("\n")
    return [line.rstrip() for line in lines]


def _again(name: str, runs: Sequence[str], points: Sequence[int], packed: Path, results: Path) -> None:
    """Print what a command prints of packed runs."""
    values, costs = (_of_groups(table, runs, packed) for table in ("values", "costs"))
    if name == "cost":
        path = results / "costs" / "packed.costs.parquet"
        asked = costs["n_points"].isin(points) | costs["phase"].isin(["model", "train_step"])
        _write("costs", costs[costs["run"].isin(runs) & asked], path)
        cost_runs.print_costs([path], json=False)
        return
    asked = values[values["run"].isin(runs) & values["shift"].eq("none") & values["axis"].ne("train_step").fillna(True)]
    asked = asked[asked["evaluator"].isin(PROBES) == (name == "probe")]
    if missing := set(runs) - set(asked["run"]):
        raise LookupError(f"{', '.join(sorted(missing))}: no rows in the packed results")
    tests = card(asked["task"].iloc[0]).evaluators  # in the order in which they are asked
    order = asked["evaluator"].map({test: n for n, test in enumerate(tests)}).fillna(len(tests))
    prompt_sets = asked.assign(order=order).sort_values("order", kind="stable")["prompt_set"].dropna().unique().tolist()
    beside = values[values["prompt_set"].isin(prompt_sets) & (values["run"].isin(runs) | values["kind"].ne("backbone"))]
    beside = beside[~beside["kind"].eq("published") & beside["axis"].ne("train_step").fillna(True)]
    for (prompt_set, run), rows in beside.groupby(["prompt_set", "run"]):
        shipped = {} if run in runs or run == "chance" or name == "probe" else {"from": "reference"}
        _write("values", rows, results / "tables" / str(prompt_set) / f"{run}.values.parquet", shipped)
    if name == "probe":
        summary.print_tables(results, prompt_sets, False, probe_tables.depth_table, probe_tables.examples_in_context)
    else:
        summary.print_summary(results, prompt_sets)


def _of_groups(table: tables.TableName, runs: Sequence[str], packed: Path) -> pd.DataFrame:
    """All rows of the tasks and presets that runs are of."""
    frames = [tables.frame(table, [])]
    for path in sorted(packed.glob(f"*.{table}.parquet")):
        task, _, preset = path.name.partition(".")[0].rpartition("-")
        if any(run.startswith(f"{task}-") and f"-{preset}-s" in run for run in runs):
            frames.append(tables.read(table, path))
    return tables.union(table, frames)


def _write(table: tables.TableName, rows: pd.DataFrame, path: Path, metadata: dict[str, str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tables.write(table, rows, path, metadata or {})


def _kept(command: str) -> list[str]:
    """What the command printed when it was run last."""
    text = COMMANDS.read_text() if COMMANDS.is_file() else ""
    for block in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        first, *output = block.rstrip("\n").split("\n")
        if first == f"$ {command}":
            return [line.rstrip() for line in output]
    raise LookupError(f"it is neither printed from packed results nor kept in benchmarks/{COMMANDS.name}")
