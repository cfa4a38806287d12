"""Contour energies: the filters, the energies against SciPy's correlation, and their invariances."""

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate

from iclbench.layers.vision.contours import GRID_SIZE, ORIENTATIONS, Contours, gabor_bank


@pytest.mark.parametrize("size", [12, 28, 35])
def test_energies_equal_pooled_filter_responses_computed_by_scipy(size: int) -> None:
    images = torch.rand(3, size, size, dtype=torch.float64)
    computed_energies = Contours(8).double().energies(images).numpy()
    even, odd = gabor_bank().double().numpy()
    for image, energies in zip(images.numpy(), computed_energies, strict=True):
        for k in range(ORIENTATIONS):
            responses = [correlate(image, bank[k], mode="nearest") for bank in (even, odd)]
            energy = np.sqrt(responses[0] ** 2 + responses[1] ** 2)
            np.testing.assert_allclose(energies[k], _pooled(energy), atol=1e-6)


def test_filters_have_mean_0_and_norm_1() -> None:
    bank = gabor_bank()
    torch.testing.assert_close(bank.sum((2, 3)), torch.zeros(2, ORIENTATIONS), atol=1e-6, rtol=0)
    torch.testing.assert_close(bank.square().sum((2, 3)), torch.ones(2, ORIENTATIONS))


@pytest.mark.parametrize("k", range(ORIENTATIONS))
def test_a_grating_has_the_highest_energy_at_its_orientation(k: int) -> None:
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    angle = k * math.pi / ORIENTATIONS
    grating = 0.5 + 0.5 * torch.cos((x * math.cos(angle) + y * math.sin(angle)) * math.pi / 3)
    inner = Contours(8).energies(grating[None])[0, :, 2:5, 2:5].mean((1, 2))
    assert int(inner.argmax()) == k


def test_a_uniform_image_has_no_contours_and_finite_features() -> None:
    images = torch.full((1, 20, 20), 0.7)
    encoder = Contours(8)
    assert float(encoder.energies(images).abs().max()) < 1e-5
    assert bool(encoder(images).isfinite().all())


@pytest.mark.parametrize(("features", "expected"), [(64, 392 * 64 + 64 + 64 * 64 + 64), (512, 392 * 512 + 512 * 514)])
def test_only_the_perceptron_is_trained(features: int, expected: int) -> None:
    encoder = Contours(features)
    assert sum(p.numel() for p in encoder.parameters()) == expected
    assert set(encoder.state_dict()) == {f"network.{i}.{name}" for i in (0, 2) for name in ("weight", "bias")}


def test_features_do_not_depend_on_other_images_in_the_batch_even_in_training() -> None:
    encoder, images = Contours(8).train(), torch.rand(3, 12, 12)
    separate = torch.cat([encoder(image[None]) for image in images])
    torch.testing.assert_close(encoder(images), separate)


def _pooled(energy: np.ndarray) -> np.ndarray:
    """Average over cells that start at floor(i n / 7) and end at ceil((i + 1) n / 7)."""
    cells = [[slice(i * n // GRID_SIZE, -(-(i + 1) * n // GRID_SIZE)) for i in range(GRID_SIZE)] for n in energy.shape]
    return np.array([[energy[rows, columns].mean() for columns in cells[1]] for rows in cells[0]])
