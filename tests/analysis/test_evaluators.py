"""Titles and chance levels of the tests of families in reports, and which evaluators are tests."""

from importlib.metadata import EntryPoint

import pandas as pd
import pytest

from iclbench import registry
from iclbench.analysis import evaluators
from iclbench.config.resolution import resolve_task
from iclbench.core.formats import canonical
from iclbench.core.meaning import Meaning
from iclbench.registry import TESTS, Registry


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """A package with a test `odd_one` and a test that cannot be loaded."""
    (tmp_path / "oddtests.py").write_text(
        "from iclbench.core.meaning import Meaning\n"
        "ODD = Meaning('odd one out', 'which image is of another class', 1 / 3, '1/3', finer=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    targets = {"odd_one": "oddtests:ODD", "broken": "oddtests:NONE"}
    points = [EntryPoint(name, target, "iclbench.tests") for name, target in targets.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
    monkeypatch.setattr(evaluators, "TESTS", Registry("test", TESTS._builtin))


def test_tests_of_a_plug_in_have_titles_and_a_test_that_cannot_be_loaded_causes_a_warning(plug_in, caplog):
    assert evaluators.meaning("odd_one") == Meaning(
        "odd one out", "which image is of another class", 1 / 3, "1/3", finer=True
    )
    assert evaluators.meaning("unheard_of").title == "unheard of"
    assert evaluators.meaning("broken").title == "broken" and "oddtests:NONE" in caplog.text
    assert {record.name for record in caplog.records} == {"iclbench"}
    names = pd.Series(["zzz", "odd_one", "targets", "iwl", "icl_paired", "icl", "aaa"])
    assert evaluators.sorted_evaluators(names) == ["icl", "icl_paired", "iwl", "odd_one", "targets", "aaa", "zzz"]


def test_a_module_path_in_a_table_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "sneaky.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "sneaky")
    assert evaluators.meaning("sneaky:TEST").title == "sneaky:TEST"


def test_all_tests_of_bursty_sequences_are_registered_with_the_chance_of_the_family():
    tests = resolve_task("bursty", "smoke")[0].build().evaluators()
    assert {canonical(name) for name in tests} == set(TESTS._builtin)
    for name, test in tests.items():
        assert evaluators.meaning(name).chance in (None, test.chance), name


def test_questions_training_and_diagnostics_are_not_tests():
    names = ["train", "next", "targets", "probe", "gamma_search", "rank", "representation", "solutions", "icl", "mine"]
    assert evaluators.is_test(pd.Series(names)).tolist() == [False] * 8 + [True] * 2


def test_the_question_targets_of_a_classification_family_has_its_own_meaning():
    assert evaluators.meaning("targets") == evaluators.AS_TRAINED
    assert "label" in evaluators.meaning("targets").guessing
    assert evaluators.meaning("targets").chance is None and not evaluators.meaning("targets").finer
    assert evaluators.meaning("icl_paired").finer and not evaluators.meaning("icl").finer
