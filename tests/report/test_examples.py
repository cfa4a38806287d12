"""The section on examples: predictive bands of contestants and oracle, joint samples, and completed images."""

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
from iclbench.report.blocks import Block, Gallery
from iclbench.report.data import load_results
from iclbench.report.drawn_episodes import DrawnContestant, pixel_count
from iclbench.report.sections import report_sections
from iclbench.report.sections.examples import _description
from tests.report import synthetic_targets as synthetic
from tests.report.blocks import get_figure
from tests.report.test_page import Document

GP, IMAGES = "gp-mixture-small", "image-completion-small"
BLUE = [0x2B, 0x5C, 0xB8]


@pytest.fixture
def gallery(targets_blocks: dict[str, Block]) -> Gallery:
    block = targets_blocks[f"{IMAGES}-examples-none"]
    assert isinstance(block, Gallery)
    return block


@pytest.mark.slow
def test_bands_show_predictions_and_the_oracle(targets_blocks: dict[str, Block], targets_results: Path) -> None:
    figure = get_figure(targets_blocks, f"{GP}-examples-none")
    titles = [panel.title for panel in figure.panels]
    contestants = ["pt-tnp", "icicl-tnp, 0 related", "icicl-tnp, 1 related", "icicl-tnp, 3 related"]
    assert titles == [f"episode {e}: {title}" for e in (1, 2) for title in contestants]
    assert figure.columns == 4, "each row of panels shows one episode"
    examples = tables.read_all("examples", targets_results).query("task == 'gp-mixture' and shift == 'none'")
    predictions = examples[(examples["episode"] == 1) & (examples["role"] == "predicted")].sort_values("x1")
    panel = figure.data[figure.data["panel"] == "episode 2: icicl-tnp, 1 related"]
    for mark, contestant, n in (("prediction", "icicl-tnp", 1), ("oracle", "oracle-kernel", 0)):
        marks = panel[panel["part"] == mark]
        expected = predictions[(predictions["contestant"] == contestant) & (predictions["n_related"] == n)]
        for column in ("x1", "value", "low", "high"):
            assert marks[column].tolist() == expected[column].tolist()
    context = panel[panel["part"] == "context"]
    assert context["value"].tolist() == pytest.approx(np.sin(np.linspace(-4, 4, 33)[::4] + 1))
    assert "oracle-kernel" in figure.caption


def test_each_contestant_has_one_panel_for_the_first_episode(targets_blocks: dict[str, Block]) -> None:
    titles = [panel.title for panel in get_figure(targets_blocks, f"{GP}-examples-all").panels]
    assert titles == ["oracle-bayes, 3 related", "icicl-tnp, 3 related", "pt-tnp", "cnp", "knn-3"]


def test_oracles_come_first_in_the_figure_of_joint_samples(targets_blocks: dict[str, Block]) -> None:
    figure = get_figure(targets_blocks, f"{GP}-examples-drawn")
    titles = [panel.title for panel in figure.panels]
    assert titles[:2] == ["oracle-kernel", "oracle-bayes"] and set(titles[2:]) == {"icicl-tnp", "pt-tnp", "cnp"}
    samples = figure.data[(figure.data["panel"] == "cnp") & (figure.data["part"] == "sample")]
    assert set(samples["set"]) == set(range(synthetic.DRAWS)) and "5 samples" in figure.title
    last_sample = samples[samples["set"] == 4].sort_values("x1")
    assert last_sample["value"].tolist() == pytest.approx(np.sin(np.linspace(-4, 4, 33)) + 0.4)
    assert (figure.data["part"] == "context").any(), "context points are shown with the samples"


def test_mismatched_related_datasets_are_ordered_by_distance(targets_blocks: dict[str, Block]) -> None:
    figure = get_figure(targets_blocks, f"{GP}-examples-mismatch")
    titles = [panel.title.removeprefix("episode 1: ") for panel in figure.panels[:5]]
    assert titles == ["no related datasets", "related: same", "related: near", "related: rbf", "related: far"]
    predictions = figure.data[figure.data["part"] == "prediction"]
    assert set(predictions["contestant"]) == {"icicl-tnp"}
    width = (predictions["high"] - predictions["low"]).groupby(predictions["panel"]).mean()
    assert width["episode 1: no related datasets"] == pytest.approx(1.0)
    assert width["episode 1: related: far"] == pytest.approx(0.4), "the predictions use all three related datasets"


def _pixels(png: bytes) -> np.ndarray:
    with Image.open(BytesIO(png)) as image:
        return np.asarray(image)


def test_pictures_show_images_row_by_row(gallery: Gallery) -> None:
    label, pictures = gallery.rows[2]
    assert label == "episode 2"
    truth, context, related, *predictions = [None if p is None else _pixels(p.png) for p in pictures]
    assert truth is not None and context is not None and related is not None and predictions[2] is not None
    scale = truth.shape[0] // synthetic.SIDE
    image = synthetic.image(1).reshape(synthetic.SIDE, synthetic.SIDE)
    assert np.array_equal(truth[::scale, ::scale, 0], 255 * image)
    expected = np.repeat(255 * image[..., None], 3, 2)
    expected[np.arange(synthetic.SIDE**2).reshape(image.shape) % 4 > 0] = BLUE
    assert np.array_equal(context[::scale, ::scale], expected)
    assert (related[::scale, ::scale] == BLUE).all(-1).sum() == synthetic.SIDE**2 / 2
    # The brightness is 0.5 plus 0.1 for each of two related datasets.
    assert np.array_equal(predictions[2][::scale, ::scale, 0], np.rint(0.7 * 255 * image))


def test_interval_widths_are_drawn_relative_to_the_widest_interval(gallery: Gallery) -> None:
    by_n_related = [f"icicl-tnp, {n} related" for n in range(3)]
    assert gallery.columns[3:] == (*by_n_related, "cnp", "mean")
    label, pictures = gallery.rows[1]
    assert label == "episode 1, width"
    assert pictures[:3] == (None, None, None)
    assert pictures[-1] is None, "a point prediction has no interval"
    levels = [int(_pixels(p.png)[0, 0, 0]) for p in pictures[3:7] if p is not None]
    assert levels == [255, 204, 153, 255]  # widths 1.0, 0.8, 0.6, 1.0


def test_only_complete_grids_of_pixels_are_drawn_as_images() -> None:
    grid = pd.DataFrame({"x1": [0, 0, 1, 1], "x2": [0, 1, 0, 1], "role": "predicted"})
    assert pixel_count(grid) == 4
    assert pixel_count(grid[:3]) is None
    assert pixel_count(grid.assign(x2=None)) is None


def test_an_exported_gallery_names_its_rows_and_columns(gallery: Gallery) -> None:
    gallery_svg = ElementTree.fromstring(exports.gallery_svg(gallery))
    texts = {node.text for node in gallery_svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {*gallery.columns, *(title for title, _ in gallery.rows)} == texts
    pictures = [p for _, row in gallery.rows for p in row if p is not None]
    assert len(list(gallery_svg.iter("{http://www.w3.org/2000/svg}image"))) == len(pictures)


def test_pictures_on_the_page_have_descriptions(targets_page: Path) -> None:
    html = targets_page.read_text(encoding="utf-8")
    document = Document(html)
    assert all(link.startswith(("#", "tables/", "figures/", "data:image/png;base64,")) for link in document.links)
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', html)
    assert document.tags.count("img") == len(pictures) > 20
    assert base64.b64decode(pictures[0][0]).startswith(b"\x89PNG")
    descriptions = [text for _, text in pictures]
    assert "episode 1" in descriptions[0]
    assert any("episode 1" in text and "icicl-tnp, 1 related" in text for text in descriptions)
    assert "Log-likelihood" in document.text and "learning curve" not in document.text
    assert document.tags.count("th") == document.scopes


def test_the_section_is_omitted_without_examples(targets_results: Path, tmp_path: Path) -> None:
    values = tables.read_all("values", targets_results).query("task == 'image-completion' and shift == 'none'")
    tables.write("values", values, tmp_path / "r" / "a.values.parquet", {})
    titles = {
        part.title
        for section in report_sections(load_results(tmp_path / "r"), ["related", "examples"])
        for part in section.parts
    }
    assert "Related datasets" in titles
    assert "Examples" not in titles


def test_the_section_is_omitted_if_points_of_episodes_are_missing(targets_results: Path, tmp_path: Path) -> None:
    """An interrupted evaluation can leave predictions without the points of their episodes."""
    values = tables.read_all("values", targets_results).query("task == 'image-completion' and shift == 'none'")
    tables.write("values", values, tmp_path / "r" / "a.values.parquet", {})
    predicted = tables.read_all("examples", targets_results).query("role == 'predicted'")
    tables.write("examples", predicted, tmp_path / "r" / "a.examples.parquet", {})
    titles = {
        part.title
        for section in report_sections(load_results(tmp_path / "r"), ["related", "examples"])
        for part in section.parts
    }
    assert "Related datasets" in titles and "Examples" not in titles


def test_the_caption_describes_only_contestants_in_the_figure(targets_results: Path) -> None:
    (task,) = (task for task in load_results(targets_results).slices if task.id == GP)
    pt_tnp, cnp, icicl_tnp = (
        DrawnContestant("pt-tnp", 0, False),
        DrawnContestant("cnp", 0, False),
        DrawnContestant("icicl-tnp", 3, True),
    )
    without_related, several_without_related = (
        "the best model without related datasets",
        "the best models without related datasets",
    )
    with_related = "the best model with related datasets"
    for best, description in (
        ([pt_tnp, icicl_tnp], f"{without_related} and {with_related}"),
        ([icicl_tnp], with_related),
        ([pt_tnp, cnp], several_without_related),
        ([pt_tnp, icicl_tnp, cnp], f"{several_without_related} and {with_related}"),
        ([DrawnContestant("knn-3", 0, False)], "the best baselines"),
    ):
        assert _description(task, best) == description
