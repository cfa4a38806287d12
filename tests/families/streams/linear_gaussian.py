"""Exact, non-recursive predictions for linear dynamical systems from the joint covariance of all elements."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rotation(radius: float, angle: float) -> Array:
    cosine, sine = np.cos(angle), np.sin(angle)
    return radius * np.array([[cosine, -sine], [sine, cosine]])


def joint_covariance(matrices: list[Array], process_noise: float, observation_noise: float) -> Array:
    """Return the covariance of all elements. `matrices[n]` maps state n to state n + 1.

    Element n is a linear function of the initial state, the process noise of earlier steps and its own observation
    noise, all of which are independent.
    """
    count = len(matrices) + 1
    response = np.zeros((count, 2 * count))
    for source in range(count):
        effect = np.eye(2) * (1 if source == 0 else process_noise)
        for n in range(source, count):
            response[n, 2 * source : 2 * source + 2] = effect[0]
            if n < count - 1:
                effect = matrices[n] @ effect
    return response @ response.T + observation_noise**2 * np.eye(count)


def next_element(covariance: Array, y: Array) -> tuple[Array, Array]:
    """Return mean and variance of each element given all earlier elements."""
    means, variances = np.zeros(len(y)), np.zeros(len(y))
    for n in range(len(y)):
        weights = np.linalg.solve(covariance[:n, :n], covariance[:n, n])
        means[n] = weights @ y[:n]
        variances[n] = covariance[n, n] - weights @ covariance[:n, n]
    return means, variances
