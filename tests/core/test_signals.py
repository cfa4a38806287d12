"""Ctrl-C ends a command with exit code 130 and without failed rows, even if the KeyboardInterrupt is lost."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iclbench import tables
from iclbench.cli.main import main
from iclbench.core import signals
from iclbench.core.signals import raise_if_ctrl_c, remember_ctrl_c
from iclbench.evaluation.curves import learning_curve


def interrupt_in_set_name() -> None:
    """Interrupt `__set_name__`. Python 3.11 and earlier versions replace the KeyboardInterrupt with a RuntimeError."""

    class Attribute:
        def __set_name__(self, owner: type, name: str) -> None:
            signal.raise_signal(signal.SIGINT)

    type("Owner", (), {"attribute": Attribute()})


def interrupt_in_a_library() -> None:
    """Interrupt a library that raises another error instead."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise OSError("operation cancelled") from None


def interrupt_in_del() -> None:
    """Interrupt `__del__`, in which Python ignores exceptions."""

    class Buffer:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    Buffer()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("interrupt", [interrupt_in_set_name, interrupt_in_a_library, interrupt_in_del])
def test_ctrl_c_ends_the_command_even_if_the_keyboard_interrupt_is_lost(
    interrupt: Callable[[], None],
    card_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = ("--results", str(tmp_path))
    assert main(["train", str(card_path), "gpt2", "-p", "smoke", "-o", "train.steps=2", *results]) == 0
    predictors: list[str] = []

    def interrupted_curve(predictor: Any, *arguments: Any, **options: Any) -> Any:
        predictors.append(type(predictor).__name__)
        if len(predictors) == 2:
            interrupt()
        return learning_curve(predictor, *arguments, **options)

    monkeypatch.setattr("iclbench.evaluation.next_points.learning_curve", interrupted_curve)
    assert main(["eval", *results]) == 130
    assert "Traceback" not in capsys.readouterr().err
    rows = [
        row for path in tmp_path.rglob("tables/**/*.values.parquet") for row in tables.read("values", path).itertuples()
    ]
    assert {row.status for row in rows} == {"ok"}
    assert len(predictors) == 2, "no further evaluation begins"


def test_an_interrupt_has_no_effect_on_the_next_command() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), remember_ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)
    with remember_ctrl_c():
        raise_if_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is handler


def test_signals_are_not_deferred_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no signal masks."""
    monkeypatch.setattr(signals, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.delattr(signal, "pthread_sigmask")
    with signals.defer_signals(signal.SIGINT):
        pass
