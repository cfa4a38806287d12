"""The column `data` names the images behind results and published numbers."""

from pathlib import Path

import pytest
import tomli_w

from iclbench import tables
from iclbench.config.cards import card_names, load_task
from iclbench.config.resolution import family_class, resolve_run, resolve_task
from iclbench.evaluation import cells, contestants
from iclbench.evaluation.evaluate import write_published
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.targets import write_chance
from iclbench.store.runs import create
from iclbench.training import record
from tests.refusals import refused


def test_every_published_number_on_an_image_task_names_its_data() -> None:
    n_numbers = 0
    for name in card_names("tasks"):
        card = load_task(name)[1]
        parameters = family_class(card.family).data_parameters
        n_numbers += len(card.published) if parameters else 0
        for number in card.published:
            assert set(number.data) == set(parameters), f"{name}: {number.contestant}"
    assert n_numbers > 50


def test_all_numbers_published_with_coqe_are_on_omniglot() -> None:
    """Table 1 has five noise levels and table 2 has three models, each with in-context and in-weight accuracy."""
    procedural, omniglot = (load_task(name)[1].published for name in ("bursty-alpha1", "bursty-omniglot-alpha1"))
    assert procedural == omniglot and len(procedural) == 16
    assert {number.data["glyphs"] for number in procedural} == {"omniglot"}
    published = {(n.contestant, n.evaluator): n.value for n in procedural}
    assert (published["transformer", "icl"], published["transformer", "iwl"]) == (0.8412, 0.6402)
    assert (published["coqe-e256", "icl"], published["coqe-e256", "iwl"]) == (0.8955, 0.8202)
    assert (published["coqe", "icl"], published["coqe", "iwl"]) == (0.9171, 0.8994)


@pytest.mark.parametrize(
    ("task", "data"),
    [("bursty", "glyphs=procedural"), ("image-completion", "images=glyphs"), ("linear", None)],
)
def test_rows_of_evaluation_and_training_name_the_images(task: str, data: str | None, tmp_path: Path) -> None:
    config = resolve_run(task, "gpt2", "smoke")
    prompts = PromptSet(config.task, "smoke")
    (majority,) = contestants.baselines(prompts, ["majority" if "bursty" in task else "zero"])
    assert cells.shared_columns(majority, prompts, "targets")["data"] == data
    assert record._shared_columns(create(tmp_path, config))["data"] == data
    assert resolve_task("bursty-omniglot", "smoke")[0].data == "glyphs=omniglot"


def test_rows_of_published_numbers_and_chance_name_the_images(tmp_path: Path) -> None:
    task, _ = resolve_task("bursty-alpha1", "smoke")
    write_published(tmp_path, task)
    assert set(tables.read_all("values", tmp_path)["data"]) == {"glyphs=omniglot"}
    write_published(tmp_path, task.model_copy(update={"published": []}))
    assert not len(tables.read_all("values", tmp_path)), "numbers that are no longer on the card are removed"
    prompts = PromptSet(task, "smoke", evaluator="icl")
    write_chance(tmp_path, prompts)
    assert set(tables.read_all("values", tmp_path / "tables" / prompts.id)["data"]) == {"glyphs=procedural"}


def test_a_published_number_on_data_unknown_to_the_family_is_refused(tmp_path: Path) -> None:
    card = load_task("bursty-alpha1")[1].model_dump(mode="json", exclude_none=True)
    card["published"][0]["data"] = {"glyhps": "omniglot"}
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(card))
    with refused("unknown-name", "'glyhps'", "'glyphs'", "published.data", "'mine'"):
        resolve_task(str(tmp_path / "mine.toml"), "smoke")
