"""The state of torch inside the guard."""

import threading

import pytest
import torch

from iclbench.core.guard import fixed_state, guarded


def test_a_guard_restores_the_state_after_an_error() -> None:
    @guarded
    def fails() -> None:
        torch.set_default_dtype(torch.float16)
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fails()
    assert torch.get_default_dtype() == torch.float32


def test_an_inner_guard_repairs_what_code_in_between_has_changed() -> None:
    with fixed_state():
        torch.set_default_dtype(torch.float64)
        with fixed_state():
            assert torch.zeros(1).dtype == torch.float32
    assert torch.get_default_dtype() == torch.float32


def test_the_last_thread_restores_the_default_dtype() -> None:
    """The one that came first leaves while the other is inside."""
    inside, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with fixed_state():
            inside.set()
            leave.wait(10)
            seen.append(torch.zeros(1).dtype)

    torch.set_default_dtype(torch.float64)
    try:
        with fixed_state():
            thread = threading.Thread(target=other)
            thread.start()
            inside.wait(10)
        leave.set()
        thread.join()
        assert seen == [torch.float32]
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
