"""What can be typed after `iclbench COMMAND`: one module per command, with its arguments, options and help.

A function here has no body: the function of the same name and parameters in `iclbench.cli` does the work, and is
imported when the command is called. So help and completion import neither torch nor pandas.
"""

from iclbench.cli.lazy import Command

COMMANDS = {
    "demo": Command(
        "demo:demo",
        "Train small backbones on two tasks, evaluate them beside baselines, probe their layers, write the report.",
    ),
    "list": Command("list:list_things", "List tasks, backbones, baselines, families, grids and runs."),
    "show": Command(
        "show:show",
        "Show what a task samples and how big it is, what a backbone's settings mean, a baseline, a grid or a run.",
    ),
    "train": Command(
        "train:train",
        "Train a backbone on a task. The same command again continues the run where it stopped.",
    ),
    "eval": Command("eval:evaluate", "Score runs on frozen prompts, the task's baselines always beside them."),
    "probe": Command(
        "probe:probe",
        "Decode every layer by the model's own read-out, up to a scale and a shift per task, beside GD and "
        "GD++; or measure the rank of its predictions; or what its sample representation has learned.",
    ),
    "cost": Command(
        "cost:cost",
        "Measure parameters, state, FLOPs, time and memory of a training step, conditioning, a query and an update.",
    ),
    "stream": Command(
        "stream:stream",
        "Learn points or events and answer queries line by line: a query sees all before it. In constant memory "
        "where the backbone allows (cmanp, cnp, cmhp, recurrent ones).",
    ),
    "sweep": Command(
        "sweep:sweep",
        "Train, evaluate, probe and measure all that a grid asks for. The same command goes on where it stopped.",
    ),
    "tune": Command(
        "tune:tune",
        "Choose learning rates on validation episodes, which no result is about. The same command goes on where it "
        "stopped.",
    ),
    "report": Command(
        "report:report",
        "Write one self-contained HTML page and its tables (CSV, Markdown, LaTeX); pictures with --formats.",
    ),
    "export": Command(
        "export:export", "Write the training curves and scores of finished runs for TensorBoard, W&B or MLflow."
    ),
    "rm": Command("rm:rm", "Delete runs: folder, tables, rows of sweeps. Packed results are left alone."),
    "prune": Command(
        "prune:prune",
        "Remove temporary files of killed processes, unusable checkpoints, and tables of runs that are gone.",
    ),
    "check": Command("check:check", "Run the contract tests on a backbone, estimator or family, yours or ours."),
    "doctor": Command("doctor:doctor", "Report Python, libraries, devices, folders, and which plug-ins load."),
}
OF_LANGUAGE_MODELS = {
    "eval": Command(
        "lm.eval:evaluate",
        "Score language models on in-context tasks. The same command again goes on where it stopped.",
    ),
    "tasks": Command(
        "lm.tasks:tasks",
        "List the tasks of language models, with the number of examples or the file that is missing.",
    ),
    "demo-model": Command(
        "lm.demo:demo_model",
        "Train a small language model on letters, in a few minutes, to try everything without weights.",
    ),
}
