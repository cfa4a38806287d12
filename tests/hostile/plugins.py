"""Plug-ins that raise errors, return nonsense, exit, print or sleep: errors name the plug-in, and stored numbers do not
change.
"""

from __future__ import annotations

import re
from functools import partial

from tests.hostile.process import Limits
from tests.hostile.trial import Kind, Trial
from tests.hostile.verdicts import check_outcome, check_unchanged, contents

# A template of a correct plug-in of each kind. A fault replaces one of the placeholders.
BACKBONE = """
import os, sys, time, warnings
import torch
from torch import nn
from iclbench.backbones.base import Backbone
from iclbench.core.settings import BaseSettings
{module}

class Settings(BaseSettings):
    width: int = 4

class Net(Backbone):
    Settings = Settings
    order = "set"

    def __init__(self, settings, shape):
        super().__init__(settings, shape)
        {init}
        self.inner = nn.Linear(shape.x_dim, settings.width)
        self.outer = nn.Linear(settings.width + 1, shape.raw_dim)

    def predict_targets(self, context, x_target, related=None):
        {begin}
        mean = (context.y * context.mask.unsqueeze(-1)).sum(1, keepdim=True) / (1 + context.counts.view(-1, 1, 1))
        raw = self.outer(torch.cat([self.inner(x_target).tanh(), mean.expand(*x_target.shape[:2], 1)], -1))
        {end}
        return self.read(raw)
"""
FAMILY = """
import os, sys, time, warnings
import torch
from iclbench.families.base import FunctionFamily
from iclbench.families.sampling import normal
{module}

class Net(FunctionFamily):
    def __init__(self, parameters, data_dir=None):
        super().__init__(parameters, data_dir)
        {init}

    @property
    def normaliser(self):
        return {normaliser}

    def draw(self, episodes, generator, active_dims=None):
        {begin}
        return {{"w": normal((episodes, self.x_dim), generator)}}

    def apply(self, truth, x):
        raw = torch.einsum("bnd,bd->bn", x, truth["w"])
        {end}
        return raw
"""
RAISES = (
    "raise ValueError('canary')",
    "raise RuntimeError('a\\nb\\x1b[31m' + 'c' * 5000)",
    "raise KeyError()",
    "1 / 0",
    "raise Exception",
    "raise NotImplementedError",
    "assert False",
    "raise RecursionError('deep')",
    "raise MemoryError()",
    "raise StopIteration",
    "raise OSError(28, 'No space left on device')",
    "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'bad')",
    "import nowhere_at_all",
    "raise BrokenPipeError()",
    "raise ImportError('canary')",
    "raise TypeError('canary')",
    "raise AttributeError('canary')",
)
EXITS = (
    "raise SystemExit",
    "raise SystemExit(0)",
    "raise SystemExit('canary')",
    "sys.exit(0)",
    "raise SystemExit(3)",
    "exit()",
)
HARMLESS = (
    "print('canary', file=sys.stderr)",
    "warnings.warn('canary')",
    "time.sleep(0.001)",
    "os.environ['CANARY'] = '1'",
    "import logging; logging.getLogger('net').debug('canary')",
    "torch.manual_seed(7)",
    "torch.rand(3)",
)
WRONG_OUTPUTS = (
    "raw = raw[:, :1].expand(-1, 3, -1) if raw.shape[1] != 3 else raw[:, :2]",
    "raw = raw.unsqueeze(0)",
    "return None",
    "return 1.0",
    "return raw",
    "return self.read(raw[..., :0])",
    "raw = raw[:-1]",
    "return 'canary'",
    "return [raw]",
    "return self.read(raw.long())",
)
NOT_FINITE = (
    "raw = raw * float('nan')",
    "raw = raw / 0",
    "raw = torch.full_like(raw, float('inf')) + raw * 0",
    "raw = raw.index_fill(1, torch.tensor([0]), float('nan'))",
    "raw = raw + (raw.new_tensor(float('nan')) if torch.rand(()) < 2 else 0)",
)
TRUST = {"ICLBENCH_TRUST": "hostile_net"}
LIMITS = Limits(memory=3_000_000_000)


def write_plugin(trial: Trial, template: str, **faults: str) -> None:
    """Write the plug-in `hostile_net`, a template in which faults replace the placeholders with these names."""
    filled = {
        "module": "",
        "init": "pass",
        "begin": "pass",
        "end": "pass",
        "normaliser": "float(self.x_dim)",
    } | faults
    (trial.folder / "hostile_net.py").write_text(template.format(**filled))


def train(trial: Trial, family: bool) -> tuple[str, ...]:
    """Return the arguments that train the plug-in, or train gpt2 on a new card of the plug-in if it is a family."""
    if family:
        card = (trial.folder / "tiny.toml").read_text()
        (trial.folder / "net.toml").write_text(re.sub(r"^family = .*$", 'family = "hostile_net:Net"', card, flags=re.M))
    task, backbone = ("./net.toml", "gpt2") if family else ("tiny.toml", "hostile_net:Net")
    return ("train", task, backbone, "--preset", "smoke", "--name", "net", "-o", "train.steps=3")


def _misbehaves(trial: Trial, family: bool, faults: tuple[str, ...], places: tuple[str, ...]) -> list[str]:
    """Run commands with a faulty plug-in. The first command must fail and name the plug-in. The others may succeed."""
    trial.copy()
    before = contents(trial.results, "runs/**/*")
    place, fault = trial.dice.choice(places), trial.dice.choice(faults)
    template, options = FAMILY if family else BACKBONE, {"path": [trial.folder], "environment": TRUST, "limits": LIMITS}
    fails_after_training = place != "module" and trial.dice.random() < 0.4
    complaints = []
    if fails_after_training:  # first train without the fault
        write_plugin(trial, template)
        complaints += check_outcome(trial.run(train(trial, family), **options), {0})
    write_plugin(trial, template, **{place: fault})
    commands = [train(trial, family), ("check", "hostile_net:Net")]
    if fails_after_training:
        commands = [
            ("eval", "net", "--shift", "none"),
            ("stream", "net"),
            ("cost", "net", "--points", "4", "--episodes", "2"),
        ]
    first = True
    for arguments in commands:
        outcome = trial.run(arguments, stdin=b"1,2,3,4\n1,2,3,?\n", **options)
        command_complaints = check_outcome(outcome, {1, 2} if first else {0, 1, 2})
        if (
            first
            and outcome.code in (1, 2)
            and faults is not NOT_FINITE
            and "hostile_net" not in outcome.err + outcome.out
            and "Net" not in outcome.err + outcome.out
        ):
            command_complaints.append(f"does not name the plug-in: {outcome.last[:200]!r}")
        complaints += [f"{arguments[0]}: {c}" for c in command_complaints]
        first = False
    complaints += check_unchanged(before, contents(trial.results, "runs/**/*"))
    kind, when = "family" if family else "backbone", ", after training" if fails_after_training else ""
    return [f"{kind}, {place}: {fault[:60]}{when}: {c}" for c in complaints]


def _harmless(trial: Trial) -> list[str]:
    """Print and sleep in a plug-in, which must not change any number."""
    import pandas as pd

    trial.copy("trained")
    fault, place = trial.dice.choice(HARMLESS), trial.dice.choice(("module", "init", "begin", "end"))
    complaints, scores = [], []
    for faults in ({}, {place: fault}):
        write_plugin(trial, BACKBONE, **faults)
        name = f"net{len(scores)}"
        options = {"path": [trial.folder], "environment": TRUST}
        arguments = (*train(trial, False)[:6], name, "-o", "train.steps=3")
        complaints += check_outcome(trial.run(arguments, **options), {0})
        complaints += check_outcome(trial.run(("eval", name, "--baseline", "zero"), **options), {0})
        tables = list(trial.results.glob(f"tables/*/{name}.values.parquet"))
        scores.append([pd.read_parquet(t)["value"].tolist() for t in tables])
    if scores[0] != scores[1] or not scores[0]:
        complaints.append("numbers changed")
    return [f"{place}: {fault}: {c}" for c in complaints]


_ANYWHERE = ("module", "init", "begin", "end")
KINDS: dict[str, Kind] = {
    "a backbone raises": partial(_misbehaves, family=False, faults=RAISES, places=_ANYWHERE),
    "a backbone ends the process": partial(_misbehaves, family=False, faults=EXITS, places=_ANYWHERE),
    "a backbone returns wrong outputs": partial(_misbehaves, family=False, faults=WRONG_OUTPUTS, places=("end",)),
    "a family raises": partial(_misbehaves, family=True, faults=RAISES, places=_ANYWHERE),
    "a backbone returns NaN": partial(_misbehaves, family=False, faults=NOT_FINITE, places=("end",)),
    "a family ends the process": partial(_misbehaves, family=True, faults=EXITS, places=_ANYWHERE),
    "a family's functions are not finite": partial(_misbehaves, family=True, faults=NOT_FINITE, places=("end",)),
    "a plug-in prints or sleeps": _harmless,
    "a family's normaliser is nonsense": partial(
        _misbehaves,
        family=True,
        faults=("0.0", "float('nan')", "-1.0", "None", "float('inf')", "'x'"),
        places=("normaliser",),
    ),
}
