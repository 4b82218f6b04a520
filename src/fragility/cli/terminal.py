"""Output of all commands: results, notes, and errors as one sentence."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from fragility.base.errors import name_error
from fragility.base.text import escape_controls

DEBUG = "FRAGILITY_DEBUG"

# Exit codes. 1 is a finding, such as a false claim or artefacts that differ. 2 is an error.
EXIT_CLAIM_FAILED = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_SIGNALLED = 128  # plus the number of the signal

# Typer's base class of usage errors has no public name that all its versions share.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

PIPE_WIDTH = 200  # tables in a pipe or file are for tools and wide windows, not for the 80 columns rich assumes


def out() -> Console:
    """Return a console for results, on standard output; a new one each time, in case the stream is redirected."""
    return _make_console(stderr=False)


def err() -> Console:
    """Return a console for notes and errors, on standard error."""
    return _make_console(stderr=True)


def _make_console(stderr: bool) -> Console:
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if terminal else PIPE_WIDTH
    return PlainConsole(stderr=stderr, highlight=False, emoji=False, soft_wrap=not terminal, width=width)


class PlainConsole(Console):
    """A console that shows control characters instead of interpreting them.

    Ids, class labels and file names are of unknown origin: an escape sequence in one could clear the screen and fake a
    verdict.
    """

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(escape_controls(text, lines=True), **settings)


def say(text: str) -> None:
    """Print a result of several lines without markup."""
    typer.echo(escape_controls(text, lines=True))


def note(sentence: str) -> None:
    err().print(f"[dim]{escape(escape_controls(sentence))}[/dim]")


def note_command(*words: object) -> None:
    """Print a command to paste, on one line without a line break, which the terminal may wrap."""
    command = shlex.join(str(word) for word in words)
    err().print(f"[dim]  {escape(escape_controls(command))}[/dim]", soft_wrap=True)


def explain(error: BaseException) -> str:
    """Return the message for an unexpected error."""
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        if error.errno == errno.ENOSPC:
            return f"{name}the disk is full; free some space or choose another folder"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return f"{name}no permission to read or write there; choose another place or change its permissions"
        if error.errno == errno.ENOENT:
            return f"{name}no such file or folder"
        return f"{name}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return "not enough memory; audit fewer rows at a time with --rows"
    return f"unexpected {name_error(error)} (set {DEBUG}=1 to see where it happened)"


def explain_usage(error: Any, words: Sequence[str]) -> str:
    """Return one sentence for an error in the typed `words`; empty if the help was printed instead."""
    context, parameter = error.ctx, getattr(error, "param", None)
    if unknown := re.match(r"No such command '(.*?)'", error.message):
        problem = f"there is no command {unknown[1]}{_suggest(unknown[1], context)}"
    elif hasattr(error, "possibilities"):
        problem = f"there is no option {error.option_name}{_suggest(error.option_name, context)}"
    elif parameter is None:
        problem = _simplify(error.format_message())
    else:
        if parameter.param_type_name == "argument":
            name = str(parameter.metavar or parameter.name.upper())
        else:
            name = f"{parameter.opts[0]} {parameter.metavar or ''}".rstrip()
        problem = f"{name} is missing" if hasattr(error, "param_type") else f"{name}: {_simplify(error.message)}"
    if context is not None:
        command = str(context.command_path)
    else:
        command = " ".join(["fragility", *(word for word in words[:1] if not word.startswith("-"))])
    return f"{problem} (see {command} --help)" if problem else ""


def _suggest(word: str, context: Any) -> str:
    """Return the command or option that was probably meant, if there is one."""
    if context is None:
        return ""
    options = [option for parameter in context.command.params for option in parameter.opts if option.startswith("-")]
    commands = context.command.list_commands(context) if hasattr(context.command, "list_commands") else []
    matches = get_close_matches(word, [*commands, *options], n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _simplify(message: str) -> str:
    """Return a sentence in the style of the others: no capital, no full stop, no quotes around an option."""
    text = re.sub(r"'(--?[\w-]+)'", r"\1", message.strip().rstrip("."))
    return text[:1].lower() + text[1:]


def complain(sentence: str) -> None:
    """Print one sentence on standard error."""
    if os.environ.get(DEBUG):
        traceback.print_exc()
    err().print(f"[red]fragility:[/red] {escape(escape_controls(sentence))}")
