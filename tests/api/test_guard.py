"""Public functions compute the same numbers in all global states of torch."""

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
from iclbench.core.predictor import eval_mode
from tests.refusals import refused

# Public names that do not compute with torch: tables, charts and the report.
NO_TENSORS = {"__version__", "plot", "ResultsFolder", "open_results", "write_report"}
# Members that do not compute with torch: fields of resolved tasks, and parts of scikit-learn's protocol.
UNGUARDED = {
    *("Task.name", "Task.baselines"),
    *(f"InContext{suffix}.{name}" for suffix in ("Classifier", "Regressor") for name in ("get_params", "set_params")),
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


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


def weights_digest(model: torch.nn.Module) -> str:
    """Return a digest of the names, types and values of all weights."""
    return digest({name: t.detach().numpy() for name, t in model.state_dict().items()})


def digest(value: Any) -> str:
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


def public_outputs(folder: Path) -> dict[str, Any]:
    """Return outputs of every kind of public function."""
    small = icl.task("linear", "smoke", dim=2, points=5, episodes=8)
    gp_mixture = icl.task("gp-mixture", "smoke")
    events = icl.task("point-process", "smoke")
    x, y, queries = np.eye(3, 2), np.arange(3.0), np.ones((2, 2))
    sample = small.sample(2, seed=1)
    models = {
        "gpt2": icl.GPT2(small, layers=1, width=16),
        "s4": icl.S4(small, layers=1, width=8),
        "np": icl.backbone("np", gp_mixture, width=16),
        "gru": icl.GRU(events, layers=1, width=8),
    }
    outputs: dict[str, Any] = {name: weights_digest(model) for name, model in models.items()}
    outputs["sample"] = [sample.context.x.numpy(), sample.context.y.numpy(), gp_mixture.sample(2).context.y.numpy()]
    outputs["normal"] = not sample.context.x.is_inference()
    outputs["next_event"] = icl.next_event(models["gru"], [0.5, 1.25], [0, 1]).to_numpy()
    outputs["sample_y"] = icl.sample_y(models["np"], np.zeros((2, 1)), np.zeros(2), np.zeros((2, 1)), n_samples=2)
    outputs["losses"] = icl.fit(models["gpt2"], small, steps=3, log_every=1, device="cpu")["loss"].tolist()
    outputs["fitted"] = weights_digest(models["gpt2"])
    scores = icl.evaluate([models["gpt2"], "ridge", "averaging", "zero"], small, device="cpu")
    outputs["scores"] = scores.loc[scores["metric"].ne("seconds"), ["contestant", "metric", "value"]].values.tolist()
    run = icl.train(small, "cnp", results=folder, steps=3, settings={"width": 16}, device="cpu")
    outputs["run"] = weights_digest(icl.load(run, device="cpu").model)
    outputs["predict"] = icl.predict(run, x, y, queries)
    outputs["regressor"] = icl.InContextRegressor(run).fit(x, y).predict(queries)
    outputs["examples"] = [t.numpy() for t in example_episodes().context.tensors().values()]
    return outputs


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return public_outputs(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("state", STATES)
def test_outputs_do_not_depend_on_the_global_state_of_torch(
    state: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    with STATES[state]():
        actual = public_outputs(tmp_path)
        assert torch.get_default_dtype() == (torch.float64 if state == "float64" else torch.float32)
        assert torch.get_default_device().type == ("meta" if "meta" in state else "cpu")
        assert torch.is_autocast_enabled("cpu") == (state == "autocast")
        assert torch.is_inference_mode_enabled() == (state == "inference_mode")
        assert torch.is_grad_enabled() == (state not in ("no_grad", "inference_mode"))
    for name, value in expected.items():
        assert digest(actual[name]) == digest(value), name


@pytest.mark.parametrize("state", STATES)
def test_contracts_hold_in_every_global_state_of_torch(state: str) -> None:
    model = icl.GPT2(icl.task("linear", "smoke", dim=4), layers=1, width=16).eval()
    family = icl.task("linear", "smoke", dim=2).family
    with STATES[state]():
        for contract in CONTRACTS:
            if contract.is_checkable(model, episodes := example_episodes()):
                contract.check(model, episodes, Tolerance())
        FAMILY_CONTRACTS[0](family)


def members(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods and properties of a class that are defined in iclbench."""
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


def test_every_public_function_is_guarded() -> None:
    """Every public name is either guarded or listed above because it does not compute with torch."""
    missing = []
    for name in set(icl.__all__) - NO_TENSORS:
        value = getattr(icl, name)
        entries = members(value) if inspect.isclass(value) else [(name, value)]
        missing += [key for key, entry in entries if key not in UNGUARDED and not hasattr(entry, "is_guarded")]
    assert missing == []
    assert hasattr(icl.Task.sample, "is_guarded")
    assert all(hasattr(contract.check, "is_guarded") for contract in CONTRACTS)
    assert all(hasattr(check, "is_guarded") for check in FAMILY_CONTRACTS)


@pytest.mark.slow
def test_models_built_in_threads_have_the_weights_of_models_built_sequentially() -> None:
    task = icl.task("linear", "smoke", dim=2)

    def initial_weights(seed: int) -> str:
        return weights_digest(icl.CNP(task, seed=seed, width=8))

    expected = [initial_weights(seed) for seed in range(80)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(initial_weights, range(80))) == expected


@pytest.mark.slow
def test_dropout_in_threads_gives_the_weights_of_sequential_training() -> None:
    task = icl.task("point-process", "smoke")

    def trained_weights(seed: int) -> str:
        model = icl.THP(task, seed=seed)
        icl.fit(model, task, steps=2, device="cpu", progress=False, batch=4)
        return weights_digest(model)

    expected = [trained_weights(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(trained_weights, range(8))) == expected


def test_models_on_the_meta_device_and_training_of_inference_tensors_are_refused() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=4)
    model = icl.CNP(task, width=8)
    for call in (
        lambda: icl.fit(copy.deepcopy(model).to("meta"), task),
        lambda: icl.evaluate(copy.deepcopy(model).to("meta"), task),
        lambda: icl.predict(copy.deepcopy(model).to("meta"), np.eye(2), np.zeros(2), np.eye(2)),
    ):
        with refused("bad-value", "meta"):
            call()
    with torch.inference_mode():
        untrainable = type(model)(model.settings, model.shape)
    with refused("bad-value", "inference_mode"):
        icl.fit(untrainable, task)
    assert len(icl.evaluate(untrainable, task))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_evaluating_a_model_that_is_not_in_single_precision_raises_an_error(dtype: torch.dtype) -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=4)
    with refused("bad-value", dtype, "model.float()"):
        icl.evaluate([icl.CNP(task, width=8).to(dtype), "zero"], task)


def test_threads_that_share_a_model_restore_its_training_mode() -> None:
    """The first thread leaves its `eval_mode` block while the second thread is still in its own block."""
    entered, may_leave, training_modes = threading.Event(), threading.Event(), []
    model = icl.CNP(icl.task("linear", "smoke", dim=2), width=8).train()

    def predict() -> None:
        with eval_mode(model):
            entered.set()
            may_leave.wait(10)
            training_modes.append(any(module.training for module in model.modules()))

    with eval_mode(model):
        thread = threading.Thread(target=predict)
        thread.start()
        entered.wait(10)
    may_leave.set()
    thread.join()
    assert training_modes == [False]
    assert all(module.training for module in model.modules())
