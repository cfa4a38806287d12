"""The page in a browser: errors, network requests, overflow, filters and keyboard navigation."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report import browser

pytestmark = pytest.mark.skipif(browser.executable() is None, reason="needs Chromium or Chrome")

CURVES = "linear-small-curves-next-squared-error"
CONTROLS = "a[href], button, select, summary, [tabindex='0']"
# `checkVisibility` excludes controls within closed details.
VISIBLE_CONTROLS = f"[...document.querySelectorAll(`{CONTROLS}`)].filter((e) => e.checkVisibility())"


@pytest.fixture(scope="module")
def view(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.page(tmp_path_factory.mktemp("profile")) as view:
        view.set_size(1280)
        view.open(page)
        yield view


def test_every_figure_is_drawn_without_errors_or_network_requests(view: browser.Page, page: Path) -> None:
    view.draw_everything()
    assert view.run("document.querySelectorAll('.plot canvas').length") == view.run(
        "document.querySelectorAll('.plot').length"
    )
    error_events = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [event for event in view.events if event[0] in error_events] == []
    urls = [values["request"]["url"] for method, values in view.events if method == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith("data:")] == [page.resolve().as_uri()]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_not_wider_than_the_screen(view: browser.Page, width: int) -> None:
    """Wide tables scroll inside boxes that can be focused with the keyboard."""
    view.set_size(width)
    view.run("document.querySelectorAll('details').forEach((details) => details.open = true)")
    view.wait("document.querySelector('details.rows table') !== null")
    too_wide = """[...document.querySelectorAll("body *")]
      .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".wide, .skip"))
      .map((e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 60)}`)"""
    assert view.run(too_wide) == []
    assert view.run("document.documentElement.scrollWidth") <= width
    assert view.run("[...document.querySelectorAll('.wide')].every((box) => box.tabIndex === 0)")
    view.run("document.querySelectorAll('details').forEach((details) => details.open = false)")
    view.set_size(1280)


def test_the_tab_key_visits_every_control_once_with_a_visible_focus(view: browser.Page) -> None:
    view.run(f"window.rows = document.querySelector('[id=\"{CURVES}\"] details.rows'); rows.open = true")
    view.wait("rows.querySelector('table') !== null")
    view.run("window.controls = " + VISIBLE_CONTROLS + "; scrollTo(0, 0)")
    # Move the focus to the beginning of the page.
    view.run("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    visited = []
    for _ in range(view.run("controls.length")):
        view.press("Tab", 9)
        focus = "(() => { const e = document.activeElement; const s = getComputedStyle(e);"
        focus += " return [controls.indexOf(e), s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]; })()"
        visited.append(view.run(focus))
    assert visited == [[index, True] for index in range(len(visited))]
    assert view.run("controls[0].matches('.skip') && controls.some((e) => e.matches('.download'))")
    view.run("rows.open = false")


def test_the_legend_can_highlight_contestants_with_the_keyboard(view: browser.Page) -> None:
    view.run(f"window.figure = document.getElementById('{CURVES}'); figure.scrollIntoView()")
    view.wait("figure.querySelector('canvas') !== null")
    picture = "figure.querySelector('canvas').toDataURL()"
    view.wait(f"new Promise((done) => setTimeout(() => done({picture} === {picture}), 200))")
    pictures = [view.run(picture)]
    for entry in (0, 1, 0, 1):
        view.run(f"figure.querySelectorAll('.entry')[{entry}].focus()")
        view.press(" ", 32, " ")
        view.wait(f"({picture} !== {pictures[-1]!r})")
        pictures.append(view.run(picture))
    assert pictures[4] == pictures[0], "the selection is empty again"
    assert len(set(pictures[:4])) == 4, "the pictures of no, the first, both and the second contestant differ"


def test_rows_and_download_of_a_figure_equal_its_csv_file(view: browser.Page, page: Path, tmp_path: Path) -> None:
    view.send_to_browser("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    view.run(f"window.figure = document.getElementById('{CURVES}')")
    view.run("figure.querySelector('details.rows summary').focus()")
    view.press("Enter", 13, "\r")
    view.wait("figure.querySelector('details.rows table') !== null")
    file_rows = _table(page.parent / "figures" / f"{CURVES}.csv")
    first_cells = view.run(
        "[...figure.querySelectorAll('details.rows tbody tr')].map((row) => row.cells[0].textContent)"
    )
    assert first_cells == [row[0] for row in file_rows[1:]][: len(first_cells)] != []
    view.run("figure.querySelector('.download').focus()")
    view.press("Enter", 13, "\r")
    _wait_for(view, tmp_path / f"{CURVES}.csv")
    saved = _table(tmp_path / f"{CURVES}.csv")
    assert saved[0] == file_rows[0]
    assert len(saved) == len(file_rows) > 100
    assert saved[0][0] == "run"
    pairs = zip(saved, file_rows, strict=True)
    assert all(_is_equal(a, b) for row, file_row in pairs for a, b in zip(row, file_row, strict=True))
    view.press("Enter", 13, "\r")


def test_the_table_of_contents_opens_and_closes_on_a_narrow_screen(view: browser.Page) -> None:
    view.set_size(390)
    view.run("window.menu = document.querySelector('nav details'); menu.querySelector('summary').focus()")
    view.wait("!menu.open")
    view.press("Enter", 13, "\r")
    view.wait("menu.open")
    view.press("Escape", 27)
    assert view.run("!menu.open && document.activeElement.matches('nav summary')")
    view.press("Enter", 13, "\r")
    view.wait("menu.open")
    view.run("menu.querySelector('a').focus()")
    target = view.run("document.activeElement.getAttribute('href')")
    view.press("Enter", 13, "\r")
    view.wait("!menu.open")
    assert view.run("location.hash") == target
    top = f"document.querySelector({target!r}).getBoundingClientRect().top"
    assert view.run(top) >= view.run("document.querySelector('nav').getBoundingClientRect().bottom"), (
        "the heading is below the bar"
    )
    view.set_size(1280)


def test_the_summary_fits_on_a_screen_next_to_the_table_of_contents(view: browser.Page) -> None:
    view.set_size(1280, 800)
    view.run("scrollTo(0, 0)")
    box = "document.querySelector('.first-screen').getBoundingClientRect()"
    assert view.run(f"[{box}.top > 0, {box}.bottom <= 800]") == [True, True]
    assert view.run(
        "document.querySelector('nav details').open && !document.querySelector('nav summary').checkVisibility()"
    )
    assert view.run(f"document.querySelector('.menu').getBoundingClientRect().right <= {box}.left")


def test_sections_are_filtered_by_task_preset_and_contestant(view: browser.Page) -> None:
    def select(by: str, name: str) -> list[str]:
        view.run(
            f"(() => {{ const s = document.querySelector('select[data-by={by}]'); s.value = {name!r};"
            " s.dispatchEvent(new Event('change')); })()"
        )
        visible_sections = (
            "[...document.querySelectorAll('main > section[data-task]')].filter((s) => !s.hidden).map((s) => s.id)"
        )
        visible_links = (
            "[...document.querySelectorAll('.menu a')].filter((a) => a.checkVisibility()).map((a) => a.hash.slice(1))"
        )
        sections: list[str] = view.run(visible_sections)
        assert [name for name in view.run(visible_links) if name in sections or name.endswith("-small")] == sections
        return sections

    all_sections = select("task", "")
    assert all_sections == ["decision-tree-small", "linear-small", "sparse-linear-small"]
    assert select("task", "linear") == ["linear-small"]
    total = view.run("document.querySelectorAll('main > section').length")
    assert view.run("document.querySelector('.count').textContent") == f"{total - 2} of {total} sections"
    assert select("task", "") == all_sections
    assert select("preset", "small") == all_sections
    select("preset", "")
    mamba_sections = select("contestant", "mamba")
    assert "linear-small" in mamba_sections and set(mamba_sections) < set(all_sections)
    assert (
        view.run(f"document.getElementById('{CURVES}').querySelector('.entry[aria-pressed=true]').dataset.name")
        == "mamba"
    )
    assert view.run("[...document.querySelectorAll('tr.picked th')].every((th) => th.textContent === 'mamba')")
    assert view.run("document.querySelectorAll('tr.picked').length") > 3
    assert select("contestant", "") == all_sections
    assert view.run("document.querySelectorAll('tr.picked, .entry[aria-pressed=true]').length") == 0


def test_tables_scroll_inside_their_box_on_a_narrow_screen(view: browser.Page) -> None:
    view.set_size(390)
    tables = """[...document.querySelectorAll(".wide table")].filter((t) => t.checkVisibility()).map((table) => {
      const box = table.parentElement, before = scrollX; box.scrollLeft = 1e6;
      const read = table.scrollWidth <= box.clientWidth + box.scrollLeft + 1 && scrollX === before;
      const head = table.querySelector("tbody th"); const room = head ? box.clientWidth - head.offsetWidth : 1e6;
      box.scrollLeft = 0; return [read, room >= 90, table.textContent.slice(0, 60)]; })"""
    assert [table for table in view.run(tables) if not (table[0] and table[1])] == []
    assert view.run("document.documentElement.scrollWidth") <= 390
    view.set_size(1280)


def test_names_in_tables_wrap_only_between_words_on_a_narrow_screen(view: browser.Page) -> None:
    view.set_size(390)
    # Make the second column as wide as the screen, as with long texts.
    broken = """[...document.querySelectorAll(".wide tbody th")].filter((th) => th.checkVisibility()).flatMap((th) => {
      const cell = th.nextElementSibling, text = th.firstChild; if (!cell || text?.nodeType !== 3) return [];
      cell.style.width = "390px";
      return [...text.data.matchAll(/\\w+/g)].filter((word) => { const range = document.createRange();
        range.setStart(text, word.index); range.setEnd(text, word.index + word[0].length);
        return range.getClientRects().length > 1 && word[0].length < 12; }).map((word) => word[0]); })"""
    assert view.run(broken) == []
    view.run("document.querySelectorAll('.wide tbody td').forEach((cell) => cell.style.removeProperty('width'))")
    view.set_size(1280)


def _table(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _wait_for(view: browser.Page, path: Path) -> None:
    for _ in range(200):
        if path.is_file():
            return
        view.run("new Promise((done) => setTimeout(done, 50))")
    raise AssertionError(f"{path.name} was not saved")


def _is_equal(a: str, b: str) -> bool:
    """Return whether two cells are equal. Numbers on the page have only four digits."""
    try:
        return a == b or math.isclose(float(a), float(b), rel_tol=1e-3)
    except ValueError:
        return a.lower() == b.lower() in ("true", "false")
