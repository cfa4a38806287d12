"""A backbone that nobody tuned, among others that were, is never ranked above a tie."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iclbench.config import rates
from iclbench.report import data, normalised
from iclbench.report.blocks import Table, Text
from iclbench.report.data import Results
from iclbench.report.sections.ranking import ranking, section
from iclbench.report.untuned import untuned
from tests.report import synthetic_grid
from tests.report.synthetic_grid import BACKBONES


@pytest.fixture(scope="module")
def unfair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """The grid where everybody but the best, gpt2, has a rate on two tasks, and nobody has one elsewhere."""
    tmp_path = tmp_path_factory.mktemp("unfair")
    chosen = "".join(f"{name} = {{ lr = 1e-3 }}\n" for name in BACKBONES if name != "gpt2")
    folder = tmp_path / "results"
    synthetic_grid.write(folder)
    (folder / "rates").mkdir()
    (folder / "rates" / "grid.toml").write_text(
        '[[tuned]]\ntasks = ["linear", "quadratic"]\nsteps = 100\nseeds = 3\n[tuned.train]\n' + chosen
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates, "shipped_path", lambda preset: tmp_path / "none.toml")
        yield data.load(folder)


def test_nobody_is_told_to_be_worse_than_it(grid_results: Results, unfair: Results) -> None:
    before, _ = ranking(normalised.contests(grid_results, "grid"))
    after, _ = ranking(normalised.contests(unfair, "grid"))
    assert before["contestant"].tolist() == after["contestant"].tolist() and not before["tuned"].any()
    before, after = before.set_index("contestant"), after.set_index("contestant")
    assert before.loc["gpt2", "rank"] != after.loc["gpt2", "rank"]
    assert after.loc["gpt2", "rank"].split("–")[-1] == str(len(after))
    below = after.index[after.index.get_loc("gpt2") + 1]
    assert after.loc[below, "tied"] == "tied"
    assert after["tuned"].to_dict() == {name: "untuned" if name == "gpt2" else "" for name in after.index}
    # It may well be worse than others, and others are told apart as they were.
    first = {name: int(after.loc[name, "rank"].split("–")[0]) for name in ("s4d", "cnp")}
    assert first == {name: int(before.loc[name, "rank"].split("–")[0]) - 1 for name in ("s4d", "cnp")}


def test_only_tasks_where_others_are_tuned_count(unfair: Results, grid_results: Results) -> None:
    assert untuned(normalised.contests(unfair, "grid")) == {"gpt2": ["linear", "quadratic"]}
    assert untuned(normalised.contests(grid_results, "grid")) == {}


def test_the_page_says_it(unfair: Results) -> None:
    said = section(unfair)
    assert said is not None
    text = [line for block in said.blocks if isinstance(block, Text) for line in block.items]
    assert "gpt2: linear, quadratic" in text
    table = next(block for block in said.blocks if isinstance(block, Table))
    assert "learning rate" in [column.header for column in table.columns]
