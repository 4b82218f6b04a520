"""Commands that other installed packages add to `fragility`: entry points of the group ``fragility.commands``.

An entry point's name is the command, its object a ``typer.Typer``. It is imported only when its command is asked for
or listed, so that an extension costs the other commands nothing, and a broken one breaks nothing but itself.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from fragility.cli.terminal import note
from fragility.errors import FragilityError

GROUP = "fragility.commands"

# Commands of this repository that are not part of the product, and the folder of the package that has them.
ELSEWHERE = {"study": "paper", "bench": "paper"}


class ExtensionError(FragilityError):
    """A command of another package is not installed or cannot be loaded."""


class ExtensibleGroup(TyperGroup):
    """The product's commands, then those of installed extensions; an extension cannot replace a command."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in _extension_names() if name not in own and _works(name))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or extension_command(cmd_name)


def extension_command(name: str) -> Any:
    """The command of that name, or None where no extension has one."""
    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is not None:
        return _loaded(found)
    if name in ELSEWHERE:
        raise ExtensionError(
            f"`fragility {name}` belongs to the paper's study, a package of its own that is not installed; "
            f"in a checkout of fragility, run `pip install ./{ELSEWHERE[name]}`"
        )
    return None


def _loaded(found: EntryPoint) -> Any:
    try:
        app = found.load()
        if not isinstance(app, typer.Typer):
            raise TypeError(f"{found.value} is a {type(app).__name__}, expected a typer.Typer")
        command = typer.main.get_command(app)
        command.name = found.name  # what the list of commands shows
        return command
    except Exception as error:  # whatever an import may raise
        source = f"{found.dist.name} {found.dist.version}" if found.dist else "another package"
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise ExtensionError(
            f"`fragility {found.name}` comes from {source}, which cannot be loaded "
            f"({type(error).__name__}: {first_line}); reinstall or remove that package"
        ) from error


def _extension_names() -> list[str]:
    return sorted({found.name for found in entry_points(group=GROUP)})


def _works(name: str) -> bool:
    """Whether a command can be listed; says why where it cannot."""
    try:
        extension_command(name)
    except ExtensionError as error:
        note(str(error))
        return False
    return True
