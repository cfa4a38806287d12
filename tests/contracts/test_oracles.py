"""Which oracles a family vouches for, and which are claims of a card alone."""

from pathlib import Path

import pytest
import tomli_w

from iclbench.cli.check_class import oracle_claims
from iclbench.cli.main import main
from iclbench.config.cards import load_task, names
from iclbench.config.resolution import family_class
from iclbench.contracts.families import the_oracles_it_vouches_for_are_beaten_by_none
from iclbench.families.linear import Linear, SparseLinear
from tests.conftest import small_card


class Sine(Linear):
    """What becomes of the linear family under a few changed lines; its word is inherited and does not count."""

    def apply(self, truth, x):
        return (3 * super().apply(truth, x)).sin()


class Claiming(Sine):
    oracles = frozenset({"ridge"})


@pytest.mark.parametrize("task", names("tasks"))
def test_every_shipped_oracle_is_vouched_for_by_its_family(task: str) -> None:
    card = load_task(task)[1]
    assert all(family_class(card.family).vouches_for(oracle) for oracle in card.oracles)


def test_what_a_family_derives_from_does_not_vouch_for_it() -> None:
    assert Linear.vouches_for("ridge") and not Sine.vouches_for("ridge") and not Linear.vouches_for("knn-3")


def test_a_family_that_vouches_for_a_baseline_that_is_beaten_breaks_its_contract() -> None:
    the_oracles_it_vouches_for_are_beaten_by_none(Sine(Linear.Parameters()))
    with pytest.raises(AssertionError, match="beats the oracle ridge by at least"):
        the_oracles_it_vouches_for_are_beaten_by_none(Claiming(Linear.Parameters()))


def test_an_oracle_that_refuses_these_parameters_breaks_no_contract() -> None:
    the_oracles_it_vouches_for_are_beaten_by_none(SparseLinear(SparseLinear.Parameters(dim=30, sparsity=8)))


@pytest.mark.slow
def test_check_says_which_oracles_are_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("iclbench.cli.check_class.FAMILY_CONTRACTS", [])  # what they say is not asked here
    monkeypatch.chdir(tmp_path)
    sine = f"{__name__}:Sine"
    Path("sine.toml").write_text(tomli_w.dumps(small_card(family=sine)))
    Path("other.toml").write_text("title = 'no card'")
    claim = "claim  least-squares of task sine: only on the card, not confirmed by the family\n"
    assert list(oracle_claims(sine)) == [claim.strip()]
    assert list(oracle_claims("./sine.toml")) == [claim.strip()]
    assert "oracle ridge of task noisy-linear: confirmed by the family" in oracle_claims("noisy_linear")
    assert not list(oracle_claims("gpt2"))
    capsys.readouterr()
    assert (main(["check", "sine.toml"]), capsys.readouterr().out) == (0, f"{claim}0 contracts passed\n")
