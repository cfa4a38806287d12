"""Pages equal their rendered templates. False statements, missing values and unmarked digits are errors."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from docs.quantities import ROOT, Reference
from docs.render import TEMPLATES, StatementError, main, page, render, template, unmarked
from iclbench import tables
from tests.pages import PAGES

FINDINGS = page(TEMPLATES / "reference-results.md")
PACKED = ROOT / "tests" / "fixtures" / "packed"


@pytest.mark.parametrize("name", sorted(path.name for path in TEMPLATES.glob("*.md")))
def test_a_page_equals_its_rendered_template(name: str, reference: Reference) -> None:
    path = TEMPLATES / name
    assert page(path).read_text() == render(path.read_text(), reference.quantities, name)


def test_every_page_has_a_template() -> None:
    assert [path for path in PAGES if not template(path).is_file()] == []


def test_rendering_a_page_without_a_template_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--check", "costs") == 1
    assert "costs" in capsys.readouterr().err


def test_the_findings_are_short() -> None:
    assert len(FINDINGS.read_text().split()) < 1900


def test_a_paragraph_of_the_findings_has_at_most_three_numbers() -> None:
    """A value with its interval counts as one number. Tables and code are not counted."""
    prose = re.sub(r"^(\||    ).*$", "", FINDINGS.read_text(), flags=re.MULTILINE)
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)| \[[^\]]*, [^\]]*\]|[A-Za-z]\S*-\d+", "", prose)
    paragraphs = [part for paragraph in prose.split("\n\n") for part in re.split(r"^- ", paragraph, flags=re.MULTILINE)]
    assert len(paragraphs) > 40
    assert [part for part in paragraphs if len(re.findall(r"(?<!\w)\d[\d.,]*", part)) > 3] == []


@pytest.fixture
def changed_reference(tmp_path: Path) -> Reference:
    """Packed results in which the score of one Mamba run is higher by 0.01."""
    for path in PACKED.glob("linear-grid.*.parquet"):
        shutil.copy(path, tmp_path)
    path = tmp_path / "linear-grid.values.parquet"
    rows = tables.read("values", path)
    is_selected = rows["run"].eq("linear-mamba-grid-s0") & rows["metric"].eq("score") & rows["shift"].eq("none")
    higher = rows["value"].mask(is_selected, rows["value"] + 0.01)
    tables.write("values", rows.assign(value=higher), path, {"packed": "linear"})
    return Reference(tmp_path, ["linear"])


def test_a_changed_value_changes_the_page_and_makes_a_statement_false(changed_reference: Reference) -> None:
    unchanged = Reference(PACKED, ["linear"])
    text = 'Mamba scores {{ number(score("mamba", "linear"), 4) }}.'
    assert render(text, unchanged.quantities) != render(text, changed_reference.quantities)
    before = unchanged.score("mamba", "linear")
    statement = f'{{% call when(score("mamba", "linear") <= {before}) %}}It is as it was.{{% endcall %}}'
    assert render(statement, unchanged.quantities) == "It is as it was."
    with pytest.raises(StatementError, match=r"template:1: no longer holds.*: It is as it was"):
        render(statement, changed_reference.quantities)


def test_the_error_for_a_value_without_rows_names_its_line(changed_reference: Reference) -> None:
    with pytest.raises(StatementError, match=r"a\.md:3: .*gp-mixture has no scores at grid"):
        render('A\n\n{{ score("pt-tnp", "gp-mixture") }}', changed_reference.quantities, "a.md")
    with pytest.raises(StatementError, match=r"a\.md:2: .*nothing"):
        render("A\n{{ nothing(1) }}", {}, "a.md")


def test_the_error_for_an_edited_table_is_one_line_that_names_page_quantity_and_file(
    changed_reference: Reference, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed_reference.packed / "linear-grid.values.parquet"
    pd.read_parquet(path).to_parquet(path)
    monkeypatch.setattr("docs.quantities.Reference", lambda: changed_reference)
    assert main("--check", "README.md", "reference-results.md") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "docs/templates/README.md: BACKBONES: " in line and path.name in line and "git checkout" in line


def test_the_error_for_a_table_without_a_model_is_one_line_that_names_page_line_and_model(
    changed_reference: Reference, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("docs.quantities.Reference", lambda: changed_reference)
    assert main("--check", "papers.md") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"docs/templates/papers\.md:\d+: ", line)


def test_a_page_without_results_does_not_need_the_tables(tmp_path: Path) -> None:
    assert render("{{ word(len(ERROR_CODES)) }}", Reference(tmp_path).quantities)


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("It scores 0.97.", [(1, "0.97.")]),
        ("A\n\nof 12 models", [(3, "12")]),
        ("| model | 0.5 |", [(1, "0.5")]),
        ("{{ number(score('mamba'), 2) }} {{ given(95) }} {# 3 #}", []),
        ("{{ number(0.97, 2) }}", [(1, "number(0.97, 2)")]),
        ("tables 1 and 2, but in table 3, 40 models", [(1, "40")]),
        ("if a < b, 12 models have b > a", [(1, "12")]),
        ("GPT-2, S4D and Mamba-2 (Olsson et al. 2022), figure 3, `k = 3`, $x_1$, [a](b-2.md)", []),
        ("```console\n$ echo 3\n3\n```\n\n    indented 4", []),
        ("````\n```\n5\n```\n````\nsix 6", [(6, "6")]),
    ],
)
def test_numbers_in_text_must_be_computed_or_marked(text: str, digits: list[tuple[int, str]]) -> None:
    assert list(unmarked(text)) == digits
    if digits:
        with pytest.raises(StatementError, match="neither computed nor given"):
            render(text, {})


@pytest.mark.parametrize("condition", ["1 > 2", "nan", "[false]", "number"])
def test_a_statement_with_a_false_condition_raises_an_error(condition: str) -> None:
    with pytest.raises(StatementError, match="It holds"):
        render(f"{{% call when({condition}) %}}It holds.{{% endcall %}}", {"nan": float("nan")})


def test_fenced_blocks_are_copied_unchanged() -> None:
    text = "```python\nx = {{1: 2}}\n{% if %}\n```\n\nAfter.\n"
    assert render(text, {}) == text
