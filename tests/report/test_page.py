"""The page is self-contained, escapes names, and lists missing results."""

import gzip
import json
import re
import subprocess
import sys
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args
from unittest.mock import Mock

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.comparable import name_variants
from iclbench.report import build, build_report, exports
from iclbench.report.blocks import Column, Rule, Section, Table
from iclbench.report.data import load_results
from iclbench.report.page import cell_style, column_lists, render_section, script_json
from tests.refusals import refused
from tests.report import synthetic

NASTY = '<img src onerror="alert(1)"></script><!-- & "q" \' {{ 1 }} \u2028'
ESCAPED = NASTY.replace("\u2028", r"\u2028")  # a line separator becomes visible


class Document(HTMLParser):
    """The links, ids, tags, scripts and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.scopes = 0
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.contents: list[str] = []
        self._in_script = self._in_content = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action") and v]
        self.ids += [v for k, v in attrs if k == "id" and v]
        self.scopes += tag == "th" and "scope" in values
        self._in_script = tag == "script"
        self._in_content = self._in_script and values.get("class") == "content"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = self._in_script and tag != "script"
        self._in_content = self._in_content and self._in_script

    def handle_data(self, data: str) -> None:
        (self.contents if self._in_content else self.scripts if self._in_script else self.texts).append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def html(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document(html: str) -> Document:
    return Document(html)


def _rows(name: str = "linear") -> pd.DataFrame:
    """Return a small table of values for two baselines on one task."""
    common = {
        "task": name,
        "family": name,
        "kind": "baseline",
        "preset": "smoke",
        "shift": "none",
        "evaluator": "next",
        "n_episodes": 64,
        "normaliser": 5.0,
        "status": "ok",
        "prompt_set": "p0",
        "card": "c0",
        "version": "0",
    }
    rows = [
        {**common, "run": baseline, "contestant": baseline, "metric": "squared_error", "n_context": n, "value": value}
        for baseline, value in (("zero", 1.0), ("knn-3", 0.5))
        for n in range(3)
    ]
    return pd.DataFrame(rows)


def _write(folder: Path, values: pd.DataFrame) -> Path:
    tables.write("values", tables.frame("values", values), folder / "a.values.parquet", {})
    return folder


def test_the_page_loads_no_external_resources(html: str, document: Document) -> None:
    assert all(link.startswith(("#", "tables/", "figures/")) for link in document.links)
    assert not re.search(r"@import|url\(", html.split("</style>")[0])
    assert "default-src 'none'" in html


def test_every_link_has_a_target(page: Path, document: Document) -> None:
    for link in document.links:
        if link.startswith("#"):
            assert link[1:] in document.ids
        else:
            assert (page.parent / link).is_file()


def test_headings_tables_and_figures_are_semantic(html: str, document: Document) -> None:
    assert document.tags.count("h1") == 1
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", html)
    assert len(titles) == len(set(titles))
    for title in ("Overview", "linear · small", "Published results", "Costs", "Provenance"):
        assert title in titles
    assert document.tags.count("figure") == document.tags.count("figcaption") >= 12
    assert document.tags.count("th") == document.scopes
    assert len(document.ids) == len(set(document.ids))


def test_captions_explain_values_and_intervals(document: Document) -> None:
    for text in ("linear 5)", "95 %", "(error − zero) / (best − zero)"):
        assert text in document.text


def test_sections_name_the_paragraphs_of_the_documentation_that_define_their_numbers(html: str) -> None:
    documentation = Path(__file__).parents[2] / "docs" / "reports.md"
    paragraphs = re.findall(r"^- \*\*(.*?)\.\*\*", documentation.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(paragraphs) == sorted(get_args(Rule))
    heat_map = html.partition('<section id="heat-map"')[2].partition("</section>")[0]
    assert "Heat map, Score" in heat_map and "docs/reports.md" in heat_map


def test_failed_and_missing_cells_are_listed_with_reasons(html: str, document: Document) -> None:
    assert synthetic.REASON in document.text
    assert "&lt;7 GiB&gt; free &amp; no swap" in html
    assert "iclbench train decision-tree mamba --preset small" in document.text


def test_published_and_measured_numbers_are_in_the_same_table(document: Document, page: Path) -> None:
    table = pd.read_csv(page.parent / "tables" / "linear-small-published.csv")
    assert table["published"].tolist() == [0.02, 0.05, 0.5]
    assert table["ours"].notna().all()
    assert "Garg et al. 2022, Figure 2" in document.text and "read off the plot" not in document.text


def test_the_page_does_not_contain_the_path_of_the_results(html: str, results: Path) -> None:
    assert str(results) not in html


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Document]:
    """A page with pictures, built from results with special characters and paths in names, and with infinite errors."""
    folder = tmp_path_factory.mktemp("hostile")
    nasty, infinite = _rows(), _rows("infinite").assign(value=float("inf"))
    nasty.loc[3:, ["contestant", "run"]] = NASTY
    failed = {**nasty.iloc[-1].to_dict(), "shift": NASTY, "n_context": None, "value": None, "status": "failed"}
    failed |= {"reason": NASTY, "prompt_set": "p1"}
    values = pd.concat([nasty, pd.DataFrame([failed]), _rows("../../escape me"), infinite], ignore_index=True)
    page = build(_write(folder / "results", values), folder / "deep" / "er" / "out", formats=("svg",)).page
    return page, Document(page.read_text(encoding="utf-8"))


def test_names_and_reasons_are_escaped(hostile_page: tuple[Path, Document]) -> None:
    _, document = hostile_page
    assert "img" not in document.tags
    assert ESCAPED in document.text.replace("\n", " ")
    figures = [json.loads(gzip.decompress(b64decode(content))) for content in document.contents]
    assert any(ESCAPED in figure["rows"]["contestant"]["levels"] for figure in figures)
    assert "alert(1)" not in "".join(document.scripts)


def test_paths_in_task_names_do_not_leave_the_folder(hostile_page: tuple[Path, Document]) -> None:
    page, document = hostile_page
    folder = page.parents[3]
    assert {p.relative_to(folder).parts[0] for p in folder.rglob("*")} == {"results", "deep"}
    assert any("escape" in link for link in document.links if not link.startswith("#"))
    for link in document.links:
        assert link.startswith("#") or (page.parent / link).is_file()


def test_infinite_values_do_not_break_the_page_and_its_pictures(hostile_page: tuple[Path, Document]) -> None:
    page, _ = hostile_page
    assert "∞" in page.read_text(encoding="utf-8")
    assert [*page.parent.glob("figures/infinite-*.svg")]


def test_sections_without_rows_are_omitted(tmp_path: Path) -> None:
    folder = _write(tmp_path / "results", _rows())
    text = Document(build(folder, tmp_path / "out", formats=()).page.read_text(encoding="utf-8")).text
    for title in ("Leaderboard", "Extrapolation", "Shifts", "Training", "Published results", "Costs", "Scores"):
        assert title not in text


@pytest.mark.slow
def test_unknown_metrics_and_questions_do_not_break_the_page(tmp_path: Path) -> None:
    values = _rows()
    other_metrics = [
        values.assign(metric=m, evaluator=e, value=-values["value"])
        for m, e in (("log_likelihood", "targets"), ("accuracy", "icl"), ("brand_new", "next"))
    ]
    probe = values.assign(evaluator="probe", axis="layer", axis_value=2.0)
    unknown = values.iloc[:1].assign(evaluator="train", n_context=None, metric="seconds_of_nothing", prompt_set=None)
    folder = _write(tmp_path / "results", pd.concat([values, *other_metrics, probe, unknown], ignore_index=True))
    text = Document(build(folder, tmp_path / "out", formats=()).page.read_text(encoding="utf-8")).text
    assert "Log-likelihood against the number of examples" in text


def test_a_run_without_evaluation_is_listed_with_the_command(tmp_path: Path) -> None:
    row = (
        _rows()
        .iloc[:1]
        .assign(
            kind="backbone",
            contestant="gpt2",
            run="my-run",
            evaluator="train",
            metric="loss",
            axis="train_step",
            axis_value=0.0,
            n_context=None,
            prompt_set=None,
        )
    )
    folder = _write(tmp_path / "results", row)
    assert "iclbench eval my-run" in build(folder, tmp_path / "out", formats=()).page.read_text(encoding="utf-8")


def test_runs_with_equal_prompts_but_different_card_hashes_are_compared(tmp_path: Path) -> None:
    """Changing the size of a backbone on a card changes the hash of the card but not the prompts."""
    old = _rows().iloc[:3].assign(card="0ld", run="ex-knn", contestant="ex-knn")
    folder = _write(tmp_path / "results", pd.concat([_rows(), old], ignore_index=True))
    text = Document(build(folder, tmp_path / "out", formats=()).page.read_text(encoding="utf-8")).text
    assert "ex-knn" in text


def test_runs_that_share_a_seed_are_not_averaged() -> None:
    """Two runs of a backbone with the same seed have different settings, so they are variants and not seeds."""
    gpt2 = _rows().iloc[:3].assign(kind="backbone", contestant="gpt2", seed=0, run="plain")
    for run, seed, expected in (("constant-lr", 0, {"plain", "constant-lr"}), ("repeated", 1, {"gpt2"})):
        values = tables.frame("values", pd.concat([gpt2, gpt2.assign(run=run, seed=seed)]))
        assert set(name_variants(values)["contestant"]) == expected


def test_rows_on_a_different_prompt_set_are_listed_but_not_used(tmp_path: Path) -> None:
    old = _rows().iloc[:3].assign(prompt_set="p9", run="ex-knn", contestant="ex-knn")
    folder = _write(tmp_path / "results", pd.concat([_rows(), old], ignore_index=True))
    text = Document(build(folder, tmp_path / "out", formats=()).page.read_text(encoding="utf-8")).text
    (line,) = load_results(folder).excluded_rows
    assert all(name in line for name in ("linear", "smoke", "p9"))
    assert line in text and "ex-knn" not in text


@pytest.mark.slow
def test_unreadable_files_are_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = _write(tmp_path / "results", _rows())
    (folder / "broken.values.parquet").write_bytes((folder / "a.values.parquet").read_bytes()[:200])
    text = Document(build(folder, tmp_path / "out", formats=()).page.read_text(encoding="utf-8")).text
    assert "broken.values.parquet" in text
    assert "broken.values.parquet" in caplog.text
    assert (folder / "broken.values.parquet").exists()


def test_the_error_for_an_empty_folder_suggests_the_next_commands(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with refused("nothing-to-do", folder, "iclbench demo", "iclbench eval", "--results"):
            build(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    folder = _write(tmp_path / "results", _rows())
    (tmp_path / "file").write_text("not a folder")
    with refused("unreadable-file", tmp_path / "file", "--out", exit_code=1):
        build(folder, tmp_path / "file", formats=())


@pytest.mark.parametrize("path", ["index.html", "tables/leaderboard.csv", "figures/mine.png"])
def test_files_that_are_not_from_a_report_are_not_overwritten(path: str, tmp_path: Path) -> None:
    folder, out = _write(tmp_path / "results", _rows()), tmp_path / "site"
    (out / path).parent.mkdir(parents=True)
    (out / path).write_text("mine")
    with refused("exists", out / Path(path).parts[0], "--out"):
        build(folder, out, only=["leaderboard"])
    assert [path.read_text() for path in out.rglob("*") if path.is_file()] == ["mine"]


@pytest.mark.slow
def test_an_interrupted_report_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = _write(tmp_path / "results", _rows()), tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build_report, "render_page", Mock(side_effect=KeyboardInterrupt))
        build(folder, out, only=["leaderboard"])
    (out / "tables").mkdir(exist_ok=True)
    unfinished = (out / "index.html").read_text(encoding="utf-8")
    for _ in range(2):
        assert build(folder, out, only=["leaderboard"]).page.read_text(encoding="utf-8") != unfinished


def test_an_unknown_figure_format_is_refused(results: Path, tmp_path: Path) -> None:
    with refused("unknown-name", "'gif'", "png", "svg"):
        build(results, tmp_path, formats=("gif",))


@pytest.mark.slow
def test_neither_torch_nor_families_are_imported(tmp_path: Path) -> None:
    folder = _write(tmp_path / "results", _rows())
    # The script that draws figures is replaced, because building it in a new process takes seconds.
    code = (
        "import sys; from pathlib import Path; from iclbench.report import build, drawing, style;"
        "drawing.Script._scripts[style.vega_lite()] = '';"
        f"build(Path({str(folder)!r}), Path({str(tmp_path / 'out')!r}), formats=());"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'sklearn', 'transformers', 'xgboost')"
        " or m.startswith(('iclbench.families', 'iclbench.backbones', 'iclbench.estimators'))])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_embedded_numbers_have_four_digits_and_texts_are_stored_once() -> None:
    frame = pd.DataFrame({"value": [1 / 3, 123456.0, None], "name": ["a", "b", "a"], "flag": [True, False, True]})
    lists = column_lists(frame)
    assert lists == {
        "value": [0.3333, 123456, None],
        "name": {"levels": ["a", "b"], "codes": [0, 1, 0]},
        "flag": [True, False, True],
    }
    assert lists["flag"][1] is False, "Vega-Lite specifications compare with false, and 0 is not equal to false"


def test_embedded_json_cannot_close_its_script_element() -> None:
    text = str(script_json({"x": NASTY}))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"x": ESCAPED}


@pytest.mark.parametrize("shade", [0.0, 0.3, 0.5, 0.69, 0.71, 0.9, 1.0])
def test_text_on_shaded_cells_is_readable(shade: float) -> None:
    """The WCAG contrast between text and background is at least 4.5."""
    match = re.fullmatch(r"background:#(\w{6});color:#(\w+)", cell_style(shade))
    assert match
    cell_colour, text_colour = match[1], match[2] * 2 if len(match[2]) == 3 else match[2]
    light, dark = sorted((_luminance(cell_colour), _luminance(text_colour)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_table_of_contents_links_all_sections_by_preset(html: str) -> None:
    menu = html.split('<nav aria-label="Contents">')[1].split("</nav>")[0]
    links = re.findall(r'href="#([^"]+)"', menu)
    assert sorted(links) == sorted(re.findall(r'<section id="([^"]+)"[^>]*>\s*<h2', html))
    preset_links = menu.split(">small</p>")[1]
    assert re.findall(r'href="#([^"]+)"', preset_links) == [
        "decision-tree-small",
        "linear-small",
        "sparse-linear-small",
    ]


def test_tables_of_means_list_the_averaged_runs(page: Path) -> None:
    board = pd.read_csv(page.parent / "tables" / "linear-small-leaderboard-next.csv").set_index("contestant")["run"]
    numbers = pd.read_csv(page.parent / "tables" / "linear-small-curves-next-squared-error.csv")
    for runs in (board, numbers.set_index("contestant")["run"]):
        assert runs["gpt2"] == "linear-gpt2-small-s0; linear-gpt2-small-s1; linear-gpt2-small-s2"
        assert runs["xgboost"] == "xgboost"


def test_control_characters_are_escaped() -> None:
    evil, escaped = "a\x1b[31m\u202eb", r"a\x1b[31m\u202eb"
    assert json.loads(script_json([evil, {evil: 1}])) == [escaped, {escaped: 1}]
    table = Table("t", evil, evil, pd.DataFrame({evil: [evil]}), (Column(evil, evil),))
    section = Section("s", evil, (table,))
    page = str(render_section(section, (), {}).html)
    assert escaped in page and _control_characters(page) == set()
    for text in (exports.markdown(table), exports.latex(table), exports._csv(table.frame)):
        assert "31m" in text and _control_characters(text) == set()


def _control_characters(text: str) -> set[str]:
    return {c for c in text if not c.isprintable() and c not in "\n\t"}
