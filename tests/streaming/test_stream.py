"""Streams: the answer to a query depends on all points before the query and on no later points."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.contracts.examples import stream_shape
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError
from iclbench.registry import BACKBONES
from iclbench.streaming.lines import Line
from iclbench.streaming.stream import BATCH_SIZE, Answer, Stream
from tests.refusals import refused

SIZES = {
    "cmanp": {"layers": 2, "width": 8, "heads": 2, "hidden": 8, "latents": 3},
    "lbanp": {"layers": 2, "width": 8, "heads": 2, "hidden": 8, "latents": 3},
    "cnp": {"width": 8},
    "icicl-cnp": {"width": 8},
    "icicl-tnp": {"layers": 1, "width": 8, "heads": 2, "pseudo_tokens": 3},
    "gpt2": {"layers": 1, "width": 8, "heads": 2, "init_std": 0.3},
    "mamba": {"layers": 1, "width": 8, "state": 4},
    "s4": {"layers": 1, "width": 8, "state": 4},
}


def model(name: str = "cmanp", related: int = 0, **settings: str) -> Backbone:
    torch.manual_seed(0)
    cls = BACKBONES.get(name)
    shape = TaskShape(
        x_dim=2, points=9, head="gaussian", question="targets", related=related or 2 * (name == "icicl-tnp")
    )
    return cls(cls.Settings(**SIZES[name], **settings), shape).eval().double()


def lines(pattern: str) -> list[Line]:
    """Return lines with a point for each p and a query for each q."""
    torch.manual_seed(1)
    values = torch.randn(len(pattern), 3).double().tolist()
    return [
        Line(i, d[:2], d[2:] if character == "p" else None)
        for i, (character, d) in enumerate(zip(pattern, values, strict=True), 1)
    ]


def expected_answers(
    backbone: Backbone, stream_lines: list[Line], related: Points | None = None
) -> list[tuple[int, float, float]]:
    """Return the answers of a model that is conditioned on all points before each group of queries."""
    answers = []
    for is_query, group in groupby(stream_lines, key=lambda line: line.y is None):
        if is_query:
            queries = list(group)
            points_before = [line for line in stream_lines if line.y is not None and line.number < queries[0].number]
            x = torch.tensor([line.x for line in points_before]).double().reshape(1, len(points_before), 2)
            y = torch.tensor([line.y for line in points_before]).double().reshape(1, len(points_before), 1)
            x_query = torch.tensor([[line.x for line in queries]]).double()
            with torch.no_grad():
                answer = backbone.predict_targets(Points.full(x, y), x_query, related)
            columns = answer.mean.flatten().tolist(), answer.std.flatten().tolist()
            answers += list(zip([line.number for line in queries], *columns, strict=True))
    return answers


def assert_as_expected(answers: Iterable[Answer], expected_rows: list[tuple[int, float, float]]) -> None:
    rows = [(a.number, a.columns["mean"][0], a.columns["std"][0]) for a in answers]
    assert [row[0] for row in rows] == [row[0] for row in expected_rows]
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert row[1:] == pytest.approx(expected_row[1:], rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("answer_immediately", [True, False])
@pytest.mark.parametrize("name", SIZES)
def test_the_answer_to_a_query_depends_on_all_points_before_it_and_no_later_points(
    name: str, answer_immediately: bool
) -> None:
    backbone, stream_lines = model(name), lines("pqqpppqpp" + "q" * 3 + "p" * 4 + "qp")
    stream = Stream(backbone, answer_immediately=answer_immediately)
    assert_as_expected(stream.run(stream_lines), expected_answers(backbone, stream_lines))
    assert (stream.points, stream.queries) == (11, 7)


@pytest.mark.parametrize("name", SIZES)
def test_a_classifier_learns_from_labels_and_answers_with_probabilities(name: str) -> None:
    """The answers are compared with predictions given all earlier points."""
    torch.manual_seed(0)
    cls = BACKBONES.get(name)
    shape = TaskShape(x_dim=2, points=9, classes=3, head="categorical", question="targets", related=0)
    classifier = cls(cls.Settings(**SIZES[name]), shape).eval().double()
    stream_lines = [
        Line(line.number, line.x, None if line.y is None else [float(line.number % 3)]) for line in lines("ppqpppqq")
    ]
    answers = list(Stream(classifier).run(stream_lines))
    assert [answer.number for answer in answers] == [3, 7, 8]
    for answer in answers:
        points_before = [line for line in stream_lines[: answer.number] if line.y is not None]
        x = torch.tensor([[line.x for line in points_before]]).double()
        y = torch.tensor([[line.number % 3 for line in points_before]])
        with torch.no_grad():
            prediction = classifier.predict_targets(Points.full(x, y), torch.tensor([[answer.x]]).double())
        probabilities = prediction.logits[0, 0].softmax(-1).tolist()
        assert answer.columns["p"] == pytest.approx(probabilities, rel=1e-8)
        assert answer.columns["label"] == [probabilities.index(max(probabilities))]


def test_streams_longer_than_a_batch_are_learned_and_answered_completely() -> None:
    backbone, stream_lines = (
        model(),
        lines("p" * (2 * BATCH_SIZE + 3) + "q" + "p" * BATCH_SIZE + "q" * (BATCH_SIZE + 1)),
    )
    assert_as_expected(
        Stream(backbone, answer_immediately=False).run(stream_lines), expected_answers(backbone, stream_lines)
    )


def test_queries_are_answered_before_the_next_line_is_read() -> None:
    read_numbers = []

    def source():
        for line in lines("ppqpq"):
            read_numbers.append(line.number)
            yield line

    answers = Stream(model()).run(source())
    assert (next(answers).number, read_numbers[-1]) == (3, 3)
    assert (next(answers).number, read_numbers[-1]) == (5, 5)


@pytest.mark.parametrize("name", ["cmanp", "mamba", "gpt2"])
def test_a_stream_continues_from_the_state_of_another_stream(name: str) -> None:
    backbone, stream_lines = model(name), lines("ppqpppqq")
    first = Stream(backbone)
    answers = list(first.run(stream_lines[:4]))
    second = Stream(backbone, first.state)
    assert_as_expected(answers + list(second.run(stream_lines[4:])), expected_answers(backbone, stream_lines))


def test_queries_may_precede_the_first_point_if_there_are_related_datasets() -> None:
    backbone, stream_lines = model("icicl-tnp"), lines("qpq")
    related = Points.full(torch.randn(1, 2, 5, 2).double(), torch.randn(1, 2, 5, 1).double())
    with_related = expected_answers(backbone, stream_lines, related)
    assert_as_expected(Stream(backbone, related=related).run(stream_lines), with_related)
    assert with_related != expected_answers(backbone, stream_lines)


def test_all_lines_before_an_error_are_learned_and_answered() -> None:
    backbone, stream_lines = model(), lines("ppqpppqpp")

    def lines_until(error: BaseException):
        yield from stream_lines
        raise error

    for error in (DataError("line 10: broken"), KeyboardInterrupt(), OSError("stale file handle")):
        for answer_immediately in (True, False):
            stream, answers = Stream(backbone, answer_immediately=answer_immediately), []
            with pytest.raises(type(error)):
                answers.extend(stream.run(lines_until(error)))
            assert_as_expected(answers, expected_answers(backbone, stream_lines))
            complete = Stream(backbone)
            list(complete.run(stream_lines))
            assert stream.points == 7
            torch.testing.assert_close(stream.state.e, complete.state.e, rtol=1e-12, atol=1e-12)


def test_a_point_that_gives_a_nonfinite_state_is_refused() -> None:
    backbone, stream_lines = model().float(), lines("ppppp")
    stream_lines[3] = Line(4, [3e38, 3e38], [1.0])
    stream = Stream(backbone)
    with refused("not-finite", "line 4"):
        list(stream.run(stream_lines))
    assert stream.points == 3
    first_three = Stream(backbone)
    list(first_three.run(stream_lines[:3]))
    torch.testing.assert_close(stream.state.e, first_three.state.e)
    query = [Line(1, [0.0, 0.0], None)]
    assert math.isfinite(next(Stream(backbone, stream.state).run(query)).columns["mean"][0])
    with refused("not-finite", "line 1"):
        list(Stream(backbone, stream.state).run([Line(1, [3e38, 3e38], None)]))


@pytest.mark.parametrize("pattern", ["q", "qp"])
def test_a_query_before_the_first_point_is_refused(pattern: str) -> None:
    with refused("bad-data", "line 1", "--state"):
        list(Stream(model()).run(lines(pattern)))


@pytest.mark.parametrize(("name", "grows"), [("cmanp", 0), ("cnp", 0), ("mamba", 0), ("lbanp", 1), ("gpt2", 1)])
def test_growing_states_are_reported_once(name: str, grows: int, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(model(name))
    with caplog.at_level("INFO"):
        list(stream.run(lines("pqpqpq")))
    assert len([record for record in caplog.records if "grows" in record.message]) == grows


@pytest.mark.parametrize("answer_immediately", [True, False])
def test_the_error_for_a_query_beyond_the_context_length_names_its_line(answer_immediately: bool) -> None:
    """Nine points and a query fit into the context. A query after ten points does not."""
    backbone = model("gpt2", positions="learned")
    stream = Stream(backbone, answer_immediately=answer_immediately)
    answers = []
    with pytest.raises(DataError, match=r"^stdin, line 12: "):
        answers += stream.run(lines("p" * 9 + "qpqq"))


@pytest.mark.parametrize("answer_immediately", [True, False])
@pytest.mark.parametrize("points", [8, 9])
@pytest.mark.parametrize("inputs", ["tokens", "vectors"])
def test_a_stream_answers_after_as_many_elements_as_an_evaluation(
    inputs: str, points: int, answer_immediately: bool
) -> None:
    """The table of learned positions has an even number of rows. For nine elements, it has ten rows, and training does
    not use the last row."""
    cls = BACKBONES.get("gpt2")
    shape = stream_shape("categorical" if inputs == "tokens" else "point")
    backbone = cls(cls.Settings(**SIZES["gpt2"], positions="learned"), replace(shape, points=points)).eval()
    y = [1.0] if inputs == "tokens" else [0.5, 0.1]
    element, query = Line(1, [], y), Line(2, [], None)
    allowed = [n for n in range(12) if backbone.too_long(n) is None]
    assert allowed == list(range(points))
    for n in range(12):
        stream = Stream(backbone, answer_immediately=answer_immediately)
        if n in allowed:
            assert len(list(stream.run([*n * [element], query]))) == 1
        else:
            with refused("not-applicable", "line"):
                list(stream.run([*n * [element], query]))
    before = Stream(backbone)
    list(before.run((points - 1) * [element]))
    assert len(list(Stream(backbone, before.state, points_before=points - 1).run([query]))) == 1
    with refused("not-applicable", "line 2"):
        list(Stream(backbone, before.state, points_before=points - 1).run([element, query]))
