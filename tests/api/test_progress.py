"""Progress of `fit` and `train`: a bar on a terminal, an updated line in a notebook, and nothing if output is piped."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import iclbench as icl
from iclbench.api.progress import progress_bar

SIZE = {"layers": 1, "width": 16, "heads": 2}


def run_in_notebook(monkeypatch: pytest.MonkeyPatch, display: Callable[..., object]) -> None:
    """Replace IPython by a module with this function `display`, and pretend that a notebook runs the test."""
    display_module: Any = types.ModuleType("IPython.display")
    display_module.display = display
    for module in (types.ModuleType("IPython"), display_module):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "ipykernel", None)


def test_a_notebook_shows_one_line_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            assert raw
            lines.append(content["text/plain"])

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw and display_id
        lines.append(content["text/plain"])
        return Handle()

    run_in_notebook(monkeypatch, display)
    task = icl.task("linear", "smoke", dim=2)
    history = icl.fit(icl.GPT2(task, **SIZE), task, steps=4, log_every=2)
    losses = [f"{loss:.4f}" for loss in history["loss"]]
    assert lines == ["gpt2: 0/4", f"gpt2: 2/4 loss {losses[0]}", f"gpt2: 4/4 loss {losses[1]}"]


def test_nothing_is_printed_if_output_is_piped(capsys: pytest.CaptureFixture[str]) -> None:
    task = icl.task("linear", "smoke", dim=2)
    icl.fit(icl.GPT2(task, **SIZE), task, steps=2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("gpt2", 10) as update:
        update(10, "loss 0.5")
    out, err = capsys.readouterr()
    assert out == "" and "gpt2" in err and "10/10" in err and "loss 0.5" in err
    with progress_bar("gpt2", 10, visible=False) as update:
        update(10, "loss 0.5")
    assert capsys.readouterr() == ("", "")


def test_progress_works_in_a_front_end_that_does_not_support_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_notebook(monkeypatch, lambda *_, **__: None)
    with progress_bar("gpt2", 4) as update:
        update(2, "loss 1")
