"""The engine: queries see all points before them and none after, whatever backbone learns and whatever comes in."""

import math
from collections.abc import Iterable
from itertools import groupby

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError
from iclbench.registry import BACKBONES
from iclbench.streaming.lines import Line
from iclbench.streaming.stream import BATCH, Answer, Stream

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
    """A point for every p, a query for every q."""
    torch.manual_seed(1)
    drawn = torch.randn(len(pattern), 3).double().tolist()
    return [
        Line(i, d[:2], d[2:] if kind == "p" else None)
        for i, (kind, d) in enumerate(zip(pattern, drawn, strict=True), 1)
    ]


def expected(backbone: Backbone, given: list[Line], related: Points | None = None) -> list[tuple[int, float, float]]:
    """The answers of a state conditioned on all points before the query, for every run of queries."""
    answers = []
    for asking, run in groupby(given, key=lambda line: line.y is None):
        if asking:
            queries = list(run)
            before = [line for line in given if line.y is not None and line.number < queries[0].number]
            x = torch.tensor([line.x for line in before]).double().reshape(1, len(before), 2)
            y = torch.tensor([line.y for line in before]).double().reshape(1, len(before), 1)
            asked = torch.tensor([[line.x for line in queries]]).double()
            with torch.no_grad():
                answer = backbone.predict_targets(Points.full(x, y), asked, related)
            columns = answer.mean.flatten().tolist(), answer.std.flatten().tolist()
            answers += list(zip([line.number for line in queries], *columns, strict=True))
    return answers


def assert_as_expected(found: Iterable[Answer], wanted: list[tuple[int, float, float]]) -> None:
    rows = [(a.number, a.columns["mean"][0], a.columns["std"][0]) for a in found]
    assert [row[0] for row in rows] == [row[0] for row in wanted]
    for row, want in zip(rows, wanted, strict=True):
        assert row[1:] == pytest.approx(want[1:], rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("name", SIZES)
def test_a_query_sees_all_points_before_it_and_none_after(name: str, at_once: bool) -> None:
    own, given = model(name), lines("pqqpppqpp" + "q" * 3 + "p" * 4 + "qp")
    stream = Stream(own, at_once=at_once)
    assert_as_expected(stream.run(given), expected(own, given))
    assert (stream.points, stream.queries) == (11, 7)


@pytest.mark.parametrize("name", SIZES)
def test_a_classifier_learns_labels_and_answers_with_probabilities(name: str) -> None:
    """Labels come as numbers of a line and are learned as classes; the answers are those to all points before them."""
    torch.manual_seed(0)
    cls = BACKBONES.get(name)
    shape = TaskShape(x_dim=2, points=9, classes=3, head="categorical", question="targets", related=0)
    own = cls(cls.Settings(**SIZES[name]), shape).eval().double()
    given = [Line(li.number, li.x, None if li.y is None else [float(li.number % 3)]) for li in lines("ppqpppqq")]
    answers = list(Stream(own).run(given))
    assert [answer.number for answer in answers] == [3, 7, 8]
    for answer in answers:
        before = [line for line in given[: answer.number] if line.y is not None]
        x = torch.tensor([[line.x for line in before]]).double()
        y = torch.tensor([[line.number % 3 for line in before]])
        with torch.no_grad():
            asked = own.predict_targets(Points.full(x, y), torch.tensor([[answer.x]]).double())
        wanted = asked.logits[0, 0].softmax(-1).tolist()
        assert answer.columns["p"] == pytest.approx(wanted, rel=1e-8)
        assert answer.columns["label"] == [wanted.index(max(wanted))]


def test_points_beyond_what_is_learned_together_are_not_lost() -> None:
    own, given = model(), lines("p" * (2 * BATCH + 3) + "q" + "p" * BATCH + "q" * (BATCH + 1))
    assert_as_expected(Stream(own, at_once=False).run(given), expected(own, given))


def test_at_once_means_before_the_next_line_is_read() -> None:
    read = []

    def source():
        for line in lines("ppqpq"):
            read.append(line.number)
            yield line

    answers = Stream(model()).run(source())
    assert (next(answers).number, read[-1]) == (3, 3)
    assert (next(answers).number, read[-1]) == (5, 5)


@pytest.mark.parametrize("name", ["cmanp", "mamba", "gpt2"])
def test_a_stream_goes_on_from_its_state(name: str) -> None:
    own, given = model(name), lines("ppqpppqq")
    first = Stream(own)
    answers = list(first.run(given[:4]))
    second = Stream(own, first.state)
    assert_as_expected(answers + list(second.run(given[4:])), expected(own, given))


def test_related_datasets_come_first_and_may_be_all_there_is() -> None:
    own, given = model("icicl-tnp"), lines("qpq")
    related = Points.full(torch.randn(1, 2, 5, 2).double(), torch.randn(1, 2, 5, 1).double())
    with_them = expected(own, given, related)
    assert_as_expected(Stream(own, related=related).run(given), with_them)
    assert with_them != expected(own, given)


def test_what_stops_a_stream_leaves_everything_before_it_learned_and_answered() -> None:
    own, given = model(), lines("ppqpppqpp")

    def broken(error: BaseException):
        yield from given
        raise error

    for error in (DataError("line 10: broken"), KeyboardInterrupt(), OSError("stale file handle")):
        for at_once in (True, False):
            stream, answers = Stream(own, at_once=at_once), []
            with pytest.raises(type(error)):
                answers += [answer for answer in stream.run(broken(error)) if answers.append(answer)]
            assert_as_expected(answers, expected(own, given))
            whole = Stream(own)
            list(whole.run(given))
            assert stream.points == 7
            torch.testing.assert_close(stream.state.e, whole.state.e, rtol=1e-12, atol=1e-12)


def test_a_point_the_model_cannot_compute_with_is_refused_and_the_state_stays_finite() -> None:
    own, given = model().float(), lines("ppppp")
    given[3] = Line(4, [3e38, 3e38], [1.0])
    stream = Stream(own)
    with pytest.raises(DataError, match="line 4: the model cannot compute with this point"):
        list(stream.run(given))
    assert stream.points == 3
    before = Stream(own)
    list(before.run(given[:3]))
    torch.testing.assert_close(stream.state.e, before.state.e)
    query = [Line(1, [0.0, 0.0], None)]
    assert math.isfinite(next(Stream(own, stream.state).run(query)).columns["mean"][0])
    with pytest.raises(DataError, match="line 1: the model has no finite answer"):
        list(Stream(own, stream.state).run([Line(1, [3e38, 3e38], None)]))


@pytest.mark.parametrize("given", ["q", "qp"])
def test_a_query_before_any_point_is_refused(given: str) -> None:
    with pytest.raises(DataError, match="line 1: a query before any point; give points first"):
        list(Stream(model()).run(lines(given)))


@pytest.mark.parametrize(("name", "grows"), [("cmanp", 0), ("cnp", 0), ("mamba", 0), ("lbanp", 1), ("gpt2", 1)])
def test_growing_states_are_told_once(name: str, grows: int, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(model(name))
    with caplog.at_level("INFO"):
        list(stream.run(lines("pqpqpq")))
    assert len([record for record in caplog.records if "grows" in record.message]) == grows


@pytest.mark.parametrize("at_once", [True, False])
def test_a_query_beyond_what_the_model_takes_is_named_by_its_line(at_once: bool) -> None:
    """Nine points and a query are taken in; of two queries after ten points it is the first that cannot be answered."""
    own = model("gpt2", positions="learned")
    stream = Stream(own, at_once=at_once)
    found = []
    with pytest.raises(DataError, match=r"line 12: .* 10 .* 11"):
        found += stream.run(lines("p" * 9 + "qpqq"))
