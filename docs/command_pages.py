"""The part of the guide's page on the command line that the commands' own help makes.

`conf.py` puts `describe_commands()` in the place of the line MARKER of docs/guide/command-line.md.
"""

import re
from collections import Counter

import typer.main

from fragility.cli import app
from fragility.cli.group import describe_parameter

MARKER = "<!-- the commands: written by docs/command_pages.py from their help when the site is built -->"
SHARED_BY = 5  # an option that this many commands take in the same words is described once, in a table of its own
OPTION = re.compile(r"(?<![\w`-])(--?[a-z][a-z-]*)(?![\w`])")


def list_commands(command=None, path=()):
    """Yield (words, command) for every command that does something, in the order of `fragility --help`."""
    if command is None:
        command = typer.main.get_command(app)
        command.load_extensions()
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for word in command.list_commands(None):
        yield from list_commands(command.get_command(None, word), (*path, word))


def describe_commands() -> str:
    """Return Markdown: the options that many commands share, then a section for each command."""
    commands = dict(list_commands())
    counts = Counter(row for command in commands.values() for row in _option_rows(command))
    shared = [row for row, count in counts.items() if count >= SHARED_BY and not row[1].endswith("Required.")]
    sections = ["## Options of many commands", _write_table(shared)]
    for words, command in commands.items():
        rows = _option_rows(command)
        sections += [_write_heading(words, command), _write_help(command.help or "")]
        sections.append(_write_table([*_argument_rows(command), *(row for row in rows if row not in shared)]))
        if names := [row[0] for row in rows if row in shared]:
            sections.append(f"Also [as for many commands](#options-of-many-commands): {', '.join(names)}.")
    return "\n\n".join(section for section in sections if section) + "\n"


def _write_heading(words, command) -> str:
    arguments = [param.metavar or param.name.upper() for param in command.params if param.param_type_name == "argument"]
    return f"## {' '.join((*words, *arguments))}"


def _write_help(text: str) -> str:
    """Return the paragraphs of a command's help, its examples as a block of code."""
    paragraphs, examples = [], []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        plain = re.sub(r"\[/?dim\]|^Example: ", "", paragraph.strip())
        if plain.startswith("fragility "):
            examples.append(" ".join(plain.split()))
        elif plain not in ("[bold]Examples[/bold]", "[bold]Example[/bold]"):
            paragraphs.append(_write_words(plain))
    if examples:
        paragraphs.append("```text\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(paragraphs)


def _argument_rows(command) -> list[tuple[str, str]]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    return [(f"`{param.metavar or param.name.upper()}`", _write_words(param.help or "")) for param in arguments]


def _option_rows(command) -> list[tuple[str, str]]:
    rows = []
    for param in command.params:
        if param.param_type_name == "option" and not {"--help", "--help-all"} & set(param.opts):
            names, told = describe_parameter(param)
            rows.append((", ".join(f"`{name}`" for name in names.split(", ")), _write_words(told)))
    return rows


def _write_table(rows) -> str:
    return "\n".join(["| | |", "|---|---|", *(_write_line(*row) for row in rows)]) if rows else ""


def _write_line(name: str, words: str) -> str:
    cells = (cell.replace("|", "\\|") for cell in (name, words))
    return f"| {' | '.join(cells)} |"


def _write_words(text: str) -> str:
    """Return a text of the help as Markdown: no markup of the terminal, and options as code."""
    plain = " ".join(re.sub(r"\[/?(?:bold|dim)\]", "", text).replace("\\[", "[").split())
    return "".join(
        part if part.startswith("`") else OPTION.sub(r"`\1`", re.sub(r"([*_<])", r"\\\1", part))
        for part in re.split(r"(`[^`]*`)", plain)
    )
