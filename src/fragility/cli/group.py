"""The commands that `fragility` lists: its own, then those of other installed packages; and their help.

Other packages add commands as entry points of the group ``fragility.commands``: the entry point has the name of the
command, and its object is a ``typer.Typer``. It is imported when it is called, not when it is listed, so that it does
not slow down other commands and a broken one affects only itself.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
import typer.main
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from fragility.base.errors import FragilityError, name_error
from fragility.cli.options import ALL_HELP

ELSEWHERE = "From other packages"  # the last panel of `fragility --help`

EXTENSIONS = "fragility.commands"

# Help texts for the commands of the paper's study, a separate package.
STUDY = {
    "study": "Reproduce the paper's study: run, status, tables, figures.",
    "bench": "Time certificates against one prediction pass, on this machine.",
}


class ExtensionError(FragilityError):
    """A command of another package is not installed or cannot be loaded."""


class Command(TyperCommand):
    """A command whose `--help` shows the options that most people need; `--help-all` shows all options, by panel."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        console = Console(highlight=False, emoji=False)
        with console.capture() as captured:
            arguments = [str(param.metavar) for param in self.params if param.param_type_name == "argument"]
            console.print(f"[bold]Usage:[/bold] {escape(' '.join([ctx.command_path, *arguments, '[OPTIONS]']))}\n")
            for paragraph in self._list_paragraphs():
                indented = paragraph.startswith("fragility ")
                heading = paragraph.startswith("[bold]")
                console.print(
                    Padding(paragraph, (0, 0, 0, 2)) if indented else paragraph if heading else f"{paragraph}\n"
                )
            console.print()
            for title, rows in self._list_panels(ctx).items():
                grid = Table.grid(padding=(0, 2), expand=True)
                grid.add_column(no_wrap=True)
                grid.add_column(ratio=1)
                for name, help_text in rows:
                    grid.add_row(f"[bold cyan]{escape(name)}[/bold cyan]", help_text)
                console.print(Panel(grid, title=title, title_align="left", border_style="dim"))
            for line in [*self._list_related(ctx), *self._mention_others(ctx)]:
                console.print(line)
        formatter.write(captured.get())

    def _list_paragraphs(self) -> list[str]:
        """Return the paragraphs of the help, each on one line; every example is a paragraph."""
        return [" ".join(paragraph.split()) for paragraph in (self.help or "").split("\n\n")]

    def _list_panels(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return the arguments and options to show by panel, with their help."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                panels["Arguments"].append(describe_parameter(param))
                continue
            panel = getattr(param, "rich_help_panel", None)
            if panel is None or ctx.meta.get(ALL_HELP):
                panels.setdefault(panel or "Options", []).append(describe_parameter(param))
        return {title: rows for title, rows in panels.items() if rows}

    def _mention_others(self, ctx: Any) -> list[str]:
        others = sum(getattr(param, "rich_help_panel", None) is not None for param in self.params)
        if not others or ctx.meta.get(ALL_HELP):
            return []
        return [f"{others} more options: [bold]{ctx.command_path} --help-all[/bold]"]

    def _list_related(self, ctx: Any) -> list[str]:
        """Return a line for each command of two words that begins with this one's name."""
        siblings = getattr(getattr(ctx.parent, "command", None), "commands", {})
        return [
            f"[bold]fragility {name}[/bold]: {(command.help or '').splitlines()[0]}"
            for name, command in siblings.items()
            if name.startswith(f"{self.name} ")
        ]


def describe_parameter(param: Any) -> tuple[str, str]:
    """Return an argument or option as it is typed, and its help with the default."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper()), param.help or ""
    value = "" if param.is_flag else f" {param.metavar or 'N'}"
    words = [param.help or ""]
    if param.required:
        words.append("Required.")
    elif "(default" not in words[0] and not isinstance(param.default, bool | tuple | list | None):
        words.append(f"(default {param.default})")
    return ", ".join([*param.opts, *param.secondary_opts]) + value, " ".join(words)


class Commands(TyperGroup):
    """The group of all commands; an extension cannot replace a command of fragility."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return [*names, *(name for name in _find_extensions() if name not in names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        entry = _find_extensions().get(cmd_name)
        return command if command is not None or entry is None else _describe_unloaded(entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        two_words = " ".join(args[:2])
        if two_words in self.commands:  # `review export`, beside `review DIR`
            return two_words, self.commands[two_words], args[2:]
        for name in args[:1]:
            self.load_extension(name)
        return super().resolve_command(ctx, args)

    def load_extension(self, name: str) -> None:
        """Import an extension's command; do nothing for fragility's own and unknown names."""
        if name in self.commands:
            return
        entry = _find_extensions().get(name)
        if entry is not None:
            self.commands[name] = _load_command(entry)
        elif name in STUDY:
            raise ExtensionError(
                f"`fragility {name}` belongs to the paper's study, a separate package that is not installed; "
                "in a checkout of fragility, run `pip install ./paper`"
            )

    def load_extensions(self) -> None:
        """Load every extension, to list its options."""
        for name in _find_extensions():
            self.load_extension(name)


def _find_extensions() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=EXTENSIONS), key=lambda entry: entry.name)}


def _describe_unloaded(entry: EntryPoint) -> TyperCommand:
    """Return a placeholder for the list, for a command that is not loaded yet."""
    source = f"From the package {entry.dist.name}." if entry.dist else "From another package."
    return TyperCommand(name=entry.name, help=STUDY.get(entry.name, source), rich_help_panel=ELSEWHERE)


def _load_command(entry: EntryPoint) -> Any:
    try:
        app = entry.load()
        if not isinstance(app, typer.Typer):
            raise TypeError(f"{entry.value} is a {type(app).__name__}, expected a typer.Typer")
        command = typer.main.get_command(app)
        command.name = entry.name
        return command
    except Exception as error:  # an import may raise anything
        source = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "another package"
        raise ExtensionError(
            f"`fragility {entry.name}` comes from {source}, which cannot be loaded "
            f"({name_error(error)}); reinstall or remove that package"
        ) from error
