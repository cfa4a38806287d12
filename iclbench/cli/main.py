"""The `iclbench` command: register all subcommands, and report each failure with one line and an exit code."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import traceback
from typing import Any

import typer

from iclbench.cli import completion
from iclbench.cli.lazy import lazy_group, with_debug_option, with_plain_help
from iclbench.cli.streams import set_encoding_fallback
from iclbench.core import trust
from iclbench.core.errors import IclbenchError, Interrupted, PluginError, one_line, shorten, shorten_words
from iclbench.core.formats import printable
from iclbench.core.memory import TRAINING_REMEDY, advice, is_out_of_memory
from iclbench.core.plugins import as_plugin_error
from iclbench.core.signals import exit_on_signal, raise_if_ctrl_c, remember_ctrl_c

INTERRUPTED = Interrupted.exit_code
# Options whose value may be omitted: the pattern of a value, and the default.
_OPTIONAL_VALUES = {
    "--extrapolate": (r"-?\d+x?", "4x"),
    "--install-completion": (r"\w+", "auto"),
    "--show-completion": (r"\w+", "auto"),
}

app = typer.Typer(
    name="iclbench",
    help="Compare in-context-learning architectures on the same frozen prompts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=lazy_group(),
    context_settings={"help_option_names": ["-h", "--help"]},
)
lm = typer.Typer(
    help="Pretrained language models: in-context tasks and Deep-Thinking.",
    no_args_is_help=True,
    cls=lazy_group("lm"),
)
app.add_typer(lm, name="lm")


class _ProgressHandler(logging.Handler):
    """A handler that prints log records as progress lines. If a progress bar is shown, they are printed above it."""

    def emit(self, record: logging.LogRecord) -> None:
        from iclbench.cli.terminal import say

        say(f"{'note' if record.levelno < logging.WARNING else record.levelname}: {record.getMessage()}")


def _version(value: bool | None) -> None:
    if value:
        from iclbench import __version__

        typer.echo(f"iclbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool | None = typer.Option(
        None, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Print the traceback of an error."),
    install: str | None = typer.Option(
        None,
        "--install-completion",
        metavar="[SHELL]",
        callback=completion.install,
        is_eager=True,
        help="Install completion for bash, zsh or fish (default: your shell).",
    ),
    show: str | None = typer.Option(
        None,
        "--show-completion",
        metavar="[SHELL]",
        callback=completion.show,
        is_eager=True,
        help="Print the completion script.",
    ),
) -> None:
    pass


def parser() -> Any:
    """Return the parser of all commands, without markup in the help texts and with the option --debug."""
    root = with_plain_help(typer.main.get_command(app), _root)
    with_debug_option(with_plain_help(root.commands["lm"]), root)
    return root


def run(arguments: list[str] | None = None) -> None:
    """The entry point of the `iclbench` command."""
    try:
        code = main(sys.argv[1:] if arguments is None else arguments)
        exit_on_signal(signal.SIGINT, INTERRUPTED)
    except KeyboardInterrupt:  # a second Ctrl-C during the handling of the first
        code = INTERRUPTED
        exit_on_signal(signal.SIGINT, INTERRUPTED)
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Run one command, and return its exit code: 0 for success, 1 for a failure, 2 for a usage error, 130 for an
    interruption."""
    if completion.VARIABLE in os.environ:
        completion.answer_request(parser())
    set_encoding_fallback()
    debug = "--debug" in arguments
    arguments = _with_default_values([a for a in arguments if a != "--debug"]) or ["--help"]
    logging.basicConfig(level=logging.WARNING, handlers=[_ProgressHandler()])
    logging.getLogger("iclbench").setLevel(logging.INFO)
    trust.ask_user = _ask_for_trust if sys.stdin and sys.stdin.isatty() and sys.stderr.isatty() else None
    try:
        with remember_ctrl_c():
            try:
                code = parser()(args=arguments, prog_name="iclbench", standalone_mode=False)
            except Exception as error:
                if not isinstance(error, Interrupted):  # the message of Interrupted is more specific
                    raise_if_ctrl_c(error)
                raise
            if code:
                raise_if_ctrl_c()
        if code == INTERRUPTED:  # newer versions of click return this code for Ctrl-C; older ones raise `Abort`
            return _report_interruption()
        return code if isinstance(code, int) else 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _report_error(as_plugin_error(error))
    except KeyboardInterrupt:
        return _report_interruption()
    except SystemExit as error:  # iclbench itself never calls sys.exit, so the command has not finished
        if isinstance(error.__context__, BrokenPipeError):  # raised by rich for `| head`
            return 1
        if debug:
            traceback.print_exc()
        cause = as_plugin_error(error)
        if isinstance(cause, PluginError):
            return _report_error(cause)
        message = f"code that is not part of iclbench called sys.exit({shorten(repr(error.code))})"
        print(f"error: {message}; for a traceback use --debug", file=sys.stderr)  # noqa: T201
        return 1


def _ask_for_trust(target: str) -> bool:
    """Ask the user whether to trust the code of a card or a run."""
    question = f"A card or a run uses {printable(target)}, which is not part of iclbench. Run its code?"
    return typer.confirm(question, err=True)


def _report_interruption(message: str = "interrupted") -> int:
    print(printable(message), file=sys.stderr)  # noqa: T201
    return INTERRUPTED


def _report_error(error: BaseException) -> int:
    """Print an error as one line on stderr, and return its exit code."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):  # raised by the command-line parser for Ctrl-C
        return _report_interruption()
    if isinstance(error, Interrupted):
        return _report_interruption(str(error))
    if type(error).__name__ == "NoArgsIsHelpError":  # the help has already been printed
        return 0
    if isinstance(error, BrokenPipeError):
        sys.stderr.close()
        return 1
    if hasattr(error, "format_message"):  # the command-line parser's own errors
        text, code = error.format_message(), int(getattr(error, "exit_code", 2))
    elif isinstance(error, PluginError):
        hint = f"; for details: iclbench check {error.target}" if error.target else ""
        text, code = f"{error} (for a traceback use --debug){hint}", error.exit_code
    elif isinstance(error, IclbenchError):
        text, code = str(error), error.exit_code
    elif is_out_of_memory(error):
        text, code = advice(error, TRAINING_REMEDY), 1
    elif isinstance(error, OSError):
        text, code = str(error), 1
    else:
        text, code = f"{one_line(error)} (this is a bug; for a traceback use --debug)", 1
    if text:
        print("error: " + printable(shorten_words(" ".join(str(text).split()))), file=sys.stderr)  # noqa: T201
    return code


def _with_default_values(arguments: list[str]) -> list[str]:
    """Return the arguments, and add the default value to each option that is given without its optional value."""
    completed_arguments = []
    for index, argument in enumerate(arguments):
        pattern, default = _OPTIONAL_VALUES.get(argument, ("", ""))
        lacks_value = default and not re.fullmatch(pattern, "".join(arguments[index + 1 : index + 2]))
        completed_arguments.append(f"{argument}={default}" if lacks_value else argument)
    return completed_arguments
