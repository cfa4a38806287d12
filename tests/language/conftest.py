"""Fixtures that save and load each tiny model once per test module."""

from functools import cache

import pytest

from iclbench.language.models.model import load
from tests.language.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return cache(lambda architecture: save_tiny_model(architecture, tmp_path_factory.mktemp("models") / architecture))


@pytest.fixture(scope="module")
def model(folder):
    return cache(lambda architecture: load(str(folder(architecture))))
