"""Classifiers without training, compared with scikit-learn and explicit loops."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from iclbench.core.episodes import Points
from iclbench.estimators.base import TaskFacts
from iclbench.estimators.classifiers import Majority, NearestClassMean, PixelNearestNeighbour
from tests.refusals import refused

EPISODES, POINTS, TARGETS, DIM, CLASSES = 40, 9, 3, 16, 12


@pytest.fixture(scope="module")
def context() -> Points:
    """Images of four of the twelve classes. Half of the episodes have masked points."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(EPISODES, POINTS, DIM, generator=generator)
    y = 2 + 3 * torch.randint(4, (EPISODES, POINTS), generator=generator)
    mask = torch.rand(EPISODES, POINTS, generator=generator) < 0.7
    mask[::2] = True
    mask[:, 4] = True
    return Points(x, y, mask)


@pytest.fixture(scope="module")
def queries() -> torch.Tensor:
    return torch.rand(EPISODES, TARGETS, DIM, generator=torch.Generator().manual_seed(1))


def predicted_labels(cls: type, context: Points, queries: torch.Tensor) -> np.ndarray:
    return cls(facts=TaskFacts(classes=CLASSES)).predict_targets(context, queries).logits.argmax(-1).numpy()


def episode(context: Points, b: int) -> tuple[np.ndarray, np.ndarray]:
    mask = context.mask[b].numpy()
    return context.x[b].numpy()[mask], context.y[b].numpy()[mask]


@pytest.mark.parametrize(
    ("cls", "reference"),
    [(PixelNearestNeighbour, lambda: KNeighborsClassifier(1)), (NearestClassMean, NearestCentroid)],
)
def test_predictions_agree_with_scikit_learn(cls: type, reference, context: Points, queries: torch.Tensor) -> None:
    prediction = predicted_labels(cls, context, queries)
    for b in range(EPISODES):
        x, y = episode(context, b)
        if len(set(y)) > 1:  # scikit-learn refuses a single class
            np.testing.assert_array_equal(prediction[b], reference().fit(x, y).predict(queries[b].numpy()))


def test_majority_predicts_the_first_of_equally_frequent_labels(context: Points, queries: torch.Tensor) -> None:
    prediction = predicted_labels(Majority, context, queries)
    for b in range(EPISODES):
        y = episode(context, b)[1].tolist()
        # A Counter lists equally frequent labels in order of appearance.
        assert set(prediction[b].tolist()) == {Counter(y).most_common(1)[0][0]}


def test_ties_between_equally_near_images_are_resolved_by_the_first_image() -> None:
    image = torch.rand(1, 1, 784, generator=torch.Generator().manual_seed(2))
    images = torch.cat([1 - image, *[image] * 7], 1)
    context = Points.full(images, torch.tensor([[0, 7, 3, 1, 2, 3, 4, 0]]))
    assert predicted_labels(PixelNearestNeighbour, context, image).item() == 7
    assert predicted_labels(NearestClassMean, context, image).item() == 7


@pytest.mark.parametrize("cls", [PixelNearestNeighbour, NearestClassMean, Majority])
def test_each_prefix_is_fitted_separately(cls: type, context: Points) -> None:
    points = Points.full(context.x, context.y)
    predictor = cls(facts=TaskFacts(classes=CLASSES))
    curve = predictor.predict_next(points).logits
    assert curve.shape == (EPISODES, POINTS, CLASSES)
    assert torch.allclose(curve[:, 0].softmax(-1), torch.tensor(1 / CLASSES))
    for n in range(1, POINTS):
        expected = predictor.predict_targets(points.span(0, n), points.x[:, n : n + 1]).logits[:, 0]
        assert torch.equal(curve[:, n], expected)


@pytest.mark.parametrize("cls", [PixelNearestNeighbour, NearestClassMean, Majority])
def test_the_predicted_label_has_the_documented_probability(cls: type, context: Points, queries: torch.Tensor) -> None:
    probabilities = cls(facts=TaskFacts(classes=CLASSES)).predict_targets(context, queries).logits.exp()
    ordered = probabilities.double().sort(-1).values
    assert torch.allclose(ordered[..., -1], torch.tensor(0.99, dtype=torch.float64))
    assert torch.allclose(ordered[..., :-1], torch.tensor(0.01 / (CLASSES - 1), dtype=torch.float64))


@pytest.mark.parametrize("cls", [PixelNearestNeighbour, NearestClassMean, Majority])
def test_regression_tasks_are_refused(cls: type, context: Points) -> None:
    numbers = Points.full(context.x, context.x[..., :1])
    for facts in (TaskFacts(), TaskFacts(classes=CLASSES)):
        with refused("not-applicable", cls.__name__):
            cls(facts=facts).predict_next(numbers)
