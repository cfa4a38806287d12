"""In any global state of torch and in several threads, the Python API computes the same numbers as in a new
single-threaded process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.forked import call_in_new_process
from tests.hostile.plugins import BACKBONE, TRUST, train, write_plugin
from tests.hostile.trial import Kind, Trial
from tests.hostile.verdicts import check_outcome

THREADS, CALLS = 4, 24


@contextlib.contextmanager
def _default_dtype(name: str) -> Iterator[None]:
    import torch

    torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _default_device(name: str) -> Iterator[None]:
    import torch

    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


def _mode(name: str) -> AbstractContextManager[Any]:
    import torch

    if name.startswith("autocast"):
        return torch.autocast("cpu", getattr(torch, name.partition(" ")[2]))
    context: AbstractContextManager[Any] = getattr(torch, name)()
    return context


# The global states of torch, by kind of trial.
STATES: dict[str, list[Callable[[], AbstractContextManager[Any]]]] = {
    "dtype": [
        *((lambda name=name: _default_dtype(name)) for name in ("float64", "float16", "bfloat16")),
        lambda: _default_device("meta"),
    ],
    "autocast": [
        (lambda name=name: _mode(name))
        for name in ("autocast bfloat16", "autocast float16", "no_grad", "inference_mode")
    ],
}


def _digest(value: Any) -> str:
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


def _weights(model: Any) -> str:
    return _digest({name: t.detach().numpy() for name, t in model.state_dict().items()})


def _numbers(scores: Any) -> str:
    columns = ["run", "metric", "n_context", "shift", "value", "low", "high"]
    return _digest(scores.loc[scores["metric"].ne("seconds"), columns].astype(str).values.tolist())


def _calls(seed: int) -> dict[str, Callable[[Any, Any], Any]]:
    """Return calls of the Python API by name, for a task and a trained run. Each result depends only on the seed."""
    import numpy as np

    import iclbench as icl

    x = np.random.default_rng(seed).normal(size=(4, 3))

    def fit_weights(task: Any, run: Any) -> str:
        model = icl.CNP(task, seed=seed, width=8)
        icl.fit(model, task, 2, seed=seed, device="cpu", progress=False)
        return _weights(model)

    def train_weights(task: Any, run: Any) -> str:
        new = icl.train(
            task,
            "gpt2",
            name=f"new-{os.urandom(8).hex()}",
            seed=seed,
            results=run.path.parents[1],
            steps=2,
            device="cpu",
            progress=False,
        )
        return hashlib.sha256(new.weights.read_bytes()).hexdigest()

    return {
        "build": lambda task, run: _weights(icl.GPT2(task, seed=seed)),
        "sample": lambda task, run: _digest([t.numpy() for t in task.sample(3, seed).context.tensors().values()]),
        "predict": lambda task, run: _digest(icl.predict(run, x, x[:, 0], x)),
        "evaluate": lambda task, run: _numbers(icl.evaluate([run, "knn-3", "zero"], task, seed=seed, device="cpu")),
        "fit": fit_weights,
        "train": train_weights,
    }


def _answers(folder: str, calls: list[tuple[str, int]], kind: str, state: int) -> list[tuple[str, str]]:
    """Return two results of each call: first in the default state, and then in a changed state or in threads. The
    function runs in a new process."""
    import iclbench as icl
    from iclbench.store.runs import Run

    os.chdir(folder)
    task, run = icl.task(Path("tiny.toml"), "smoke"), Run(Path("results/runs/cnp").absolute())

    def answer_of(call: tuple[str, int]) -> str:
        try:
            return str(_calls(call[1])[call[0]](task, run))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    fresh_answers = [answer_of(call) for call in calls]
    if kind == "threads":
        with ThreadPoolExecutor(THREADS) as pool:
            return list(zip(fresh_answers, pool.map(answer_of, calls), strict=True))
    with STATES[kind][state]():
        return list(zip(fresh_answers, [answer_of(call) for call in calls], strict=True))


def _api(trial: Trial, kind: str) -> list[str]:
    trial.copy("trained")
    names, state = list(_calls(0)), trial.dice.randrange(len(STATES.get(kind, [0])))
    calls = [
        (name, trial.dice.randrange(100)) for name in trial.dice.choices(names, k=CALLS if kind == "threads" else 4)
    ]
    pairs = call_in_new_process(_answers, str(trial.folder), calls, kind, state)
    complaints = [
        f"{name} fails alone: {alone[:200]}" for (name, _), (alone, _) in zip(calls, pairs, strict=True) if ":" in alone
    ]
    complaints += [
        f"{name} of seed {seed} gives a different result: {other[:200]}"
        for (name, seed), (alone, other) in zip(calls, pairs, strict=True)
        if alone != other
    ]
    return [f"{kind} {state}: {complaint}" for complaint in complaints]


def _dtype(trial: Trial) -> list[str]:
    return _api(trial, "dtype")


def _autocast(trial: Trial) -> list[str]:
    return _api(trial, "autocast")


def _threads(trial: Trial) -> list[str]:
    return _api(trial, "threads")


def _plug_in(trial: Trial) -> list[str]:
    """Train with a plug-in that changes the default dtype, the default device or gradient tracking on import. This must
    not change the weights."""
    from safetensors.torch import load_file

    trial.copy("")
    state = trial.dice.choice(
        (
            "torch.set_default_dtype(torch.float64)",
            "torch.set_default_dtype(torch.bfloat16)",
            "torch.set_default_device('meta')",
            "torch.set_grad_enabled(False)",
        )
    )
    complaints, weights_by_run = [], []
    for name, module in (("plain", ""), ("changed", state)):
        write_plugin(trial, BACKBONE, module=module)
        arguments = (*train(trial, False)[:6], name, "-o", "train.steps=3")
        complaints += check_outcome(trial.run(arguments, path=[trial.folder], environment=TRUST), {0})
        weights = trial.results / f"runs/{name}/model.safetensors"
        tensors = load_file(weights) if weights.is_file() else {}
        weights_by_run.append({key: (str(t.dtype), t.tolist()) for key, t in tensors.items()})
    if weights_by_run[0] != weights_by_run[1] or not weights_by_run[0]:
        complaints.append("the weights differ")
    return [f"{state}: {complaint}" for complaint in complaints]


KINDS: dict[str, Kind] = {
    "dtype": _dtype,
    "autocast": _autocast,
    "threads": _threads,
    "a plug-in changes torch's state": _plug_in,
}
