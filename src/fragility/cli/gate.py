"""`fragility gate` and `fragility gate init`: may this model go on, by the rules that were declared for it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.cli.options import argument, option, refuse_without
from fragility.cli.outputs import plan_files, save_result
from fragility.cli.reading import open_rows, read_labels
from fragility.cli.tables import read_stress_labels
from fragility.cli.terminal import EXIT_CLAIM_FAILED, note, out
from fragility.pages.results import checked_suffix


def gate(
    *,
    context: typer.Context,
    directories: Annotated[
        list[Path],
        argument(
            "DIR...",
            "The folder that `fragility audit` wrote; or those of several models that differ only by being trained "
            "again, whose mean is judged.",
        ),
    ],
    rules: Annotated[Path, option("--rules FILE", "The rules (TOML); `fragility gate init` writes some.")],
    against: Annotated[
        list[Path] | None,
        option("--against DIR", "An earlier audit, for rules with an allowance; may be repeated for retrained models."),
    ] = None,
    strict: Annotated[bool, option("--strict", "An inconclusive verdict fails too.")] = False,
    out_files: Annotated[
        list[Path] | None,
        option("--out FILE", "Write the verdicts as .json, .xml (JUnit), .md or .txt; may be repeated."),
    ] = None,
    stress: Annotated[
        list[Path] | None,
        option("--stress FILE", "Held-out labels, as `fragility stress --out` writes them; one for each audit."),
    ] = None,
    stress_against: Annotated[
        list[Path] | None, option("--stress-against FILE", "Held-out labels of each earlier audit.")
    ] = None,
    labels: opt.Labels = None,
    labels_against: Annotated[
        Path | None, option("--labels-against FILE", "True classes of the earlier audit. (default: those of --labels)")
    ] = None,
    data: Annotated[
        str | None,
        option("--data DATA", "The audited rows, for rules by a column: a file, a folder, a pattern or an address."),
    ] = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    csv: opt.CsvOptions,
) -> None:
    """Check an audit by declared rules, alone or against an earlier audit, for use in CI.

    With audits of several models that differ only by being trained again, on either side, the verdict is about the way
    they are trained, and not about two single models.

    A rule passes or fails if the rows at hand show it with the declared confidence, and is inconclusive otherwise.
    Exit code 0: no rule failed. 1: a rule failed, or with --strict is inconclusive. 2: it could not be checked.

    [bold]Examples[/bold]

      fragility gate audit/ --rules gate.toml

      fragility gate audit-new/ --against audit-old/ --rules gate.toml --strict --out gate.xml --out gate.md

      fragility gate audit/ --rules gate.toml --labels test.parquet --target class

      fragility gate new-1/ new-2/ new-3/ --against old-1/ --against old-2/ --against old-3/ --rules gate.toml
    """
    if not against:
        refuse_without("--against", context, "stress_against", "labels_against")
    if labels is None and labels_against is None:
        refuse_without("--labels", context, "target")
        if data is None:
            refuse_without("--data or --labels", context, "id_column")
    from fragility.gate.verdicts import GateResult

    for path in out_files or ():
        checked_suffix(path, GateResult.SUFFIXES)
    form = csv.form(labels, labels_against, data)
    outputs = {f"--out ({path.suffix})": path for path in out_files or ()}
    if len(outputs) < len(out_files or ()):
        raise DataError("--out names two files of the same kind; name each kind once: .json, .xml, .md or .txt")
    held_out = {f"--stress ({path.name})": path for path in stress or ()}
    plan_files(outputs, {"--rules": rules, "--labels": labels, **held_out})
    declared = fg.Gate.load(rules)
    audits = [fg.open_audit(directory) for directory in directories]
    columns = [rule.by for rule in declared.rules if rule.by not in (None, "predicted")]
    found = declared.check(
        audits,
        [fg.open_audit(directory) for directory in against] if against else None,
        rows=None
        if data is None
        else open_rows(data, [by for by in columns if by], audits[0].protocol, id_column, form),
        labels=read_labels(labels, target, id_column, form),
        labels_against=read_labels(labels_against, target, id_column, form),
        stress=[read_stress_labels(path, form) for path in stress] if stress else None,
        stress_against=[read_stress_labels(path, form) for path in stress_against] if stress_against else None,
    )
    out().print(escape(found.to_text()))
    save_result(found, *(out_files or ()))
    if found.outcome == "fail" or (strict and found.outcome == "inconclusive"):
        raise typer.Exit(EXIT_CLAIM_FAILED)


def init(
    directories: Annotated[
        list[Path],
        argument(
            "DIR...",
            "A good audit: the folder that `fragility audit` wrote. Or audits of at least three good models that "
            "differ only by being trained again.",
        ),
    ],
    out_file: Annotated[Path, option("--out FILE", "The rules to write (.toml).")],
    allowance: Annotated[
        float | None,
        option(
            "--allowance SHARE",
            "Compare with an earlier audit, and allow this much more. (default: limits that this audit keeps to)",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    min_confidence: opt.MinConfidence = None,
) -> None:
    """Write the rules of a gate from a good audit, for later audits to be checked by.

    One audit cannot tell how far retrained models differ. Limits from several cover that too.

    [bold]Examples[/bold]

      fragility gate init audit/ --out gate.toml

      fragility gate init seed-1/ seed-2/ seed-3/ seed-4/ seed-5/ --out gate.toml

      fragility gate init audit/ --allowance 0.02 --out gate.toml
    """
    checked_suffix(out_file, (".toml",))
    plan_files({"--out": out_file}, {})
    given = directories[0] if len(directories) == 1 else directories
    derived = fg.Gate.derive(given, allowance=allowance, min_confidence=min_confidence)
    names = ", ".join(directory.name for directory in directories)
    noun = "the audit" if len(directories) == 1 else f"{len(directories)} audits,"
    derived.save(out_file, f"Derived from {noun} {names}; edit as needed.\nSee docs/guide/in-ci.md.")
    note(f"{len(derived.rules)} rules written to {out_file}; next: fragility gate {directories[0]} --rules {out_file}")
