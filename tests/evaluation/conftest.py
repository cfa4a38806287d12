"""A small task."""

from pathlib import Path

import pytest

from iclbench.config.resolution import TaskConfig, resolve_task


@pytest.fixture
def task(card_path: Path) -> TaskConfig:
    return resolve_task(str(card_path), "smoke")[0]
