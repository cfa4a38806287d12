"""Probes of layers: decoding by the read-out of the model, and a fitted scale and shift for each task."""

from itertools import cycle

import numpy as np
import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.core.episodes import Points
from iclbench.core.heads import HEADS
from iclbench.core.predictions import Point
from iclbench.core.settings import BaseSettings
from iclbench.estimators.least_squares import LeastSquares
from iclbench.probing.layers import decode_layers, fit_scale_and_shift, probe_layers
from iclbench.probing.probe_set import ProbeSet
from iclbench.registry import BACKBONES
from tests.contracts.test_backbones import SMALL

NUMERIC = [head for head in HEADS if head not in ("categorical", "event")]
LAYERED = [
    name
    for name in BACKBONES.architectures()
    if BACKBONES.get(name).predict_by_layer is not Backbone.predict_by_layer
    and not BACKBONES.get(name).reads_only_events()
]


def small_task(dim: int = 3) -> TaskConfig:
    return resolve_task("linear", "smoke", {"dim": dim})[0]


def probe_set(context: int = 7, tasks: int = 70, **settings: int) -> ProbeSet:
    return ProbeSet(small_task(), "smoke", context=context, tasks=tasks, fit=4, test=6, **settings)


class Distorted(Backbone):
    """A backbone whose last layer solves linear tasks exactly. Earlier layers return the solution, scaled and
    shifted.
    """

    Settings = BaseSettings
    distortions = ((0.5, -1.0), (-3.0, 0.25), (1.0, 0.0))

    def predict_targets(self, context: Points, x_target: torch.Tensor, related: Points | None = None) -> Point:
        return LeastSquares().predict_targets(context, x_target)

    def predict_by_layer(self, context: Points, x_target: torch.Tensor, related: Points | None = None) -> list[Point]:
        answer = self.predict_targets(context, x_target).mean
        return [Point(a * answer + b) for a, b in self.distortions]


def test_gpt2_is_among_the_backbones_with_layers() -> None:
    assert "gpt2" in LAYERED


# Backbones and heads do not interact in decoding, so the fast tests cover each backbone with one head, and two
# backbones with all heads. Slow tests cover all pairs.
ONE_HEAD_EACH = set(zip(LAYERED, cycle(NUMERIC), strict=False))
WITH_EVERY_HEAD = ("gpt2", "tnp")


@pytest.mark.parametrize(
    ("name", "head"),
    [
        pytest.param(
            name, head, marks=[] if (name, head) in ONE_HEAD_EACH or name in WITH_EVERY_HEAD else pytest.mark.slow
        )
        for name in LAYERED
        for head in NUMERIC
    ],
)
def test_the_decoded_last_layer_is_the_prediction(name: str, head: str) -> None:
    prompts = probe_set()
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    model = cls(cls.Settings(**SMALL.get(name, [{}])[0]), TaskShape(x_dim=3, points=12, head=head)).eval()
    decoded = decode_layers(model, prompts)
    episodes = prompts.episodes
    assert decoded.shape[1:] == (70, 10, 1)
    assert len(decoded) > 1, model.settings
    for query in range(3):  # the reference is one pass over the sequence with the query as its last point
        query_point = episodes.queries.span(query, query + 1)
        with torch.no_grad():
            answer = model.predict_next(episodes.context.append(query_point)).mean[:, -1]
        torch.testing.assert_close(decoded[-1, :, query].float(), answer, atol=1e-5, rtol=0)
    assert (decoded[0] - decoded[-1]).abs().max() > 1e-3, "the layers have different predictions"


def test_scale_and_shift_of_distorted_layers_are_recovered() -> None:
    prompts = probe_set()
    model = Distorted(BaseSettings(), TaskShape(x_dim=3, points=12))
    probe = probe_layers(decode_layers(model, prompts), prompts.episodes.queries.y.double(), prompts.fit, 3.0)
    for layer, (a, b) in enumerate(model.distortions):
        torch.testing.assert_close(probe.scale[:, layer], torch.full((70,), 1 / a).double(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(probe.shift[:, layer], torch.full((70,), -b / a).double(), atol=1e-4, rtol=1e-4)
    assert probe.error.max() < 1e-9
    assert probe.raw_error[:, 2].max() < 1e-9
    assert probe.raw_error[:, 0].mean() > 0.1


def test_all_results_equal_a_loop_over_tasks_with_numpy_least_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    layers, tasks, fit, test = 3, 5, 4, 6
    decoded = torch.randn(layers, tasks, fit + test, 1, generator=generator, dtype=torch.float64)
    decoded[1, 2] = 0.7  # a constant prediction for all queries
    decoded[2, 3] = 0.0
    y = torch.randn(tasks, fit + test, 1, generator=generator, dtype=torch.float64)
    probe = probe_layers(decoded, y, fit, normaliser=2.5)
    for layer in range(layers):
        for task in range(tasks):
            p, truth = decoded[layer, task, :, 0].numpy(), y[task, :, 0].numpy()
            design = np.stack([p[:fit], np.ones(fit)], 1)
            (scale, shift), *_ = np.linalg.lstsq(design, truth[:fit], rcond=None)
            assert probe.scale[task, layer].item() == pytest.approx(scale, abs=1e-12)
            assert probe.shift[task, layer].item() == pytest.approx(shift, abs=1e-12)
            error = np.mean((scale * p[fit:] + shift - truth[fit:]) ** 2) / 2.5
            assert probe.error[task, layer].item() == pytest.approx(error)
            assert probe.raw_error[task, layer].item() == pytest.approx(np.mean((p[fit:] - truth[fit:]) ** 2) / 2.5)


def test_predictions_that_differ_only_by_rounding_errors_count_as_constant() -> None:
    y = torch.tensor([1.0, 2.0, 3.0, 6.0]).double().reshape(1, 4, 1)
    rounded = 5 + 1e-7 * torch.tensor([1.0, -1.0, 0.5, 2.0]).double().reshape(1, 4, 1)
    scale, shift = fit_scale_and_shift(rounded, y)
    assert scale.abs().item() < 1
    assert (5 * scale + shift).item() == pytest.approx(3.0, abs=1e-5)


def test_outputs_are_fitted_separately_and_their_errors_are_summed() -> None:
    generator = torch.Generator().manual_seed(1)
    decoded, y = (
        torch.randn(1, 3, 9, 2, generator=generator).double(),
        torch.randn(3, 9, 2, generator=generator).double(),
    )
    joint = probe_layers(decoded, y, 4)
    separate = [probe_layers(decoded[..., [k]], y[..., [k]], 4) for k in (0, 1)]
    torch.testing.assert_close(joint.error, separate[0].error + separate[1].error)
    torch.testing.assert_close(joint.scale, (separate[0].scale + separate[1].scale) / 2)


def test_tasks_do_not_influence_each_other() -> None:
    generator = torch.Generator().manual_seed(2)
    decoded, y = (
        torch.randn(2, 4, 8, 1, generator=generator).double(),
        torch.randn(4, 8, 1, generator=generator).double(),
    )
    before = probe_layers(decoded, y, 3)
    decoded[:, 1], y[1] = 7 - decoded[:, 1].square(), -y[1]
    after = probe_layers(decoded, y, 3)
    for name in ("scale", "shift", "error", "raw_error"):
        value_before, value_after = getattr(before, name), getattr(after, name)
        assert torch.equal(value_before[[0, 2, 3]], value_after[[0, 2, 3]])
        assert not torch.equal(value_before[1], value_after[1])


def test_test_labels_do_not_influence_scale_and_shift() -> None:
    generator = torch.Generator().manual_seed(3)
    decoded, y = (
        torch.randn(2, 4, 8, 1, generator=generator).double(),
        torch.randn(4, 8, 1, generator=generator).double(),
    )
    before = probe_layers(decoded, y, 3)
    y[:, 3:] += 1
    after = probe_layers(decoded, y, 3)
    assert torch.equal(before.scale, after.scale) and torch.equal(before.shift, after.shift)
    assert not torch.equal(before.error, after.error)


def test_decoded_layers_do_not_depend_on_the_block_size() -> None:
    prompts, cls = probe_set(tasks=200, context=7), BACKBONES.get("gpt2")
    torch.manual_seed(0)
    model = cls(cls.Settings(**SMALL["gpt2"][0]), TaskShape(x_dim=3, points=12)).eval()
    assert len(list(prompts.blocks())) > 1
    with torch.no_grad():
        predictions = model.predict_by_layer(prompts.episodes.context, prompts.episodes.queries.x)
    decoded = decode_layers(model, prompts)
    torch.testing.assert_close(decoded[0], predictions[0].mean.double(), atol=1e-5, rtol=1e-5)
