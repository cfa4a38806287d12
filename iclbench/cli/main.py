"""The `iclbench` command: registers the commands and turns every failure into one line and an exit code."""

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
from iclbench.cli.lazy import lazy_group, literal, with_debug
from iclbench.cli.streams import print_anything
from iclbench.core import trust
from iclbench.core.errors import IclbenchError, Interrupted, PluginError, brief, one_line, shortened
from iclbench.core.formats import printable
from iclbench.core.memory import IN_TRAINING, advice, is_out_of_memory
from iclbench.core.plugins import blamed
from iclbench.core.signals import ctrl_c_heard, heed_ctrl_c, leave_at_once

INTERRUPTED = Interrupted.exit_code
# Options that may stand without their value, what a value looks like, and the value they then have.
_OPTIONAL = {
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


class _Lines(logging.Handler):
    """Log records as lines of progress, above a bar where one is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        from iclbench.cli.terminal import say

        say(f"{'note' if record.levelno < logging.WARNING else record.levelname}: {record.getMessage()}")


def _version(wanted: bool | None) -> None:
    if wanted:
        from iclbench import __version__

        typer.echo(f"iclbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool | None = typer.Option(
        None, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show where an error comes from (a traceback)."),
    install: str | None = typer.Option(
        None,
        "--install-completion",
        metavar="[SHELL]",
        callback=completion.install,
        is_eager=True,
        help="Let bash, zsh or fish complete commands, options and names; without SHELL: your own.",
    ),
    show: str | None = typer.Option(
        None,
        "--show-completion",
        metavar="[SHELL]",
        callback=completion.show,
        is_eager=True,
        help="Print the script that --install-completion writes.",
    ),
) -> None:
    pass


def parser() -> Any:
    """The parser of all commands: texts of help are literal, and every command knows --debug."""
    root = literal(typer.main.get_command(app))
    with_debug(literal(root.commands["lm"]), root)
    return root


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the `iclbench` command."""
    try:
        code = main(sys.argv[1:] if arguments is None else arguments)
        leave_at_once(signal.SIGINT, INTERRUPTED)
    except KeyboardInterrupt:  # one more, while the first was being answered
        code = INTERRUPTED
        leave_at_once(signal.SIGINT, INTERRUPTED)
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Run one command; returns its exit code: 0 done, 1 failed, 2 usage, 130 interrupted."""
    if completion.ASKED in os.environ:
        completion.answer(parser())
    print_anything()
    debug = "--debug" in arguments
    arguments = _optional_values([a for a in arguments if a != "--debug"]) or ["--help"]
    logging.basicConfig(level=logging.WARNING, handlers=[_Lines()])
    logging.getLogger("iclbench").setLevel(logging.INFO)
    trust.ask = _ask if sys.stdin and sys.stdin.isatty() and sys.stderr.isatty() else None
    try:
        with ctrl_c_heard():
            try:
                code = parser()(args=arguments, prog_name="iclbench", standalone_mode=False)
            except Exception as error:
                if not isinstance(error, Interrupted):  # which says more
                    heed_ctrl_c(error)
                raise
            if code:
                heed_ctrl_c()
        if code == INTERRUPTED:  # what newer parsers make of Ctrl-C, older ones `Abort`
            return _interrupted()
        return code if isinstance(code, int) else 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _report(blamed(error))
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as error:  # nothing of ours calls it: the command has not ended
        if isinstance(error.__context__, BrokenPipeError):  # rich's answer to `| head`
            return 1
        if debug:
            traceback.print_exc()
        found = blamed(error)
        if isinstance(found, PluginError):
            return _report(found)
        where = f"code from outside iclbench called sys.exit({shortened(repr(error.code))}) in the midst of the work"
        print(f"error: {where}; --debug shows where", file=sys.stderr)  # noqa: T201
        return 1


def _ask(target: str) -> bool:
    """Whether the user trusts code that a card or a run names."""
    question = f"{printable(target)} is code from outside iclbench, named by a card or a run. Run it?"
    return typer.confirm(question, err=True)


def _interrupted(what: str = "interrupted") -> int:
    print(printable(what), file=sys.stderr)  # noqa: T201
    return INTERRUPTED


def _report(error: BaseException) -> int:
    """One line on stderr; the exit code belongs to the error."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):  # what the command-line parser makes of Ctrl-C
        return _interrupted()
    if isinstance(error, Interrupted):
        return _interrupted(str(error))
    if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed already
        return 0
    if isinstance(error, BrokenPipeError):
        sys.stderr.close()
        return 1
    if hasattr(error, "format_message"):  # the command-line parser's own errors
        text, code = error.format_message(), int(getattr(error, "exit_code", 2))
    elif isinstance(error, PluginError):
        checked = f"; for more: iclbench check {error.target}" if error.target else ""
        text, code = f"{error} (--debug shows where){checked}", error.exit_code
    elif isinstance(error, IclbenchError):
        text, code = str(error), error.exit_code
    elif is_out_of_memory(error):
        text, code = advice(error, IN_TRAINING), 1
    elif isinstance(error, OSError):
        text, code = str(error), 1
    else:
        text, code = f"{one_line(error)} (this is a bug; --debug shows where)", 1
    if text:
        print("error: " + printable(brief(" ".join(str(text).split()))), file=sys.stderr)  # noqa: T201
    return code


def _optional_values(arguments: list[str]) -> list[str]:
    """The arguments with a value behind every option that may stand without one."""
    filled = []
    for index, here in enumerate(arguments):
        value, default = _OPTIONAL.get(here, ("", ""))
        bare = default and not re.fullmatch(value, "".join(arguments[index + 1 : index + 2]))
        filled.append(f"{here}={default}" if bare else here)
    return filled
