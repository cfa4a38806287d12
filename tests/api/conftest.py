"""Runs that are trained once and shared by all tests of the Python API."""

from pathlib import Path

import pytest
import tomli_w

import iclbench as icl
from iclbench.api.tasks import Task
from iclbench.store.runs import Run
from tests.api.blobs import CARD


@pytest.fixture(scope="session")
def linear() -> Task:
    return icl.task("linear", preset="smoke", dim=10, head="gaussian", points=20, episodes=16)


@pytest.fixture(scope="session")
def run(linear: Task, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A TNP that was trained on linear functions for a few seconds."""
    results = tmp_path_factory.mktemp("api") / "results"
    return icl.train(linear, "tnp", name="tour", results=results, steps=40, progress=False)


@pytest.fixture(scope="session")
def causal_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A GPT-2 that was trained on linear functions of four inputs for a few seconds."""
    task = icl.task("linear", preset="smoke", dim=4, head="gaussian", points=20, episodes=16)
    results = tmp_path_factory.mktemp("api-causal") / "results"
    return icl.train(task, "gpt2", name="causal", results=results, steps=10, progress=False)


@pytest.fixture(scope="session")
def classifier_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A CNP that was trained on blobs of five classes."""
    folder = tmp_path_factory.mktemp("api-classifier_run")
    (folder / "blobs.toml").write_text(tomli_w.dumps(CARD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICLBENCH_TRUST", "tests")
        return icl.train(icl.task(str(folder / "blobs.toml"), "smoke"), "cnp", results=folder / "results", name="blobs")


@pytest.fixture(autouse=True)
def trust_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICLBENCH_TRUST", "tests")


@pytest.fixture
def results(run: Run) -> Path:
    return run.path.parents[1]
