"""The guard fixes the global state of torch and restores it afterwards."""

import contextlib
import sys
import threading
from pathlib import Path

import pytest
import torch

from iclbench.core.guard import fixed_state, guarded
from iclbench.registry import Entry


def test_a_guard_restores_the_state_after_an_error() -> None:
    @guarded
    def failing() -> None:
        torch.set_default_dtype(torch.float16)
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        failing()
    assert torch.get_default_dtype() == torch.float32


def test_an_inner_guard_resets_a_changed_dtype() -> None:
    with fixed_state():
        torch.set_default_dtype(torch.float64)
        with fixed_state():
            assert torch.zeros(1).dtype == torch.float32
    assert torch.get_default_dtype() == torch.float32


def test_the_last_thread_restores_the_default_dtype() -> None:
    """The first thread leaves the guard while the second thread is still inside."""
    entered, may_leave, dtypes = threading.Event(), threading.Event(), []

    def run_guarded() -> None:
        with fixed_state():
            entered.set()
            may_leave.wait(10)
            dtypes.append(torch.zeros(1).dtype)

    torch.set_default_dtype(torch.float64)
    try:
        with fixed_state():
            thread = threading.Thread(target=run_guarded)
            thread.start()
            entered.wait(10)
        may_leave.set()
        thread.join()
        assert dtypes == [torch.float32]
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_plug_in_cannot_change_the_default_dtype_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wide_plugin.py").write_text("import torch\ntorch.set_default_dtype(torch.float64)\nclass Net: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    for context in (contextlib.nullcontext(), fixed_state()):
        with context:
            assert Entry("wide_plugin:Net").load().__name__ == "Net"
            assert torch.get_default_dtype() == torch.float32
        del sys.modules["wide_plugin"]
