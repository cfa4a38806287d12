"""Errors that are reported to the user. Each has a one-line message with advice, a code and an exit code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import accumulate
from typing import Any, Final

# Maximum number of known names in an error message.
_MAX_NAMES = 32
# Largest number of characters of all names in a message.
_MAX_LENGTH = 600
# Maximum number of characters that an error message repeats from a quotation or word in the user's input.
_MAX_ECHO = 200
_LONG_WORDS = re.compile(r"(?<!\w)'[^'\n]{199,}'|(?<!\w)\"[^\"\n]{199,}\"|\S{201,}")


def shorten_words(text: str) -> str:
    """Shorten long quotations and long words in a text to at most 200 characters by cutting out their middle.

    >>> shorten_words("unknown task '" + 1000 * "a" + "'; known: linear")[140:]
    "aaaaaaaaaaaaa ... aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'; known: linear"
    """
    return _LONG_WORDS.sub(lambda match: shorten(match[0]), text)


def shorten_to_line(text: str) -> str:
    """Apply `shorten_words`, and replace line breaks and other control characters with blanks. Quoted keys in TOML
    files may contain such characters."""
    return "".join(c if c.isprintable() else " " for c in shorten_words(text))


def shorten(text: str) -> str:
    """Return the text. If it has more than 200 characters, cut out the middle."""
    return text if len(text) <= _MAX_ECHO else f"{text[:140]} ... {text[-50:]}"


# Callers may rely on these codes, but not on messages, which may change.
CODES: Final = {
    "failed": "The work failed for another reason.",
    "usage": "The request cannot be carried out for another reason.",
    "unknown-name": "No task, model, setting, column or file section has this name.",
    "bad-value": "A value has the wrong type, shape or range.",
    "bad-syntax": "A file, an option or a name does not have the expected form.",
    "missing-value": "A required option, setting or argument is missing.",
    "duplicate": "The same name, key or row is given twice.",
    "conflict": "Two options or settings exclude each other.",
    "not-applicable": "The request does not apply to this model or task.",
    "nothing-to-do": "The request selects no runs, rows, cells or figures.",
    "not-finished": "A run or a result that the request needs is not complete.",
    "exists": "A file, run or result already exists and is not overwritten.",
    "missing-file": "A file or folder does not exist.",
    "unreadable-file": "A file cannot be read or written, or is damaged.",
    "bad-data": "The content of your data is not what the task expects.",
    "missing-data": "A data set is not in the data folder.",
    "data-changed": "The data differ from the training data.",
    "code-changed": "The code of a model, task or baseline has changed since the result was stored.",
    "settings-changed": "The settings differ from the settings of the stored run.",
    "too-large": "A file, table or model is larger than the limit.",
    "out-of-memory": "The device does not have enough memory.",
    "missing-package": "An optional package is not installed.",
    "not-supported": "The device, the backend or the installed version does not support the request.",
    "untrusted": "A card or run uses code that is not trusted.",
    "plugin": "Code from outside iclbench raised an error or returned a wrong type.",
    "not-finite": "A prediction or a score is NaN or infinite.",
    "diverged": "The loss of a training run is NaN or infinite.",
    "in-use": "Another process is using the same run or file.",
    "worker-died": "A worker process or a job ended without a result.",
    "interrupted": "The process was stopped by a signal.",
}


class IclbenchError(Exception):
    """Base class of all errors of iclbench. The message is one line for the user.

    Attributes:
        code: the kind of the error, a key of `CODES`.
        exit_code: 1 if the work failed, 2 if the request was wrong.
    """

    code = "failed"
    exit_code = 1

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(shorten_words(message))
        if code:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses take different arguments, so unpickling does not call `__init__`.
        return _unpickle, (type(self), self.args), vars(self)


class PluginError(IclbenchError):
    """A class from outside iclbench raised an error, or any class returned a wrong type or shape.

    Attributes:
        target: the class as `module:Class`, for `iclbench check`; empty if that command cannot check the class.
    """

    code = "plugin"
    target = ""

    @classmethod
    def of(cls, faulty: type, method: str, problem: str) -> PluginError:
        """Create the error. Its message names the method, or only the class if the class has no such method.

        >>> str(PluginError.of(type("Net", (), {"__module__": "my_net", "loss": None}), "loss", "raised KeyError"))
        'my_net:Net.loss raised KeyError'
        """
        name = f"{faulty.__module__}:{faulty.__qualname__}"
        error = cls(f"{name}.{method} {problem}" if method and hasattr(faulty, method) else f"{name} {problem}")
        if not is_ours(faulty) and (hasattr(faulty, "Settings") or hasattr(faulty, "Parameters")):
            error.target = name
        return error


def is_ours(cls: type) -> bool:
    """Return whether a class is part of iclbench."""
    return cls.__module__.partition(".")[0] == "iclbench"


def _unpickle(cls: type[IclbenchError], args: tuple[Any, ...]) -> IclbenchError:
    error = cls.__new__(cls)
    error.args = args
    return error


class UsageError(IclbenchError):
    """The request cannot be carried out."""

    code = "usage"
    exit_code = 2


class UnknownNameError(UsageError):
    """A name is unknown. The message lists similar names, or all known names.

    Args:
        kind: what the name should refer to, such as "task".
        name: the name that the user typed.
        known: the known names.
        hint: text at the end of the message.
        listed_by: the command that lists all names. The message mentions it if more than 32 names are known and none of
            them is similar.

    >>> str(UnknownNameError("task", "linaer", ["linear", "quadratic"]))
    "unknown task 'linaer'; did you mean 'linear'?"
    """

    code = "unknown-name"

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "", listed_by: str = "") -> None:
        known, name = sorted(known), shorten(name)
        matches = get_close_matches(name, known, n=3, cutoff=0.5)
        if matches:
            advice = "did you mean " + " or ".join(f"'{n}'" for n in matches) + "?"
        elif listed_by and len(known) > _MAX_NAMES:
            advice = f"to see all names, run {listed_by}"
        else:
            lengths = accumulate(len(name) + 2 for name in known[:_MAX_NAMES])
            shown_count = max(1, sum(length <= _MAX_LENGTH for length in lengths))
            rest_text = f" and {len(known) - shown_count} more" if len(known) > shown_count else ""
            advice = f"known: {', '.join(known[:shown_count])}{rest_text}" if known else "none are known"
        super().__init__(f"unknown {kind} {name!r}; {advice}{' ' + hint if hint else ''}")


class NonFiniteError(IclbenchError):
    """A prediction or a score is NaN or infinite.

    Such values are not excluded from means, which would otherwise favour a model that fails on some episodes.
    """

    code = "not-finite"


class Interrupted(IclbenchError):  # noqa: N818
    """The process was stopped by a signal. Results that were already computed are stored."""

    code = "interrupted"
    exit_code = 130


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message. For an error from outside iclbench, prepend the type of the error
    and shorten the message to 200 characters.

    >>> one_line(IclbenchError("no such file")), one_line(ValueError("3 is odd\\nand more")), one_line(KeyError())
    ('no such file', 'ValueError: 3 is odd', 'KeyError: no message')
    """
    text = error_text(error)
    return text if isinstance(error, IclbenchError) else f"{type(error).__name__}: {text}"


def error_text(error: BaseException) -> str:
    """Return the first line of an error's message, shortened to 200 characters if the error is from outside iclbench.

    >>> error_text(ValueError("3 is odd\\nand more")), error_text(KeyError())
    ('3 is odd', 'no message')
    >>> len(error_text(ValueError(99 * "a word ")))
    195
    """
    text = next(iter(str(error).splitlines()), "") or "no message"
    return text if isinstance(error, IclbenchError) else shorten(text)


class DataError(UsageError):
    """A user's file does not have the expected content."""

    code = "bad-data"


class DataChangedError(DataError):
    """The data differ from the data on which a run was trained.

    Args:
        then: fingerprint of the data in training.
        now: fingerprint of the data in the data folder.
    """

    code = "data-changed"

    def __init__(self, then: str, now: str) -> None:
        super().__init__(
            f"the data have fingerprint {now}, but the run was trained on data with fingerprint {then}: restore the "
            "data or give their location (--data-dir, -o task.path=FILE); train on these data under another --name; or "
            "score the run on them with iclbench eval --data-changed"
        )
        self.then, self.now = then, now
