"""`icl.next_element`: agreement with the model and with a stream, and errors for invalid elements."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import iclbench as icl
from iclbench.backbones.base import Backbone
from iclbench.core.episodes import Points
from iclbench.streaming.lines import LineFormat
from iclbench.streaming.stream import Stream
from tests.refusals import refused


def model(task: str, **settings: object) -> Backbone:
    torch.manual_seed(0)
    return icl.GRU(icl.task(task, "smoke", **settings), layers=1, width=16).eval()


def stream_answers(backbone: Backbone, lines: list[str]) -> list[list[float]]:
    """Return the answers of a stream to queries before the first line and after each line."""
    queries = ["?"] + [text for line in lines for text in (line, "?")]
    if backbone.shape.y_dim > 1 and backbone.shape.classes is None:
        queries = [",".join(["?"] * backbone.shape.y_dim) if text == "?" else text for text in queries]
    line_format = LineFormat.of(backbone.shape, 1e30)
    answers = Stream(backbone).run(line_format.read(queries, "test"))
    return [[value for numbers in answer.columns.values() for value in numbers] for answer in answers]


def test_predictions_for_tokens_equal_those_of_a_stream_and_of_the_model() -> None:
    backbone = model("markov")
    tokens = [0, 2, 1, 1]
    frame = icl.next_element(backbone, tokens)
    assert frame["n"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(frame.drop(columns="n"), stream_answers(backbone, list(map(str, tokens))), rtol=1e-5)
    points = Points.full(torch.empty(1, 5, 0), torch.tensor([[*tokens, 0]]))
    with torch.no_grad():
        probabilities = backbone.predict_next(points).logits.softmax(-1)[0]
    np.testing.assert_allclose(frame[["p0", "p1", "p2"]], probabilities, rtol=1e-6)
    assert frame["token"].tolist() == probabilities.argmax(-1).tolist()


def test_predictions_for_vectors_equal_those_of_a_stream() -> None:
    backbone = model("linear-system")
    values = [0.5, -1.25, 2.0]
    frame = icl.next_element(backbone, values)
    assert frame.columns.tolist() == ["n", "mean1", "std1", "low1", "high1"]
    np.testing.assert_allclose(frame.drop(columns="n"), stream_answers(backbone, list(map(str, values))), rtol=1e-5)
    assert icl.next_element(backbone, np.array(values)[:, None]).equals(frame)
    pairs = model("recall-vectors")
    vectors = np.random.default_rng(0).normal(size=(3, 4))
    expected = stream_answers(pairs, [",".join(map(repr, row)) for row in vectors.tolist()])
    np.testing.assert_allclose(icl.next_element(pairs, vectors).drop(columns="n"), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("task", ["markov", "linear-system"])
def test_an_empty_stream_has_one_prediction(task: str) -> None:
    assert len(icl.next_element(model(task), [])) == 1


@pytest.mark.parametrize(
    ("task", "elements", "names"),
    [
        ("markov", [0, 3], ("tokens", "0 to 2")),
        ("markov", [0, -1], ("tokens", "0 to 2")),
        ("markov", [0.5], ("tokens",)),
        ("markov", [[0, 1]], ("(1, 2)",)),
        ("linear-system", [[1.0, 2.0]], ("(N, 1)",)),
        ("linear-system", [float("nan")], ("finite", "NaN")),
    ],
)
def test_invalid_elements_are_refused(task: str, elements: object, names: tuple[str, ...]) -> None:
    with refused("bad-value", "elements", *names):
        icl.next_element(model(task), elements)


def test_the_error_for_an_unsuitable_model_names_the_function_to_use() -> None:
    with refused("not-applicable", "icl.next_event"):
        icl.next_element(model("point-process"), [0])
    with refused("not-applicable", "icl.predict"):
        icl.next_element(model("linear"), [0.0])
    with refused("not-applicable", "icl.next_element"):
        icl.predict(model("markov"), [[0.0]], [0], [[0.0]])
    with refused("not-applicable", "icl.next_element"):
        icl.next_event(model("markov"), [0.5], [0])
    with refused("not-finite", "y is scaled"):
        icl.next_element(model("linear-system"), [1e300])
    long = icl.backbone("gpt2-learned", icl.task("markov", "smoke"), layers=1, width=16, heads=2)
    with refused("not-applicable", "elements"):
        icl.next_element(long, [0] * 40)
