"""`iclbench lm eval|tasks|demo-model`: pretrained language models, in-context tasks and Deep-Thinking."""

from __future__ import annotations

import typer

from iclbench.cli.lm.demo import demo_model
from iclbench.cli.lm.eval import evaluate
from iclbench.cli.lm.tasks import tasks

lm = typer.Typer(help="Pretrained language models: in-context tasks and Deep-Thinking.", no_args_is_help=True)
lm.command("eval")(evaluate)
lm.command("tasks")(tasks)
lm.command("demo-model")(demo_model)
