"""Mean ranks over tables and their critical difference on the page, against SciPy and Demšar (2006)."""

import math
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from iclbench import tables
from iclbench.report import build
from iclbench.report.blocks import Table
from iclbench.report.data import load_results
from iclbench.report.sections import table_ranks
from tests.tables.rows import complete_row
from tests.texts import numbers

TABLES = ["iris", "wine", "digits", "glass", "heart", "sonar"]
NAMES = ["cells", "forest", "logistic", "majority"]
# Values of the metric, `(tables, contestants)`, without ties in a row.
VALUES = np.random.default_rng(0).normal([0.8, 0.75, 0.7, 0.5], 0.1, (len(TABLES), len(NAMES))).round(3)


def write(folder: Path, metric: str, values: np.ndarray) -> Path:
    """Write results of two seeds of `cells`, of baselines, and of a baseline that lacks a table."""
    rows = []
    for table, by_name in zip(TABLES, values, strict=False):
        scores = dict(zip(NAMES, by_name, strict=True)) | ({} if table == TABLES[0] else {"partial": 0.99})
        for name, value in scores.items():
            runs = [("cells-s0", 0, 0.03), ("cells-s1", 1, -0.03)] if name == "cells" else [(name, None, 0.0)]
            for run, seed, noise in runs:
                shared = {"task": "real-tables", "family": "real-tables", "preset": "small", "shift": "none"}
                shared |= {"evaluator": "targets", "status": "ok", "prompt_set": "p", "card": "c", "version": "0"}
                shared |= {"kind": "baseline" if seed is None else "backbone", "n_episodes": 10, "normaliser": 1.0}
                row = shared | {"run": run, "seed": seed, "contestant": name, "metric": metric, "n_related": 0}
                in_table = {"axis": f"stratum:{table}", "stratum": table, "value": value + noise}
                rows.append(complete_row(row | in_table))
                if table == TABLES[-1] or len(values) == 1:
                    rows.append(complete_row(row | {"value": values.mean(), "low": 0.0, "high": 1.0}))
    tables.write("values", rows, folder / "tables" / "p" / "all.values.parquet", {})
    return folder


def page_table(page: str) -> tuple[str, dict[str, list[str]]]:
    """Return the caption of the table of ranks on the page, and the cells of its rows by first cell."""
    start = page.index('aria-label="real-tables: mean ranks over tables"')
    head, _, rest = page[start:].partition("<tbody>")
    body, _, rest = rest.partition("</tbody>")
    rows = {"contestant": re.findall(r"<th scope[^>]*>([^<]*)", head)[1:]}
    for row in body.split("<tr")[1:]:
        name, *cells = (cell.strip() for cell in re.findall(r"<t[hd][^>]*>([^<]*)", row))
        rows[name] = cells
    return unescape(re.findall(r'class="caption">([^<]*)', rest)[0]), rows


def test_the_page_has_ranks_and_their_critical_difference(tmp_path: Path) -> None:
    folder = write(tmp_path / "results", "roc_auc", VALUES)
    caption, rows = page_table(build(folder, tmp_path / "report", formats=()).page.read_text(encoding="utf-8"))
    order = np.argsort(TABLES)
    assert rows.pop("contestant") == ["mean rank", *np.array(TABLES)[order]]
    ranks = stats.rankdata(-VALUES, axis=1)
    assert list(rows) == [NAMES[i] for i in np.argsort(ranks.mean(0))], "the baseline that lacks a table is omitted"
    for name, (mean_rank, *cells) in rows.items():
        index = NAMES.index(name)
        assert float(mean_rank) == pytest.approx(ranks[:, index].mean(), abs=0.0051)
        assert [float(cell) for cell in cells] == pytest.approx(VALUES[order, index], abs=0.00051)
    k, n = len(NAMES), len(TABLES)
    critical_value = 2.569  # Demšar, table 5 (a), four contestants at 5 %
    n_tables, difference, level, p = numbers(caption)
    assert (n_tables, level) == (n, 5)
    assert difference == pytest.approx(critical_value * math.sqrt(k * (k + 1) / (6 * n)), abs=0.0051)
    chi_squared = stats.friedmanchisquare(*VALUES.T).statistic
    statistic = (n - 1) * chi_squared / (n * (k - 1) - chi_squared)
    assert p == pytest.approx(stats.f.sf(statistic, k - 1, (k - 1) * (n - 1)), rel=0.05)
    assert "ROC AUC" in caption


def ranks_table(folder: Path) -> Table:
    (task,) = load_results(folder).slices
    section = table_ranks.section(task)
    assert section is not None
    (block,) = (block for block in section.blocks if isinstance(block, Table) and block.name.endswith("table-ranks"))
    return block


def test_ties_get_their_mean_rank(tmp_path: Path) -> None:
    values = VALUES.copy()
    values[:, 1] = values[:, 2]
    table = ranks_table(write(tmp_path, "r_squared", values))
    expected = dict(zip(NAMES, stats.rankdata(-values, axis=1).mean(0), strict=True))
    assert table.frame.set_index("contestant")["mean_rank"].to_dict() == pytest.approx(expected)
    assert table.frame["contestant"].tolist().index("forest") + 1 == table.frame["contestant"].tolist().index(
        "logistic"
    )
    assert "R²" in table.caption


def test_a_single_table_gives_no_critical_difference(tmp_path: Path) -> None:
    table = ranks_table(write(tmp_path, "r_squared", VALUES[1:2]))
    assert table.frame["mean_rank"].tolist() == [1, 2, 3, 4]
    assert "significantly" not in table.caption and "1 table " in table.caption
