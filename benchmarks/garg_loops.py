"""Plain re-implementations of the loops over prefixes and prompts in the evaluation code of the regression papers.

They use float32, like the papers. Each loop has arguments x `(B, N, D)` and y `(B, N)`, and predicts every point from
the points before it. `prefixes` restricts expensive loops to a sample of prefix lengths.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def _loop(x: Tensor, y: Tensor, fit: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Call `fit` with every prefix and the next input `(B, 1, D)`. The prediction from an empty prefix is 0."""
    answers = [torch.zeros_like(y[:, 0])]
    answers += [fit(x[:, :n], y[:, :n], x[:, n : n + 1]) for n in range(1, x.shape[1])]
    return torch.stack(answers, 1)


def least_squares(x: Tensor, y: Tensor) -> Tensor:
    def fit(x: Tensor, y: Tensor, query: Tensor) -> Tensor:
        weights = torch.linalg.lstsq(x, y.unsqueeze(2)).solution
        return (query @ weights)[:, 0, 0]

    return _loop(x, y, fit)


def averaging(x: Tensor, y: Tensor) -> Tensor:
    def fit(x: Tensor, y: Tensor, query: Tensor) -> Tensor:
        weights = (x * y.unsqueeze(2)).mean(1).unsqueeze(2)
        return (query @ weights)[:, 0, 0]

    return _loop(x, y, fit)


def nearest_neighbours(x: Tensor, y: Tensor, k: int = 3) -> Tensor:
    """k-NN: sort all distances of a prefix, then average prompt by prompt."""

    def fit(x: Tensor, y: Tensor, query: Tensor) -> Tensor:
        ranks = (x - query).square().sum(2).sqrt().argsort(1)[:, :k]
        weights = torch.ones_like(y)
        means = [(w[r] * v[r]).sum() / w[r].sum() for v, w, r in zip(y, weights, ranks, strict=True)]
        return torch.stack(means)

    return _loop(x, y, fit)


def library(x: Tensor, y: Tensor, model: Callable[[], object], prefixes: Iterable[int] | None = None) -> Tensor:
    """Fit a library model for every prompt and prefix. Predictions at omitted prefixes are NaN."""
    answers = torch.full_like(y, torch.nan)
    answers[:, 0] = 0
    inputs, outputs = x.numpy(), y.numpy()
    for n in prefixes or range(1, x.shape[1]):
        for b in range(len(x)):
            fitted = model().fit(inputs[b, :n], outputs[b, :n])  # type: ignore[attr-defined]
            answers[b, n] = float(fitted.predict(inputs[b, n : n + 1])[0])
    return answers


def lasso(x: Tensor, y: Tensor, alphas: Iterable[float], prefixes: Iterable[int] | None = None) -> Tensor:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import Lasso

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return torch.stack(
            [library(x, y, lambda a=a: Lasso(alpha=a, fit_intercept=False, max_iter=100_000), prefixes) for a in alphas]
        )


def two_layer_network(x: Tensor, y: Tensor, prefixes: Iterable[int], width: int = 100, steps: int = 100) -> Tensor:
    """For each prefix, train a batch of networks, one per prompt, by autograd and Adam."""
    batch, _, dim = x.shape
    answers = torch.full_like(y, torch.nan)
    for n in prefixes:
        networks = [nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 1)) for _ in range(batch)]
        optimiser = torch.optim.Adam([p for net in networks for p in net.parameters()], lr=5e-3)
        for _ in range(steps):
            optimiser.zero_grad()
            outputs = torch.stack([net(x[b, :n]) for b, net in enumerate(networks)])
            ((outputs[..., 0] - y[:, :n]) ** 2).mean().backward()
            optimiser.step()
        with torch.no_grad():
            answers[:, n] = torch.stack([net(x[b, n : n + 1])[0, 0] for b, net in enumerate(networks)])
    return answers


def gradient_descent(
    x: Tensor, y: Tensor, query: Tensor, labels: Tensor, gamma: float = 0.0, steps: int = 24
) -> Tensor:
    """Return the test errors `(B, steps)` of GD (GD++ if gamma > 0) on all points, in loops over tasks and steps."""
    errors = []
    for a, b, q, label in zip(x, y, query, labels, strict=True):
        values = torch.linalg.eigvalsh(a.T @ a / len(a))
        size = 2 / (values[-1] + values[0])
        curvature = torch.eye(a.shape[1]) - gamma * (a.T @ a)
        a, q = a @ curvature, q @ curvature
        w = torch.zeros(a.shape[1])
        each = []
        for _ in range(steps):
            gradient = a.T @ (a @ w - b) / len(a)
            w = w - size * gradient
            each.append(((q @ w - label) ** 2).mean())
        errors.append(torch.stack(each))
    return torch.stack(errors)
