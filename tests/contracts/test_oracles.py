"""Oracles that a family confirms, and oracles that only a card claims."""

from pathlib import Path

import pytest
import tomli_w

from iclbench.cli.check_class import oracle_claims
from iclbench.cli.main import main
from iclbench.config.cards import card_names, load_task
from iclbench.config.resolution import family_class
from iclbench.contracts.families import no_baseline_beats_a_listed_oracle
from iclbench.families.linear import Linear, SparseLinear
from tests.conftest import small_card


class Sine(Linear):
    """A modified linear family, which does not confirm the oracles of its base class."""

    def apply(self, truth, x):
        return (3 * super().apply(truth, x)).sin()


class Claiming(Sine):
    oracles = frozenset({"ridge"})


@pytest.mark.parametrize("task", card_names("tasks"))
def test_every_shipped_oracle_is_confirmed_by_its_family(task: str) -> None:
    card = load_task(task)[1]
    assert all(family_class(card.family).lists_oracle(oracle) for oracle in card.oracles)


def test_oracles_of_a_base_class_are_not_confirmed() -> None:
    assert Linear.lists_oracle("ridge") and not Sine.lists_oracle("ridge") and not Linear.lists_oracle("knn-3")


def test_a_family_that_confirms_an_oracle_that_is_not_optimal_breaks_its_contract() -> None:
    no_baseline_beats_a_listed_oracle(Sine(Linear.Parameters()))
    with pytest.raises(AssertionError, match="ridge"):
        no_baseline_beats_a_listed_oracle(Claiming(Linear.Parameters()))


def test_the_contract_skips_an_oracle_that_does_not_apply() -> None:
    no_baseline_beats_a_listed_oracle(SparseLinear(SparseLinear.Parameters(dim=30, sparsity=8)))


@pytest.mark.slow
def test_check_lists_oracles_that_only_a_card_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("iclbench.cli.check_class.FAMILY_CONTRACTS", [])
    monkeypatch.chdir(tmp_path)
    sine = f"{__name__}:Sine"
    Path("sine.toml").write_text(tomli_w.dumps(small_card(family=sine)))
    Path("other.toml").write_text("title = 'no card'")
    (claim,) = oracle_claims(sine)
    assert claim.startswith("claim ") and "least-squares" in claim and "sine" in claim
    assert list(oracle_claims("./sine.toml")) == [claim]
    confirmed = [line for line in oracle_claims("noisy_linear") if not line.startswith("claim ")]
    assert any("ridge" in line and "noisy-linear" in line for line in confirmed)
    assert not list(oracle_claims("gpt2"))
    capsys.readouterr()
    assert (main(["check", "sine.toml"]), capsys.readouterr().out.splitlines()[0]) == (0, claim)
