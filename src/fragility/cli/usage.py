"""Mistyped commands and options, missing and impossible values: one sentence and where to read on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import typer

# Typer's own base class of such errors is not public under one name in all its versions.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def explain_usage(error: Any, words: Sequence[str]) -> str:
    """Return one sentence for an error in the typed `words`; empty if the help was already printed instead."""
    problem = _problem(error)
    return f"{problem} (see {_command(error, words)} --help)" if problem else ""


def _command(error: Any, words: Sequence[str]) -> str:
    if error.ctx is not None:
        return str(error.ctx.command_path)
    return " ".join(["fragility", *(word for word in words[:1] if not word.startswith("-"))])


def _problem(error: Any) -> str:
    known = _known_words(error.ctx)
    unknown = re.match(r"No such command '(.*?)'", error.message)
    if unknown:
        return f"there is no command {unknown[1]}{_nearest(unknown[1], known)}"
    if hasattr(error, "possibilities"):
        return f"there is no option {error.option_name}{_nearest(error.option_name, known)}"
    parameter = getattr(error, "param", None)
    if parameter is not None:
        if hasattr(error, "param_type"):
            return f"{_name(parameter)} is missing"
        return f"{_name(parameter)}: {_plain(error.message)}"
    return _plain(error.format_message())


def _known_words(context: Any) -> list[str]:
    """Commands and options that could have been meant."""
    if context is None:
        return []
    options = [option for parameter in context.command.params for option in parameter.opts if option.startswith("-")]
    commands = context.command.list_commands(context) if hasattr(context.command, "list_commands") else []
    return [*commands, *options]


def _nearest(word: str, known: list[str]) -> str:
    meant = get_close_matches(word, known, n=1)
    return f"; did you mean {meant[0]}?" if meant else ""


def _name(parameter: Any) -> str:
    """`--out DIR` for an option, `DATA` for an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return f"{parameter.opts[0]} {parameter.metavar or ''}".rstrip()


def _plain(message: str) -> str:
    """A sentence in the manner of the others: no capital, no full stop, no quotes around an option."""
    text = re.sub(r"'(--?[\w-]+)'", r"\1", message.strip().rstrip("."))
    return text[:1].lower() + text[1:]
