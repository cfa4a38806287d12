"""A grid of two tasks and two backbones that trains in seconds."""

from pathlib import Path

import pytest
import tomli_w

from tests.conftest import small_card


def tiny_grid(folder: Path, backbones: tuple[str, ...] = ("gpt2", "cnp"), steps: int = 4, **keys: object) -> Path:
    """Write a grid card and its two task cards, and return the path of the grid card."""
    card = small_card()
    preset = card["presets"]["smoke"]  # type: ignore[index]
    preset["train"] |= {"steps": steps, "checkpoint_every": 2, "log_every": 2}
    preset["backbones"] |= {"cnp": {"width": 16}}
    tasks = []
    for name, family in {"tiny-linear": "linear", "tiny-quadratic": "quadratic"}.items():
        tasks.append(str(folder / f"{name}.toml"))
        Path(tasks[-1]).write_text(tomli_w.dumps(card | {"family": family}))
    grid = {
        "summary": "tiny",
        "tasks": tasks,
        "backbones": list(backbones),
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"shifts": ["orthants"]},
        "probe": {},
        **keys,
    }
    path = folder / "tiny.toml"
    path.write_text(tomli_w.dumps({key: value for key, value in grid.items() if value is not None}))
    return path


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return tiny_grid(tmp_path)
