"""Ctrl-C ends a command with 130 and leaves no failed row, whatever Python and libraries make of it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iclbench import tables
from iclbench.cli.main import main
from iclbench.core.signals import ctrl_c_heard, heed_ctrl_c
from iclbench.evaluation.curves import learning_curve


def while_a_class_is_made() -> None:
    """Up to 3.11, Python makes a RuntimeError of what `__set_name__` raises."""

    class Attribute:
        def __set_name__(self, owner: type, name: str) -> None:
            signal.raise_signal(signal.SIGINT)

    type("Owner", (), {"attribute": Attribute()})


def by_a_library_with_errors_of_its_own() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise OSError("operation cancelled") from None


def where_python_can_raise_nothing() -> None:
    class Buffer:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    Buffer()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "strike", [while_a_class_is_made, by_a_library_with_errors_of_its_own, where_python_can_raise_nothing]
)
def test_ctrl_c_that_becomes_something_else_is_heeded(
    strike: Callable[[], None],
    card_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = ("--results", str(tmp_path))
    assert main(["train", str(card_path), "gpt2", "-p", "smoke", "-o", "train.steps=2", *results]) == 0
    asked: list[str] = []

    def struck(predictor: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(type(predictor).__name__)
        if len(asked) == 2:
            strike()
        return learning_curve(predictor, *arguments, **options)

    monkeypatch.setattr("iclbench.evaluation.next_points.learning_curve", struck)
    assert main(["eval", *results]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    rows = [
        row for path in tmp_path.rglob("tables/**/*.values.parquet") for row in tables.read("values", path).itertuples()
    ]
    assert {row.status for row in rows} == {"ok"}
    assert len(asked) == 2, "nothing is begun after it"


def test_an_interrupt_of_one_command_says_nothing_of_the_next() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ctrl_c_heard():
        os.kill(os.getpid(), signal.SIGINT)
    with ctrl_c_heard():
        heed_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is handler
