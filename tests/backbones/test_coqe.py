"""CoQE for regression: predictions compared with a simple reference, their dependencies, and their factorisation."""

import pytest
import torch
from torch import Tensor

from iclbench.backbones import coqe
from iclbench.backbones.base import TaskShape
from iclbench.backbones.coqe import CoQE, CoQESettings
from iclbench.core.episodes import Points
from iclbench.layers.coqe.task_vectors import TaskVectorState
from tests.backbones.event_models import MARKS, events
from tests.backbones.transformers_gpt2 import transformers_gpt2

SETTINGS = [{}, {"sample_dim": 5}, {"readout": "mlp"}, {"sample_dim": 3, "readout": "mlp", "positions": "sinusoidal"}]
N = 9
EVENTS = TaskShape(x_dim=0, y_dim=3, points=N, marks=MARKS, head="event")


def model(points: int = N, **settings: object) -> CoQE:
    torch.manual_seed(0)
    backbone = CoQE(
        CoQESettings(**{"width": 16, "layers": 2, "init_std": 0.3, **settings}), TaskShape(x_dim=4, points=points)
    )
    torch.nn.init.normal_(backbone.space.initial)
    return backbone.eval()


def task_vectors(ours: CoQE, context: Points) -> Tensor:
    """Return the task vectors. Their inner products with phi(x) are the raw outputs at x."""
    memory = ours.condition(context).memory
    assert isinstance(memory, TaskVectorState)
    return memory.vectors


def draw(batch: int = 3, count: int = N, seed: int = 1) -> Points:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, count, 4, generator=generator)
    return Points.full(x, torch.randn(batch, count, 1, generator=generator))


def test_without_inputs_the_task_vector_of_a_raw_output_is_one_number() -> None:
    """The representation of every sample is the number 1."""
    ours = CoQE(CoQESettings(width=16, layers=2, init_std=0.3), EVENTS).double().eval()
    assert ours.space.initial.shape == (EVENTS.raw_dim, 1)
    answer = ours.predict_next(events(N))
    answer.loss(events(N).y).sum().backward()
    assert all(weight.grad is not None for name, weight in ours.named_parameters() if "space" in name)


@pytest.mark.parametrize("shape", [EVENTS, TaskShape(x_dim=4, points=N, head="mixture")], ids=["event", "mixture"])
def test_mixture_components_differ_before_the_first_point(shape: TaskShape) -> None:
    """Equal components would have equal gradients, and would remain equal in training."""
    torch.manual_seed(0)
    ours = CoQE(CoQESettings(width=16, layers=2, init_std=0.3), shape).double()
    first = ours.space.initial[: shape.components].detach()
    points = events(N) if shape.head == "event" else draw().to(dtype=torch.float64)
    ours.predict_next(points).loss(points.y).mean().backward()
    slopes = ours.space.initial.grad[: shape.components]
    assert len(first.unique(dim=0)) == len(slopes.unique(dim=0)) == shape.components
    assert not CoQE(CoQESettings(width=16), TaskShape(x_dim=4, points=N)).space.initial.any(), (
        "the task vector of a single output is initialised with 0"
    )


def phi(ours: CoQE, values: Tensor) -> Tensor:
    """Compute the sample encoder from its equation: Linear, ReLU, LayerNorm, Linear."""
    weights = ours.encoder.state_dict()
    hidden = (values @ weights["linear.weight"].T + weights["linear.bias"]).clamp(min=0)
    centred = hidden - hidden.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    normed = normed * weights["rest.1.weight"] + weights["rest.1.bias"]
    return normed @ weights["rest.2.weight"].T + weights["rest.2.bias"]


def naive_predictions(ours: CoQE, points: Points) -> Tensor:
    """Return the predictions for every prefix, computed with `transformers.GPT2Model`. Queries are not tokens."""
    trunk = ours.task_encoder
    theirs = transformers_gpt2(layers=2, width=16, heads=2, positions=2 * N, init_std=0.3).eval()
    theirs.h.load_state_dict(trunk.blocks.state_dict())
    theirs.ln_f.load_state_dict(trunk.norm.state_dict())
    theirs.wpe.weight.data = torch.zeros(2 * N, 16) if trunk.positions is None else trunk.positions(torch.arange(2 * N))
    answers = torch.zeros(len(points), points.count)
    for b in range(len(points)):
        for n in range(points.count):
            tokens = []
            for i in range(n):
                tokens += [phi(ours, points.x[b, i]), phi(ours, torch.cat([points.y[b, i], torch.zeros(3)]))]
            vector = ours.space.initial[0]
            if tokens:
                vector = theirs(inputs_embeds=ours.widen(torch.stack(tokens))[None]).last_hidden_state[0, -1]
                vector = ours.space.project(vector)
            answers[b, n] = vector @ phi(ours, points.x[b, n])
    return answers


@pytest.mark.parametrize("settings", SETTINGS)
def test_predictions_equal_those_of_the_reference(settings: dict[str, object]) -> None:
    ours, points = model(**settings), draw()
    with torch.no_grad():
        torch.testing.assert_close(
            ours.predict_next(points).mean[..., 0], naive_predictions(ours, points), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("forked", [False, True])
def test_predictions_depend_on_all_earlier_labels_but_not_on_their_own_or_later_labels(
    settings: dict[str, object], forked: bool
) -> None:
    """The derivative of prediction i with respect to label j is 0 for all j >= i, and nonzero for all j < i."""
    ours, points = model(**settings), draw(batch=1)
    x_query = points.x.flip(1) if forked else None

    def answers(y: Tensor) -> Tensor:
        return ours.predict_next(Points.full(points.x, y), x_query=x_query).mean[0, :, 0]

    slopes = torch.autograd.functional.jacobian(answers, points.y)[:, 0, :, 0]
    assert not slopes.triu().any()
    assert slopes.count_nonzero() == N * (N - 1) // 2


@pytest.mark.parametrize("settings", SETTINGS)
def test_predictions_factor_into_task_vector_and_sample_representation(settings: dict[str, object]) -> None:
    """The task vector does not depend on the query, and the sample representation does not depend on the context."""
    ours, contexts, queries = model(**settings), draw(batch=4), draw(batch=1, count=6, seed=2).x
    with torch.no_grad():
        answers = ours.predict_targets(contexts, queries.expand(4, -1, -1)).mean[..., 0]
        vectors, features = task_vectors(ours, contexts)[:, 0], ours.represent(queries)[0]
    torch.testing.assert_close(answers, vectors @ features.T, atol=1e-5, rtol=1e-4)
    assert features.shape == (6, settings.get("sample_dim", 16))


@pytest.mark.parametrize("segment", [1, 4, 8])
@pytest.mark.parametrize("forked", [False, True])
def test_segments_do_not_change_predictions(segment: int, forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, full = model(positions="sinusoidal"), draw()
    with_gaps = Points(full.x, full.y, torch.rand(3, N, generator=torch.Generator().manual_seed(2)) < 0.6)
    for points in (full, with_gaps):
        x_query = points.x.flip(1) if forked else None
        with torch.no_grad():
            expected, vectors = ours.predict_next(points, x_query=x_query).mean, task_vectors(ours, points)
            with monkeypatch.context() as patched:
                patched.setattr(coqe, "SEGMENT_SIZE", segment)
                segmented = ours.predict_next(points, x_query=x_query).mean
                torch.testing.assert_close(segmented[points.mask], expected[points.mask], atol=1e-5, rtol=1e-4)
                torch.testing.assert_close(task_vectors(ours, points), vectors, atol=1e-5, rtol=1e-4)


def test_an_update_without_valid_points_does_not_change_the_state() -> None:
    ours, points = model(), draw()
    state = ours.condition(points)
    absent = Points(points.x, points.y, torch.zeros_like(points.mask))
    assert torch.equal(ours.update(state, absent).memory.vectors, state.memory.vectors)


def test_the_number_of_parameters_equals_that_of_the_paper() -> None:
    ours = CoQE(CoQESettings(), TaskShape(x_dim=10, points=21))
    encoder = (10 * 64 + 64) + 2 * 64 + (64 * 64 + 64)
    assert ours.parameter_count == encoder + 3 * (12 * 64**2 + 13 * 64) + 2 * 64 + 64
    assert ours.task_encoder.heads_count == 2
    assert not ours.predict_next(Points.full(torch.randn(2, 3, 10), torch.randn(2, 3, 1))).mean[:, 0].any()


def test_learned_positions_limit_the_sequence_to_the_training_length() -> None:
    assert model(positions="learned").longest == N
    assert model(positions="sinusoidal").longest is None


def test_an_empty_sequence_has_no_predictions() -> None:
    assert model().predict_next(draw(count=0)).mean.shape == (3, 0, 1)
