"""The commands that `fragility` lists; those of other modules are loaded when they are called, not to be listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperCommand, TyperGroup

# The panels of `fragility --help`.
START = "Start here"
AUDIT = "Declare, audit, verify"
READ = "Read certificates"
JUDGE = "Judge and correct"
REPRODUCE = "Reproduce the paper"


@dataclass(frozen=True)
class Later:
    """A command in a module that is slow to import: where its Typer application is, and what the list says of it."""

    target: str  # module:attribute, as in an entry point
    help: str

    def load(self) -> Any:
        module, _, attribute = self.target.partition(":")
        return typer.main.get_command(getattr(import_module(module), attribute))


LATER = {
    "study": Later("fragility.cli.study:study", "Reproduce the paper's study: run, status, tables, figures."),
    "bench": Later("fragility.cli.bench:app", "Time full certificates against one prediction pass, on this machine."),
}


class Commands(TyperGroup):
    """The group of all commands, the later ones as placeholders until they are called."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for name, later in LATER.items():
            self.commands.setdefault(name, TyperCommand(name=name, help=later.help, rich_help_panel=REPRODUCE))

    def load_later(self, names: Sequence[str] = tuple(LATER)) -> None:
        for name in names:
            self.commands[name] = LATER[name].load()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.load_later([name for name in args[:1] if name in LATER])
        return super().resolve_command(ctx, args)
