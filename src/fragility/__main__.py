"""Where `fragility` and `python -m fragility` begin: ready for Ctrl-C before anything slow is imported."""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line; until it takes over, nothing was written and Ctrl-C ends the process at once."""
    # A shell that starts us in the background ignores Ctrl-C for us; then so do we.
    listening = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listening:
        signal.signal(signal.SIGINT, _leave)
    command_line: Callable[[], NoReturn] = import_module("fragility.cli").main
    if listening:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line()


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    """End without unwinding: a KeyboardInterrupt in the middle of an import would print half of its stack."""
    print("fragility: interrupted; nothing was written", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
