"""The command line: parse, call, print.

Nothing is computed in this package. To add a command, write a function whose docstring is its help, and name it in
COMMANDS. The site's page on the command line is made from the help, so every option needs a help text (a test checks
it). A command imports slow modules (pandas, scikit-learn, the library itself) inside its functions, or uses the
top-level package, which loads them lazily, so that help and a mistyped option respond at once.
Other packages add commands through `fragility.cli.group`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from fragility.base.errors import FragilityError, Message
from fragility.cli import audit, demo, deployed, evaluate, gate, improving, protocol, reading, review, signing, verify
from fragility.cli.group import Command, Commands
from fragility.cli.options import expand_groups
from fragility.cli.outputs import describe_interruption, forget_outputs
from fragility.cli.terminal import (
    DEBUG,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_SIGNALLED,
    UsageError,
    complain,
    explain,
    explain_usage,
    note,
)
from fragility.version import __version__

DECLARE = "Declare, audit, verify"
# By panel of `fragility --help`. A command of two words is listed by the help of the one that it belongs to.
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Start here": {"demo": demo.demo},
    DECLARE: {"audit": audit.audit, "verify": verify.verify},
    "Read and decide": {
        "show": reading.show, "report": reading.report,
        "policy": review.policy, "review": review.review, "review export": review.export,
    },
    "Judge and correct": {
        "gate": gate.gate, "gate init": gate.init,
        "evaluate": evaluate.evaluate, "evaluate labels": evaluate.labels, "evaluate missing": evaluate.missing,
        "reliability": improving.reliability, "harden": improving.harden,
    },
    "Deploy": {"parity": deployed.parity, "serve": deployed.serve, "watch": deployed.watch},
    "Sign and hand over": {
        "sign": signing.sign, "sign keys": signing.keys, "sign prove": signing.prove, "pack": signing.pack,
    },
}  # fmt: skip

app = typer.Typer(
    name="fragility",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]fragility demo[/bold]. Examples: [bold]fragility audit --help[/bold].",
)


def _print_version(requested: bool) -> None:
    if requested:
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


for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=Command, rich_help_panel=panel, hidden=" " in name)(expand_groups(command))
app.add_typer(protocol.group, rich_help_panel=DECLARE)


@contextmanager
def _show_warnings_as_notes() -> Iterator[None]:
    """Show a warning as one line, without the source line that raised it."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        text = message.in_options() if isinstance(message, Message) else str(message)
        note(f"warning: {(text.strip().splitlines() or [category.__name__])[0]}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


class Terminated(BaseException):
    """SIGTERM or SIGHUP, which end a command like Ctrl-C; Typer handles KeyboardInterrupt itself."""


@contextmanager
def _end_by_signals() -> Iterator[None]:
    """Raise on SIGTERM and SIGHUP, so that temporary files are removed and the user learns what was written."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # not all on Windows
    handled = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # ignored under nohup
    before = {number: signal.signal(number, end) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; every error becomes one sentence on standard error and an exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if sys.stderr.isatty():  # show the library's log messages, such as a first compilation
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger = logging.getLogger("fragility")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    forget_outputs()
    try:
        with _show_warnings_as_notes(), _end_by_signals():
            # not standalone: errors become one sentence instead of Typer's boxes
            code = app(args=words, prog_name="fragility", standalone_mode=False) or 0
        if code == EXIT_INTERRUPTED:
            complain(describe_interruption())
        sys.exit(code)
    except (KeyboardInterrupt, Terminated) as interrupt:
        terminated = isinstance(interrupt, Terminated)
        complain(describe_interruption("terminated" if terminated else "interrupted"))
        sys.exit(EXIT_SIGNALLED + interrupt.args[0] if terminated else EXIT_INTERRUPTED)
    except UsageError as error:
        if sentence := explain_usage(error, words):
            complain(sentence)
    except FragilityError as error:
        complain(error.in_options())
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        complain(explain(error))
    sys.exit(EXIT_ERROR)
