"""What the README shows is true."""

import re
from pathlib import Path

import pytest
import torch

from iclbench.cli.commands import COMMANDS, OF_LANGUAGE_MODELS
from iclbench.families.request import Request

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_example_family_samples_and_has_the_variance_it_claims() -> None:
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", README, re.S) if "class Sine" in code)
    scope: dict[str, object] = {}
    exec(code, scope)
    sine = scope["Sine"]
    family = sine(sine.Parameters(dim=5))
    y = family.sample(Request(4000, 5, torch.Generator().manual_seed(0))).context.y
    spread = float(y.square().mean(1).std()) / 4000**0.5
    assert y.square().mean().item() == pytest.approx(family.normaliser, abs=4 * spread)


def test_every_command_of_the_readme_exists_with_its_options() -> None:
    used = re.findall(r"iclbench (\w+)([^`\n]*)", README)
    assert {"train", "eval", "report", "list", "show", "doctor", "demo", "check", "lm"} <= {name for name, _ in used}
    for name, rest in used:
        within = re.match(r" ([\w-]+)", rest)
        if name == "lm" and within is not None:
            command = OF_LANGUAGE_MODELS[within[1]].load(within[1])
        elif name in COMMANDS:
            command = COMMANDS[name].load(name)
        else:
            continue
        known = {o for p in command.params for o in p.opts} | {"--debug"}
        assert set(re.findall(r"(?<!\w)--[a-z-]+", rest)) <= known, (name, rest)


def test_every_linked_file_is_there_and_nothing_is_left_to_fill_in() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
    assert not re.findall(r"^[A-Z]+_[A-Z_]+$", README, re.M)
