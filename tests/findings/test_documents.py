"""No number in a sentence of the README, the guide and the findings is another than its tables have."""

import re

import pytest

from tests.findings import DOCUMENTS
from tests.findings.quantities import ROOT, Reference
from tests.findings.text import check


@pytest.mark.docs
@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_number_of_a_sentence_is_that_of_its_quantity(name: str, reference: Reference) -> None:
    problems = check(name, (ROOT / name).read_text(), reference.quantities, DOCUMENTS[name])
    assert problems == [], "\n".join(map(str, problems))


def test_the_findings_are_two_pages() -> None:
    text = re.sub(r"<!--.*?-->", "", (ROOT / "results" / "reference" / "README.md").read_text(), flags=re.DOTALL)
    assert len(text.split()) < 2500  # of A4, in Times at ten points
