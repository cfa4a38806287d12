"""Fixture: the packed results, which are read once for all tests of this folder."""

import pytest

from docs.quantities import Reference


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference()
