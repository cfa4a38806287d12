"""Public entry points compute the same numbers in whatever state the caller has put torch."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import iclbench as icl
from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.contracts.families import FAMILY_CONTRACTS
from iclbench.core.errors import UsageError
from iclbench.core.predictor import as_used

# Public names that compute nothing with torch: tables, charts and the report.
NO_TENSORS = {"__version__", "plot", "ResultsFolder", "open_results", "write_report"}
# Attributes of public classes that read what is already resolved, and parts of scikit-learn's protocol.
PLAIN = {
    *("Task.name", "Task.baselines"),
    *(f"InContext{kind}.{name}" for kind in ("Classifier", "Regressor") for name in ("get_params", "set_params")),
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64": lambda: default_dtype(torch.float64),
    "meta": lambda: default_device("meta"),
    "with meta": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def weights(model: torch.nn.Module) -> str:
    """A digest of names, types and values."""
    return digest({name: t.detach().numpy() for name, t in model.state_dict().items()})


def digest(value: Any) -> str:
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


def answers(folder: Path) -> dict[str, Any]:
    """What every kind of public entry point answers."""
    small = icl.task("linear", "smoke", dim=2, points=5, episodes=8)
    gaps = icl.task("gp-mixture", "smoke")
    events = icl.task("point-process", "smoke")
    x, y, queries = np.eye(3, 2), np.arange(3.0), np.ones((2, 2))
    sample = small.sample(2, seed=1)
    models = {
        "gpt2": icl.GPT2(small, layers=1, width=16),
        "s4": icl.S4(small, layers=1, width=8),
        "np": icl.backbone("np", gaps, width=16),
        "gru": icl.GRU(events, layers=1, width=8),
    }
    found: dict[str, Any] = {name: weights(model) for name, model in models.items()}
    found["sample"] = [sample.context.x.numpy(), sample.context.y.numpy(), gaps.sample(2).context.y.numpy()]
    found["normal"] = not sample.context.x.is_inference()
    found["next_event"] = icl.next_event(models["gru"], [0.5, 1.25], [0, 1]).to_numpy()
    found["sample_y"] = icl.sample_y(models["np"], np.zeros((2, 1)), np.zeros(2), np.zeros((2, 1)), n_samples=2)
    found["losses"] = icl.fit(models["gpt2"], small, steps=3, log_every=1, device="cpu")["loss"].tolist()
    found["fitted"] = weights(models["gpt2"])
    scores = icl.evaluate([models["gpt2"], "ridge", "averaging", "zero"], small, device="cpu")
    found["scores"] = scores.loc[scores["metric"].ne("seconds"), ["contestant", "metric", "value"]].values.tolist()
    run = icl.train(small, "cnp", results=folder, steps=3, settings={"width": 16}, device="cpu")
    found["run"] = weights(icl.load(run, device="cpu").model)
    found["predict"] = icl.predict(run, x, y, queries)
    found["regressor"] = icl.InContextRegressor(run).fit(x, y).predict(queries)
    found["examples"] = [t.numpy() for t in example_episodes().context.tensors().values()]
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return answers(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("state", STATES)
def test_the_callers_state_of_torch_changes_no_bit(state: str, expected: dict[str, Any], tmp_path: Path) -> None:
    with STATES[state]():
        found = answers(tmp_path)
        assert torch.get_default_dtype() == (torch.float64 if state == "float64" else torch.float32)
        assert torch.get_default_device().type == ("meta" if "meta" in state else "cpu")
        assert torch.is_autocast_enabled("cpu") == (state == "autocast")
        assert torch.is_inference_mode_enabled() == (state == "inference_mode")
        assert torch.is_grad_enabled() == (state not in ("no_grad", "inference_mode"))
    for name, value in expected.items():
        assert digest(found[name]) == digest(value), name


@pytest.mark.parametrize("state", STATES)
def test_contracts_hold_in_every_state_of_torch(state: str) -> None:
    model = icl.GPT2(icl.task("linear", "smoke", dim=4), layers=1, width=16).eval()
    family = icl.task("linear", "smoke", dim=2).family
    with STATES[state]():
        for contract in CONTRACTS:
            if contract.is_about(model, episodes := example_episodes()):
                contract.check(model, episodes, Tolerance())
        FAMILY_CONTRACTS[0](family)


def members(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods and properties that iclbench writes for a public class."""
    for base in cls.__mro__:
        if not base.__module__.startswith("iclbench."):
            continue
        for name, member in vars(base).items():
            if name.startswith("_"):
                continue
            if isinstance(member, property):
                member = member.fget
            if isinstance(member, functools.cached_property):
                member = member.func
            if callable(member):
                yield f"{cls.__name__}.{name}", member


def test_every_public_entry_point_has_the_guard() -> None:
    """A new public name either has it or is listed above as one that computes no tensor."""
    missing = []
    for name in set(icl.__all__) - NO_TENSORS:
        found = getattr(icl, name)
        entries = members(found) if inspect.isclass(found) else [(name, found)]
        missing += [each for each, entry in entries if each not in PLAIN and not hasattr(entry, "is_guarded")]
    assert missing == []
    assert hasattr(icl.Task.sample, "is_guarded")
    assert all(hasattr(each.check, "is_guarded") for each in CONTRACTS)
    assert all(hasattr(each, "is_guarded") for each in FAMILY_CONTRACTS)


def test_models_built_in_threads_have_the_weights_of_models_built_in_one() -> None:
    task = icl.task("linear", "smoke", dim=2)

    def built(seed: int) -> str:
        return weights(icl.CNP(task, seed=seed, width=8))

    alone = [built(seed) for seed in range(80)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(built, range(80))) == alone


def test_dropout_in_threads_draws_what_it_draws_in_one() -> None:
    task = icl.task("point-process", "smoke")

    def trained(seed: int) -> str:
        model = icl.THP(task, seed=seed)
        icl.fit(model, task, steps=2, device="cpu", progress=False, batch=4)
        return weights(model)

    alone = [trained(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(trained, range(8))) == alone


def test_models_that_torch_cannot_compute_with_are_refused_in_one_line() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=4)
    model = icl.CNP(task, width=8)
    for asked in (
        lambda: icl.fit(copy.deepcopy(model).to("meta"), task),
        lambda: icl.evaluate(copy.deepcopy(model).to("meta"), task),
        lambda: icl.predict(copy.deepcopy(model).to("meta"), np.eye(2), np.zeros(2), np.eye(2)),
    ):
        with pytest.raises(UsageError, match="meta"):
            asked()
    with torch.inference_mode():
        untrainable = type(model)(model.settings, model.shape)
    with pytest.raises(UsageError, match="inference_mode"):
        icl.fit(untrainable, task)
    assert len(icl.evaluate(untrainable, task))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_evaluate_refuses_models_of_another_precision(dtype: torch.dtype) -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=4)
    with pytest.raises(UsageError, match=r"model\.float\(\)"):
        icl.evaluate([icl.CNP(task, width=8).to(dtype), "zero"], task)


def test_threads_that_share_a_model_leave_it_in_its_mode() -> None:
    """The first thread leaves while the second is at work."""
    inside, leave, seen = threading.Event(), threading.Event(), []
    model = icl.CNP(icl.task("linear", "smoke", dim=2), width=8).train()

    def other() -> None:
        with as_used(model):
            inside.set()
            leave.wait(10)
            seen.append(any(module.training for module in model.modules()))

    with as_used(model):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(10)
    leave.set()
    thread.join()
    assert seen == [False]
    assert all(module.training for module in model.modules())
