"""Drawn episodes: bands beside the oracle's, completed images, and both on the page."""

import base64
import re
import xml.etree.ElementTree as ElementTree
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from iclbench import tables
from iclbench.report import exports
from iclbench.report.blocks import Block, Figure, Gallery
from iclbench.report.data import load
from iclbench.report.drawn_episodes import DrawnContestant, pixels
from iclbench.report.sections import report
from iclbench.report.sections.examples import _in_words
from tests.report import synthetic_targets as synthetic
from tests.report.test_page import Document

GP, IMAGES = "gp-mixture-small", "image-completion-small"
BLUE = [0x2B, 0x5C, 0xB8]


def _figure(blocks: dict[str, Block], name: str) -> Figure:
    block = blocks[name]
    assert isinstance(block, Figure)
    return block


@pytest.fixture
def gallery(targets_blocks: dict[str, Block]) -> Gallery:
    block = targets_blocks[f"{IMAGES}-examples-none"]
    assert isinstance(block, Gallery)
    return block


@pytest.mark.slow
def test_bands_hold_the_tables_numbers_beside_the_oracles(
    targets_blocks: dict[str, Block], targets_results: Path
) -> None:
    figure = _figure(targets_blocks, f"{GP}-examples-none")
    titles = [panel.title for panel in figure.panels]
    shown = ["pt-tnp", "icicl-tnp, 0 related", "icicl-tnp, 1 related", "icicl-tnp, 3 related"]
    assert titles == [f"episode {e}: {one}" for e in (1, 2) for one in shown]
    assert figure.columns == 4, "an episode per row"
    examples = tables.read_all("examples", targets_results).query("task == 'gp-mixture' and shift == 'none'")
    own = examples[(examples["episode"] == 1) & (examples["role"] == "predicted")].sort_values("x1")
    panel = figure.data[figure.data["panel"] == "episode 2: icicl-tnp, 1 related"]
    for part, contestant, n in (("prediction", "icicl-tnp", 1), ("oracle", "oracle-kernel", 0)):
        drawn = panel[panel["part"] == part]
        expected = own[(own["contestant"] == contestant) & (own["n_related"] == n)]
        for column in ("x1", "value", "low", "high"):
            assert drawn[column].tolist() == expected[column].tolist()
    context = panel[panel["part"] == "context"]
    assert context["value"].tolist() == pytest.approx(np.sin(np.linspace(-4, 4, 33)[::4] + 1))
    assert "oracle-kernel" in figure.caption


def test_everybody_is_drawn_once_on_one_episode(targets_blocks: dict[str, Block]) -> None:
    titles = [panel.title for panel in _figure(targets_blocks, f"{GP}-examples-everyone").panels]
    assert titles == ["oracle-bayes, 3 related", "icicl-tnp, 3 related", "pt-tnp", "cnp", "knn-3"]


def test_samples_of_everybody_stand_beside_the_oracles(targets_blocks: dict[str, Block]) -> None:
    figure = _figure(targets_blocks, f"{GP}-examples-drawn")
    titles = [panel.title for panel in figure.panels]
    assert titles[:2] == ["oracle-kernel", "oracle-bayes"] and set(titles[2:]) == {"icicl-tnp", "pt-tnp", "cnp"}
    own = figure.data[(figure.data["panel"] == "cnp") & (figure.data["part"] == "sample")]
    assert set(own["set"]) == set(range(synthetic.DRAWS)) and figure.title.startswith("gp-mixture: 5 samples")
    last = own[own["set"] == 4].sort_values("x1")
    assert last["value"].tolist() == pytest.approx(np.sin(np.linspace(-4, 4, 33)) + 0.4)
    assert (figure.data["part"] == "context").any(), "in every panel"


def test_mismatched_related_datasets_stand_side_by_side(targets_blocks: dict[str, Block]) -> None:
    figure = _figure(targets_blocks, f"{GP}-examples-mismatch")
    first = [panel.title.removeprefix("episode 1: ") for panel in figure.panels[:5]]
    assert first == ["no related datasets", "related: same", "related: near", "related: rbf", "related: far"]
    drawn = figure.data[figure.data["part"] == "prediction"]
    assert set(drawn["contestant"]) == {"icicl-tnp"}
    width = (drawn["high"] - drawn["low"]).groupby(drawn["panel"]).mean()
    assert width["episode 1: no related datasets"] == pytest.approx(1.0)
    assert width["episode 1: related: far"] == pytest.approx(0.4), "with all three related datasets"


def _read(png: bytes) -> np.ndarray:
    with Image.open(BytesIO(png)) as image:
        return np.asarray(image)


def test_pictures_are_the_images_row_by_row(gallery: Gallery) -> None:
    label, pictures = gallery.rows[2]
    assert label == "episode 2"
    truth, context, related, *answers = [None if p is None else _read(p.png) for p in pictures]
    assert truth is not None and context is not None and related is not None and answers[2] is not None
    times = truth.shape[0] // synthetic.SIDE
    bright = synthetic.image(1).reshape(synthetic.SIDE, synthetic.SIDE)
    assert np.array_equal(truth[::times, ::times, 0], 255 * bright)
    expected = np.repeat(255 * bright[..., None], 3, 2)
    expected[np.arange(synthetic.SIDE**2).reshape(bright.shape) % 4 > 0] = BLUE
    assert np.array_equal(context[::times, ::times], expected)
    assert (related[::times, ::times] == BLUE).all(-1).sum() == synthetic.SIDE**2 / 2
    # Half of the white, and 0.1 more for each of two related datasets.
    assert np.array_equal(answers[2][::times, ::times, 0], np.rint(0.7 * 255 * bright))


def test_widths_are_shares_of_the_widest(gallery: Gallery) -> None:
    by_count = [f"icicl-tnp, {n} related" for n in range(3)]
    assert gallery.columns[3:] == (*by_count, "cnp", "mean")
    label, pictures = gallery.rows[1]
    assert label == "episode 1, width"
    assert pictures[:3] == (None, None, None)
    assert pictures[-1] is None, "a single value has no interval"
    levels = [int(_read(p.png)[0, 0, 0]) for p in pictures[3:7] if p is not None]
    assert levels == [255, 204, 153, 255]  # widths 1.0, 0.8, 0.6, 1.0


def test_only_full_grids_are_images() -> None:
    grid = pd.DataFrame({"x1": [0, 0, 1, 1], "x2": [0, 1, 0, 1], "role": "predicted"})
    assert pixels(grid) == 4
    assert pixels(grid[:3]) is None
    assert pixels(grid.assign(x2=None)) is None


def test_a_sheet_names_rows_and_columns(gallery: Gallery) -> None:
    sheet = ElementTree.fromstring(exports.sheet(gallery))
    texts = {node.text for node in sheet.iter("{http://www.w3.org/2000/svg}text")}
    assert {*gallery.columns, *(title for title, _ in gallery.rows)} == texts
    pictures = [p for _, row in gallery.rows for p in row if p is not None]
    assert len(list(sheet.iter("{http://www.w3.org/2000/svg}image"))) == len(pictures)


def test_the_page_holds_the_pictures_with_their_descriptions(targets_page: Path) -> None:
    html = targets_page.read_text(encoding="utf-8")
    document = Document(html)
    assert all(link.startswith(("#", "tables/", "figures/", "data:image/png;base64,")) for link in document.links)
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', html)
    assert document.tags.count("img") == len(found) > 20
    assert base64.b64decode(found[0][0]).startswith(b"\x89PNG")
    assert found[0][1] == "episode 1: the image"
    assert "episode 1: mean predicted by icicl-tnp, 1 related" in {text for _, text in found}
    assert "predicts a set of targets from one context" in document.text
    assert "area under the learning curve" not in document.text
    assert document.tags.count("th") == document.scopes


def test_without_examples_there_is_no_such_section(targets_results: Path, tmp_path: Path) -> None:
    values = tables.read_all("values", targets_results).query("task == 'image-completion' and shift == 'none'")
    tables.write("values", values, tmp_path / "r" / "a.values.parquet", {})
    titles = {part.title for section in report(load(tmp_path / "r"), ["related", "examples"]) for part in section.parts}
    assert "Related datasets" in titles
    assert "Examples" not in titles


def test_predictions_without_their_episodes_are_not_drawn(targets_results: Path, tmp_path: Path) -> None:
    """An evaluation that was stopped has predictions, but not yet the points that they are drawn beside."""
    values = tables.read_all("values", targets_results).query("task == 'image-completion' and shift == 'none'")
    tables.write("values", values, tmp_path / "r" / "a.values.parquet", {})
    predicted = tables.read_all("examples", targets_results).query("role == 'predicted'")
    tables.write("examples", predicted, tmp_path / "r" / "a.examples.parquet", {})
    titles = {part.title for section in report(load(tmp_path / "r"), ["related", "examples"]) for part in section.parts}
    assert "Related datasets" in titles and "Examples" not in titles


def test_the_caption_names_who_is_drawn(targets_results: Path) -> None:
    (task,) = (task for task in load(targets_results).slices if task.id == GP)
    alone, related = (
        [DrawnContestant(name, 0, False) for name in ("pt-tnp", "cnp")],
        DrawnContestant("icicl-tnp", 3, True),
    )
    without, with_related = "model without related datasets", "the best model with related datasets"
    several = without.replace("model", "models")
    for best, said in (
        ([alone[0], related], f"the best {without} and {with_related}"),
        ([related], with_related),
        (alone, f"the best {several}"),
        ([alone[0], related, alone[1]], f"the best {several} and {with_related}"),
        ([DrawnContestant("knn-3", 0, False)], "the best baselines"),
    ):
        assert _in_words(task, best) == said
