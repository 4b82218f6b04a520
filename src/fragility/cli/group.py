"""The commands that `fragility` lists: the product's own, then those of other installed packages.

Other packages add commands as entry points of the group ``fragility.commands``: the entry point is named like
the command, and its object is a ``typer.Typer``. It is imported when called, not to be listed, so that it costs the
other commands nothing and a broken one breaks nothing but itself.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from fragility.base.errors import FragilityError, name_error

ELSEWHERE = "From other packages"  # the last panel of `fragility --help`

EXTENSIONS = "fragility.commands"

# Commands of the paper's study, whose package stands beside this one: what the list says of them.
STUDY = {
    "study": "Reproduce the paper's study: run, status, tables, figures.",
    "bench": "Time full certificates against one prediction pass, on this machine.",
}


class ExtensionError(FragilityError):
    """A command of another package is not installed or cannot be loaded."""


class Commands(TyperGroup):
    """The group of all commands; an extension cannot replace one of the product."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in _find_extensions() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        found = _find_extensions().get(cmd_name)
        return own if own is not None or found is None else _describe_unloaded(found)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        two_words = " ".join(args[:2])
        if two_words in self.commands:  # `review export`, beside `review DIR`
            return two_words, self.commands[two_words], args[2:]
        for name in args[:1]:
            self.load_extension(name)
        return super().resolve_command(ctx, args)

    def load_extension(self, name: str) -> None:
        """Put an extension's command in its place; nothing happens for the product's own and unknown names."""
        if name in self.commands:
            return
        found = _find_extensions().get(name)
        if found is not None:
            self.commands[name] = _load_command(found)
        elif name in STUDY:
            raise ExtensionError(
                f"`fragility {name}` belongs to the paper's study, a package of its own that is not installed; "
                "in a checkout of fragility, run `pip install ./paper`"
            )

    def load_extensions(self) -> None:
        """Load every extension, for whoever lists options."""
        for name in _find_extensions():
            self.load_extension(name)


def _find_extensions() -> dict[str, EntryPoint]:
    return {found.name: found for found in sorted(entry_points(group=EXTENSIONS), key=lambda found: found.name)}


def _describe_unloaded(found: EntryPoint) -> TyperCommand:
    """What the list shows of a command that is not loaded yet."""
    source = f"From the package {found.dist.name}." if found.dist else "From another package."
    return TyperCommand(name=found.name, help=STUDY.get(found.name, source), rich_help_panel=ELSEWHERE)


def _load_command(found: EntryPoint) -> Any:
    try:
        app = found.load()
        if not isinstance(app, typer.Typer):
            raise TypeError(f"{found.value} is a {type(app).__name__}, expected a typer.Typer")
        command = typer.main.get_command(app)
        command.name = found.name
        return command
    except Exception as error:  # whatever an import may raise
        source = f"{found.dist.name} {found.dist.version}" if found.dist else "another package"
        raise ExtensionError(
            f"`fragility {found.name}` comes from {source}, which cannot be loaded "
            f"({name_error(error)}); reinstall or remove that package"
        ) from error
