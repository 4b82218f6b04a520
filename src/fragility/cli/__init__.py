"""The command line: parse, call, print.

Each module here adds its commands in `register(app)`; nothing is computed in this package. To add a command, write
such a module, name it in COMMANDS, and describe every option in docs/guide/command-line.md (a test compares them).
Other packages add commands through `fragility.cli.extensions`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from fragility.cli import audit, calibrate, demo, evaluate, protocol, reading
from fragility.cli.extensions import ExtensibleGroup
from fragility.cli.terminal import DEBUG, EXIT_ERROR, EXIT_INTERRUPTED, complain, explain
from fragility.errors import FragilityError
from fragility.version import __version__

COMMANDS = (demo, audit, reading, protocol, evaluate, calibrate)

app = typer.Typer(
    name="fragility",
    cls=ExtensibleGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]fragility demo[/bold]. "
    "Each command shows examples: [bold]fragility audit --help[/bold].",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fragility {__version__}")
        raise typer.Exit()


@app.callback()
def fragility(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Find the confident predictions of a tabular classifier that rest on narrow evidence, and prove it with
    certificates that anyone can recompute."""


for commands in COMMANDS:
    commands.register(app)


def _tell_what_takes_long() -> None:
    """Show the library's own notes (such as a first compilation) to whoever waits at a terminal."""
    if sys.stderr.isatty():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger = logging.getLogger("fragility")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; every error becomes one sentence on standard error and an exit code."""
    _tell_what_takes_long()
    try:
        app(args=None if arguments is None else list(arguments), prog_name="fragility")
    except SystemExit as stop:
        if stop.code == EXIT_INTERRUPTED:
            complain("interrupted; nothing was written")
        raise
    except KeyboardInterrupt:
        complain("interrupted; nothing was written")
        sys.exit(EXIT_INTERRUPTED)
    except FragilityError as error:
        complain(str(error))
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        complain(explain(error))
    sys.exit(EXIT_ERROR)
