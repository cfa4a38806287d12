"""CoQE for classification: sizes of the released code, predictions compared with a simple reference, and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench.backbones.base import TaskShape
from iclbench.backbones.coqe import CoQE, CoQESettings
from iclbench.backbones.image_backbone import build_backbone
from iclbench.core.episodes import Episodes, Points
from tests.backbones.transformers_gpt2 import transformers_gpt2
from tests.refusals import refused

CLASSES, FEATURES, WIDTH, N = 7, 12, 16, 5
BOTH_VARIANTS = pytest.mark.parametrize("variant", ["released", "paper"])


def model(question: str = "targets", **settings: object) -> CoQE:
    torch.manual_seed(0)
    shape = TaskShape(x_dim=FEATURES, points=N, classes=CLASSES, head="categorical", question=question, encoded=True)
    return CoQE(CoQESettings(**{"width": WIDTH, "layers": 2, "heads": 2, **settings}), shape)


def draw(batch: int = 3, count: int = N, seed: int = 1) -> Points:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, count, FEATURES, generator=generator)
    return Points.full(x, torch.randint(3, (batch, count), generator=generator))


def episodes() -> Episodes:
    targets = draw(count=1, seed=2)
    return Episodes(context=draw(), targets=targets, scored=targets.mask, classes=CLASSES)


def naive_logits(ours: CoQE, points: Points, x: Tensor) -> Tensor:
    """Compute the logits for one sequence, one query and one class at a time."""
    trunk, reduce, static = ours.task_encoder, ours.encoder.linear, ours.space.static
    theirs = transformers_gpt2(layers=2, width=WIDTH, heads=2, positions=2 * N, init_std=0.3).eval()
    theirs.h.load_state_dict(trunk.blocks.state_dict())
    theirs.ln_f.load_state_dict(trunk.norm.state_dict())
    angles = torch.arange(2 * N)[:, None] / 30 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    theirs.wpe.weight.data = torch.cat([angles.sin(), angles.cos()], 1)
    logits = torch.zeros(*x.shape[:2], CLASSES)
    for b in range(len(x)):
        labels = points.y[b].tolist()
        tokens = [token for i, y in enumerate(labels) for token in (points.x[b, i], ours.encoder.labels.weight[y])]
        outputs = theirs(inputs_embeds=reduce(torch.stack(tokens))[None]).last_hidden_state[0, 1::2] if tokens else []
        for q in range(x.shape[1]):
            feature = reduce(x[b, q])
            for c in range(CLASSES):
                logit = static.weight[c] @ feature + static.bias[c]
                class_outputs = [
                    ours.space.project(output) for output, y in zip(outputs, labels, strict=True) if y == c
                ]
                if class_outputs:
                    dynamic = torch.stack(class_outputs).mean(0) @ feature
                    logit = logit + dynamic if ours.settings.variant == "released" else dynamic
                logits[b, q, c] = logit
    return logits


@pytest.mark.parametrize(
    ("labelled", "setting"), [(True, {"readout": "mlp"}), (True, {"sample_dim": 5}), (False, {"noise": 0.0})], ids=str
)
def test_a_setting_that_does_not_apply_to_the_task_is_refused(labelled: bool, setting: dict[str, object]) -> None:
    shape = TaskShape(x_dim=4, points=N, classes=3 if labelled else None, head="categorical" if labelled else "point")
    with refused("not-applicable", f"backbone.{next(iter(setting))}"):
        CoQE(CoQESettings(**setting), shape)


@pytest.mark.parametrize(("encoder", "expected"), [(None, 2_057_431), ("resnet-256", 1_018_327)])
def test_parameter_counts_are_those_of_the_released_code(encoder: str | None, expected: int) -> None:
    shape = TaskShape(x_dim=784, points=8, classes=1_623, x_shape=(28, 28), head="categorical", question="targets")
    assert build_backbone(CoQE, CoQESettings(encoder=encoder), shape).parameter_count == expected


@BOTH_VARIANTS
def test_predictions_equal_those_of_the_reference(variant: str) -> None:
    ours, points, x = model(variant=variant).eval(), draw(), draw(count=4, seed=2).x
    with torch.no_grad():
        expected = naive_logits(ours, points, x)
        torch.testing.assert_close(ours.predict_targets(points, x).logits, expected, atol=2e-5, rtol=1e-4)
        for n in range(N):
            actual = ours.predict_next(points).logits[:, n]
            expected = naive_logits(ours, points.span(0, n), points.x[:, n : n + 1])
            torch.testing.assert_close(actual, expected[:, 0], atol=2e-5, rtol=1e-4)


@BOTH_VARIANTS
def test_class_vectors_do_not_depend_on_other_sequences_in_the_batch(variant: str) -> None:
    ours, points = model(variant=variant).eval(), draw(batch=2)
    one_class = Points.full(points.x, torch.ones(2, N, dtype=torch.long))
    x = draw(batch=2, count=2, seed=3).x
    with torch.no_grad():
        batched = ours.predict_targets(one_class, x).logits
        separate = torch.cat([ours.predict_targets(one_class[b : b + 1], x[b : b + 1]).logits for b in range(2)])
    torch.testing.assert_close(batched, separate, atol=1e-5, rtol=1e-5)


@BOTH_VARIANTS
@pytest.mark.parametrize("question", ["targets", "next"])
def test_without_noise_the_loss_is_the_sum_of_two_cross_entropies(variant: str, question: str) -> None:
    ours, batch = model(question, variant=variant, noise=0.0), episodes()
    if question == "next":
        batch = Episodes(context=batch.context, scored=batch.context.mask, classes=CLASSES)
    loss, parts = ours.loss(batch, 0.5, torch.Generator())
    static = ours.space.static(ours.encoder.linear(batch.queries.x))
    original = F.cross_entropy(static.flatten(0, 1), batch.queries.y.flatten())
    modified = F.cross_entropy(ours.ask(batch, question).logits.flatten(0, 1), batch.queries.y.flatten())
    torch.testing.assert_close(loss, original + modified)
    torch.testing.assert_close(parts, {"loss": loss, "modified": modified, "original": original})


def gradients(ours: CoQE, batch: Episodes) -> dict[str, Tensor | None]:
    """Return the gradients of the loss of the composed logits."""
    ours.zero_grad()
    ours.ask(batch, "targets").loss(batch.queries.y).mean().backward()
    return {name: p.grad for name, p in ours.named_parameters()}


def test_in_the_released_variant_static_vectors_have_no_gradient_of_the_composed_loss() -> None:
    ours, batch = model(), episodes()
    grads = gradients(ours, batch)
    assert grads["space.static.weight"] is None and grads["space.static.bias"] is None
    assert grads["space.project.weight"].any() and grads["encoder.linear.weight"].any()


def test_in_the_paper_variant_only_static_vectors_of_absent_classes_have_gradients() -> None:
    ours, batch = model(variant="paper"), episodes()[:1]
    static = gradients(ours, batch)["space.static.weight"]
    seen = torch.isin(torch.arange(CLASSES), batch.context.y)
    assert not static[seen].any() and static[~seen].any(1).all()


def test_in_the_released_variant_queries_have_gradients_only_through_dynamic_vectors() -> None:
    """Without dynamic vectors, the features of the query have no gradient of the composed loss."""
    ours, batch = model(), episodes()
    with torch.no_grad():
        ours.space.project.weight.zero_()
        ours.space.project.bias.zero_()
    assert not gradients(ours, batch)["encoder.linear.weight"].any()


def test_noise_is_added_only_in_the_loss_and_is_drawn_from_its_generator() -> None:
    ours, batch = model().train(), episodes()
    before = torch.get_rng_state()
    losses = [ours.loss(batch, 0.0, torch.Generator().manual_seed(seed))[0] for seed in (3, 3, 4)]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(torch.get_rng_state(), before)
    logits = [ours.predict_targets(batch.context, batch.queries.x).logits for _ in range(2)]
    without_noise = model(noise=0.0).train().predict_targets(batch.context, batch.queries.x).logits
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], without_noise)


@pytest.mark.parametrize("question", ["targets", "next"])
def test_noise_on_present_classes_is_added_to_the_classes_that_precede_the_query(question: str) -> None:
    """Noise with mean 1000 and standard deviation 0 adds 1000 to the logits of the present classes."""
    ours = model(question, noise=1000.0, noise_std=0.0, noise_on="present", noise_growth=0.0)
    batch = episodes()
    if question == "next":
        batch = Episodes(context=batch.context, scored=batch.context.mask, classes=CLASSES)
    raised = ours.ask(batch, question).logits.detach().clone()
    for b in range(3):
        for q in range(batch.queries.count):
            seen = batch.context.y[b] if question == "targets" else batch.context.y[b, :q]
            raised[b, q, seen.unique()] += 1000
    _, parts = ours.loss(batch, 0.5, torch.Generator())
    torch.testing.assert_close(parts["modified"], F.cross_entropy(raised.flatten(0, 1), batch.queries.y.flatten()))
