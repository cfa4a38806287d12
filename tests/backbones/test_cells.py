"""The backbone `cells`: comparison with PyTorch's attention, published size, and invariances to changes of a table."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import iclbench as icl
from iclbench.core.episodes import Episodes, Points
from iclbench.core.task import TaskShape
from iclbench.registry import BACKBONES
from tests.backbones.small_np import batch, build, unpadded_episode
from tests.refusals import refused

SIZES = {"layers": 3, "width": 8, "heads": 2, "hidden": 12}


def table(rows: int = 9, columns: int = 4, targets: int = 5, seed: int = 0) -> Episodes:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, rows + targets, columns, generator=generator, dtype=torch.float64)
    y = torch.randn(3, rows + targets, 1, generator=generator, dtype=torch.float64)
    context, queries = (Points.full(x[:, part], y[:, part]) for part in (slice(rows), slice(rows, None)))
    return Episodes(context=context, targets=queries, scored=queries.mask)


def small_model(head: str = "gaussian", **settings: Any) -> Any:
    return build("cells", SIZES | settings, head, x_dim=4, y_dim=1, classes=3 if head == "categorical" else None)


def answer(model: Any, context: Points, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.predict_targets(context, x).tensors()["mean"]


@pytest.mark.parametrize(("width", "hidden", "layers", "classes"), [(96, 192, 3, 2), (16, 40, 2, 10)])
def test_the_number_of_parameters_follows_the_published_formula(
    width: int, hidden: int, layers: int, classes: int
) -> None:
    cls, (e, m) = BACKBONES.get("cells"), (width, hidden)
    shape = TaskShape(x_dim=5, points=50, classes=classes, head="categorical", question="targets")
    model = cls(cls.Settings(width=width, hidden=hidden, layers=layers), shape)
    expected = layers * (8 * e**2 + 2 * e * m + 15 * e + m) + 4 * e + (e + 1) * m + (m + 1) * classes
    assert model.parameter_count == expected
    assert cls(cls.Settings(), replace(shape, classes=2)).parameter_count == 356_066


def reference(model: Any, x: Tensor, y: Tensor, x_target: Tensor) -> Tensor:
    """Return the raw outputs for one unpadded table. Every block computes all cells with PyTorch's attention."""
    split, heads = len(x), model.settings.heads
    x_all = (torch.cat([x, x_target]) - x.mean(0)) / x.std(0)
    y_all = torch.cat([y, y.mean(0, keepdim=True).expand(len(x_target), -1)])
    cells = torch.cat([model.embed_x(x_all.clamp(-100, 100).unsqueeze(-1)), model.embed_y(y_all).unsqueeze(1)], 1)

    def attend(module: Any, queries: Tensor, keys: Tensor) -> Tensor:
        parts = (module.q, module.k, module.v)
        return F.multi_head_attention_forward(
            *(t.transpose(0, 1) for t in (queries, keys, keys)),
            queries.shape[-1],
            heads,
            torch.cat([part.weight for part in parts]),
            torch.cat([part.bias for part in parts]),
            None,
            None,
            False,
            0.0,
            module.out.weight,
            module.out.bias,
            need_weights=False,
        )[0].transpose(0, 1)

    for block in model.blocks:
        cells = block.norm_columns(cells + attend(block.columns, cells, cells))
        by_column = cells.transpose(0, 1)
        cells = block.norm_rows(cells + attend(block.rows, by_column, by_column[:, :split]).transpose(0, 1))
        cells = block.norm_feed(cells + block.down(F.gelu(block.up(cells))))
    return model.decoder(cells[split:, -1])


@torch.no_grad()
def test_predictions_equal_a_reference_that_uses_pytorch_attention_on_all_cells() -> None:
    model, episodes = build("cells", SIZES), batch()
    actual = model.predict_targets(episodes.context, episodes.queries.x)
    for b in (0, 2):  # the reference needs a context
        x, y, x_target, _ = unpadded_episode(episodes, b)
        expected = model.read(reference(model, x, y, x_target).unsqueeze(0))
        valid = actual[b : b + 1].at(episodes.queries.mask[b])
        torch.testing.assert_close(valid.mean, expected.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(valid.std, expected.std, rtol=1e-9, atol=1e-9)


def test_initial_weights_have_the_scale_of_pytorchs_multi_head_attention() -> None:
    attention = BACKBONES.get("cells")(BACKBONES.get("cells").Settings(), TaskShape(x_dim=2, points=4)).blocks[0].rows
    torch.manual_seed(0)
    torch_attention = nn.MultiheadAttention(96, 4)
    for linear, weight in zip(
        (attention.q, attention.k, attention.v), torch_attention.in_proj_weight.chunk(3), strict=True
    ):
        assert linear.weight.std().item() == pytest.approx(weight.std().item(), rel=0.03)
        assert not linear.bias.any()
    assert attention.out.weight.std().item() == pytest.approx(torch_attention.out_proj.weight.std().item(), rel=0.03)


def test_predictions_do_not_depend_on_the_order_of_columns() -> None:
    model, episodes, order = small_model(), table(), torch.tensor([2, 0, 3, 1])
    context, x = episodes.context, episodes.queries.x
    permuted = replace(context, x=context.x[..., order])
    torch.testing.assert_close(answer(model, permuted, x[..., order]), answer(model, context, x))


def test_predictions_do_not_depend_on_the_order_of_rows() -> None:
    model, episodes = small_model(), table()
    context, x = episodes.context, episodes.queries.x
    shuffled = context.map(lambda t: t[:, torch.randperm(t.shape[1], generator=torch.Generator().manual_seed(0))])
    torch.testing.assert_close(answer(model, shuffled, x.flip(1)), answer(model, context, x).flip(1))


def test_predictions_do_not_depend_on_the_units_of_columns() -> None:
    model, episodes = small_model(), table()
    context, x = episodes.context, episodes.queries.x
    scale, shift = torch.tensor([1e9, 1e-9, -1.0, 3.0]), torch.tensor([1e9, 0.0, 5.0, -1e3])
    expected = answer(model, context, x)
    moved = replace(context, x=context.x * scale.abs() + shift)
    torch.testing.assert_close(answer(model, moved, x * scale.abs() + shift), expected, rtol=1e-6, atol=1e-6)


def test_columns_that_are_constant_in_the_context_do_not_change_predictions() -> None:
    """The values of the targets in these columns have no effect either."""
    model, episodes = small_model(), table()
    context, x = episodes.context, episodes.queries.x
    expected = answer(model, context, x)
    for value, targets_value in ((0.0, 0.0), (7.3, 7.3), (1e9, -1e9)):
        padded = replace(context, x=torch.cat([context.x, torch.full_like(context.x, value)], -1))
        x_padded = torch.cat([x, torch.full_like(x, targets_value)], -1)
        torch.testing.assert_close(answer(model, padded, x_padded), expected)


def test_tables_may_have_any_number_of_columns() -> None:
    model = small_model()
    for columns in (1, 3, 40):
        episodes = table(columns=columns)
        assert answer(model, episodes.context, episodes.queries.x).isfinite().all()


def test_predict_accepts_arrays_with_a_different_number_of_columns_than_in_training() -> None:
    model, random = small_model(), np.random.default_rng(0)
    X, y, X_new = random.normal(size=(9, 7)), random.normal(size=9), random.normal(size=(4, 7))
    mean, std = icl.predict(model, X, y, X_new, return_std=True)
    assert mean.shape == std.shape == (4,)
    with refused("bad-value", "X_context", "X_query"):
        icl.predict(model, X, y, X_new[:, :6])


def test_predictions_from_a_single_context_row_are_finite_and_equal_for_all_targets() -> None:
    model, episodes = small_model(), table(rows=1)
    means = answer(model, episodes.context, episodes.queries.x)
    assert means.isfinite().all()
    torch.testing.assert_close(means, means[:, :1].expand_as(means))


def test_labels_are_read_as_numbers() -> None:
    model, episodes = small_model("categorical"), table()
    labels = torch.arange(9).expand(3, -1) % 3
    context = replace(episodes.context, y=labels)
    with torch.no_grad():
        logits = model.predict_targets(context, episodes.queries.x).logits
        expected = reference(model, context.x[0], labels[0].double().unsqueeze(-1), episodes.queries.x[0])
    torch.testing.assert_close(logits[0], expected)


def test_outliers_are_clipped() -> None:
    model, episodes = small_model(), table()
    context, x = episodes.context, episodes.queries.x
    torch.testing.assert_close(answer(model, context, 1e9 * x), answer(model, context, 1e6 * x))


@pytest.mark.parametrize("question", ["next", "targets"])
def test_gradients_are_finite_and_reach_every_parameter_except_key_biases(question: str) -> None:
    """Some episodes have no context or no scored targets."""
    model = build("cells", SIZES, question=question)
    episodes = batch([(5, 5), (0, 4), (4, 0), (5, 3)])
    if question == "next":
        episodes = Episodes(context=episodes.context, scored=episodes.context.mask)
    loss, _ = model.loss(episodes, 0.0, torch.Generator().manual_seed(2))
    loss.backward()
    assert loss.isfinite()
    unused = {
        f"blocks.{i}.{part}.k.bias" for i in range(3) for part in ("columns", "rows")
    }  # key biases cancel in the softmax
    for key, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and (p.grad.any() or key in unused), key


def test_images_events_and_streams_are_refused() -> None:
    cls = BACKBONES.get("cells")
    for inputs in ("images", "events", "tokens", "vectors"):
        assert "Cells" in (cls.unfit_reason(inputs) or "")
    with refused("not-applicable", "Cells"):
        cls(cls.Settings(), TaskShape(x_dim=64, points=4, x_shape=(8, 8), classes=2, head="categorical"))
